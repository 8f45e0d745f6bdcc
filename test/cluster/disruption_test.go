package cluster

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// holdFinalizer keeps a pod's object after its end, so that the test can look at
// it: the API server removes an evicted pod once its containers have ended.
const holdFinalizer = "e2e.strata.build/hold"

func hold(job *batchv1.Job) { job.Spec.Template.Finalizers = []string{holdFinalizer} }

// release lets the pods of a Job go that hold has kept.
func (l *lab) release(job string) {
	l.t.Helper()
	ctx := context.Background() // also when the test is over
	pods := client.CoreV1().Pods(l.namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil {
		l.t.Error(err)
		return
	}
	for _, p := range list.Items {
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			now, err := pods.Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == holdFinalizer })
			_, err = pods.Update(ctx, now, metav1.UpdateOptions{})
			return err
		})
		if err != nil && !apierrors.IsNotFound(err) {
			l.t.Errorf("releasing %s: %v", p.Name, err)
		}
	}
}

func TestEvictionIsReplacedAndNotCounted(t *testing.T) {
	for _, tt := range []struct {
		name string
		// evict asks for the pod to go; what it returns waits until it has gone.
		evict func(*lab, *corev1.Pod) (wait func())
	}{
		{"api", func(l *lab, p *corev1.Pod) func() {
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}}
			if err := client.PolicyV1().Evictions(p.Namespace).Evict(l.t.Context(), eviction); err != nil {
				l.t.Fatal(err)
			}
			return func() {}
		}},
		{"drain", func(l *lab, _ *corev1.Pod) func() {
			l.t.Cleanup(func() { kubectl(l.t, "uncordon", "node1") })
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				kubectl(l.t, "drain", "node1", "--force", "--delete-emptydir-data", "--pod-selector", batchv1.JobNameLabel+"=drain", "--timeout", patience.String())
			}()
			return func() {
				<-drained
				kubectl(l.t, "uncordon", "node1")
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			job := tt.name
			l.build(job, []string{"FROM HOST/base/busy:1", "RUN " + waitAtGate}, l.behindGate(), hold)
			t.Cleanup(func() { l.release(job) })
			first := l.atGate(job)
			wait := tt.evict(l, first)
			evicted := l.stopped(first)
			if !disrupted(evicted, "EvictionByEvictionAPI") {
				t.Errorf("the conditions of the evicted pod are %+v", evicted.Status.Conditions)
			}
			end, r := l.left(evicted)
			if end.ExitCode != 143 || r == nil || r.Reason != result.ReasonInterrupted || r.Outcome != result.Interrupted {
				t.Errorf("the evicted agent exited %d and left %q", end.ExitCode, end.Message)
			}
			l.release(job)
			wait()

			l.atGate(job, first.Name)
			l.openGate()
			l.wantSuccess(job)
			now, _ := l.ended(job)
			if now.Status.Failed != 0 || now.Status.Succeeded != 1 {
				t.Errorf("the Job counts %d failed and %d succeeded pods", now.Status.Failed, now.Status.Succeeded)
			}
		})
	}
}

// stopped waits until the container of a pod has ended, and returns the pod.
func (l *lab) stopped(p *corev1.Pod) *corev1.Pod {
	l.t.Helper()
	var now *corev1.Pod
	await(l.t, "the container of "+p.Name+" ends", func(ctx context.Context) (bool, error) {
		var err error
		now, err = client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		return err == nil && len(now.Status.ContainerStatuses) == 1 && now.Status.ContainerStatuses[0].State.Terminated != nil, err
	})
	return now
}

func disrupted(p *corev1.Pod, reason string) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason == reason
		}
	}
	return false
}

func kubectl(t *testing.T, args ...string) {
	t.Helper()
	if err := runKubectl(nil, args...); err != nil {
		t.Error(err)
	}
}

