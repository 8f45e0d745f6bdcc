package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/controller/render"
)

// problem is what keeps a build from starting and heals by itself when the
// cluster changes: it becomes a condition, and no error that is tried again.
type problem struct{ reason, message string }

func (p *problem) Error() string { return p.message }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason, fmt.Sprintf(format, args...)}
}

// inputs is what a build is made of, read from the API server when it starts.
type inputs struct {
	build         *mcfgv1.MachineOSBuild
	config        *mcfgv1.MachineOSConfig
	machineConfig *mcfgv1.MachineConfig
	// cluster is nil where there is no ControllerConfig.
	cluster *mcfgv1.ControllerConfig
	// push and pull are the names of secrets, with the key that has the credentials.
	push, pull credentials
	// entitlement, rpmKeys and repositories are names of a secret or ConfigMap that
	// a RUN step sees, "" where there is none.
	entitlement, rpmKeys, repositories string
	pod                                BuildPod
}

type credentials struct{ secret, key string }

// Names of objects of a cluster, as the Machine Config Operator knows them.
const (
	controllerConfigName = "machine-config-controller"
	entitlementName      = "etc-pki-entitlement-" // and the pool
	rpmKeysName          = "etc-pki-rpm-gpg"
	repositoriesName     = "etc-yum-repos-d"
)

// gather reads the inputs of a build. It fails with a problem when one is missing
// or malformed.
func (r *Reconciler) gather(ctx context.Context, config *mcfgv1.MachineOSConfig, build *mcfgv1.MachineOSBuild) (*inputs, error) {
	in := &inputs{build: build, config: config, machineConfig: &mcfgv1.MachineConfig{}}
	pool := config.Spec.MachineConfigPool.Name

	// A cache that is behind may have a build that is gone: no pod is to run for that.
	var now mcfgv1.MachineOSBuild
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(build), &now); err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if now.UID != build.UID || now.DeletionTimestamp != nil || ended(&now) != "" {
		return nil, apierrors.NewConflict(mcfgv1.Resource("machineosbuilds"), build.Name, errors.New("it is gone, or has ended"))
	}

	in.pod = r.BuildPod
	if text, ok := config.Annotations[annotationBuildPod]; ok {
		var err error
		if in.pod, err = ParseBuildPod(text, r.BuildPod); err != nil {
			return nil, problemf(reasonBuildPodInvalid, "The annotation %s of MachineOSConfig %s cannot be used: %v", annotationBuildPod, config.Name, err)
		}
	}

	var err error
	if in.push, err = r.credentials(ctx, config.Spec.RenderedImagePushSecret.Name, "the push secret (renderedImagePushSecret)"); err != nil {
		return nil, err
	}
	if named := config.Spec.BaseImagePullSecret; named != nil {
		in.pull, err = r.credentials(ctx, named.Name, "the pull secret (baseImagePullSecret)")
	} else {
		in.pull, err = r.credentials(ctx, r.DefaultPullSecret, "the cluster's pull secret, which is used because there is no baseImagePullSecret,")
	}
	if err != nil {
		return nil, err
	}

	name := build.Spec.MachineConfig.Name
	switch err := r.Live.Get(ctx, client.ObjectKey{Name: name}, in.machineConfig); {
	case apierrors.IsNotFound(err):
		return nil, problemf(reasonMachineConfigMissing, "MachineConfig %s, which MachineConfigPool %s names, does not exist.", name, pool)
	case err != nil:
		return nil, err
	}
	var cluster mcfgv1.ControllerConfig
	switch err := r.Live.Get(ctx, client.ObjectKey{Name: controllerConfigName}, &cluster); {
	case err == nil:
		in.cluster = &cluster
	case !apierrors.IsNotFound(err) && !apimeta.IsNoMatchError(err):
		return nil, err
	}

	for _, optional := range []struct {
		name string
		kind client.Object
		to   *string
	}{
		{entitlementName + pool, &corev1.Secret{}, &in.entitlement},
		{rpmKeysName, &corev1.Secret{}, &in.rpmKeys},
		{repositoriesName, &corev1.ConfigMap{}, &in.repositories},
	} {
		switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: optional.name}, optional.kind); {
		case err == nil:
			*optional.to = optional.name
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	return in, nil
}

// credentials looks whether a secret has credentials of registries, in the form
// of a file config.json or of its ancestor .dockercfg; the agent takes both.
func (r *Reconciler) credentials(ctx context.Context, name, what string) (credentials, error) {
	var secret corev1.Secret
	switch err := r.Live.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: name}, &secret); {
	case apierrors.IsNotFound(err):
		return credentials{}, problemf(reasonSecretMissing, "Secret %s, %s, does not exist in namespace %s.", name, strings.TrimSuffix(what, ","), r.Namespace)
	case err != nil:
		return credentials{}, err
	}
	for _, key := range []string{corev1.DockerConfigJsonKey, corev1.DockerConfigKey} {
		data, ok := secret.Data[key]
		if !ok {
			continue
		}
		entries := map[string]json.RawMessage{}
		err := json.Unmarshal(data, &entries)
		if err == nil && key == corev1.DockerConfigJsonKey {
			auths := entries["auths"]
			entries = nil
			err = json.Unmarshal(auths, &entries)
		}
		// What the parser says could quote what is in the secret.
		switch {
		case err != nil:
			return credentials{}, problemf(reasonSecretInvalid, "Secret %s, %s, is malformed: its key %s is not JSON of the form that holds credentials of registries.", name, strings.TrimSuffix(what, ","), key)
		case len(entries) == 0:
			return credentials{}, problemf(reasonSecretInvalid, "Secret %s, %s, is empty: its key %s has no entry for any registry.", name, strings.TrimSuffix(what, ","), key)
		}
		return credentials{name, key}, nil
	}
	return credentials{}, problemf(reasonSecretInvalid, "Secret %s, %s, has neither the key %s nor %s.", name, strings.TrimSuffix(what, ","), corev1.DockerConfigJsonKey, corev1.DockerConfigKey)
}

