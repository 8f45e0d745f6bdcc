package controller

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/strata-build/strata/agent/result"
)

// state is how far a build has come.
type state int

const (
	preparing state = iota // no Job yet
	pending                // a Job, but no pod that works
	building
	succeeded
	failed
	interrupted
)

func (s state) terminal() bool { return s >= succeeded }

// verdict is what is known of a build at one moment.
type verdict struct {
	state   state
	reason  string
	message string
	// result is what the agent left, if it did.
	result *result.Result
	// started is when the pod that decided began to work, ended when the build ended.
	started, ended time.Time
	// pods counts the pods that were seen.
	pods int
	// lost says that the Job completed and the pod that held its result is gone.
	// The same build may run again: the agent finds its image and reports it.
	lost bool
}

// reasonPattern is what the API takes as a reason; a pod may say anything.
var reasonPattern = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9_]{0,100}[A-Za-z0-9])?$`)

var digestPattern = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)

// judge derives the state of a build from its Job and the Job's pods, and from
// nothing that came before. The Job decides about failure, since it alone knows
// whether another pod will follow; a pod that reports success is success.
func judge(job *batchv1.Job, pods []corev1.Pod) verdict {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	for i := range pods {
		pod := &pods[i]
		if r := resultOf(pod); r != nil && endedWell(pod) && r.Outcome == result.Succeeded && digestPattern.MatchString(r.Digest) {
			return verdict{
				state: succeeded, reason: string(result.ReasonSucceeded), result: r, pods: len(pods),
				message: fmt.Sprintf("%s was built and pushed as %s in pod %s%s.", r.Image, r.Digest, pod.Name, spent(r)),
				started: startedAt(pod), ended: endedAt(pod, job),
			}
		}
	}
	if c := jobCondition(job, batchv1.JobComplete); c != nil {
		if len(pods) == 0 {
			return verdict{state: pending, reason: reasonResultLost, lost: true, message: fmt.Sprintf("Job %s completed, but its pod with the result is gone: it is started again to report the image.", job.Name)}
		}
		v := explain(&pods[len(pods)-1], job)
		v.state, v.reason, v.pods = failed, reasonResultMissing, len(pods)
		v.message = fmt.Sprintf("Job %s completed, but pod %s left no result with a digest: is its image that of the agent?", job.Name, pods[len(pods)-1].Name)
		return v
	}
	if c := jobCondition(job, batchv1.JobFailed); c != nil {
		return failure(job, c, pods)
	}
	if len(pods) == 0 {
		return verdict{state: pending, reason: reasonPodPending, message: fmt.Sprintf("Job %s has no pod yet.", job.Name)}
	}
	newest := &pods[len(pods)-1]
	v := verdict{state: pending, pods: len(pods)}
	switch {
	case newest.Status.Phase == corev1.PodFailed && final(resultOf(newest)) && disruption(newest) == nil:
		// No other pod will follow; the Job is about to say so.
		v.state, v.reason, v.started = building, reasonBuilding, startedAt(newest)
		v.message = fmt.Sprintf("Pod %s has ended%s.", newest.Name, onNode(newest))
	case newest.Status.Phase == corev1.PodFailed || newest.DeletionTimestamp != nil:
		v = explain(newest, job)
		v.state, v.pods = pending, len(pods)
		if jobCondition(job, batchv1.JobFailureTarget) == nil {
			v.message += " Another pod may follow."
		}
	case newest.Status.Phase == corev1.PodRunning || newest.Status.Phase == corev1.PodSucceeded:
		v.state, v.reason, v.started = building, reasonBuilding, startedAt(newest)
		v.message = fmt.Sprintf("Pod %s builds%s.", newest.Name, onNode(newest))
	default:
		v.reason, v.message = waiting(newest)
	}
	return v
}

// failure explains a Job that failed.
func failure(job *batchv1.Job, c *batchv1.JobCondition, pods []corev1.Pod) verdict {
	ended := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodFailed })
	v := verdict{reason: reasonPodFailed, message: fmt.Sprintf("Job %s failed (%s), and no pod of it is left: %s", job.Name, c.Reason, c.Message)}
	if len(ended) > 0 {
		v = explain(&ended[len(ended)-1], job)
	}
	if c.Reason == batchv1.JobReasonDeadlineExceeded {
		v.reason = string(result.ReasonDeadlineExceeded)
		where := v.message
		v.message = fmt.Sprintf("Job %s did not end within %s.", job.Name, deadlineOf(job))
		if v.result != nil {
			v.message += " " + where
		}
		// What held it up is better known by a pod that still waits, if one is left.
		for i := range pods {
			if pods[i].Status.Phase == corev1.PodPending {
				_, why := waiting(&pods[i])
				v.message += " " + why
			}
		}
	}
	v.state, v.pods, v.ended = failed, len(pods), c.LastTransitionTime.Time
	if len(ended) > 1 {
		v.message += fmt.Sprintf(" It was the last of %d pods.", len(ended))
	}
	return v
}

// endedWell tells whether the agent of a pod ended with success, or nobody saw how it
// ended: a container that ends while its runtime is down is said to have ended with 255
// (Unknown), and the digest in its result is confirmed all the same. Of another end, what
// looks like a result may be the end of the log.
func endedWell(pod *corev1.Pod) bool {
	t := terminated(pod)
	return pod.Status.Phase == corev1.PodSucceeded || t != nil && t.ExitCode == 255 && t.Reason == "Unknown"
}

// explain says why a pod ended: by the agent's own word, else by Kubernetes'.
func explain(pod *corev1.Pod, job *batchv1.Job) verdict {
	v := verdict{reason: reasonPodFailed, started: startedAt(pod), ended: endedAt(pod, job)}
	if r := resultOf(pod); r != nil && r.Outcome != result.Succeeded {
		v.result = r
		if reasonPattern.MatchString(string(r.Reason)) {
			v.reason = string(r.Reason)
		}
		cause := r.Message
		// An agent that was told to stop knows where it was, and not who stopped it.
		if by, why := takenAway(pod); by != "" && r.Outcome == result.Interrupted {
			v.reason, cause = by, "the pod "+why
		}
		v.message = sentence(r, cause, pod, userLineOf(job))
		return v
	}
	t := terminated(pod)
	by, why := takenAway(pod)
	switch {
	case by == reasonPodEvicted:
		v.reason, v.message = by, fmt.Sprintf("Pod %s %s", pod.Name, why)
	case t != nil && t.Reason == "OOMKilled":
		v.reason = reasonOutOfMemory
		v.message = fmt.Sprintf("Pod %s was killed for memory (OOMKilled, exit code %d)%s%s.", pod.Name, t.ExitCode, onNode(pod), memoryLimit(pod))
	case by != "":
		v.reason, v.message = by, fmt.Sprintf("Pod %s %s", pod.Name, why)
	case t != nil:
		v.message = fmt.Sprintf("Pod %s ended with exit code %d%s and left no result: %s", pod.Name, t.ExitCode, reasonIn(t.Reason), dot(tail(t.Message)))
	case pod.Status.Reason != "" || pod.Status.Message != "":
		v.message = fmt.Sprintf("Pod %s failed%s: %s", pod.Name, reasonIn(pod.Status.Reason), dot(pod.Status.Message))
	case pod.DeletionTimestamp != nil:
		v.reason, v.message = reasonPodDisrupted, fmt.Sprintf("Pod %s was deleted%s.", pod.Name, onNode(pod))
	default:
		v.message = fmt.Sprintf("Pod %s failed and says nothing about it.", pod.Name)
	}
	return v
}

// takenAway says who ended a pod that could have gone on: the reason, "" for
// nobody, and the words that follow "the pod".
func takenAway(pod *corev1.Pod) (reason, why string) {
	if pod.Status.Reason == "Evicted" {
		return reasonPodEvicted, fmt.Sprintf("was evicted%s: %s", onNode(pod), dot(pod.Status.Message))
	}
	if c := disruption(pod); c != nil {
		return reasonPodDisrupted, fmt.Sprintf("was taken away (%s)%s: %s", c.Reason, onNode(pod), dot(c.Message))
	}
	return "", ""
}

// final tells whether the Job fails at once with a result.
func final(r *result.Result) bool {
	return r != nil && slices.ContainsFunc(result.ExitCodes(), func(c result.ExitCodeDoc) bool { return int(c.Code) == r.ExitCode && c.Job == "FailJob" })
}

// waiting says what a pod that does not run yet waits for.
func waiting(pod *corev1.Pod) (reason, message string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse { // Unschedulable, or SchedulingGated
			return reasonUnschedulable, fmt.Sprintf("Pod %s cannot be scheduled (%s): %s", pod.Name, c.Reason, dot(c.Message))
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		w := s.State.Waiting
		if w == nil {
			continue
		}
		switch w.Reason {
		case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable":
			return reasonImagePull, fmt.Sprintf("The image %s of pod %s cannot be pulled%s: %s (%s)", s.Image, pod.Name, onNode(pod), dot(w.Message), w.Reason)
		case "", "ContainerCreating", "PodInitializing":
		default: // CreateContainerConfigError, CreateContainerError, RunContainerError …
			return reasonPodInvalid, fmt.Sprintf("The container of pod %s cannot be started%s: %s (%s)", pod.Name, onNode(pod), dot(w.Message), w.Reason)
		}
	}
	return reasonPodPending, fmt.Sprintf("Pod %s is being started%s.", pod.Name, onNode(pod))
}

// sentence says phase, step, attempts, pod and cause.
func sentence(r *result.Result, cause string, pod *corev1.Pod, userLine int) string {
	var b strings.Builder
	verb := "failed"
	if r.Outcome == result.Interrupted {
		verb = "was interrupted"
	}
	fmt.Fprintf(&b, "The build %s in phase %s", verb, r.Phase)
	if s := r.Step; s != nil {
		if s.Number > 0 { // no step of a stage is known of a Containerfile that cannot be understood
			fmt.Fprintf(&b, ", at step %d/%d of stage %s", s.Number, s.Of, s.Stage)
		}
		if s.Line > 0 {
			fmt.Fprintf(&b, " (line %d of the Containerfile", s.Line)
			if userLine > 0 && s.Line >= userLine {
				fmt.Fprintf(&b, ", which is line %d of the MachineOSConfig's part", s.Line-userLine+1)
			}
			fmt.Fprintf(&b, ": %s)", s.Instruction)
		}
	}
	if n := len(r.Attempts); n > 0 && r.Attempts[n-1].N > 1 {
		fmt.Fprintf(&b, ", after %d attempts", r.Attempts[n-1].N)
	}
	if cause == "" {
		cause = r.Reason.Entry().Sentence
	}
	fmt.Fprintf(&b, ", in pod %s: %s", pod.Name, dot(cause))
	return b.String()
}

// spent lists the seconds of the phases, in their order.
func spent(r *result.Result) string {
	var parts []string
	for _, p := range []result.Phase{result.Pull, result.Build, result.Push, result.Verify} {
		if s, ok := r.Phases[p]; ok {
			parts = append(parts, fmt.Sprintf("%s %.1fs", p, s.Seconds))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func resultOf(pod *corev1.Pod) *result.Result {
	if t := terminated(pod); t != nil {
		if r, err := result.Parse([]byte(t.Message)); err == nil {
			return r
		}
	}
	return nil
}

func status(pod *corev1.Pod) *corev1.ContainerStatus {
	for i, s := range pod.Status.ContainerStatuses {
		if s.Name == containerName {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	if s := status(pod); s != nil {
		return s.State.Terminated
	}
	return nil
}

func startedAt(pod *corev1.Pod) time.Time {
	s := status(pod)
	switch {
	case s != nil && s.State.Terminated != nil:
		return s.State.Terminated.StartedAt.Time
	case s != nil && s.State.Running != nil:
		return s.State.Running.StartedAt.Time
	case pod.Status.StartTime != nil:
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

func endedAt(pod *corev1.Pod, job *batchv1.Job) time.Time {
	if t := terminated(pod); t != nil && !t.FinishedAt.IsZero() {
		return t.FinishedAt.Time
	}
	if job.Status.CompletionTime != nil {
		return job.Status.CompletionTime.Time
	}
	return time.Time{}
}

func disruption(pod *corev1.Pod) *corev1.PodCondition {
	for i, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func jobCondition(job *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i, c := range job.Status.Conditions {
		if c.Type == t && c.Status == corev1.ConditionTrue {
			return &job.Status.Conditions[i]
		}
	}
	return nil
}

func deadlineOf(job *batchv1.Job) string {
	if s := job.Spec.ActiveDeadlineSeconds; s != nil {
		return (time.Duration(*s) * time.Second).String()
	}
	return "its deadline"
}

func userLineOf(job *batchv1.Job) int {
	n, err := strconv.Atoi(job.Annotations[annotationUserLine])
	if err != nil {
		return 0
	}
	return n
}

func memoryLimit(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if limit, ok := c.Resources.Limits[corev1.ResourceMemory]; ok && c.Name == containerName {
			return "; its limit is " + limit.String()
		}
	}
	return ""
}

func onNode(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		return ""
	}
	return " on node " + pod.Spec.NodeName
}

func reasonIn(reason string) string {
	if reason == "" || reason == "Error" {
		return ""
	}
	return " (" + reason + ")"
}

// tail keeps the end of a log that a kubelet put in the place of a result.
func tail(log string) string {
	const most = 1024
	log = strings.TrimSpace(log)
	if len(log) > most {
		log = "… " + strings.ToValidUTF8(log[len(log)-most:], "")
	}
	return log
}

// dot ends a text as a sentence on one line, without what a terminal would obey.
func dot(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }), " ")
	if text == "" {
		return "no cause is given."
	}
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "!") || strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}