// onNode runs a command in the namespaces of the node.
func onNode(args ...string) (string, error) {
	out, err := exec.Command("./cluster", append([]string{"exec"}, args...)...).Output()
	return string(out), err
}

func TestSecretRotatedDuringRun(t *testing.T) {
	l := newLab(t)
	l.secret("push", "not the password")
	l.build("rotated", []string{"FROM HOST/base/busy:1", "RUN " + waitAtGate}, l.behindGate(), pod(func(spec *corev1.PodSpec, c *corev1.Container) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{
			Name: "push", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "push"}},
		})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "push", MountPath: "/push"})
		c.Args = append([]string{"build", "--push-authfile", "/push/" + corev1.DockerConfigJsonKey}, c.Args[1:]...)
	}))
	p := l.atGate("rotated")
	mounted := "/var/lib/kubelet/pods/" + string(p.UID) + "/volumes/kubernetes.io~secret/push/" + corev1.DockerConfigJsonKey
	if text, err := onNode("cat", mounted); err != nil || !strings.Contains(text, "not the password") {
		t.Fatalf("the volume has not the first secret: %q, %v", text, err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "push"}, Type: corev1.SecretTypeDockerConfigJson, Data: authFile(password)}
	if _, err := client.CoreV1().Secrets(l.namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "the kubelet updates the volume", func(context.Context) (bool, error) {
		text, err := onNode("cat", mounted)
		return strings.Contains(text, password), err
	})
	l.openGate()
	r := l.wantSuccess("rotated")
	if pushes := r.Phases[result.Push].Attempts; pushes != 1 {
		t.Errorf("%d attempts to push, want 1: the credential is read when it is used", pushes)
	}
}

func TestStepOverTheMemoryLimit(t *testing.T) {
	l := newLab(t)
	l.build("memory", []string{"FROM HOST/base/busy:1", "RUN tail -c 600m /dev/zero >/dev/null"}, limit("256Mi"), func(job *batchv1.Job) {
		job.Spec.Template.Spec.Containers[0].Args = append(job.Spec.Template.Spec.Containers[0].Args, "--max-retries=1")
	})
	_, condition := l.ended("memory")
	end, r := l.left(&l.pods("memory")[0])
	if r == nil || r.Reason != result.ReasonStepOutOfMemory || end.ExitCode != 4 {
		t.Fatalf("exit %d (%s), message %q", end.ExitCode, end.Reason, end.Message)
	}
	if !strings.Contains(r.Message, "256") {
		t.Errorf("the message does not name the limit: %s", r.Message)
	}
	if condition.Type != batchv1.JobFailed || condition.Reason != batchv1.JobReasonBackoffLimitExceeded {
		t.Errorf("the Job is %s: %s", condition.Type, condition.Reason)
	}
}

func TestStoreOverTheLimitOfItsVolume(t *testing.T) {
	l := newLab(t)
	l.build("volume", []string{"FROM HOST/base/busy:1", "RUN dd if=/dev/zero of=/zero bs=1M count=300 && sleep 600"}, hold, pod(func(spec *corev1.PodSpec, _ *corev1.Container) {
		for i := range spec.Volumes {
			if spec.Volumes[i].Name == "store" {
				spec.Volumes[i].EmptyDir.SizeLimit = new(resource.MustParse("100Mi"))
			}
		}
	}))
	t.Cleanup(func() { l.release("volume") })
	_, condition := l.ended("volume")
	p := l.pods("volume")[0]
	if p.Status.Reason != "Evicted" || !strings.Contains(p.Status.Message, `EmptyDir volume "store" exceeds the limit "100Mi"`) {
		t.Errorf("the pod is %q: %q", p.Status.Reason, p.Status.Message)
	}
	if condition.Type != batchv1.JobFailed {
		t.Errorf("the Job is %s: %s", condition.Type, condition.Reason)
	}
}

