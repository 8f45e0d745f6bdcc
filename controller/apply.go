package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apply carries a plan out. It returns whether something is waited for that may
// come without an event.
func (r *Reconciler) apply(ctx context.Context, s *snapshot, p plan) (waits bool, err error) {
	for _, b := range p.interrupt {
		v := verdict{state: interrupted, reason: reasonSuperseded, message: "The inputs of the build changed while it ran: a build of the new ones takes its place."}
		if _, err := r.setBuildStatus(ctx, s, b, v, s.jobOf(b), nil); err != nil {
			return false, err
		}
	}
	for _, o := range p.remove {
		if err := r.remove(ctx, s, o); err != nil {
			return false, err
		}
	}
	if s.config == nil || s.config.DeletionTimestamp != nil {
		return len(p.remove) > 0, nil
	}
	config := s.config.DeepCopy()
	if p.accept {
		found := requestsOf(config)
		accept(config)
		if err := r.patchConfig(ctx, s.config, config); err != nil {
			return false, err
		}
		r.requested(config, found)
	}
	if p.create != nil {
		switch err := r.Client.Create(ctx, p.create); {
		case err == nil:
			r.Metrics.created(config)
		case apierrors.IsAlreadyExists(err):
			if err := r.taken(ctx, p.create, err); err != nil {
				return false, err
			}
			p.reason, p.message = reasonNameTaken, fmt.Sprintf("MachineOSBuild %s exists, but its label %s does not name MachineOSConfig %s: delete it, so that it can be made again.", p.create.Name, labelConfig, config.Name)
		case refused(err):
			p.reason, p.message = reasonRefused, fmt.Sprintf("The API server refuses MachineOSBuild %s: %v.", p.create.Name, err)
		default:
			return false, err
		}
	}

	current := p.current
	if current != nil && ended(current) == "" {
		if current, waits, err = r.advance(ctx, s, p); err != nil {
			return false, err
		}
	}
	if current != nil {
		if p.finish {
			finish(config, acceptedOf(config))
		}
		if config.Annotations[annotationCurrentBuild] != current.Name {
			if config.Annotations == nil {
				config.Annotations = map[string]string{}
			}
			config.Annotations[annotationCurrentBuild] = current.Name
		}
		if err := r.patchConfig(ctx, s.config, config); err != nil {
			return false, err
		}
	}
	return waits || len(p.remove) > 0 || p.reason != "", r.setConfigStatus(ctx, config, current, p)
}

// advance makes what the current build lacks and writes its status.
func (r *Reconciler) advance(ctx context.Context, s *snapshot, p plan) (current *mcfgv1.MachineOSBuild, waits bool, err error) {
	job, related, v := s.jobOf(p.current), s.relatedNames(p.current), p.verdict
	if p.prepare {
		made, names, err := r.prepare(ctx, s.config, p.current)
		var why *problem
		switch {
		case errors.As(err, &why) && job == nil:
			v = verdict{state: preparing, reason: why.reason, message: why.message}
		case errors.As(err, &why):
			// What an active build has lost cannot be made again; its pod will say so.
		case err != nil:
			return nil, false, err
		case job == nil:
			job, related, v = made, names, judge(made, nil)
			if v.state.terminal() || v.lost {
				return nil, false, apierrors.NewConflict(batchv1.Resource("jobs"), made.Name, errors.New("it has ended, and neither it nor its pods were seen yet"))
			}
		}
	}
	current, err = r.setBuildStatus(ctx, s, p.current, v, job, related)
	return current, v.state == preparing, err
}

// prepare makes the objects of a build, the Job last. What exists already is left
// alone when it is this build's.
func (r *Reconciler) prepare(ctx context.Context, config *mcfgv1.MachineOSConfig, build *mcfgv1.MachineOSBuild) (*batchv1.Job, []string, error) {
	in, err := r.gather(ctx, config, build)
	if err != nil {
		return nil, nil, err
	}
	f, err := in.render(&r.Options)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, m := range f.configMaps {
		if err := r.ensure(ctx, m, build); err != nil {
			return nil, nil, err
		}
		names = append(names, m.Name)
	}
	slices.Sort(names)
	job := in.job(&r.Options, f)
	return job, names, r.ensure(ctx, job, build)
}

