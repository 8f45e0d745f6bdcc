package controller

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/strata-build/strata/agent/result"
)

// Limits of a build's Job.
const (
	// backoffLimit is how many pods may fail and be followed by another. The agent
	// has tried each operation several times before its pod fails.
	backoffLimit = 3
	// gracePeriod is how long a pod has to end, in seconds; the agent needs five
	// to stop a step and leave its result.
	gracePeriod = 30
)

// Where a build pod sees its files. The agent knows most of these paths as those
// of the Machine Config Operator's build pod.
const (
	pathContainerfile = "/tmp/containerfile"
	pathMachineConfig = "/tmp/machineconfig"
	pathPull          = "/tmp/base-image-pull-creds"
	pathPush          = "/tmp/final-image-push-creds"
	pathTrustBundle   = "/etc/pki/ca-trust/source/anchors"
	pathEntitlement   = "/etc/pki/entitlement"
	pathRPMKeys       = "/etc/pki/rpm-gpg"
	pathRepositories  = "/etc/yum.repos.d"
	// pathCluster is where a pod finds the authorities of its cluster. The token
	// that is usually there too is not: a build has no rights.
	pathCluster = "/var/run/secrets/kubernetes.io/serviceaccount"
	pathStore   = "/var/lib/containers"
)

// pod collects volumes, mounts and environment of the build's container.
type pod struct {
	volumes []corev1.Volume
	mounts  []corev1.VolumeMount
	env     []corev1.EnvVar
}

func (p *pod) mount(name, path string, source corev1.VolumeSource) {
	p.volumes = append(p.volumes, corev1.Volume{Name: name, VolumeSource: source})
	// Whole directories: a file mounted with subPath would never be updated.
	p.mounts = append(p.mounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: source.EmptyDir == nil})
}

func (p *pod) set(name, value string) {
	if value != "" {
		p.env = append(p.env, corev1.EnvVar{Name: name, Value: value})
	}
}

// job is the Job of a build.
func (in *inputs) job(o *Options, f *files) *batchv1.Job {
	p := &pod{}
	p.set("TAG", string(in.build.Spec.RenderedImagePushSpec))
	p.set("BASE_IMAGE_PULL_CREDS", pathPull+"/config.json")
	p.set("FINAL_IMAGE_PUSH_CREDS", pathPush+"/config.json")
	p.set("MAX_RETRIES", strconv.Itoa(o.MaxRetries))
	p.set("STRATA_BUILD_ID", string(in.build.UID))
	p.set("STRATA_STORAGE_ROOT", pathStore+"/storage")
	p.set("TMPDIR", pathStore+"/tmp")
	if in.cluster != nil && in.cluster.Spec.Proxy != nil {
		p.set("HTTP_PROXY", in.cluster.Spec.Proxy.HTTPProxy)
		p.set("HTTPS_PROXY", in.cluster.Spec.Proxy.HTTPSProxy)
		p.set("NO_PROXY", in.cluster.Spec.Proxy.NoProxy)
	}
	for _, flag := range slices.Sorted(maps.Keys(in.pod.Agent)) {
		p.set("STRATA_"+strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), in.pod.Agent[flag])
	}

	p.mount("containerfile", pathContainerfile, configMap(containerfileName(in.build.Name)))
	p.mount("machineconfig", pathMachineConfig, projected(f.parts, false))
	p.mount("base-image-pull-creds", pathPull, in.pull.volume())
	p.mount("final-image-push-creds", pathPush, in.push.volume())
	if f.trustBundle {
		p.mount("additional-trust-bundle", pathTrustBundle, configMap(trustBundleName(in.build.Name)))
	}
	if len(f.registries) > 0 {
		p.mount("etc-containers", strings.TrimSuffix(containersPath, "/"), corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: f.registries}})
	}
	p.mount("cluster-authorities", pathCluster, projected([]string{"kube-root-ca.crt", "openshift-service-ca.crt"}, true))
	for _, seen := range []struct {
		name, volume, path, env string
		source                  corev1.VolumeSource
	}{
		{in.entitlement, "etc-pki-entitlement", pathEntitlement, "ETC_PKI_ENTITLEMENT_MOUNTPOINT", secret(in.entitlement)},
		{in.rpmKeys, "etc-pki-rpm-gpg", pathRPMKeys, "ETC_PKI_RPM_GPG_MOUNTPOINT", secret(in.rpmKeys)},
		{in.repositories, "etc-yum-repos-d", pathRepositories, "ETC_YUM_REPOS_D_MOUNTPOINT", configMap(in.repositories)},
	} {
		if seen.name != "" {
			p.mount(seen.volume, seen.path, seen.source)
			p.set(seen.env, seen.path)
		}
	}
	p.mount("store", pathStore, corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: in.pod.Storage}})

	j := &batchv1.Job{
		ObjectMeta: buildMeta(o.Namespace, jobName(in.build.Name), in.build, in.config.Spec.MachineConfigPool.Name),
		Spec: batchv1.JobSpec{
			BackoffLimit:          ptr.To(int32(backoffLimit)),
			Completions:           ptr.To(int32(1)),
			Parallelism:           ptr.To(int32(1)),
			ActiveDeadlineSeconds: ptr.To(ptr.Deref(in.pod.DeadlineSeconds, defaultDeadline)),
			PodFailurePolicy:      podFailurePolicy(),
			PodReplacementPolicy:  ptr.To(batchv1.Failed),
			Template:              in.template(o, p),
		},
	}
	j.Annotations[annotationUserLine] = strconv.Itoa(f.userLine)
	j.Spec.Template.Labels, j.Spec.Template.Annotations = maps.Clone(in.pod.Labels), maps.Clone(in.pod.Annotations)
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	if j.Spec.Template.Annotations == nil {
		j.Spec.Template.Annotations = map[string]string{}
	}
	maps.Copy(j.Spec.Template.Labels, j.Labels)
	for _, key := range []string{labelConfig, labelBuild} {
		j.Spec.Template.Annotations[key] = j.Annotations[key]
	}
	return j
}

