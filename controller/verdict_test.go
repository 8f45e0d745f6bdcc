package controller

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/strata-build/strata/agent/result"
)

const testDigest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var testTime = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// testPod is the n-th pod of a Job.
func testPod(n int, phase corev1.PodPhase, changes ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "build-x-" + string(rune('a'+n)), CreationTimestamp: metav1.NewTime(testTime.Add(time.Duration(n) * time.Minute))},
		Spec:       corev1.PodSpec{NodeName: "node1"},
		Status:     corev1.PodStatus{Phase: phase},
	}
	for _, change := range changes {
		change(&p)
	}
	return p
}

func exited(code int32, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: code, Reason: reason, Message: message, StartedAt: p.CreationTimestamp, FinishedAt: metav1.NewTime(p.CreationTimestamp.Add(10 * time.Second)),
		}}}}
	}
}

func withResult(reason result.Reason, changes ...func(*result.Result)) func(*corev1.Pod) {
	r := &result.Result{Image: "registry.example/os:x", Phase: result.Build, Message: "what went wrong"}
	r.Conclude(reason)
	if reason == result.ReasonSucceeded {
		r.Digest = testDigest
	}
	for _, change := range changes {
		change(r)
	}
	return exited(int32(r.ExitCode), "Error", string(r.Encode(result.MaxBytes)))
}

func waitingFor(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerName, Image: "registry.example/agent", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
	}
}

func with(t corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: status, Reason: reason, Message: message})
	}
}

func testJob(conditions ...batchv1.JobCondition) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "build-x", Annotations: map[string]string{annotationUserLine: "20"}},
		Spec:       batchv1.JobSpec{ActiveDeadlineSeconds: ptr.To(int64(3600))},
		Status:     batchv1.JobStatus{Conditions: conditions},
	}
}

func jobEnded(t batchv1.JobConditionType, reason, message string) batchv1.JobCondition {
	return batchv1.JobCondition{Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(testTime.Add(time.Hour))}
}

