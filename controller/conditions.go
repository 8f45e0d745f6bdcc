package controller

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditionImageReady is the condition of a MachineOSConfig: True when the image
// of its inputs, as they are, is built.
const conditionImageReady = "ImageReady"

// buildStatus is the status of a build that is in the state of the verdict. Once
// a terminal condition is set, the API takes no other.
func buildStatus(b *mcfgv1.MachineOSBuild, v verdict, job *batchv1.Job, related []string, namespace string, now time.Time) mcfgv1.MachineOSBuildStatus {
	s := *b.Status.DeepCopy()
	if ended(b) != "" {
		return s
	}
	set := func(t mcfgv1.BuildProgress, is bool, reason, message string) {
		c := metav1.Condition{Type: string(t), Status: metav1.ConditionFalse, Reason: reason, Message: head(message, maxMessage), ObservedGeneration: b.Generation, LastTransitionTime: metav1.NewTime(now)}
		if is {
			c.Status = metav1.ConditionTrue
		}
		apimeta.SetStatusCondition(&s.Conditions, c)
	}
	// At most one condition is True, as the Machine Config Operator has it: a pool whose
	// build is Prepared is to it one that waits, for as long as that is True.
	switch v.state {
	case preparing:
		set(mcfgv1.MachineOSBuildPrepared, false, v.reason, v.message)
		set(mcfgv1.MachineOSBuilding, false, v.reason, "The build is not prepared yet.")
	case pending:
		set(mcfgv1.MachineOSBuildPrepared, true, reasonPrepared, "The objects of the build and its Job exist.")
		set(mcfgv1.MachineOSBuilding, false, v.reason, v.message)
	default:
		set(mcfgv1.MachineOSBuildPrepared, false, v.reason, "")
		set(mcfgv1.MachineOSBuilding, v.state == building, v.reason, v.message)
	}
	for _, end := range []struct {
		condition mcfgv1.BuildProgress
		state     state
	}{
		{mcfgv1.MachineOSBuildSucceeded, succeeded}, {mcfgv1.MachineOSBuildFailed, failed}, {mcfgv1.MachineOSBuildInterrupted, interrupted},
	} {
		switch {
		case v.state == end.state:
			set(end.condition, true, v.reason, v.message)
		case apimeta.FindStatusCondition(s.Conditions, string(end.condition)) == nil || v.state.terminal():
			set(end.condition, false, v.reason, "")
		}
	}
	if job != nil && s.BuildStart == nil {
		start := job.CreationTimestamp
		s.BuildStart = &start
		s.Builder = &mcfgv1.MachineOSBuilderReference{
			ImageBuilderType: mcfgv1.JobBuilder,
			Job:              &mcfgv1.ObjectReference{Group: batchv1.GroupName, Resource: "jobs", Namespace: namespace, Name: job.Name},
		}
	}
	if len(s.RelatedObjects) == 0 && v.state != preparing {
		for _, name := range related[:min(len(related), maxRelated)] {
			s.RelatedObjects = append(s.RelatedObjects, mcfgv1.ObjectReference{Group: coreGroup, Resource: "configmaps", Namespace: namespace, Name: name})
		}
	}
	if v.state.terminal() && s.BuildStart != nil {
		end := buildEnd(s.BuildStart.Time, v.ended, now)
		s.BuildEnd = &end
	}
	if v.state == succeeded {
		s.DigestedImagePushSpec = digested(b.Spec.RenderedImagePushSpec, v.result.Digest)
		s.RelatedObjects = nil // they are deleted
	}
	return s
}

// maxMessage is how many bytes of a text a condition is given. The API takes 32768,
// and refuses the whole status for one byte more; a person reads less.
const maxMessage = 8192

// maxRelated is how many related objects the API takes. A build makes nine at most;
// others may have its labels.
const maxRelated = 10

// head is the beginning of a text, at most n bytes of whole characters, with a mark
// where something was left out.
func head(text string, n int) string {
	const mark = " …"
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n-len(mark)], "") + mark
}

// coreGroup stands for the core group, whose name is empty: the API takes no empty one.
const coreGroup = "core"

// buildEnd is when a build ended, in the whole seconds that the API stores, and at
// least one of these after its start, since the API wants it to be later.
func buildEnd(start, end, now time.Time) metav1.Time {
	if end.IsZero() {
		end = now
	}
	end = end.Truncate(time.Second)
	if first := start.Truncate(time.Second).Add(time.Second); end.Before(first) {
		end = first
	}
	return metav1.NewTime(end)
}

// digested is the name of an image by digest instead of by tag.
func digested(spec mcfgv1.ImageTagFormat, digest string) mcfgv1.ImageDigestFormat {
	return mcfgv1.ImageDigestFormat(repository(spec) + "@" + digest)
}

func repository(spec mcfgv1.ImageTagFormat) string {
	name := string(spec)
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return name
}

