package controller

import (
	"strings"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/strata-build/strata/agent/result"
	"k8s.io/utils/ptr"
)

func driven(t *testing.T, changes ...func(*mcfgv1.MachineOSConfig)) *world {
	w := newWorld(t, changes...)
	w.drive = newReconciler(t, server.Config)
	return w
}

func TestFirstBuildSucceeds(t *testing.T) {
	t.Parallel()
	w := driven(t)
	b := w.succeeded()
	if want := "registry.example:5000/os/layered@" + digest; string(b.Status.DigestedImagePushSpec) != want {
		t.Errorf("digestedImagePushSpec %q, want %q", b.Status.DigestedImagePushSpec, want)
	}
	w.until("the config knows the image", func() bool { return w.config().Status.CurrentImagePullSpec == b.Status.DigestedImagePushSpec })
	config := w.config()
	if config.Status.ObservedGeneration != config.Generation {
		t.Errorf("observedGeneration %d, want %d", config.Status.ObservedGeneration, config.Generation)
	}
	if !b.Status.BuildEnd.After(b.Status.BuildStart.Time) {
		t.Errorf("the build ended at %v and started at %v", b.Status.BuildEnd, b.Status.BuildStart)
	}
}

func TestFailureIsToldAndKept(t *testing.T) {
	t.Parallel()
	w := driven(t)
	_, pod := w.building()
	w.end(pod, resultOf(result.ReasonPushUnauthorized, func(r *result.Result) {
		r.Phase, r.Message = result.Push, "registry.example:5000 refused the push credentials (401)"
		r.Attempts = []result.Attempt{{Phase: result.Push, N: 3, Of: 3, Class: result.ClassAuth}}
	}))
	w.until("the build is Failed", func() bool { return is(w.build(), mcfgv1.MachineOSBuildFailed) })
	b := w.build()
	c := condition(b, mcfgv1.MachineOSBuildFailed)
	if c.Reason != "PushUnauthorized" {
		t.Errorf("reason %s", c.Reason)
	}
	for _, text := range []string{"phase Push", "3 attempts", pod.Name, "refused the push credentials (401)"} {
		if !strings.Contains(c.Message, text) {
			t.Errorf("%q does not say %q", c.Message, text)
		}
	}
	if len(w.jobs()) != 1 || len(w.pods()) != 1 || len(w.configMaps()) != 3 {
		t.Errorf("%d Jobs, %d pods, %d ConfigMaps are kept, want 1, 1, 3", len(w.jobs()), len(w.pods()), len(w.configMaps()))
	}
}

func TestForcedRebuildAfterFailure(t *testing.T) {
	t.Parallel()
	w := driven(t)
	old := w.failed()
	w.annotate(force, ptr.To(""))
	w.until("a new build runs", func() bool {
		all := w.builds()
		return len(all) == 1 && all[0].UID != old.UID && len(w.jobs()) == 1
	})
	w.until("the annotation is cleared", func() bool {
		_, there := w.config().Annotations[force]
		return !there
	})
	if b := w.succeeded(); b.UID == old.UID {
		t.Error("the old build succeeded")
	}
}
