package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const prefix = "machineconfiguration.openshift.io/"

// Labels of every object that a build has, as the Machine Config Operator has them.
const (
	labelEphemeral     = prefix + "ephemeral-build-object"
	labelLayering      = prefix + "on-cluster-layering"
	labelMachineConfig = prefix + "rendered-machine-config"
	labelPool          = prefix + "target-machine-config-pool"
	labelConfig        = prefix + "machine-os-config"
	labelBuild         = prefix + "machine-os-build"
)

// Labels and annotations of this controller's own.
const (
	// labelBuildUID tells builds of the same name apart.
	labelBuildUID = "strata.build/build-uid"
	// annotationConfigUID is on a build: the config that it was made for. The owner
	// says the same, until somebody deletes a config and keeps what it owned.
	annotationConfigUID = "strata.build/config-uid"
	// annotationRebuild is on a MachineOSConfig while a request to rebuild is
	// served (an acceptance), and with the acceptance's id on the build that serves it.
	annotationRebuild = "strata.build/rebuild"
	// annotationBuildPod is on a MachineOSConfig: settings of its build pods.
	annotationBuildPod = "strata.build/build-pod"
	// annotationUserLine is on a Job: the line of the Containerfile on which the
	// user's part begins.
	annotationUserLine = "strata.build/user-part-line"
	// annotationCurrentBuild is on a MachineOSConfig, where the Machine Config
	// Operator looks for the name of its build.
	annotationCurrentBuild = prefix + "current-machine-os-build"
	// annotationPushSecret is on a MachineOSBuild, where the Machine Config Operator's
	// builder looks for the secret with which it asks the registry for the image, or
	// deletes it there; without it, it does neither, and does not delete the build.
	annotationPushSecret = prefix + "rendered-image-push-secret"
	// annotationReleaseVersion is on a rendered MachineConfig.
	annotationReleaseVersion = prefix + "release-image-version"
)

// containerName is the name of the one container of a build pod.
const containerName = "build"

// maxBuildName leaves room for the prefix of the Job, whose name is a label
// value of its pods (63 bytes).
const maxBuildName = 63 - len("build-")

// buildName is <config>-<hash of the inputs>. The inputs are the rendered
// MachineConfig, whose name says what is in it, and all of the config's spec. The
// config's name is part of the hash too, since a long one is cut.
func buildName(config *mcfgv1.MachineOSConfig, machineConfig string) string {
	spec, err := json.Marshal(config.Spec)
	if err != nil {
		panic(err) // strings alone cannot be refused
	}
	sum := sha256.New()
	for _, s := range []string{config.Name, machineConfig, string(spec)} {
		sum.Write([]byte(s))
		sum.Write([]byte{0})
	}
	return cut(config.Name, hex.EncodeToString(sum.Sum(nil))[:16], maxBuildName)
}

// cut joins a name and a hash to at most n bytes.
func cut(name, hash string, n int) string {
	if most := n - len(hash) - 1; len(name) > most {
		name = strings.TrimRight(name[:most], "-.")
	}
	return name + "-" + hash
}

// labelValue is a name as the value of a label, which has at most 63 bytes. One
// that is longer is cut and gets a hash; the whole name is in an annotation.
func labelValue(name string) string {
	if len(name) <= 63 {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return cut(name, hex.EncodeToString(sum[:])[:16], 63)
}

// Names of the objects of a build.
func jobName(build string) string           { return "build-" + build }
func containerfileName(build string) string { return "containerfile-" + build }
func machineConfigName(build string) string { return "mc-" + build }
func trustBundleName(build string) string   { return "additionaltrustbundle-" + build }
func policyName(build string) string        { return "etc-policy-" + build }
func registriesName(build string) string    { return "etc-registries-" + build }

// buildMeta is the metadata of an object of a build: named, labelled, and owned
// by the build from the moment it is created.
func buildMeta(namespace, name string, build *mcfgv1.MachineOSBuild, pool string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace,
		Name:      name,
		Labels: map[string]string{
			labelEphemeral:     "",
			labelLayering:      "",
			labelMachineConfig: labelValue(build.Spec.MachineConfig.Name),
			labelPool:          labelValue(pool),
			labelConfig:        labelValue(build.Spec.MachineOSConfig.Name),
			labelBuild:         build.Name,
			labelBuildUID:      string(build.UID),
		},
		Annotations: map[string]string{
			labelConfig: build.Spec.MachineOSConfig.Name,
			labelBuild:  build.Name,
		},
		OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(build, mcfgv1.GroupVersion.WithKind("MachineOSBuild")),
		},
	}
}

// belongsTo tells whether an object is of this build: by UID, and by name only
// where an object of another maker has no UID.
func belongsTo(o client.Object, build *mcfgv1.MachineOSBuild) bool {
	if uid := o.GetLabels()[labelBuildUID]; uid != "" {
		return uid == string(build.UID)
	}
	for _, owner := range o.GetOwnerReferences() {
		if owner.Kind == "MachineOSBuild" {
			return owner.UID == build.UID
		}
	}
	return o.GetLabels()[labelBuild] == build.Name
}

// ownerUID is the UID of the MachineOSConfig that a build was made for.
func ownerUID(build *mcfgv1.MachineOSBuild) types.UID {
	if uid := build.Annotations[annotationConfigUID]; uid != "" {
		return types.UID(uid)
	}
	if owner := metav1.GetControllerOf(build); owner != nil {
		return owner.UID
	}
	return ""
}

// configOf is the name of the MachineOSConfig that an object is for, or "".
func configOf(o client.Object) string {
	if name := o.GetAnnotations()[labelConfig]; name != "" {
		return name
	}
	return o.GetLabels()[labelConfig]
}