func TestJudge(t *testing.T) {
	backoff := jobEnded(batchv1.JobFailed, batchv1.JobReasonBackoffLimitExceeded, "Job has reached the specified backoff limit")
	policy := jobEnded(batchv1.JobFailed, batchv1.JobReasonPodFailurePolicy, "exit code 1")
	complete := jobEnded(batchv1.JobComplete, "CompletionsReached", "")
	evicted := func(p *corev1.Pod) {
		p.Status.Reason, p.Status.Message = "Evicted", "The node was low on resource: ephemeral-storage."
	}
	atStep := func(r *result.Result) {
		r.Step = &result.Step{Stage: "final", Number: 3, Of: 7, Instruction: "RUN make"}
	}
	for _, tt := range []struct {
		name   string
		job    *batchv1.Job
		pods   []corev1.Pod
		state  state
		reason string
		says   []string
	}{
		{"no pod yet", testJob(), nil, pending, reasonPodPending, []string{"build-x has no pod yet"}},
		{"pod is being started", testJob(), []corev1.Pod{testPod(0, corev1.PodPending)}, pending, reasonPodPending, []string{"build-x-a is being started on node node1"}},
		{
			"unschedulable", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodPending, with(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available"))},
			pending, reasonUnschedulable,
			[]string{"0/3 nodes are available", "build-x-a"},
		},
		{
			"held by a gate", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodPending, with(corev1.PodScheduled, corev1.ConditionFalse, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"))},
			pending, reasonUnschedulable,
			[]string{"cannot be scheduled (SchedulingGated): Scheduling is blocked"},
		},
		{
			"image cannot be pulled", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodPending, waitingFor("ImagePullBackOff", "Back-off pulling image"))},
			pending, reasonImagePull,
			[]string{"registry.example/agent", "Back-off pulling image", "ImagePullBackOff"},
		},
		{
			"secret without the key", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodPending, waitingFor("CreateContainerConfigError", "references non-existent secret key"))},
			pending, reasonPodInvalid,
			[]string{"references non-existent secret key", "CreateContainerConfigError"},
		},
		{"container is created", testJob(), []corev1.Pod{testPod(0, corev1.PodPending, waitingFor("ContainerCreating", ""))}, pending, reasonPodPending, nil},
		{"pod works", testJob(), []corev1.Pod{testPod(0, corev1.PodRunning)}, building, reasonBuilding, []string{"build-x-a builds on node node1"}},
		{"the newest pod counts", testJob(), []corev1.Pod{testPod(1, corev1.PodRunning), testPod(0, corev1.PodFailed, evicted)}, building, reasonBuilding, []string{"build-x-b"}},
		{
			"evicted, another may follow", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodFailed, evicted)},
			pending, reasonPodEvicted,
			[]string{"low on resource: ephemeral-storage", "Another pod may follow"},
		},
		{
			"drained, another may follow", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodFailed, with(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting"))},
			pending, reasonPodDisrupted,
			[]string{"EvictionByEvictionAPI", "evicting"},
		},
		{"failed for good, and the Job has not said so", testJob(), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonStepFailed))}, building, reasonBuilding, []string{"build-x-a has ended"}},
		{"ran out of space, another may follow", testJob(), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonNoSpace))}, pending, "NoSpace", []string{"what went wrong", "Another pod may follow"}},
		{
			"a Containerfile that cannot be understood", testJob(policy),
			[]corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonContainerfileInvalid, func(r *result.Result) {
				r.Step = &result.Step{Line: 21, Instruction: "RUNN true"}
			}))},
			failed, "ContainerfileInvalid",
			[]string{"in phase Build (line 21 of the Containerfile, which is line 2 of the MachineOSConfig's part: RUNN true), in pod build-x-a: what went wrong."},
		},
		{"succeeded before the Job says so", testJob(), []corev1.Pod{testPod(0, corev1.PodSucceeded, withResult(result.ReasonSucceeded))}, succeeded, "Succeeded", []string{testDigest, "build-x-a"}},
		{"succeeded after an eviction", testJob(complete), []corev1.Pod{testPod(0, corev1.PodFailed, evicted), testPod(1, corev1.PodSucceeded, withResult(result.ReasonSucceeded))}, succeeded, "Succeeded", []string{"build-x-b"}},
		{"succeeded while the container runtime was down", testJob(), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonSucceeded), func(p *corev1.Pod) {
			t := p.Status.ContainerStatuses[0].State.Terminated
			t.ExitCode, t.Reason = 255, "Unknown"
		}), testPod(1, corev1.PodPending)}, succeeded, "Succeeded", []string{testDigest, "build-x-a"}},
		{"a log that looks like success", testJob(backoff), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonSucceeded), func(p *corev1.Pod) {
			t := p.Status.ContainerStatuses[0].State.Terminated
			t.ExitCode, t.Reason = 137, "OOMKilled"
		})}, failed, reasonOutOfMemory, []string{"build-x-a"}},
		{"succeeded without a digest", testJob(complete), []corev1.Pod{testPod(0, corev1.PodSucceeded, withResult(result.ReasonSucceeded, func(r *result.Result) { r.Digest = "" }))}, failed, reasonResultMissing, []string{"build-x-a"}},
		{"completed by another image", testJob(complete), []corev1.Pod{testPod(0, corev1.PodSucceeded, exited(0, "Completed", "hello"))}, failed, reasonResultMissing, nil},
		{"completed, and its pod is gone", testJob(complete), nil, pending, reasonResultLost, nil},
		{
			"step failed in the user's part", testJob(policy),
			[]corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonStepFailed, func(r *result.Result) {
				r.Step = &result.Step{Stage: "final", Number: 3, Of: 7, Line: 22, Instruction: "RUN make"}
				r.Attempts = []result.Attempt{{N: 1}, {N: 2}, {N: 3}}
			}))},
			failed, "StepFailed",
			[]string{"phase Build", "step 3/7 of stage final", "line 22", "line 3 of the MachineOSConfig's part", "RUN make", "after 3 attempts", "build-x-a", "what went wrong."},
		},
		{
			"step failed in the part that is rendered", testJob(policy),
			[]corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonStepFailed, func(r *result.Result) {
				r.Step = &result.Step{Stage: "configs", Number: 3, Of: 7, Line: 19, Instruction: "RUN x"}
			}))},
			failed, "StepFailed",
			[]string{"(line 19 of the Containerfile: RUN x)"},
		},
		{"a result without a message", testJob(policy), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonPushDenied, func(r *result.Result) { r.Message = "" }))}, failed, "PushDenied", []string{result.ReasonPushDenied.Entry().Sentence}},
		{"a result with a reason that the API would refuse", testJob(policy), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonStepFailed, func(r *result.Result) { r.Reason = "not a reason!" }))}, failed, reasonPodFailed, []string{"what went wrong"}},
		{"evicted for good", testJob(backoff), []corev1.Pod{testPod(0, corev1.PodFailed, evicted)}, failed, reasonPodEvicted, []string{"low on resource: ephemeral-storage"}},
		{
			"evicted for good, with a word of where it was", testJob(backoff),
			[]corev1.Pod{testPod(0, corev1.PodFailed, evicted, withResult(result.ReasonInterrupted, atStep))},
			failed, reasonPodEvicted,
			[]string{"was interrupted in phase Build, at step 3/7 of stage final", "in pod build-x-a: the pod was evicted on node node1: The node was low on resource: ephemeral-storage."},
		},
		{
			"drained, with a word of where it was", testJob(),
			[]corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonInterrupted, atStep), with(corev1.DisruptionTarget, corev1.ConditionTrue, "EvictionByEvictionAPI", "Eviction API: evicting"))},
			pending, reasonPodDisrupted,
			[]string{"at step 3/7 of stage final", "the pod was taken away (EvictionByEvictionAPI) on node node1: Eviction API: evicting. Another pod may follow."},
		},
		{
			"failed before it was evicted", testJob(policy),
			[]corev1.Pod{testPod(0, corev1.PodFailed, evicted, withResult(result.ReasonStepFailed, atStep))},
			failed, "StepFailed",
			[]string{"in pod build-x-a: what went wrong."},
		},
		{
			"killed for memory", testJob(backoff),
			[]corev1.Pod{testPod(0, corev1.PodFailed, exited(137, "OOMKilled", ""), func(p *corev1.Pod) {
				p.Spec.Containers = []corev1.Container{{Name: containerName, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}}}
			})},
			failed, reasonOutOfMemory,
			[]string{"OOMKilled", "exit code 137", "1Gi"},
		},
		{"the end of a log instead of a result", testJob(backoff), []corev1.Pod{testPod(0, corev1.PodFailed, exited(2, "Error", strings.Repeat("x", 5000)+"\npanic: at the disco"))}, failed, reasonPodFailed, []string{"exit code 2", "panic: at the disco"}},
		{"failed and no pod left", testJob(backoff), nil, failed, reasonPodFailed, []string{"BackoffLimitExceeded", "backoff limit"}},
		{"the last of several", testJob(backoff), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonNoSpace)), testPod(1, corev1.PodFailed, withResult(result.ReasonRateLimited))}, failed, "RateLimited", []string{"build-x-b", "last of 2 pods"}},
		{
			"deadline while unschedulable", testJob(jobEnded(batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded, "")),
			[]corev1.Pod{testPod(0, corev1.PodPending, with(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "no node"))},
			failed, "DeadlineExceeded",
			[]string{"1h0m0s", "no node"},
		},
		{
			"deadline while it built", testJob(jobEnded(batchv1.JobFailed, batchv1.JobReasonDeadlineExceeded, "")),
			[]corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonInterrupted, atStep))},
			failed, "DeadlineExceeded",
			[]string{"Job build-x did not end within 1h0m0s. The build was interrupted in phase Build, at step 3/7 of stage final, in pod build-x-a: "},
		},
		{"what a terminal obeys", testJob(backoff), []corev1.Pod{testPod(0, corev1.PodFailed, exited(2, "Error", "\x1b[2Jgone\x00 \a\u009b1mwell"))}, failed, reasonPodFailed, []string{": [2Jgone 1mwell."}},
		{"interrupted again and again", testJob(backoff), []corev1.Pod{testPod(0, corev1.PodFailed, withResult(result.ReasonInterrupted))}, failed, "Interrupted", []string{"was interrupted in phase Build"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := judge(tt.job, tt.pods)
			if v.state != tt.state || v.reason != tt.reason {
				t.Errorf("state %d, reason %s, want %d and %s: %s", v.state, v.reason, tt.state, tt.reason, v.message)
			}
			if v.lost != (tt.reason == reasonResultLost) {
				t.Errorf("lost is %v", v.lost)
			}
			for _, text := range tt.says {
				if !strings.Contains(v.message, text) {
					t.Errorf("%q does not say %q", v.message, text)
				}
			}
			if strings.Contains(v.message, "\n") || len(v.message) > 2000 {
				t.Errorf("%d bytes, or more than one line: %q", len(v.message), v.message)
			}
			if tt.state == succeeded && (v.result == nil || v.ended.IsZero() || v.started.IsZero()) {
				t.Errorf("it has no result or no time: %+v", v)
			}
		})
	}
}

