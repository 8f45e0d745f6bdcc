package cluster

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	runtimeclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// These take away something that everybody on the cluster needs, so they are not
// run in parallel.

// component stops or starts a component of the node.
func component(t *testing.T, command, name string) {
	t.Helper()
	if out, err := exec.Command("./cluster", command, name).CombinedOutput(); err != nil {
		t.Fatalf("cluster %s %s: %v\n%s", command, name, err, out)
	}
}

// TestPodIsTakenAway evicts the pod of a build in the middle of a step. The next
// one does not run again what is in the cache.
func TestPodIsTakenAway(t *testing.T) {
	for _, tt := range []struct {
		name  string
		evict func(*testing.T, *corev1.Pod)
	}{
		{"by the API", func(t *testing.T, pod *corev1.Pod) {
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
			if err := client.PolicyV1().Evictions(pod.Namespace).Evict(t.Context(), eviction); err != nil {
				t.Fatal(err)
			}
		}},
		{"by a drain", func(t *testing.T, pod *corev1.Pod) {
			kubectl(t, "drain", "node1", "--force", "--delete-emptydir-data", "--pod-selector="+batchv1.JobNameLabel+"="+pod.Labels[batchv1.JobNameLabel], "--timeout="+patience.String())
			kubectl(t, "uncordon", "node1")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cache := host + "/cache/" + strings.ReplaceAll(strings.ToLower(tt.name), " ", "-")
			p := newPool(t, []string{"FROM configs AS final", "RUN echo the first step runs", "RUN GATE"}, buildPod("{agent: {cache-to: '"+cache+"', cache-from: '"+cache+"'}}"))
			arrived(t, p.name, 1)
			first := p.pod()
			tt.evict(t, first)
			arrived(t, p.name, 2)
			var second *corev1.Pod
			for _, pod := range p.pods() {
				if pod.UID != first.UID {
					second = &pod
				}
			}
			if strings.Contains(p.log(second), "\nthe first step runs\n") {
				t.Error("the first step ran again")
			}
			if job := p.jobs()[0]; job.Status.Failed != 0 {
				t.Errorf("the Job counts %d failed pods", job.Status.Failed)
			}
			openGate(t, p.name)
			p.succeeded()
		})
	}
}

// TestPodLostAfterThePush loses the one pod that knows of the image, before the
// controller has read it.
func TestPodLostAfterThePush(t *testing.T) {
	p := newPool(t, []string{"FROM configs AS final", "RUN GATE"})
	arrived(t, p.name, 1)
	scale := func(replicas string) {
		kubectl(t, "scale", "deployment/strata-controller", "--namespace="+operatorNamespace, "--replicas="+replicas)
	}
	scale("0")
	t.Cleanup(func() { scale("2") })
	await(t, "the controller is gone", func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods(operatorNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=strata-controller"})
		return err == nil && len(pods.Items) == 0, err
	})
	openGate(t, p.name)
	await(t, "the Job completes", func(context.Context) (bool, error) {
		jobs := p.jobs()
		return len(jobs) == 1 && jobs[0].Status.CompletionTime != nil, nil
	})
	lost := p.pod()
	digest := p.result(lost).Digest
	p.must(admin.Delete(t.Context(), lost))
	await(t, "the pod is gone", func(context.Context) (bool, error) { return len(p.pods()) == 0, nil })
	scale("2")
	if b := p.succeeded(); !strings.HasSuffix(string(b.Status.DigestedImagePushSpec), "@"+digest) {
		t.Errorf("the image is %s, the lost pod had pushed %s", b.Status.DigestedImagePushSpec, digest)
	}
	if n := arrivals(t, p.name); n != 1 {
		t.Errorf("the step ran %d times", n)
	}
}

