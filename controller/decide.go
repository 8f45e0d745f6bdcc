package controller

import (
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// plan is what is to be done about a snapshot, in this order. Nothing in it
// depends on what was done before: a plan that was carried out in part is followed
// by one for the rest.
type plan struct {
	// accept records the requests on the config; nothing else is done with it.
	accept bool
	// interrupt are active builds that another one takes the place of.
	interrupt []*mcfgv1.MachineOSBuild
	// remove are objects and builds to delete.
	remove []client.Object
	// create is the build to create, if any.
	create *mcfgv1.MachineOSBuild
	// current is the build of the inputs as they are, if it exists and stays.
	current *mcfgv1.MachineOSBuild
	// prepare says that the objects of the current build are to be made.
	prepare bool
	// verdict is the state of the current build. That of a build that has ended
	// before is in its status and not here.
	verdict verdict
	// finish says that the accepted requests are served.
	finish bool
	// reason and message are what the config waits for, when there is no current build.
	reason, message string
}

// decide is a pure function.
func decide(s *snapshot) (p plan) {
	// What is of no build that exists goes, and so does a build of no config that exists.
	p.remove = s.orphans()
	var mine, others []*mcfgv1.MachineOSBuild
	for i := range s.builds {
		if b := &s.builds[i]; s.owned(b) {
			mine = append(mine, b)
		} else {
			others = append(others, b)
			p.remove = append(p.remove, s.takeDown(b)...)
		}
	}
	if s.config == nil || s.config.DeletionTimestamp != nil {
		return p
	}

	accepted := acceptedOf(s.config)
	if found := requestsOf(s.config); accepted == nil && len(found) > 0 {
		p.accept, p.reason = true, reasonRebuilding
		p.message = "A rebuild was asked for (" + found.describe() + ")."
		return p
	}

	switch {
	case s.pool == nil:
		p.reason = reasonPoolMissing
		p.message = fmt.Sprintf("MachineConfigPool %s does not exist.", s.config.Spec.MachineConfigPool.Name)
	case s.pool.Spec.Configuration.Name == "":
		p.reason = reasonPoolNotRendered
		p.message = fmt.Sprintf("MachineConfigPool %s has no rendered MachineConfig yet (spec.configuration.name is empty).", s.pool.Name)
	}
	if p.reason != "" {
		// A build that is at work has all that it needs: it is followed to its end.
		p.follow(s, mine)
		return p
	}

	name := buildName(s.config, s.pool.Spec.Configuration.Name)
	var current *mcfgv1.MachineOSBuild
	for _, b := range mine {
		switch outdated := accepted != nil && b.Annotations[annotationRebuild] != accepted.ID; {
		case b.Name == name && !outdated && b.DeletionTimestamp == nil && ended(b) != string(mcfgv1.MachineOSBuildInterrupted):
			current = b
		case b.Name == name, outdated && ended(b) != string(mcfgv1.MachineOSBuildSucceeded):
			// In the way of the new one, or what a rebuild is to clear away.
			p.remove = append(p.remove, s.takeDown(b)...)
			p.reason = reasonRemoving
			if accepted != nil {
				p.reason = reasonRebuilding
			}
		case ended(b) == "":
			p.interrupt = append(p.interrupt, b)
			p.remove = append(p.remove, s.objectsOf(b)...)
		default:
			p.remove = append(p.remove, s.objectsOf(b)...)
		}
	}
	for _, b := range others {
		if b.Name == name {
			p.reason = reasonRemoving
		}
	}
	if p.reason != "" {
		p.message = "What the last build left is being removed: " + held(p.remove)
		return p
	}
	if current == nil {
		if p.reason, p.message = checkPushSpec(s.config); p.reason != "" {
			return p
		}
		p.create = newBuild(s.config, name, s.pool.Spec.Configuration.Name, accepted)
		p.reason, p.message = reasonPreparing, fmt.Sprintf("MachineOSBuild %s is being made.", name)
		return p
	}
	p.current = current
	p.progress(s, accepted)
	return p
}

// follow takes up a build whose Job works, where it is not known which build is wanted.
func (p *plan) follow(s *snapshot, mine []*mcfgv1.MachineOSBuild) {
	for _, b := range mine {
		job := s.jobOf(b)
		if ended(b) != "" || b.DeletionTimestamp != nil || job == nil || job.DeletionTimestamp != nil {
			continue
		}
		if v := judge(job, s.podsOf(b, job)); !v.lost {
			p.current, p.verdict = b, v
		}
	}
}

// progress decides about the build of the inputs as they are.
func (p *plan) progress(s *snapshot, accepted *acceptance) {
	job := s.jobOf(p.current)
	p.finish = accepted != nil && (job != nil && job.DeletionTimestamp == nil || ended(p.current) != "")
	switch {
	case ended(p.current) == string(mcfgv1.MachineOSBuildSucceeded):
		p.remove = append(p.remove, s.objectsOf(p.current)...)
	case ended(p.current) != "":
		// What a failed build has is kept for inspection.
	case job != nil && job.DeletionTimestamp != nil:
		p.verdict = verdict{state: preparing, reason: reasonStopping, message: held([]client.Object{job})}
	case job != nil:
		p.verdict = judge(job, s.podsOf(p.current, job))
		if p.verdict.lost {
			p.remove = append(p.remove, job)
		}
		p.prepare = !p.verdict.state.terminal() && s.missing(p.current)
	default:
		// One build works at a time: two would push in turn.
		if others := s.othersAtWork(p.current); len(others) > 0 {
			p.verdict = verdict{state: preparing, reason: reasonStopping, message: "An older build is being stopped: " + held(others)}
			return
		}
		if left := s.leftOver(p.current); len(left) > 0 {
			p.remove = append(p.remove, left...)
			p.verdict = verdict{state: preparing, reason: reasonStopping, message: "The Job of the build is gone, and its pod is being stopped: " + held(left)}
			return
		}
		p.verdict = verdict{state: preparing, reason: reasonPreparing, message: "The objects of the build are being made."}
		p.prepare = true
	}
}

// takeDown is what to delete next of a build that is to go: its objects, and when
// these are gone itself.
func (s *snapshot) takeDown(b *mcfgv1.MachineOSBuild) []client.Object {
	if objects := s.objectsOf(b); len(objects) > 0 {
		return objects
	}
	return []client.Object{b}
}

// othersAtWork are Jobs and pods of other builds of the config.
func (s *snapshot) othersAtWork(current *mcfgv1.MachineOSBuild) (found []client.Object) {
	for i := range s.jobs {
		if !belongsTo(&s.jobs[i], current) {
			found = append(found, &s.jobs[i])
		}
	}
	for i := range s.pods {
		if p := &s.pods[i]; !belongsTo(p, current) && p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
			found = append(found, p)
		}
	}
	return found
}

