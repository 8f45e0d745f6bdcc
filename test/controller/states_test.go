package controller

import (
	"strings"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/agent/result"
)

// rebuilt waits for a new build that runs and a request that is cleared.
func (w *world) rebuilt(old *mcfgv1.MachineOSBuild) *mcfgv1.MachineOSBuild {
	w.Helper()
	w.until("a new build runs and the request is cleared", func() bool {
		b := w.only()
		return b != nil && b.UID != old.UID && is(b, mcfgv1.MachineOSBuildPrepared) && len(w.jobs()) == 1 && !w.requested() && w.named(b)
	})
	w.consistent()
	return w.only()
}

func TestForcedRebuildFromEveryState(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*world) *mcfgv1.MachineOSBuild{
		"failed":    (*world).failed,
		"succeeded": (*world).succeeded,
		"running":   func(w *world) *mcfgv1.MachineOSBuild { b, _ := w.building(); return b },
		"pending": func(w *world) *mcfgv1.MachineOSBuild {
			w.until("a Job", func() bool { return len(w.jobs()) == 1 })
			return w.build()
		},
		"evicted": func(w *world) *mcfgv1.MachineOSBuild {
			b, pod := w.building()
			pod.Status.Phase, pod.Status.Reason, pod.Status.Message, pod.Status.ContainerStatuses = corev1.PodFailed, "Evicted", "The node was low on resource: memory.", nil
			w.must(admin.Status().Update(w.ctx(), pod))
			return b
		},
		"its Job deleted": func(w *world) *mcfgv1.MachineOSBuild {
			b, _ := w.building()
			w.must(admin.Delete(w.ctx(), &w.jobs()[0], client.PropagationPolicy(metav1.DeletePropagationBackground)))
			return b
		},
		"its ConfigMaps deleted": func(w *world) *mcfgv1.MachineOSBuild {
			b := w.failed()
			for _, m := range w.configMaps() {
				w.must(admin.Delete(w.ctx(), &m))
			}
			return b
		},
		"pool has other inputs meanwhile": func(w *world) *mcfgv1.MachineOSBuild {
			b := w.failed()
			w.render(2)
			return b
		},
		"spec corrected meanwhile": func(w *world) *mcfgv1.MachineOSBuild {
			b := w.failed()
			config := w.config()
			config.Spec.Containerfile[0].Content = "FROM configs AS final\nRUN corrected\n"
			w.must(admin.Update(w.ctx(), config))
			return b
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := driven(t)
			old := before(w)
			w.annotate(force, ptr.To("please"))
			b := w.rebuilt(old)
			if b.Labels[group+"rendered-machine-config"] != w.pool().Spec.Configuration.Name {
				t.Errorf("the build is of %s, and the pool has %s", b.Labels[group+"rendered-machine-config"], w.pool().Spec.Configuration.Name)
			}
		})
	}
}

func TestForcedRebuildBeforeAnythingIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *mcfgv1.MachineOSConfig) {
		c.Annotations = map[string]string{force: ""}
		c.Labels = map[string]string{group + "rebuildImage": ""}
	})
	counted, config := process(t, fault{})
	w.drive = newReconciler(t, config)
	w.rebuilt(&mcfgv1.MachineOSBuild{})
	w.settle()
	if _, there := w.config().Labels[group+"rebuildImage"]; there || counted.created["machineosbuilds"] != 1 {
		t.Errorf("the label is there: %v; %d builds were made", there, counted.created["machineosbuilds"])
	}
}

// TestAllSpellingsAtOnce asks by every name, as annotation and as label: one rebuild.
func TestAllSpellingsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	counted, config := process(t, fault{})
	w.drive = newReconciler(t, config)
	old := w.failed()
	now := w.config()
	now.Labels = map[string]string{}
	names := []string{"force-rebuild", "rebuild", "rebuildImage"}
	for _, name := range names {
		now.Annotations[group+name], now.Labels[group+name] = "", "yes"
	}
	w.must(admin.Update(w.ctx(), now))
	w.rebuilt(old)
	w.settle()
	now = w.config()
	for _, name := range names {
		_, a := now.Annotations[group+name]
		_, l := now.Labels[group+name]
		if a || l {
			t.Errorf("%s is there as annotation: %v, as label: %v", name, a, l)
		}
	}
	if n := counted.created["machineosbuilds"]; n != 2 {
		t.Errorf("%d builds were made in all, want the first and one more", n)
	}
}