func (in *inputs) template(o *Options, p *pod) corev1.PodTemplateSpec {
	mode := securityOf[o.Privilege]
	// A base and the Containerfile are chosen for an architecture, and so is the node.
	nodes := map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: in.architecture(o)}
	maps.Copy(nodes, in.pod.NodeSelector)
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: ptr.To(int64(gracePeriod)),
		ServiceAccountName:            o.BuildServiceAccount,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		HostUsers:                     mode.hostUsers,
		NodeSelector:                  nodes,
		Tolerations:                   in.pod.Tolerations,
		PriorityClassName:             in.pod.PriorityClassName,
		Volumes:                       p.volumes,
		Containers: []corev1.Container{{
			Name:                     containerName,
			Image:                    o.AgentImage,
			Command:                  []string{"/agent", "build"},
			Env:                      p.env,
			VolumeMounts:             p.mounts,
			Resources:                in.pod.Resources,
			SecurityContext:          mode.container.DeepCopy(),
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		}},
	}}
}

// podFailurePolicy is the table of the agent's exit codes: one that another pod
// would end with too fails the Job at once. A pod that was taken away is not counted.
func podFailurePolicy() *batchv1.PodFailurePolicy {
	onExit := func(action batchv1.PodFailurePolicyAction, job string) batchv1.PodFailurePolicyRule {
		codes := &batchv1.PodFailurePolicyOnExitCodesRequirement{ContainerName: ptr.To(containerName), Operator: batchv1.PodFailurePolicyOnExitCodesOpIn}
		for _, c := range result.ExitCodes() {
			if word, _, _ := strings.Cut(c.Job, ";"); word == job {
				codes.Values = append(codes.Values, int32(c.Code)) //nolint:gosec // an exit code has eight bits
			}
		}
		return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: codes}
	}
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		onExit(batchv1.PodFailurePolicyActionFailJob, "FailJob"),
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
		onExit(batchv1.PodFailurePolicyActionCount, "Count"),
	}}
}

func (c credentials) volume() corev1.VolumeSource {
	v := secret(c.secret)
	v.Secret.Items = []corev1.KeyToPath{{Key: c.key, Path: "config.json"}}
	return v
}

func secret(name string) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: ptr.To(int32(0o400))}}
}

func configMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

// projected puts the keys of several ConfigMaps into one directory.
func projected(names []string, optional bool) corev1.VolumeSource {
	v := &corev1.ProjectedVolumeSource{}
	for _, name := range names {
		source := &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
		if optional {
			source.Optional = ptr.To(true)
		}
		v.Sources = append(v.Sources, corev1.VolumeProjection{ConfigMap: source})
	}
	return corev1.VolumeSource{Projected: v}
}