// TestLongMessagesFitTheAPI: one byte too many, and the API would refuse the status
// each time that it is written.
func TestLongMessagesFitTheAPI(t *testing.T) {
	b := newBuild(testConfig(), now1, "rendered-worker-1", nil)
	v := verdict{state: pending, reason: reasonImagePull, message: "The image cannot be pulled: " + strings.Repeat("é", 40000)}
	message := apimeta.FindStatusCondition(buildStatus(b, v, testJob(), nil, "ns", testTime).Conditions, "Building").Message
	for _, message := range []string{message, configStatus(testConfig(), nil, "X", v.message, testTime).Conditions[0].Message} {
		if len(message) > maxMessage || len(message) < maxMessage-8 || !utf8.ValidString(message) || !strings.HasPrefix(message, "The image cannot be pulled: é") || !strings.HasSuffix(message, "é …") {
			t.Errorf("%d bytes: %.60q … %q", len(message), message, message[len(message)-8:])
		}
	}
}

// TestAFewRelatedObjects: the API takes ten, and refuses the whole status for one more.
func TestAFewRelatedObjects(t *testing.T) {
	b := newBuild(testConfig(), now1, "rendered-worker-1", nil)
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}
	s := buildStatus(b, verdict{state: building, reason: reasonBuilding}, testJob(), names, "ns", testTime)
	if n := len(s.RelatedObjects); n != 10 || s.RelatedObjects[9].Name != "j" {
		t.Errorf("%d objects, want 10", n)
	}
}