// TestRequestsByValue: the same value while it is served is one request, a new one
// is another, and after it was served the same value is a new request.
func TestRequestsByValue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	counted, config := process(t, fault{})
	w.drive = newReconciler(t, config)
	old := w.failed()
	w.annotate(force, ptr.To("1"))
	w.until("the request is accepted", func() bool { return w.config().Annotations["strata.build/rebuild"] != "" })
	w.annotate(force, ptr.To("1")) // no change
	w.annotate(force, ptr.To("2")) // while the first is served
	var third *mcfgv1.MachineOSBuild
	w.until("both are served", func() bool {
		third = w.only()
		return third != nil && third.UID != old.UID && !w.requested() && w.config().Annotations["strata.build/rebuild"] == "" && len(w.jobs()) == 1
	})
	w.settle()
	if n := counted.created["machineosbuilds"]; n != 3 {
		t.Errorf("%d builds were made, want 3: the first, and one for each value", n)
	}
	w.annotate(force, ptr.To("2"))
	w.rebuilt(third)
	if n := counted.created["machineosbuilds"]; n != 4 {
		t.Errorf("%d builds were made, want one more for the same value after it was served", n)
	}
}

// TestLongRequest: the value means nothing, and may be as long as the API lets it be.
func TestLongRequest(t *testing.T) {
	t.Parallel()
	w := driven(t)
	old := w.failed()
	w.annotate(force, ptr.To(strings.Repeat("please ", 200<<10/7)))
	w.rebuilt(old)
	w.settle()
	if w.requested() || w.config().Annotations["strata.build/rebuild"] != "" {
		t.Error("the request is not cleared")
	}
}

func (w *world) pool() *mcfgv1.MachineConfigPool {
	w.Helper()
	var pool mcfgv1.MachineConfigPool
	w.must(admin.Get(w.ctx(), client.ObjectKey{Name: w.name}, &pool))
	return &pool
}

// TestRebuildWaitsForWhatIsHeld: finalizers on the Job, a ConfigMap and the build
// hold them; the new build comes when they are gone, and the config says for what it waits.
func TestRebuildWaitsForWhatIsHeld(t *testing.T) {
	t.Parallel()
	for name, find := range map[string]func(*world) client.Object{
		"Job":            func(w *world) client.Object { return &w.jobs()[0] },
		"ConfigMap":      func(w *world) client.Object { return &w.configMaps()[0] },
		"MachineOSBuild": func(w *world) client.Object { return w.build() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := driven(t)
			old := w.failed()
			held := find(w)
			held.SetFinalizers(append(held.GetFinalizers(), "example.com/held"))
			w.must(admin.Update(w.ctx(), held))
			w.annotate(force, ptr.To(""))
			w.until("the config says what holds it", func() bool {
				c := meta.FindStatusCondition(w.config().Status.Conditions, "ImageReady")
				return c != nil && c.Reason == "Rebuilding" && strings.Contains(c.Message, held.GetName()) && strings.Contains(c.Message, "example.com/held")
			})
			for range 5 {
				w.settle()
			}
			if !w.requested() || len(w.builds()) > 1 || (len(w.builds()) == 1 && w.build().UID != old.UID) {
				t.Errorf("it did not wait:\n%s", w.dump())
			}
			w.must(admin.Get(w.ctx(), client.ObjectKeyFromObject(held), held))
			held.SetFinalizers(nil)
			w.must(admin.Update(w.ctx(), held))
			w.rebuilt(old)
		})
	}
}