// TestNodeIsRestarted stops what runs pods, in the middle of a step. The step goes
// on while it is down, or after.
func TestNodeIsRestarted(t *testing.T) {
	for _, name := range []string{"kubelet", "containerd", "kube-apiserver"} {
		for _, down := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, the build ends while it is down: %t", name, down), func(t *testing.T) {
				p := newPool(t, []string{"FROM configs AS final", "RUN GATE"})
				arrived(t, p.name, 1)
				before := p.pod()
				build := p.until("the build is at work", func(b *mcfgv1.MachineOSBuild) bool { return isTrue(b, mcfgv1.MachineOSBuilding) })
				component(t, "stop", name)
				if down {
					openGate(t, p.name)
					await(t, "the image is pushed", func(context.Context) (bool, error) { return p.pushed(build), nil })
				}
				component(t, "start", name)
				if !down {
					openGate(t, p.name)
				}
				if b := p.succeeded(); !strings.Contains(meta.FindStatusCondition(b.Status.Conditions, string(mcfgv1.MachineOSBuildSucceeded)).Message, before.Name) {
					t.Errorf("another pod than %s has built: %+v", before.Name, b.Status.Conditions)
				}
				if n := arrivals(t, p.name); n != 1 {
					t.Errorf("the step ran %d times", n)
				}
			})
		}
	}
}

// TestControllerKilledDuringARebuild holds a rebuild in its middle and kills the
// controller there.
func TestControllerKilledDuringARebuild(t *testing.T) {
	p := newPool(t, []string{"FROM configs AS final", "RUN GATE && false"}, buildPod("{agent: {retry-delay: 100ms}}"))
	arrived(t, p.name, 1)
	held := p.pod()
	finalizers := func(change func([]string) []string) {
		p.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			var pod corev1.Pod
			if err := admin.Get(context.Background(), runtimeclient.ObjectKeyFromObject(held), &pod); err != nil {
				return runtimeclient.IgnoreNotFound(err)
			}
			pod.Finalizers = change(pod.Finalizers)
			return admin.Update(context.Background(), &pod)
		}))
	}
	release := func() {
		finalizers(func(all []string) []string {
			return slices.DeleteFunc(all, func(f string) bool { return f == holdFinalizer })
		})
	}
	finalizers(func(all []string) []string { return append(all, holdFinalizer) })
	t.Cleanup(release)
	openGate(t, p.name)
	old, _ := p.failed()

	p.forceRebuild()
	await(t, "the rebuild is held", func(context.Context) (bool, error) {
		c := meta.FindStatusCondition(p.config().Status.Conditions, "ImageReady")
		return c.Reason == "Rebuilding" && strings.Contains(c.Message, holdFinalizer), nil
	})
	kubectl(t, "delete", "pods", "--selector=app=strata-controller", "--namespace="+operatorNamespace, "--force", "--grace-period=0")
	release()
	p.rebuilt(old.UID)
	again, c := p.failed()
	if again.UID == old.UID || c.Reason != "StepFailed" {
		t.Errorf("the new build is %s, %s", again.UID, c.Reason)
	}
	var maps corev1.ConfigMapList
	p.list(&maps)
	for _, m := range maps.Items {
		if m.Labels["strata.build/build-uid"] != string(again.UID) {
			t.Errorf("ConfigMap %s is of the old build", m.Name)
		}
	}
	if jobs := p.jobs(); len(jobs) != 1 || len(p.pods()) != 1 {
		t.Errorf("%d Jobs and %d pods, want one of each", len(jobs), len(p.pods()))
	}
}

// TestImageOfTheAgentCannotBePulled gives the controller a wrong image, and the
// right one again.
func TestImageOfTheAgentCannotBePulled(t *testing.T) {
	if err := operated(); err != nil {
		t.Fatal(err)
	}
	use := func(agent string) {
		t.Helper()
		manifests, err := exec.Command("../../bin/controller", "manifests", "--image", image).Output()
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(string(manifests), "--agent-image="+image, "--agent-image="+agent, 1)
		if err := runKubectl([]byte(text), "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		kubectl(t, "rollout", "status", "deployment/strata-controller", "--namespace="+operatorNamespace, "--timeout="+patience.String())
	}
	wrong := host + "/no/such:agent"
	t.Cleanup(func() { use(image) })
	use(wrong)
	p := newPool(t, []string{"FROM configs AS final", "RUN true"})
	message := p.waits("ImagePullFailed")
	if !strings.Contains(message, wrong) {
		t.Errorf("%q does not name the image", message)
	}
	var builds mcfgv1.MachineOSBuildList
	p.list(&builds)
	use(image)
	p.forceRebuild()
	p.rebuilt(builds.Items[0].UID)
	p.succeeded()
}
