package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/agent/result"
)

// stale is a client whose reads are now and then as old as their last answer, each
// kind for itself, as those of a cache may be; and somebody else writes to the
// config and the builds now and then, so that versions collide.
type stale struct {
	client.Client
	*rand.Rand
	seen map[string]answer
	name string
}

type answer struct {
	object runtime.Object
	err    error
}

func (s *stale) read(key string, into runtime.Object, read func() error) error {
	if old, ok := s.seen[key]; ok && s.IntN(2) == 0 {
		if old.err == nil {
			reflect.ValueOf(into).Elem().Set(reflect.ValueOf(old.object.DeepCopyObject()).Elem())
		}
		return old.err
	}
	err := read()
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.seen[key] = answer{into.DeepCopyObject(), err}
	return err
}

func (s *stale) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return s.read(fmt.Sprintf("%T %v", o, key), o, func() error { return s.Client.Get(ctx, key, o, opts...) })
}

func (s *stale) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return s.read(fmt.Sprintf("%T %v", list, list.GetObjectKind().GroupVersionKind()), list, func() error { return s.Client.List(ctx, list, opts...) })
}

// meddle changes an annotation that means nothing.
func (s *stale) meddle(ctx context.Context) {
	if s.IntN(3) != 0 {
		return
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"example.com/meddled": fmt.Sprint(s.Int())}}}) // of strings
	o := &mcfgv1.MachineOSConfig{}
	o.Name = s.name
	_ = s.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)) // it may be gone
}

// oldPods is a client whose pods are those of one moment.
type oldPods struct {
	client.Client
	pods corev1.PodList
}

func (o *oldPods) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if pods, ok := list.(*corev1.PodList); ok {
		o.pods.DeepCopyInto(pods)
		return nil
	}
	return o.Client.List(ctx, list, opts...)
}

// TestTheEndIsReadOfPodsAsTheyAre: a Job that is seen to have ended before its pod is
// seen to have is told by what the pod left, since a build's end is written once.
func TestTheEndIsReadOfPodsAsTheyAre(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reason    result.Reason
		condition mcfgv1.BuildProgress
		job       string
	}{
		{result.ReasonSucceeded, mcfgv1.MachineOSBuildSucceeded, "Complete"},
		{result.ReasonStepFailed, mcfgv1.MachineOSBuildFailed, "Failed"},
	} {
		t.Run(string(tt.reason), func(t *testing.T) {
			t.Parallel()
			w := driven(t)
			_, pod := w.building()
			cached := &oldPods{Client: w.drive.Client, pods: corev1.PodList{Items: w.pods()}}
			healthy := w.drive
			w.drive = nil // it is away while the build ends
			w.end(pod, resultOf(tt.reason))
			w.until("the Job has ended", func() bool { return meta.IsStatusConditionTrue(jobConditions(&w.jobs()[0]), tt.job) })
			w.drive = healthy
			w.drive.Client = cached
			w.until("the build has ended", func() bool { return condition(w.build(), mcfgv1.MachineOSBuilding).Reason != "Building" })
			if c := condition(w.build(), tt.condition); c.Status != metav1.ConditionTrue || c.Reason != string(tt.reason) {
				t.Errorf("it is not %s for %s:\n%s", tt.condition, tt.reason, w.dump())
			}
		})
	}
}

// noJobs is a client that is yet to see any Job.
type noJobs struct{ client.Client }

func (n noJobs) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*batchv1.JobList); ok {
		return nil
	}
	return n.Client.List(ctx, list, opts...)
}

// TestAJobThatIsFoundInItsPlaceAndHasEnded: nothing is said of its end before its pods
// were looked at.
func TestAJobThatIsFoundInItsPlaceAndHasEnded(t *testing.T) {
	t.Parallel()
	w := driven(t)
	_, pod := w.building()
	healthy, seeing := w.drive, w.drive.Client
	w.drive = nil // it is away while the build ends
	w.end(pod, resultOf(result.ReasonStepFailed))
	w.until("the Job has failed", func() bool { return meta.IsStatusConditionTrue(jobConditions(&w.jobs()[0]), "Failed") })
	w.drive = healthy
	w.drive.Client = noJobs{seeing}
	w.settle()
	if is(w.build(), mcfgv1.MachineOSBuildFailed) {
		t.Errorf("the end is told without its pods: %s", condition(w.build(), mcfgv1.MachineOSBuildFailed).Message)
	}
	w.drive.Client = seeing
	w.until("the build is Failed", func() bool { return is(w.build(), mcfgv1.MachineOSBuildFailed) })
	if c := condition(w.build(), mcfgv1.MachineOSBuildFailed); c.Reason != string(result.ReasonStepFailed) {
		t.Errorf("it failed for %s: %s", c.Reason, c.Message)
	}
}

// TestStaleCachesAndConflicts plays every flow with a cache that is behind and with
// versions that collide. Late and repeated events are the same to a reconciler that
// is called again and again.
func TestStaleCachesAndConflicts(t *testing.T) {
	t.Parallel()
	for _, f := range flows() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				w := newWorld(t)
				w.drive = newReconciler(t, server.Config)
				f.before(w)
				if all := w.builds(); len(all) == 1 {
					w.old = all[0].UID
				}
				f.act(w)
				counted, config := process(t, fault{})
				w.drive = newReconciler(t, config)
				meddler := &stale{Client: w.drive.Client, Rand: rand.New(rand.NewPCG(seed, 1)), seen: map[string]answer{}, name: w.name}
				w.drive.Client = meddler
				w.until(f.name+" ends", func() bool {
					meddler.meddle(w.ctx())
					w.clearedOnlyWhenItRuns()
					return f.done(w)
				})
				for range 10 {
					// A conflict is no error, and what is stale may say anything else.
					_, _ = w.drive.Reconcile(w.ctx(), ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
				}
				w.drive.Client = meddler.Client
				w.settle()
				if !f.done(w) {
					t.Errorf("seed %d: it had ended and does no more:\n%s", seed, w.dump())
				}
				if n := counted.created["machineosbuilds"]; n != f.builds {
					t.Errorf("seed %d: %d builds were made, want %d", seed, n, f.builds)
				}
				if n := counted.created["jobs"]; n != f.jobs {
					t.Errorf("seed %d: %d Jobs were made, want %d", seed, n, f.jobs)
				}
				w.consistent()
				if f.check != nil {
					f.check(w)
				}
				if t.Failed() {
					t.Fatal(w.dump())
				}
				w.leave()
			}
		})
	}
}