// taken returns an error that is tried again when a build that exists is one that a
// cache is yet to see, and nil when it will never be seen as this config's.
func (r *Reconciler) taken(ctx context.Context, wanted *mcfgv1.MachineOSBuild, exists error) error {
	var now mcfgv1.MachineOSBuild
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(wanted), &now); err != nil {
		return errors.Join(client.IgnoreNotFound(err), exists)
	}
	if now.Labels[labelConfig] == wanted.Labels[labelConfig] && now.Spec.MachineOSConfig.Name == wanted.Spec.MachineOSConfig.Name {
		return exists
	}
	return nil
}

// ensure creates an object of a build, or takes the one that is there. One of another
// build that is about to be deleted is an error that is tried again; one that is held,
// or is of no build, is a problem.
func (r *Reconciler) ensure(ctx context.Context, o client.Object, build *mcfgv1.MachineOSBuild) error {
	kind := kindOf(o)
	err := r.Client.Create(ctx, o)
	switch {
	case apierrors.IsAlreadyExists(err):
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		_, ofBuilds := o.GetLabels()[labelEphemeral]
		switch {
		case o.GetDeletionTimestamp() != nil:
			return problemf(reasonRemoving, "What the last build left is being removed: %s", held([]client.Object{o}))
		case ofBuilds && !belongsTo(o, build):
			return apierrors.NewConflict(corev1.Resource(kind), o.GetName(), errors.New("one of an older build is not gone yet"))
		case !ofBuilds:
			return problemf(reasonNameTaken, "%s %s exists in namespace %s and lacks the labels of an object of a build: delete it, since MachineOSBuild %s needs its name.", kind, o.GetName(), o.GetNamespace(), build.Name)
		}
		return nil
	case refused(err):
		return problemf(reasonRefused, "The API server refuses %s %s: %v.", kind, o.GetName(), err)
	}
	return err
}

// refused tells whether the API server does not take an object as it is.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsBadRequest(err)
}

// remove deletes an object that is not deleted yet, and none that has taken its name.
func (r *Reconciler) remove(ctx context.Context, s *snapshot, o client.Object) error {
	if o.GetDeletionTimestamp() != nil {
		return nil
	}
	err := r.Client.Delete(ctx, o, client.Preconditions{UID: ptr.To(o.GetUID())}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if b, ok := o.(*mcfgv1.MachineOSBuild); ok {
		r.removed(s, b)
	}
	return nil
}

// setBuildStatus writes the status of a build when it differs, and only after
// that tells others. It returns the build as it is then.
func (r *Reconciler) setBuildStatus(ctx context.Context, s *snapshot, b *mcfgv1.MachineOSBuild, v verdict, job *batchv1.Job, related []string) (*mcfgv1.MachineOSBuild, error) {
	updated := b.DeepCopy()
	updated.Status = buildStatus(b, v, job, related, r.Namespace, r.now())
	if equality.Semantic.DeepEqual(b.Status, updated.Status) {
		return updated, nil
	}
	if err := r.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{})); err != nil {
		return nil, fmt.Errorf("status of MachineOSBuild %s: %w", b.Name, err)
	}
	r.changed(s, b, updated, v)
	return updated, nil
}

func (r *Reconciler) setConfigStatus(ctx context.Context, config *mcfgv1.MachineOSConfig, b *mcfgv1.MachineOSBuild, p plan) error {
	updated := config.DeepCopy()
	updated.Status = configStatus(config, b, p.reason, p.message, r.now())
	if equality.Semantic.DeepEqual(config.Status, updated.Status) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, updated, client.MergeFromWithOptions(config, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("status of MachineOSConfig %s: %w", config.Name, err)
	}
	if b == nil {
		r.waiting(config, updated)
	}
	return nil
}

// patchConfig writes labels and annotations when they differ, and only onto the
// version of the config that was read.
func (r *Reconciler) patchConfig(ctx context.Context, before, config *mcfgv1.MachineOSConfig) error {
	if equality.Semantic.DeepEqual(before.ObjectMeta, config.ObjectMeta) {
		return nil
	}
	return r.Client.Patch(ctx, config, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (r *Reconciler) now() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func kindOf(o client.Object) string {
	switch o.(type) {
	case *batchv1.Job:
		return "Job"
	case *corev1.Pod:
		return "Pod"
	case *corev1.ConfigMap:
		return "ConfigMap"
	case *mcfgv1.MachineOSBuild:
		return "MachineOSBuild"
	}
	return o.GetObjectKind().GroupVersionKind().Kind
}