func TestExitCodesEndTheJobAtOnce(t *testing.T) {
	l := newLab(t)
	l.build("broken", []string{"FROM HOST/base/busy:1", "RUN echo the disk is on fire >&2; exit 42"}, func(job *batchv1.Job) {
		job.Spec.BackoffLimit = new(int32(3))
	})
	now, condition := l.ended("broken")
	if condition.Type != batchv1.JobFailed || condition.Reason != batchv1.JobReasonPodFailurePolicy || now.Status.Failed != 1 {
		t.Errorf("the Job is %s: %s, with %d failed pods", condition.Type, condition.Reason, now.Status.Failed)
	}
	p := l.pods("broken")[0]
	end, r := l.left(&p)
	if end.ExitCode != 1 || r == nil || r.Reason != result.ReasonStepFailed || r.RunExitCode != 42 || !strings.Contains(r.Message, "the disk is on fire") {
		t.Errorf("exit %d, message %q", end.ExitCode, end.Message)
	}
	if !strings.Contains(l.log(p.Name), "\nRetry 3/3 exited 42, no more retries left.") {
		t.Error("the log does not say that the last attempt failed")
	}
}

func TestEvictedBuildResumesFromTheCache(t *testing.T) {
	l := newLab(t)
	const job = "cached"
	l.build(job, []string{"FROM HOST/base/busy:1", "RUN echo the first step runs > /first; cat /first", "RUN " + waitAtGate}, l.behindGate(), hold,
		pod(func(_ *corev1.PodSpec, c *corev1.Container) {
			cache := host + "/cache/" + l.namespace // an earlier run has finished the same steps
			c.Args = slices.Insert(c.Args, 1, "--cache-to", cache, "--cache-from", cache)
		}))
	t.Cleanup(func() { l.release(job) })
	ran := func(p *corev1.Pod) bool { return strings.Contains(l.log(p.Name), "\nthe first step runs\n") }
	first := l.atGate(job)
	if !ran(first) {
		t.Error("the first step did not run in the first pod")
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: first.Name, Namespace: first.Namespace}}
	if err := client.PolicyV1().Evictions(first.Namespace).Evict(t.Context(), eviction); err != nil {
		t.Fatal(err)
	}
	l.stopped(first)
	second := l.atGate(job, first.Name)
	if ran(second) {
		t.Error("the first step ran again in the second pod")
	}
	l.openGate()
	l.wantSuccess(job)
	if text, _ := bases.File(t, bases.Pull(t, host, tag(job), onRegistry()...), "/first"); string(text) != "the first step runs\n" {
		t.Errorf("/first is %q", text)
	}
}

// TestSameBuildIsNotBuiltAgain is a pod that was lost after the push: the next
// pod of the same build finds the image and has nothing to do.
func TestSameBuildIsNotBuiltAgain(t *testing.T) {
	l := newLab(t)
	id := pod(func(_ *corev1.PodSpec, c *corev1.Container) { c.Args = slices.Insert(c.Args, 1, "--build-id", "uid-1") })
	containerfile := []string{"FROM HOST/base/busy:1", "RUN echo the step runs"}
	l.build("lost", containerfile, id)
	first := l.wantSuccess("lost")
	l.build("next", containerfile, id, pod(func(_ *corev1.PodSpec, c *corev1.Container) {
		c.Args[slices.Index(c.Args, "--tag")+1] = host + "/" + tag("lost")
	}))
	if _, condition := l.ended("next"); condition.Type != batchv1.JobComplete {
		t.Fatalf("the Job is %s: %s", condition.Type, condition.Reason)
	}
	p := l.pods("next")[0]
	_, second := l.left(&p)
	if second == nil || second.Digest != first.Digest || !strings.Contains(second.Message, "is already there, from this build") {
		t.Errorf("the second result is %+v, the first digest %s", second, first.Digest)
	}
	if strings.Contains(l.log(p.Name), "\nthe step runs\n") {
		t.Error("the step ran again")
	}
}