// digestible is what the API takes as the name of an image with a digest
// (ImageDigestFormat): narrower than what it takes as one with a tag.
var digestible = regexp.MustCompile(`^([a-zA-Z0-9-]+\.)+[a-zA-Z0-9-]+(:[0-9]{2,5})?/([a-zA-Z0-9-_]{0,61}/)?[a-zA-Z0-9-_.]*$`)

// maxSpec is the length that the API takes for the name of an image, digest or tag included.
const maxSpec = 447

// checkPushSpec finds before the build whether its digest could be written down after it.
func checkPushSpec(config *mcfgv1.MachineOSConfig) (reason, message string) {
	spec := config.Spec.RenderedImagePushSpec
	name := repository(spec)
	if len(name)+len("@sha256:")+64 > maxSpec {
		return reasonPushSpecInvalid, fmt.Sprintf("renderedImagePushSpec %s is too long: with a digest it would have more than %d bytes.", spec, maxSpec)
	}
	if !digestible.MatchString(name) {
		return reasonPushSpecInvalid, fmt.Sprintf("renderedImagePushSpec %s cannot be used: the API can note the digest of an image only under host[:port]/name or host[:port]/namespace/name.", spec)
	}
	return "", ""
}

// pushSpec is where a build pushes to: the config's repository, with the build's
// name as the tag, so that an image that nodes run keeps its tag when the next
// one is pushed.
func pushSpec(config *mcfgv1.MachineOSConfig, build string) mcfgv1.ImageTagFormat {
	return mcfgv1.ImageTagFormat(repository(config.Spec.RenderedImagePushSpec) + ":" + build)
}

// configStatus is the status of a config whose current build, if it has one, has
// the status of b.
func configStatus(config *mcfgv1.MachineOSConfig, b *mcfgv1.MachineOSBuild, reason, message string, now time.Time) mcfgv1.MachineOSConfigStatus {
	s := *config.Status.DeepCopy()
	ready := metav1.ConditionFalse
	if b != nil {
		s.MachineOSBuild = &mcfgv1.ObjectReference{Group: mcfgv1.GroupName, Resource: "machineosbuilds", Name: b.Name}
		c := telling(b)
		reason, message = c.Reason, c.Message
		if c.Type == string(mcfgv1.MachineOSBuildSucceeded) {
			ready = metav1.ConditionTrue
			s.CurrentImagePullSpec = b.Status.DigestedImagePushSpec
			s.ObservedGeneration = max(s.ObservedGeneration, config.Generation)
		}
	}
	apimeta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: conditionImageReady, Status: ready, Reason: reason, Message: head(message, maxMessage),
		ObservedGeneration: config.Generation, LastTransitionTime: metav1.NewTime(now),
	})
	return s
}

// telling is the condition of a build that says most about it.
func telling(b *mcfgv1.MachineOSBuild) metav1.Condition {
	for _, t := range terminalConditions {
		if c := apimeta.FindStatusCondition(b.Status.Conditions, string(t)); c != nil && c.Status == metav1.ConditionTrue {
			return *c
		}
	}
	building := apimeta.FindStatusCondition(b.Status.Conditions, string(mcfgv1.MachineOSBuilding))
	prepared := apimeta.FindStatusCondition(b.Status.Conditions, string(mcfgv1.MachineOSBuildPrepared))
	switch {
	case building != nil && (building.Status == metav1.ConditionTrue || prepared == nil || prepared.Status == metav1.ConditionTrue):
		return *building
	case prepared != nil: // False: what the build waits for
		return *prepared
	}
	return metav1.Condition{Reason: reasonPreparing, Message: fmt.Sprintf("MachineOSBuild %s is new.", b.Name)}
}

// relatedNames are the names of the ConfigMaps that a build has, sorted.
func (s *snapshot) relatedNames(b *mcfgv1.MachineOSBuild) (names []string) {
	for i := range s.configMaps {
		if belongsTo(&s.configMaps[i], b) {
			names = append(names, s.configMaps[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// newBuild is the build of these inputs, owned by its config.
func newBuild(config *mcfgv1.MachineOSConfig, name, machineConfig string, accepted *acceptance) *mcfgv1.MachineOSBuild {
	b := &mcfgv1.MachineOSBuild{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				labelLayering:      "",
				labelMachineConfig: labelValue(machineConfig),
				labelPool:          labelValue(config.Spec.MachineConfigPool.Name),
				labelConfig:        labelValue(config.Name),
			},
			Annotations: map[string]string{
				labelConfig:          config.Name,
				annotationConfigUID:  string(config.UID),
				annotationPushSecret: config.Spec.RenderedImagePushSecret.Name,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(config, mcfgv1.GroupVersion.WithKind("MachineOSConfig"))},
		},
		Spec: mcfgv1.MachineOSBuildSpec{
			MachineConfig:         mcfgv1.MachineConfigReference{Name: machineConfig},
			MachineOSConfig:       mcfgv1.MachineOSConfigReference{Name: config.Name},
			RenderedImagePushSpec: pushSpec(config, name),
		},
	}
	if accepted != nil {
		b.Annotations[annotationRebuild] = accepted.ID
	}
	return b
}