// files are the ConfigMaps of a build and where its pod sees their keys.
type files struct {
	configMaps []*corev1.ConfigMap
	userLine   int
	// parts are the names of the ConfigMaps with the MachineConfig, in order.
	parts []string
	// registries are the items of the projected volume at /etc/containers.
	registries  []corev1.VolumeProjection
	trustBundle bool
}

// containersPath is where the configuration of registries is on a node and in a
// build pod.
const containersPath = "/etc/containers/"

// render makes the ConfigMaps. It fails with a problem.
func (in *inputs) render(o *Options) (*files, error) {
	f := &files{}
	add := func(name string) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: buildMeta(o.Namespace, name, in.build, in.config.Spec.MachineConfigPool.Name)}
		m.Immutable = new(bool)
		*m.Immutable = true
		f.configMaps = append(f.configMaps, m)
		return m
	}
	mc := in.machineConfig
	invalid := func(err error) error {
		return problemf(reasonMachineConfigInvalid, "%s.", strings.TrimSuffix(err.Error(), "."))
	}

	var bundle []byte
	extensions := mc.Spec.BaseOSExtensionsContainerImage
	if in.cluster != nil {
		bundle = in.cluster.Spec.AdditionalTrustBundle
		if extensions == "" {
			extensions = in.cluster.Spec.BaseOSExtensionsContainerImage
		}
	}
	f.trustBundle = len(bundle) > 0
	arch := in.architecture(o)
	content, userLine, err := render.Containerfile{
		BaseImage: mc.Spec.OSImageURL, ExtensionsImage: extensions,
		Extensions: mc.Spec.Extensions, KernelType: mc.Spec.KernelType, Architecture: arch,
		MachineConfig: mc.Name, Pool: in.config.Spec.MachineConfigPool.Name,
		ReleaseVersion: mc.Annotations[annotationReleaseVersion],
		TrustBundle:    f.trustBundle,
		User:           containerfileFor(in.config, arch),
	}.Render()
	if err != nil {
		return nil, invalid(err)
	}
	f.userLine = userLine
	add(containerfileName(in.build.Name)).Data = map[string]string{"Containerfile": content}

	if err := in.addMachineConfig(f, add); err != nil {
		return nil, err
	}
	if f.trustBundle {
		add(trustBundleName(in.build.Name)).BinaryData = map[string][]byte{render.TrustBundleFile: bundle}
	}

	for _, group := range []struct {
		name string
		want func(string) bool
	}{
		{policyName(in.build.Name), func(p string) bool {
			return p == "policy.json" || strings.HasPrefix(p, "registries.d/")
		}},
		{registriesName(in.build.Name), func(p string) bool {
			return p == "registries.conf" || strings.HasPrefix(p, "registries.conf.d/")
		}},
	} {
		found, err := render.Files(mc.Spec.Config.Raw, func(path string) bool {
			rest, ok := strings.CutPrefix(path, containersPath)
			return ok && group.want(rest)
		})
		if err != nil {
			return nil, invalid(fmt.Errorf("MachineConfig %s: %w", mc.Name, err))
		}
		if len(found) == 0 {
			continue
		}
		source := &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: group.name}}
		m := add(group.name)
		m.BinaryData = map[string][]byte{}
		for _, file := range found {
			path := strings.TrimPrefix(file.Path, containersPath)
			key := strings.ReplaceAll(path, "/", "_") // a key has no slash
			m.BinaryData[key] = file.Content
			source.Items = append(source.Items, corev1.KeyToPath{Key: key, Path: path})
		}
		f.registries = append(f.registries, corev1.VolumeProjection{ConfigMap: source})
	}
	return f, nil
}

// addMachineConfig adds the MachineConfig in as many ConfigMaps as it takes.
func (in *inputs) addMachineConfig(f *files, add func(string) *corev1.ConfigMap) error {
	mc := in.machineConfig.DeepCopy()
	mc.APIVersion, mc.Kind = mcfgv1.GroupVersion.String(), "MachineConfig"
	mc.ManagedFields = nil
	text, err := json.Marshal(mc)
	if err != nil {
		return problemf(reasonMachineConfigInvalid, "MachineConfig %s cannot be encoded: %v.", mc.Name, err)
	}
	parts, err := render.Parts(mc.Name, text)
	if tooLarge := (*render.TooLargeError)(nil); errors.As(err, &tooLarge) {
		return problemf(reasonMachineConfigLarge, "%s.", tooLarge.Error())
	} else if err != nil {
		return err
	}
	for i, part := range parts {
		name := machineConfigName(in.build.Name)
		if i > 0 {
			name = fmt.Sprintf("%s-%d", name, i)
		}
		add(name).BinaryData = map[string][]byte{render.PartFile(i, len(parts)): part}
		f.parts = append(f.parts, name)
	}
	return nil
}

// architecture is that of the nodes that build: what the node selector says, else
// the controller's setting.
func (in *inputs) architecture(o *Options) string {
	if arch := in.pod.NodeSelector[corev1.LabelArchStable]; arch != "" {
		return arch
	}
	return o.Architecture
}

// containerfileFor is the user's part for an architecture, else the one for all.
func containerfileFor(config *mcfgv1.MachineOSConfig, arch string) (content string) {
	for _, f := range config.Spec.Containerfile {
		if strings.EqualFold(string(f.ContainerfileArch), arch) {
			return f.Content
		}
		if f.ContainerfileArch == mcfgv1.NoArch || f.ContainerfileArch == "" {
			content = f.Content
		}
	}
	return content
}
