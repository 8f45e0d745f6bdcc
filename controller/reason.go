package controller

// Reasons of the controller's own. A build that ended with a result has the
// reason of that result instead.
const (
	reasonPoolMissing          = "PoolMissing"
	reasonPoolNotRendered      = "PoolNotRendered"
	reasonMachineConfigMissing = "MachineConfigMissing"
	reasonMachineConfigInvalid = "MachineConfigInvalid"
	reasonMachineConfigLarge   = "MachineConfigTooLarge"
	reasonSecretMissing        = "SecretMissing"
	reasonSecretInvalid        = "SecretInvalid"
	reasonPushSpecInvalid      = "PushSpecUnsupported"
	reasonBuildPodInvalid      = "BuildPodSettingsInvalid"
	reasonRefused              = "ObjectRefused"
	reasonNameTaken            = "NameTaken"
	reasonRebuilding           = "Rebuilding"
	reasonStopping             = "OlderBuildStopping"
	reasonRemoving             = "OlderBuildRemoving"
	reasonPreparing            = "Preparing"
	reasonPrepared             = "Prepared"
	reasonPodPending           = "PodPending"
	reasonUnschedulable        = "Unschedulable"
	reasonImagePull            = "ImagePullFailed"
	reasonPodInvalid           = "PodInvalid"
	reasonBuilding             = "Building"
	reasonPodEvicted           = "PodEvicted"
	reasonPodDisrupted         = "PodDisrupted"
	reasonOutOfMemory          = "OutOfMemory"
	reasonPodFailed            = "PodFailed"
	reasonResultMissing        = "ResultMissing"
	reasonResultLost           = "ResultLost"
	reasonSuperseded           = "Superseded"
)

// entry documents a reason of the controller's own.
type entry struct {
	reason string
	// shown says in which condition it is found.
	shown, sentence, remedy string
}

// Where a reason is shown.
const (
	shownWaiting  = "`Prepared` is False: the build waits and goes on by itself"
	shownPending  = "`Building` is False: the build waits and goes on by itself"
	shownFailed   = "`Failed` is True, or `Building` is False while another pod may follow"
	shownConfig   = "`ImageReady` of the MachineOSConfig is False: nothing is built yet"
	shownProgress = "no fault"
)

// entries is the one table of these reasons; docs/conditions.md is made from it.
var entries = []entry{
	{reasonPoolMissing, shownConfig, "The MachineConfigPool that the MachineOSConfig names does not exist.", "Create the pool, or name another one; the build starts by itself."},
	{reasonPoolNotRendered, shownConfig, "The pool has no rendered MachineConfig yet.", "Wait for the machine-config-controller to render one; when it does not, look at the conditions of the pool."},
	{reasonPushSpecInvalid, shownConfig, "The digest of an image pushed to this place could not be written down: the API allows host[:port]/[namespace/]name and 447 bytes.", "Correct `renderedImagePushSpec` in the MachineOSConfig."},
	{reasonMachineConfigMissing, shownWaiting, "The rendered MachineConfig does not exist.", "Look at the conditions of the pool: it names a MachineConfig that is gone."},
	{reasonMachineConfigInvalid, shownWaiting, "The rendered MachineConfig asks for what cannot be built: an unknown extension or kernel, no image, an unreadable file.", "Correct the MachineConfig that the message is about; the pool then gets another rendered one."},
	{reasonMachineConfigLarge, shownWaiting, "The rendered MachineConfig is too large for ConfigMaps, compressed and in parts.", "Take large files out of the pool's MachineConfigs: put them into the image with the Containerfile, for example with ADD and a URL."},
	{reasonSecretMissing, shownWaiting, "A secret that the MachineOSConfig names does not exist.", "Create the secret in the namespace that the message names."},
	{reasonSecretInvalid, shownWaiting, "A secret does not hold credentials of registries.", "Make it of the type kubernetes.io/dockerconfigjson or kubernetes.io/dockercfg, for example with `kubectl create secret docker-registry`."},
	{reasonBuildPodInvalid, shownWaiting, "The settings of the build pod cannot be read.", "Correct the annotation `strata.build/build-pod` of the MachineOSConfig at the field that the message names."},
	{reasonRefused, shownWaiting, "The API server refuses the Job or a ConfigMap of the build.", "Read its answer: a quota, a policy or an admission webhook of the namespace, or a setting of the build pod that is not valid."},
	{reasonNameTaken, shownWaiting, "An object with a name that the build needs exists, and its labels do not say that it is the build's.", "Delete the object that the message names; somebody made it, or took its labels away."},
	{reasonStopping, shownWaiting, "An older build of the same config, or a pod whose Job was deleted, has not stopped yet.", "Wait: its pod has 30 seconds. A pod that stays belongs to a node that does not answer; delete it with --force when the node is known to be down."},
	{reasonRemoving, shownConfig, "An older build of the same name is not gone yet.", "Wait. When it stays, the message names the object that is held and the finalizer that holds it."},
	{reasonRebuilding, shownConfig, "A rebuild was asked for, and what the last build left is being removed.", "Wait. When it stays, the message names the object that is held and the finalizer that holds it."},
	{reasonPreparing, shownProgress, "The objects of the build are being made.", "Wait."},
	{reasonPrepared, shownProgress, "The objects of the build and its Job exist.", "Wait."},
	{reasonPodPending, shownPending, "The Job has no pod yet, or the pod is being started.", "Wait; when it stays, look at the events of the pod: a volume or the sandbox may fail."},
	{reasonUnschedulable, shownPending, "No node takes the build pod.", "Free resources, or change node selector, tolerations or requests with the annotation `strata.build/build-pod` and force a rebuild."},
	{reasonImagePull, shownPending, "The image of the agent cannot be pulled.", "Correct `--agent-image` of the controller or the pull secrets of the build pods' ServiceAccount, and force a rebuild."},
	{reasonPodInvalid, shownPending, "The container of the build pod cannot be created.", "Read the message: a key of a secret that is missing, or a privilege that the node refuses."},
	{reasonBuilding, shownProgress, "The agent works.", "Wait, or follow the log of the pod."},
	{reasonPodEvicted, shownFailed, "The kubelet evicted the build pod.", "Read which resource ran out; give the pod a request for it, or its volume more space (`storage` in the annotation `strata.build/build-pod`)."},
	{reasonPodDisrupted, shownFailed, "The build pod was taken away: a drain, a preemption, a node that was lost.", "Nothing: the Job starts another pod, and this is not counted as a failure."},
	{reasonOutOfMemory, shownFailed, "The kernel killed the agent because the pod's memory limit was reached.", "Raise the memory limit in the annotation `strata.build/build-pod` and force a rebuild."},
	{reasonPodFailed, shownFailed, "The build pod ended without a result.", "Read the end of the log in the message and the log of the pod, which is kept."},
	{reasonResultMissing, shownFailed, "The build pod completed and left no digest.", "Check that `--agent-image` is the image of the agent, and force a rebuild."},
	{reasonResultLost, shownProgress, "The build completed, but its pod was deleted before its result was read.", "Wait: the agent reports the image that is already there."},
	{reasonSuperseded, "`Interrupted` is True", "The inputs changed while the build ran, and a build of the new ones took its place.", "Nothing."},
}
