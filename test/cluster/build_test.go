package cluster

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// option changes the Job of a build.
type option func(*batchv1.Job)

// pod returns an option that changes the pod and its container.
func pod(change func(*corev1.PodSpec, *corev1.Container)) option {
	return func(job *batchv1.Job) {
		spec := &job.Spec.Template.Spec
		change(spec, &spec.Containers[0])
	}
}

// leastPrivilege is the pod without seccomp's default profile that needs the
// fewest capabilities: docs/privileges.md.
func leastPrivilege(spec *corev1.PodSpec, c *corev1.Container) {
	spec.HostUsers = new(bool)
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(bool),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"SETUID", "SETGID", "SETFCAP"}},
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
	}
}

// tag is the name of the image that a Job builds.
func tag(job string) string { return "os/" + job + ":1" }

// build starts the Job of a build: least privilege, the store on an emptyDir,
// and the podFailurePolicy that goes with the agent's exit codes. HOST in the
// Containerfile stands for the registry.
func (l *lab) build(name string, containerfile []string, options ...option) *batchv1.Job {
	l.t.Helper()
	l.configMap(name, "Containerfile", strings.ReplaceAll(strings.Join(containerfile, "\n")+"\n", "HOST", host))
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{
			BackoffLimit:         new(int32),
			PodReplacementPolicy: new(batchv1.Failed),
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
					{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
				}},
				{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
					ContainerName: new("agent"), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{1, 2, 3},
				}},
			}},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:                 corev1.RestartPolicyNever,
				AutomountServiceAccountToken:  new(bool),
				TerminationGracePeriodSeconds: new(int64(30)),
				ImagePullSecrets:              []corev1.LocalObjectReference{{Name: "registry"}},
				Containers: []corev1.Container{{
					Name: "agent", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
					Args: []string{
						"build", "--containerfile", "/in/Containerfile", "--tag", host + "/" + tag(name), "--push",
						"--authfile", "/credentials/" + corev1.DockerConfigJsonKey, "--cert-dir", "/ca", "--storage-root", "/store",
						"--retry-delay", "100ms", "/in",
					},
					VolumeMounts: []corev1.VolumeMount{
						{Name: "in", MountPath: "/in"},
						{Name: "ca", MountPath: "/ca"},
						{Name: "credentials", MountPath: "/credentials"},
						{Name: "store", MountPath: "/store"},
					},
				}},
				Volumes: []corev1.Volume{
					{Name: "in", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
					{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}}},
					{Name: "credentials", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "registry"}}},
					{Name: "store", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				},
			}},
		},
	}
	pod(leastPrivilege)(job)
	for _, change := range options {
		change(job)
	}
	created, err := client.BatchV1().Jobs(l.namespace).Create(l.t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	return created
}

// behindGate gives RUN steps the lab's gate; waitAtGate is the command with which
// a step waits until the test opens it.
func (l *lab) behindGate() option {
	return pod(func(spec *corev1.PodSpec, c *corev1.Container) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{
			Name: "gate", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: l.gate}},
		})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "gate", MountPath: "/gate", ReadOnly: true})
		c.Args = slices.Insert(c.Args, 1, "--volume", "/gate:/gate:ro")
	})
}

const waitAtGate = "echo at the gate; until [ -e /gate/open ]; do sleep 0.1; done; echo through the gate"

func (l *lab) openGate() {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.gate, "open"), nil, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// atGate returns the pod of the Job that waits at the gate.
func (l *lab) atGate(job string, but ...string) *corev1.Pod {
	l.t.Helper()
	var found *corev1.Pod
	await(l.t, "a pod of "+job+" is at the gate", func(context.Context) (bool, error) {
		for _, p := range l.pods(job) {
			if !slices.Contains(but, p.Name) && strings.Contains(l.log(p.Name), "\nat the gate") {
				found = &p
			}
		}
		return found != nil, nil
	})
	return found
}

func (l *lab) pods(job string) []corev1.Pod {
	l.t.Helper()
	pods, err := client.CoreV1().Pods(l.namespace).List(l.t.Context(), metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job})
	if err != nil {
		l.t.Fatal(err)
	}
	return pods.Items
}

// ended waits for the Job's Complete or Failed condition and returns it.
func (l *lab) ended(job string) (*batchv1.Job, batchv1.JobCondition) {
	l.t.Helper()
	var now *batchv1.Job
	var condition batchv1.JobCondition
	await(l.t, "the Job "+job+" ends", func(ctx context.Context) (ended bool, err error) {
		now, err = client.BatchV1().Jobs(l.namespace).Get(ctx, job, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, c := range now.Status.Conditions {
			if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
				condition, ended = c, true
			}
		}
		return ended, nil
	})
	return now, condition
}

// wantSuccess waits for the Job, checks that its last pod left a result with the
// digest that the registry has, and returns the result and the image's config.
func (l *lab) wantSuccess(job string) *result.Result {
	l.t.Helper()
	if _, condition := l.ended(job); condition.Type != batchv1.JobComplete {
		l.t.Fatalf("the Job is %s: %s: %s", condition.Type, condition.Reason, condition.Message)
	}
	var r *result.Result
	for _, p := range l.pods(job) {
		if p.Status.Phase == corev1.PodSucceeded {
			_, r = l.left(&p)
		}
	}
	if r == nil || r.Reason != result.ReasonSucceeded {
		l.t.Fatalf("the result is %+v", r)
	}
	img := bases.Pull(l.t, host, tag(job), onRegistry()...)
	if digest := bases.Digest(l.t, img); digest != r.Digest {
		l.t.Errorf("the registry has %s, the result %s", digest, r.Digest)
	}
	return r
}

// left returns how the agent's container ended, and the result that it left.
func (l *lab) left(p *corev1.Pod) (*corev1.ContainerStateTerminated, *result.Result) {
	l.t.Helper()
	for _, status := range p.Status.ContainerStatuses {
		end := status.State.Terminated
		if end == nil {
			continue
		}
		if strings.Contains(end.Message, password) {
			l.t.Error("the password is in the termination message")
		}
		r, err := result.Parse([]byte(end.Message))
		if err != nil {
			return end, nil
		}
		if r.ExitCode != int(end.ExitCode) {
			l.t.Errorf("the result says exit code %d, the container exited %d", r.ExitCode, end.ExitCode)
		}
		return end, r
	}
	l.t.Fatalf("no container of %s has ended", p.Name)
	return nil, nil
}

// limit sets the container's memory limit.
func limit(memory string) option {
	return pod(func(_ *corev1.PodSpec, c *corev1.Container) {
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	})
}

func TestPodOfTheLeastPrivilege(t *testing.T) {
	l := newLab(t)
	l.build("least", []string{"FROM HOST/base/busy:1", "RUN echo built > /built && chown 1234:4321 /built"})
	r := l.wantSuccess("least")
	if r.Sandbox.Storage != "overlay" || r.Sandbox.UserNS != "own" {
		t.Errorf("sandbox %+v, want overlay in a user namespace of its own", r.Sandbox)
	}
	text, header := bases.File(t, bases.Pull(t, host, tag("least"), onRegistry()...), "/built")
	if string(text) != "built\n" || header.Uid != 1234 || header.Gid != 4321 {
		t.Errorf("/built is %q of %d:%d", text, header.Uid, header.Gid)
	}
	if strings.Contains(l.log(l.pods("least")[0].Name), password) {
		t.Error("the password is in the log")
	}
}