// TestNewBuildWaitsForWhatIsHeld: a build that was deleted by hand leaves a ConfigMap
// that is held; the next build, of the same name, says so and does not ask again and again.
func TestNewBuildWaitsForWhatIsHeld(t *testing.T) {
	t.Parallel()
	w := driven(t)
	old := w.failed()
	held := &w.configMaps()[0]
	held.SetFinalizers([]string{"example.com/held"})
	w.must(admin.Update(w.ctx(), held))
	w.must(admin.Delete(w.ctx(), old, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	w.until("a new build says what holds it", func() bool {
		b := w.only()
		if b == nil || b.UID == old.UID {
			return false
		}
		c := condition(b, mcfgv1.MachineOSBuildPrepared)
		return c.Reason == "OlderBuildRemoving" && strings.Contains(c.Message, held.Name) && strings.Contains(c.Message, "example.com/held")
	})
	got, err := w.drive.Reconcile(w.ctx(), ctrl.Request{NamespacedName: client.ObjectKey{Name: w.name}})
	if err != nil || got.RequeueAfter != time.Minute || len(w.jobs()) != 0 {
		t.Errorf("it looks again after %v (%v), want a minute; there are %d Jobs", got.RequeueAfter, err, len(w.jobs()))
	}
	w.must(admin.Get(w.ctx(), client.ObjectKeyFromObject(held), held))
	held.SetFinalizers(nil)
	w.must(admin.Update(w.ctx(), held))
	w.until("it goes on", func() bool { return is(w.build(), mcfgv1.MachineOSBuildPrepared) && len(w.jobs()) == 1 })
}

// TestConfigMadeAgain: a config of the same name is another, also where the
// garbage collector is held up.
func TestConfigMadeAgain(t *testing.T) {
	t.Parallel()
	w := driven(t)
	old := w.failed()
	old.Finalizers = append(old.Finalizers, "example.com/held")
	w.must(admin.Update(w.ctx(), old))
	w.must(admin.Delete(w.ctx(), w.config(), client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	w.until("the config is gone", func() bool { return w.isGone(&mcfgv1.MachineOSConfig{ObjectMeta: metav1.ObjectMeta{Name: w.name}}) })
	w.createConfig(func(c *mcfgv1.MachineOSConfig) {
		c.Annotations = map[string]string{"strata.build/rebuild": `{"id":"1","config":"another","requests":{}}`}
	})
	w.until("the old build is deleted", func() bool { return w.build().DeletionTimestamp != nil && w.nothingLeft() })
	now := w.build()
	now.Finalizers = nil
	w.must(admin.Update(w.ctx(), now))
	w.until("a build of the new config runs", func() bool {
		b := w.only()
		return b != nil && b.UID != old.UID && is(b, mcfgv1.MachineOSBuildPrepared) && w.named(b)
	})
	w.consistent()
}

// TestThreePoolsAndANewConfigForOne is case K10.
func TestThreePoolsAndANewConfigForOne(t *testing.T) {
	t.Parallel()
	var all []*world
	var first []*mcfgv1.MachineOSBuild
	for range 3 {
		w := driven(t)
		all = append(all, w)
		b, _ := w.building()
		first = append(first, b)
	}
	third := all[2]
	third.render(2)
	third.until("a build of the new inputs runs", func() bool {
		return len(third.builds()) == 2 && len(third.jobs()) == 1 && third.nothingOf(first[2].UID) && third.jobs()[0].Labels["strata.build/build-uid"] != string(first[2].UID)
	})
	for _, b := range third.builds() {
		if interrupted := is(&b, mcfgv1.MachineOSBuildInterrupted); interrupted != (b.UID == first[2].UID) {
			t.Errorf("build %s is interrupted: %v", b.Name, interrupted)
		}
		if c := condition(&b, mcfgv1.MachineOSBuildInterrupted); b.UID == first[2].UID && c.Reason != "Superseded" {
			t.Errorf("it is interrupted for %s", c.Reason)
		}
	}
	for i, w := range all[:2] {
		w.settle()
		if b := w.build(); b.UID != first[i].UID || !is(b, mcfgv1.MachineOSBuilding) || b.ResourceVersion != first[i].ResourceVersion {
			t.Errorf("pool %d was touched:\n%s", i, w.dump())
		}
	}
	// The first inputs come back: an interrupted build is no finished one.
	third.point(third.rendered(1))
	third.until("they are built", func() bool {
		for _, b := range third.builds() {
			if b.Spec.MachineConfig.Name == third.rendered(1) && b.UID != first[2].UID && is(&b, mcfgv1.MachineOSBuildPrepared) {
				return true
			}
		}
		return false
	})
}

// TestFinishedBuildsAreReused: inputs that were built before need no new build.
func TestFinishedBuildsAreReused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	counted, config := process(t, fault{})
	w.drive = newReconciler(t, config)
	first := w.succeeded()
	w.render(2)
	_, pod := w.building()
	w.end(pod, resultOf(result.ReasonSucceeded, func(r *result.Result) { r.Digest = strings.Replace(digest, "0", "f", 1) }))
	w.until("the second image is current", func() bool { return strings.Contains(string(w.config().Status.CurrentImagePullSpec), "sha256:f") })
	w.point(w.rendered(1))
	w.until("the first image is current again", func() bool { return w.config().Status.CurrentImagePullSpec == first.Status.DigestedImagePushSpec })
	if n := counted.created["jobs"]; n != 2 {
		t.Errorf("%d Jobs were made, want 2", n)
	}
}

// TestPodsThatEndWithoutAResult is case K07.
func TestPodsThatEndWithoutAResult(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, reason, says string
		end                func(*corev1.Pod)
	}{
		{"evicted", "PodEvicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi", func(p *corev1.Pod) {
			p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses = "Evicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi", nil
		}},
		{"out of memory", "OutOfMemory", "OOMKilled", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "build", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := driven(t)
			_, pod := w.building()
			pod.Status.Phase = corev1.PodFailed
			tt.end(pod)
			w.must(admin.Status().Update(w.ctx(), pod))
			w.until("the condition says what became of the pod, while another may follow", func() bool {
				c := condition(w.build(), mcfgv1.MachineOSBuilding)
				return c.Status == metav1.ConditionFalse && c.Reason == tt.reason && strings.Contains(c.Message, tt.says)
			})
			if is(w.build(), mcfgv1.MachineOSBuildFailed) {
				t.Error("the build failed, though another pod may follow")
			}
			// The Job controller waits ever longer before it starts another pod: the test does not.
			job := w.jobs()[0]
			job.Spec.BackoffLimit = ptr.To(int32(0))
			w.must(admin.Update(w.ctx(), &job))
			w.until("the build is Failed", func() bool { return is(w.build(), mcfgv1.MachineOSBuildFailed) })
			if c := condition(w.build(), mcfgv1.MachineOSBuildFailed); c.Reason != tt.reason || !strings.Contains(c.Message, tt.says) {
				t.Errorf("%s: %s, want %s: %s", c.Reason, c.Message, tt.reason, tt.says)
			}
		})
	}
}

// nextPod waits for a pod that does not work yet, or returns nil when over. The Job
// controller waits ten seconds and more before it makes another pod; a Job that has
// its backoffLimit lowered does not.
func (w *world) nextPod(over func() bool) (pod *corev1.Pod) {
	w.Helper()
	w.until("another pod", func() bool {
		for _, p := range w.pods() {
			if p.Status.Phase == corev1.PodPending {
				pod = &p
				return true
			}
		}
		return over()
	})
	return pod
}

func jobConditions(j *batchv1.Job) (all []metav1.Condition) {
	for _, c := range j.Status.Conditions {
		all = append(all, metav1.Condition{Type: string(c.Type), Status: metav1.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message})
	}
	return all
}

// TestExitCodesFailTheJobAtOnce: a failure that another pod would meet too ends the
// Job with its first pod, one that is not counted is replaced.
func TestExitCodesFailTheJobAtOnce(t *testing.T) {
	t.Parallel()
	for _, reason := range []result.Reason{result.ReasonStepFailed, result.ReasonSettingsInvalid, result.ReasonStorageUnavailable} {
		w := driven(t)
		_, pod := w.building()
		start := time.Now()
		w.end(pod, resultOf(reason))
		w.until("the build is Failed", func() bool { return is(w.build(), mcfgv1.MachineOSBuildFailed) })
		if c := condition(w.build(), mcfgv1.MachineOSBuildFailed); c.Reason != string(reason) {
			t.Errorf("%s, want %s", c.Reason, reason)
		}
		if n := len(w.pods()); n != 1 {
			t.Errorf("%s: %d pods after %v", reason, n, time.Since(start))
		}
	}
	// Ten times what the backoffLimit allows are no failure when the pod was taken away.
	w := driven(t)
	_, pod := w.building()
	pod.Status.Phase = corev1.PodFailed
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", Message: "drained", LastTransitionTime: metav1.Now()})
	w.end(pod, resultOf(result.ReasonInterrupted))
	next := w.nextPod(func() bool { return false })
	if next == nil || w.jobs()[0].Status.Failed != 0 {
		t.Errorf("the Job counts %d failures", w.jobs()[0].Status.Failed)
	}
}

// TestResultIsReadAgain: a Job that completed and whose pod is gone is started again,
// and the agent reports what is there.
func TestResultIsReadAgain(t *testing.T) {
	t.Parallel()
	w := driven(t)
	b, pod := w.building()
	healthy := w.drive
	w.drive = nil // the controller is away
	w.end(pod, resultOf(result.ReasonSucceeded))
	w.until("the Job is complete", func() bool { return meta.IsStatusConditionTrue(jobConditions(&w.jobs()[0]), "Complete") })
	first := w.jobs()[0].UID
	w.must(admin.Delete(w.ctx(), pod))
	w.until("the pod is gone", func() bool { return len(w.pods()) == 0 })
	w.drive = healthy
	w.until("another Job", func() bool { return len(w.jobs()) == 1 && w.jobs()[0].UID != first })
	again := w.succeeded()
	if again.UID != b.UID {
		t.Error("another build was made")
	}
	for _, e := range again.Status.Conditions {
		if e.Type == "Failed" && e.Status == metav1.ConditionTrue {
			t.Errorf("it failed: %+v", e)
		}
	}
}

// TestRequestStaysUntilTheBuildRuns: a rebuild that cannot start yet is not served.
func TestRequestStaysUntilTheBuildRuns(t *testing.T) {
	t.Parallel()
	w := driven(t)
	old := w.failed()
	own := dockerConfig("own-" + w.name)
	config := w.config()
	config.Annotations[force], config.Spec.RenderedImagePushSecret.Name = "", own.Name
	w.must(admin.Update(w.ctx(), config))
	w.until("a new build waits for the secret", func() bool {
		for _, b := range w.builds() {
			if b.UID != old.UID && condition(&b, mcfgv1.MachineOSBuildPrepared).Reason == "SecretMissing" {
				return true
			}
		}
		return false
	})
	w.settle()
	if !w.requested() {
		t.Errorf("the request is cleared, and nothing runs:\n%s", w.dump())
	}
	w.must(admin.Create(w.ctx(), own))
	w.rebuilt(old)
}

// TestNothingOfABuildThatIsGoneStays: what has lost its build and its owner is found
// by its labels, and the Job of a build that was deleted is not that of the next one
// of the same name.
func TestNothingOfABuildThatIsGoneStays(t *testing.T) {
	t.Parallel()
	w := driven(t)
	old, _ := w.building()
	job := w.jobs()[0].UID
	stray := &corev1.Secret{ObjectMeta: *w.configMaps()[0].ObjectMeta.DeepCopy()}
	stray.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "stray-" + w.name, Labels: stray.Labels, Annotations: stray.Annotations}
	w.must(admin.Create(w.ctx(), stray))
	w.must(admin.Delete(w.ctx(), old, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	controller := w.drive
	w.drive = nil // it is away meanwhile
	w.until("the build is gone", func() bool { return len(w.builds()) == 0 })
	w.drive = controller
	w.until("another build runs", func() bool {
		b := w.only()
		return b != nil && b.UID != old.UID && b.Name == old.Name && is(b, mcfgv1.MachineOSBuildPrepared) && w.nothingOf(old.UID) && w.named(b)
	})
	if w.jobs()[0].UID == job {
		t.Error("the Job is that of the build that is gone")
	}
	w.consistent()
}

// TestJobDeletedAndItsPodKept: while a pod works whose Job somebody took away, no other
// pod works for the same build, and it is stopped.
func TestJobDeletedAndItsPodKept(t *testing.T) {
	t.Parallel()
	w := driven(t)
	b, pod := w.building()
	job := w.jobs()[0]
	pod.Finalizers = append(pod.Finalizers, "example.com/held") // as if it took its time to stop
	w.must(admin.Update(w.ctx(), pod))
	w.must(admin.Delete(w.ctx(), &job, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	w.until("the build waits for the pod to stop", func() bool {
		c := condition(w.build(), mcfgv1.MachineOSBuildPrepared)
		return c.Reason == "OlderBuildStopping" && strings.Contains(c.Message, pod.Name) && w.pods()[0].DeletionTimestamp != nil
	})
	w.settle()
	if n := len(w.jobs()); n != 0 {
		t.Errorf("there are %d Jobs beside the pod", n)
	}
	w.must(admin.Get(w.ctx(), client.ObjectKeyFromObject(pod), pod))
	pod.Finalizers = nil
	w.must(admin.Update(w.ctx(), pod))
	w.until("another Job", func() bool { return len(w.jobs()) == 1 && w.jobs()[0].UID != job.UID })
	if now := w.succeeded(); now.UID != b.UID {
		t.Error("another build was made")
	}
}