// TestEveryReasonIsDocumented looks for the reasons of verdicts and problems in the table.
func TestEveryReasonIsDocumented(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range entries {
		if e.sentence == "" || e.remedy == "" || e.shown == "" || seen[e.reason] {
			t.Errorf("%s has an incomplete entry or two", e.reason)
		}
		seen[e.reason] = true
	}
	page := Conditions()
	for _, reason := range []string{
		reasonPoolMissing, reasonPoolNotRendered, reasonMachineConfigMissing, reasonMachineConfigInvalid, reasonMachineConfigLarge, reasonSecretMissing,
		reasonSecretInvalid, reasonPushSpecInvalid, reasonBuildPodInvalid, reasonRefused, reasonNameTaken, reasonRebuilding, reasonStopping, reasonRemoving, reasonPreparing,
		reasonPrepared, reasonPodPending, reasonUnschedulable, reasonImagePull, reasonPodInvalid, reasonBuilding, reasonPodEvicted, reasonPodDisrupted,
		reasonOutOfMemory, reasonPodFailed, reasonResultMissing, reasonResultLost, reasonSuperseded,
	} {
		if !seen[reason] || !strings.Contains(page, "| `"+reason+"` |") {
			t.Errorf("%s is in no table", reason)
		}
	}
	for _, e := range result.Entries() {
		if !strings.Contains(page, "| `"+string(e.Reason)+"` |") {
			t.Errorf("%s of the agent is not on the page", e.Reason)
		}
	}
}

func TestBuildEndIsAfterBuildStart(t *testing.T) {
	start := testTime.Add(300 * time.Millisecond)
	for _, tt := range []struct {
		name      string
		end, want time.Time
	}{
		{"the same moment", start, testTime.Add(time.Second)},
		{"the same second", testTime.Add(900 * time.Millisecond), testTime.Add(time.Second)},
		{"before the start", testTime.Add(-time.Hour), testTime.Add(time.Second)},
		{"unknown", time.Time{}, testTime.Add(5 * time.Second)},
		{"an hour later", testTime.Add(time.Hour + 500*time.Millisecond), testTime.Add(time.Hour)},
	} {
		if got := buildEnd(start, tt.end, testTime.Add(5*time.Second)); !got.Time.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
