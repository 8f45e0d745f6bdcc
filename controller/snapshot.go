package controller

import (
	"context"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// snapshot is everything that is known of one MachineOSConfig at one moment.
type snapshot struct {
	name string
	// config is nil when there is none of this name.
	config *mcfgv1.MachineOSConfig
	// pool is nil when it does not exist.
	pool   *mcfgv1.MachineConfigPool
	builds []mcfgv1.MachineOSBuild
	jobs   []batchv1.Job
	pods   []corev1.Pod
	// configMaps and secrets are those that builds made: their metadata.
	configMaps, secrets []metav1.PartialObjectMetadata
}

// observe reads what the cache has. Two things are asked of the API server again,
// since a cache can be behind, each kind for itself: what is said to be without an
// owner, as a Job that is seen before the build that it is for or a pod before its Job; and the pods of a Job
// that has ended, since what they say of the build's end is written down for good.
func (r *Reconciler) observe(ctx context.Context, name string) (*snapshot, error) {
	s := &snapshot{name: name}
	if err := s.readConfig(ctx, r.Client); err != nil {
		return nil, err
	}
	if err := s.readBuilds(ctx, r.Client); err != nil {
		return nil, err
	}
	secrets := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}}
	configMaps := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}}
	var jobs batchv1.JobList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&jobs, &pods, configMaps, secrets} {
		if err := r.Client.List(ctx, list, r.objectsFor(name)...); err != nil {
			return nil, err
		}
	}
	s.jobs, s.pods = jobs.Items, pods.Items
	s.configMaps, s.secrets = ofKind("ConfigMap", configMaps.Items), ofKind("Secret", secrets.Items)

	if s.somethingIsOrphaned() {
		if err := s.readConfig(ctx, r.Live); err != nil {
			return nil, err
		}
		if err := s.readBuilds(ctx, r.Live); err != nil {
			return nil, err
		}
	}
	if s.somethingIsLeftOver() {
		jobs = batchv1.JobList{}
		if err := r.Live.List(ctx, &jobs, r.objectsFor(name)...); err != nil {
			return nil, err
		}
		s.jobs = jobs.Items
	}
	if s.somethingEnds() {
		pods = corev1.PodList{}
		if err := r.Live.List(ctx, &pods, r.objectsFor(name)...); err != nil {
			return nil, err
		}
		s.pods = pods.Items
	}
	if s.config == nil {
		return s, nil
	}
	var pool mcfgv1.MachineConfigPool
	switch err := r.Client.Get(ctx, client.ObjectKey{Name: s.config.Spec.MachineConfigPool.Name}, &pool); {
	case err == nil:
		s.pool = &pool
	case !apierrors.IsNotFound(err):
		return nil, err
	}
	return s, nil
}

// objectsFor selects the objects of the builds of a config.
func (r *Reconciler) objectsFor(name string) []client.ListOption {
	return []client.ListOption{client.InNamespace(r.Namespace), client.HasLabels{labelEphemeral}, client.MatchingLabels{labelConfig: labelValue(name)}}
}

// ofKind says in each object of what kind it is, which a list does not.
func ofKind(kind string, objects []metav1.PartialObjectMetadata) []metav1.PartialObjectMetadata {
	for i := range objects {
		objects[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: kind}
	}
	return objects
}

func (s *snapshot) readConfig(ctx context.Context, from client.Reader) error {
	var config mcfgv1.MachineOSConfig
	err := from.Get(ctx, client.ObjectKey{Name: s.name}, &config)
	switch {
	case apierrors.IsNotFound(err):
		s.config = nil
		return nil
	case err == nil:
		s.config = &config
	}
	return err
}

func (s *snapshot) readBuilds(ctx context.Context, from client.Reader) error {
	var builds mcfgv1.MachineOSBuildList
	if err := from.List(ctx, &builds, client.MatchingLabels{labelConfig: labelValue(s.name)}); err != nil {
		return err
	}
	s.builds = slices.DeleteFunc(builds.Items, func(b mcfgv1.MachineOSBuild) bool { return b.Spec.MachineOSConfig.Name != s.name })
	return nil
}

func (s *snapshot) somethingIsOrphaned() bool {
	for i := range s.builds {
		if !s.owned(&s.builds[i]) {
			return true
		}
	}
	return len(s.orphans()) > 0
}

// somethingIsLeftOver tells whether a build that has not ended has a pod and no Job.
func (s *snapshot) somethingIsLeftOver() bool {
	return slices.ContainsFunc(s.builds, func(b mcfgv1.MachineOSBuild) bool { return ended(&b) == "" && len(s.leftOver(&b)) > 0 })
}

// somethingEnds tells whether a Job has ended and its build has not.
func (s *snapshot) somethingEnds() bool {
	for i := range s.builds {
		job := s.jobOf(&s.builds[i])
		if job != nil && ended(&s.builds[i]) == "" && (jobCondition(job, batchv1.JobComplete) != nil || jobCondition(job, batchv1.JobFailed) != nil) {
			return true
		}
	}
	return false
}

// owned tells whether a build is of the config that exists now, and not of an
// earlier one of the same name. A build without an owner is taken for its own.
func (s *snapshot) owned(b *mcfgv1.MachineOSBuild) bool {
	uid := ownerUID(b)
	return s.config != nil && s.config.DeletionTimestamp == nil && (uid == "" || uid == s.config.UID)
}

// objects are all objects of builds, in the order in which they are to be
// deleted: the Job before its pods, so that it does not replace them.
func (s *snapshot) objects() (all []client.Object) {
	for i := range s.jobs {
		all = append(all, &s.jobs[i])
	}
	for i := range s.pods {
		all = append(all, &s.pods[i])
	}
	for i := range s.configMaps {
		all = append(all, &s.configMaps[i])
	}
	for i := range s.secrets {
		all = append(all, &s.secrets[i])
	}
	return all
}

// objectsOf are the objects of one build.
func (s *snapshot) objectsOf(b *mcfgv1.MachineOSBuild) []client.Object {
	return slices.DeleteFunc(s.objects(), func(o client.Object) bool { return !belongsTo(o, b) })
}

// orphans are the objects of no build that exists.
func (s *snapshot) orphans() []client.Object {
	return slices.DeleteFunc(s.objects(), func(o client.Object) bool {
		return slices.ContainsFunc(s.builds, func(b mcfgv1.MachineOSBuild) bool { return belongsTo(o, &b) })
	})
}

// jobOf is the Job of a build, or nil; podsOf are its pods.
func (s *snapshot) jobOf(b *mcfgv1.MachineOSBuild) *batchv1.Job {
	for i := range s.jobs {
		if belongsTo(&s.jobs[i], b) && s.jobs[i].Name == jobName(b.Name) {
			return &s.jobs[i]
		}
	}
	return nil
}

func (s *snapshot) podsOf(b *mcfgv1.MachineOSBuild, job *batchv1.Job) (pods []corev1.Pod) {
	for i := range s.pods {
		if owner := metav1.GetControllerOf(&s.pods[i]); belongsTo(&s.pods[i], b) && owner != nil && owner.UID == job.UID {
			pods = append(pods, s.pods[i])
		}
	}
	return pods
}
