package controller

import (
	"fmt"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Reasons of events.
const (
	eventRequested   = "RebuildRequested"
	eventWaiting     = "BuildWaiting"
	eventPrepared    = "BuildPrepared"
	eventStarted     = "BuildStarted"
	eventCompleted   = "BuildCompleted"
	eventFailed      = "BuildFailed"
	eventInterrupted = "BuildInterrupted"
	eventDeleted     = "BuildDeleted"
)

// maxNote is how long the API lets the text of an event be.
const maxNote = 1024

// changed tells of a change of a build's phase that has been written.
func (r *Reconciler) changed(s *snapshot, before, b *mcfgv1.MachineOSBuild, v verdict) {
	r.Metrics.changed(before, b, v)
	was, is := telling(before), telling(b)
	if was.Type == is.Type && was.Status == is.Status && was.Reason == is.Reason {
		return
	}
	kind, reason := corev1.EventTypeNormal, eventWaiting
	switch {
	case is.Status != metav1.ConditionTrue && (is.Reason == reasonPodPending || is.Reason == reasonPreparing || is.Reason == reasonPrepared):
		if !apimeta.IsStatusConditionTrue(b.Status.Conditions, string(mcfgv1.MachineOSBuildPrepared)) {
			return // about to be prepared
		}
		reason = eventPrepared
	case is.Status != metav1.ConditionTrue:
		kind = corev1.EventTypeWarning
	case is.Type == string(mcfgv1.MachineOSBuilding):
		reason = eventStarted
	case is.Type == string(mcfgv1.MachineOSBuildSucceeded):
		reason = eventCompleted
	case is.Type == string(mcfgv1.MachineOSBuildInterrupted):
		kind, reason = corev1.EventTypeWarning, eventInterrupted
	default:
		kind, reason = corev1.EventTypeWarning, eventFailed
	}
	age := r.now().Sub(b.CreationTimestamp.Time).Round(time.Second)
	r.tell(s.config, b, kind, reason, fmt.Sprintf("%s (%s after the build was created)", is.Message, age))
}

// removed tells that a build was deleted.
func (r *Reconciler) removed(s *snapshot, b *mcfgv1.MachineOSBuild) {
	text := fmt.Sprintf("MachineOSBuild %s was deleted", b.Name)
	if ended(b) == "" {
		text += " before it ended"
		r.Metrics.cancelled(b)
	}
	if s.config != nil {
		r.tell(s.config, nil, corev1.EventTypeNormal, eventDeleted, text+".")
	}
}

// requested tells that a rebuild was accepted.
func (r *Reconciler) requested(config *mcfgv1.MachineOSConfig, found requests) {
	r.tell(config, nil, corev1.EventTypeNormal, eventRequested, "A rebuild was asked for by "+found.describe()+".")
}

// waiting tells what a config without a build waits for.
func (r *Reconciler) waiting(before, config *mcfgv1.MachineOSConfig) {
	was, is := apimeta.FindStatusCondition(before.Status.Conditions, conditionImageReady), apimeta.FindStatusCondition(config.Status.Conditions, conditionImageReady)
	if is == nil || is.Reason == reasonPreparing || (was != nil && was.Reason == is.Reason) {
		return
	}
	kind := corev1.EventTypeWarning
	if is.Reason == reasonRebuilding || is.Reason == reasonRemoving {
		kind = corev1.EventTypeNormal
	}
	r.tell(config, nil, kind, eventWaiting, is.Message)
}

// tell logs, and makes an event of the config and, where there is one, of its build.
func (r *Reconciler) tell(config *mcfgv1.MachineOSConfig, b *mcfgv1.MachineOSBuild, kind, reason, note string) {
	note = head(strings.ToValidUTF8(note, "�"), maxNote)
	const action = "Build"
	logger := ctrl.Log.WithName("builds")
	if config != nil {
		logger = logger.WithValues("machineOSConfig", config.Name)
	}
	if b != nil {
		logger = logger.WithValues("machineOSBuild", b.Name, "uid", b.UID)
	}
	logger.Info(note, "event", reason)
	if b != nil {
		r.Recorder.Eventf(b, orNil(config), kind, reason, action, "%s", note)
	}
	if config != nil {
		var related runtime.Object
		if b != nil {
			related = b
		}
		r.Recorder.Eventf(config, related, kind, reason, action, "%s", note)
	}
}

func orNil(config *mcfgv1.MachineOSConfig) runtime.Object {
	if config == nil {
		return nil
	}
	return config
}
