package controller

import (
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/strata-build/strata/agent/result"
)

// TestOneConditionIsTrueAtATime: the Machine Config Operator asks for Prepared first when
// it shows in a pool how far its build is, and keeps a pool whose build is Prepared from
// becoming Updated. A build that goes from state to state leaves nothing True behind.
func TestOneConditionIsTrueAtATime(t *testing.T) {
	all := []mcfgv1.BuildProgress{mcfgv1.MachineOSBuildPrepared, mcfgv1.MachineOSBuilding, mcfgv1.MachineOSBuildSucceeded, mcfgv1.MachineOSBuildFailed, mcfgv1.MachineOSBuildInterrupted}
	done := &result.Result{Digest: "sha256:" + strings.Repeat("0", 64)}
	for _, tt := range []struct {
		state  state
		true   mcfgv1.BuildProgress // none for ""
		tells  mcfgv1.BuildProgress
		reason string
		job    *batchv1.Job
	}{
		{preparing, "", mcfgv1.MachineOSBuildPrepared, reasonSecretMissing, nil},
		{pending, mcfgv1.MachineOSBuildPrepared, mcfgv1.MachineOSBuilding, reasonPodPending, testJob()},
		{building, mcfgv1.MachineOSBuilding, mcfgv1.MachineOSBuilding, reasonBuilding, testJob()},
		{succeeded, mcfgv1.MachineOSBuildSucceeded, mcfgv1.MachineOSBuildSucceeded, "Succeeded", testJob()},
		{failed, mcfgv1.MachineOSBuildFailed, mcfgv1.MachineOSBuildFailed, "StepFailed", testJob()},
		{interrupted, mcfgv1.MachineOSBuildInterrupted, mcfgv1.MachineOSBuildInterrupted, reasonSuperseded, testJob()},
		{interrupted, mcfgv1.MachineOSBuildInterrupted, mcfgv1.MachineOSBuildInterrupted, reasonSuperseded, nil},
	} {
		for _, from := range []state{preparing, pending, building} { // and back from building to pending
			b := newBuild(testConfig(), now1, "rendered-worker-1", nil)
			b.Status = buildStatus(b, verdict{state: from, reason: "Before"}, testJob(), nil, "ns", testTime)
			b.Status = buildStatus(b, verdict{state: tt.state, reason: tt.reason, message: "Why.", result: done}, tt.job, nil, "ns", testTime)
			for _, name := range all {
				c := apimeta.FindStatusCondition(b.Status.Conditions, string(name))
				if c == nil || (c.Status == metav1.ConditionTrue) != (name == tt.true) {
					t.Errorf("from %d to %d: %s is %+v", from, tt.state, name, c)
				}
			}
			if c := telling(b); c.Type != string(tt.tells) || c.Reason != tt.reason || c.Message != "Why." {
				t.Errorf("from %d to %d: what tells is %+v", from, tt.state, c)
			}
		}
	}
}

// TestBuildNamesItsPushSecret: the Machine Config Operator's builder, when it takes over
// again, deletes no build that does not.
func TestBuildNamesItsPushSecret(t *testing.T) {
	config := testConfig()
	config.Spec.RenderedImagePushSecret.Name = "robot"
	if got := newBuild(config, now1, "rendered-worker-1", nil).Annotations["machineconfiguration.openshift.io/rendered-image-push-secret"]; got != "robot" {
		t.Errorf("the annotation is %q", got)
	}
}