// leftOver are the pods that may work for a build that has no Job.
func (s *snapshot) leftOver(b *mcfgv1.MachineOSBuild) (found []client.Object) {
	if s.jobOf(b) != nil {
		return nil
	}
	for i := range s.pods {
		if p := &s.pods[i]; belongsTo(p, b) && p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
			found = append(found, p)
		}
	}
	return found
}

// missing tells whether an object that the build's status lists is gone.
func (s *snapshot) missing(b *mcfgv1.MachineOSBuild) bool {
	for _, related := range b.Status.RelatedObjects {
		found := false
		for i := range s.configMaps {
			found = found || (s.configMaps[i].Name == related.Name && belongsTo(&s.configMaps[i], b))
		}
		if !found {
			return true
		}
	}
	return false
}

// ended is the terminal condition of a build that has one, else "".
func ended(b *mcfgv1.MachineOSBuild) string {
	for _, t := range terminalConditions {
		if apimeta.IsStatusConditionTrue(b.Status.Conditions, string(t)) {
			return string(t)
		}
	}
	return ""
}

var terminalConditions = []mcfgv1.BuildProgress{mcfgv1.MachineOSBuildSucceeded, mcfgv1.MachineOSBuildFailed, mcfgv1.MachineOSBuildInterrupted}

// held names objects that are to go, with what holds them.
func held(objects []client.Object) string {
	var parts []string
	for _, o := range objects {
		text := kindOf(o) + " " + o.GetName()
		if f := o.GetFinalizers(); o.GetDeletionTimestamp() != nil && len(f) > 0 {
			text += " (deleted, but held by the finalizer " + strings.Join(f, ", ") + ")"
		} else if o.GetDeletionTimestamp() != nil {
			text += " (ending)"
		}
		parts = append(parts, text)
	}
	const most = 4
	if n := len(parts) - most; n > 0 {
		parts = append(parts[:most], fmt.Sprintf("%d more", n))
	}
	return strings.Join(parts, ", ") + "."
}
