package result

// Class says what can heal a failure.
type Class string

// The classes, a closed list.
const (
	// ClassTransient heals with time: the network, a registry that restarts.
	ClassTransient Class = "Transient"
	// ClassAuth heals when a credential or a certificate is corrected.
	ClassAuth Class = "Auth"
	// ClassInput heals when the Containerfile, its context or its base is corrected.
	ClassInput Class = "Input"
	// ClassRejected heals when the registry is configured to take the image.
	ClassRejected Class = "Rejected"
	// ClassSandbox heals when the pod or the machine allows more.
	ClassSandbox Class = "Sandbox"
	// ClassResource heals with more space or memory, here or on another node.
	ClassResource Class = "Resource"
	// ClassInterrupted is no failure of the build: somebody stopped it.
	ClassInterrupted Class = "Interrupted"
)

// ExitCode is what the agent exits with.
type ExitCode int

// The exit codes, made for a Job's podFailurePolicy.
const (
	ExitSucceeded   ExitCode = 0
	ExitFailed      ExitCode = 1
	ExitSettings    ExitCode = 2
	ExitSandbox     ExitCode = 3
	ExitResource    ExitCode = 4
	ExitUnavailable ExitCode = 5
	ExitInterrupted ExitCode = 143
)

// Exit is the exit code of a failure of the class, that of InternalError for none.
func (c Class) Exit() ExitCode {
	switch c {
	case ClassTransient:
		return ExitUnavailable
	case ClassSandbox:
		return ExitSandbox
	case ClassResource:
		return ExitResource
	case ClassInterrupted:
		return ExitInterrupted
	}
	return ExitFailed
}

// ExitCodeDoc documents one exit code.
type ExitCodeDoc struct {
	Code    ExitCode
	Meaning string
	// Job is what a Job's podFailurePolicy should do with it.
	Job string
}

// ExitCodes documents every exit code, in ascending order.
func ExitCodes() []ExitCodeDoc {
	return []ExitCodeDoc{
		{ExitSucceeded, "succeeded", "complete"},
		{ExitFailed, "failed for good after its attempts: another pod would fail the same way (Input, Auth, Rejected)", "FailJob"},
		{ExitSettings, "bad flags, environment or inputs", "FailJob"},
		{ExitSandbox, "the sandbox cannot build", "FailJob"},
		{ExitResource, "resources ran out here; another node may have them (Resource)", "Count"},
		{ExitUnavailable, "the registry or the network stayed unavailable through all attempts (Transient)", "Count"},
		{ExitInterrupted, "stopped by a signal or at the deadline (Interrupted)", "Count; Ignore under DisruptionTarget"},
	}
}

// Reason says in one word why a build ended as it did.
type Reason string

// The reasons, a closed list.
const (
	ReasonSucceeded                Reason = "Succeeded"
	ReasonContainerfileInvalid     Reason = "ContainerfileInvalid"
	ReasonBaseImageNotFound        Reason = "BaseImageNotFound"
	ReasonBaseImageUnauthorized    Reason = "BaseImageUnauthorized"
	ReasonSignatureRejected        Reason = "SignatureRejected"
	ReasonWrongArchitecture        Reason = "WrongArchitecture"
	ReasonPullFailed               Reason = "PullFailed"
	ReasonStepFailed               Reason = "StepFailed"
	ReasonStepOutOfMemory          Reason = "StepOutOfMemory"
	ReasonContextFileMissing       Reason = "ContextFileMissing"
	ReasonPushUnauthorized         Reason = "PushUnauthorized"
	ReasonPushDenied               Reason = "PushDenied"
	ReasonPushRejected             Reason = "PushRejected"
	ReasonPushFailed               Reason = "PushFailed"
	ReasonDigestMismatch           Reason = "DigestMismatch"
	ReasonRegistryUnavailable      Reason = "RegistryUnavailable"
	ReasonRateLimited              Reason = "RateLimited"
	ReasonCertificateUntrusted     Reason = "CertificateUntrusted"
	ReasonUserNamespaceUnavailable Reason = "UserNamespaceUnavailable"
	ReasonStorageUnavailable       Reason = "StorageUnavailable"
	ReasonNoSpace                  Reason = "NoSpace"
	ReasonSettingsInvalid          Reason = "SettingsInvalid"
	ReasonInterrupted              Reason = "Interrupted"
	ReasonDeadlineExceeded         Reason = "DeadlineExceeded"
	ReasonInternalError            Reason = "InternalError"
)

// Entry documents one reason.
type Entry struct {
	Reason Reason
	// Class is empty for success and for InternalError, of which nothing is known.
	Class Class
	Exit  ExitCode
	// Sentence is what a status condition says of the reason.
	Sentence string
	// Remedy is what the person who reads it should do.
	Remedy string
}

// entries is the one table of reasons; the contract, `agent explain` and the
// exit codes follow from it.
var entries = []Entry{
	{
		ReasonSucceeded, "", ExitSucceeded,
		"The image was built and, where a destination was named, its digest was confirmed there.",
		"Nothing is left to do.",
	},
	{
		ReasonContainerfileInvalid, ClassInput, ExitFailed,
		"The Containerfile cannot be understood.",
		"Correct the line that the message names, then build again.",
	},
	{
		ReasonBaseImageNotFound, ClassInput, ExitFailed,
		"A base image does not exist, or its name does not say in which registry it is.",
		"Write the base image in full (registry/repository:tag or @digest) and check that it is there, for example with `skopeo inspect docker://NAME`.",
	},
	{
		ReasonBaseImageUnauthorized, ClassAuth, ExitFailed,
		"The registry of a base image refused the pull credentials.",
		"Put a credential that may pull this repository into the pull auth file (--pull-authfile, or the base image pull secret); the agent reads it again at every attempt. When the message names a proxy, correct the user and password in the variable that it names.",
	},
	{
		ReasonSignatureRejected, ClassInput, ExitFailed,
		"The signature policy does not accept a base image.",
		"Use an image with a signature that the policy asks for, or correct the policy file that the message names and the registries.d entry that says where signatures are kept.",
	},
	{
		ReasonWrongArchitecture, ClassInput, ExitFailed,
		"A base image does not exist for the architecture that is being built.",
		"Choose a base image that has this architecture, or name another one with --platform.",
	},
	{
		ReasonPullFailed, ClassTransient, ExitUnavailable,
		"A base image could not be pulled, for a cause that is not known to be final.",
		"Read the message for the cause; when it is one of the network or the registry, build again.",
	},
	{
		ReasonStepFailed, ClassInput, ExitFailed,
		"A step of the Containerfile failed.",
		"Run the step that the message names and read the end of its output; --target builds up to a stage, and a build that is tried again resumes at the step that failed.",
	},
	{
		ReasonStepOutOfMemory, ClassResource, ExitResource,
		"Memory ran out: a step, or the agent itself, came to the memory limit.",
		"Raise the memory limit of the build pod, or make the step need less.",
	},
	{
		ReasonContextFileMissing, ClassInput, ExitFailed,
		"COPY, ADD or a mount names a file that is not in the build context.",
		"Put the file into the context, correct its path, or remove it from .containerignore.",
	},
	{
		ReasonPushUnauthorized, ClassAuth, ExitFailed,
		"The registry refused the push credentials.",
		"Put a credential for this registry into the push auth file (--push-authfile, or the push secret); the agent reads it again at every attempt. When the message names a proxy, correct the user and password in the variable that it names.",
	},
	{
		ReasonPushDenied, ClassAuth, ExitFailed,
		"The registry knows the push credentials and denies them this repository.",
		"Give the account the right to push to this repository, or push to one where it has it.",
	},
	{
		ReasonPushRejected, ClassRejected, ExitFailed,
		"The registry does not take this image.",
		"Read the registry's answer: an immutable tag, a quota, a size limit or a manifest format that it does not know is corrected there, or with another --tag or --format.",
	},
	{
		ReasonPushFailed, ClassTransient, ExitUnavailable,
		"The image could not be pushed, for a cause that is not known to be final.",
		"Read the message for the cause; when it is one of the network or the registry, build again: finished steps and blobs that arrived are not repeated.",
	},
	{
		ReasonDigestMismatch, ClassTransient, ExitUnavailable,
		"What arrived is not what was sent: a digest differs.",
		"Build again; when it happens twice, look for a proxy or a registry that changes content on its way.",
	},
	{
		ReasonRegistryUnavailable, ClassTransient, ExitUnavailable,
		"The registry could not be reached, or answered with an error of its own, through all attempts.",
		"Check that the registry is up and that this machine can reach it (DNS, proxy, firewall), then build again.",
	},
	{
		ReasonRateLimited, ClassTransient, ExitUnavailable,
		"The registry asked to come back later, through all attempts.",
		"Wait for the time that the message names, authenticate to get a higher limit, or use a mirror.",
	},
	{
		ReasonCertificateUntrusted, ClassAuth, ExitFailed,
		"The certificate of a registry is not trusted.",
		"Put the CA of the registry into certs.d/HOST:PORT/ca.crt, --cert-dir or the trust bundle; for a registry without TLS use --tls-verify=false.",
	},
	{
		ReasonUserNamespaceUnavailable, ClassSandbox, ExitSandbox,
		"This sandbox allows neither mounts nor a user namespace in which they would be allowed.",
		"Run the pod with hostUsers: false and the capabilities SETUID, SETGID and SETFCAP, or as root with SYS_ADMIN; on a machine, add the user to /etc/subuid and /etc/subgid and install newuidmap. `agent doctor` names what is missing here, docs/privileges.md what each environment needs.",
	},
	{
		ReasonStorageUnavailable, ClassSandbox, ExitSandbox,
		"There is no place in which images can be stored.",
		"Mount a writable volume (an emptyDir is enough) and name it with --storage-root; `agent doctor` says what is wrong with the one that is there.",
	},
	{
		ReasonNoSpace, ClassResource, ExitResource,
		"A filesystem ran full.",
		"Give the volume that the message names more space or inodes, or remove images that are not used, with `agent prune --all`; docs/store.md says what a build needs.",
	},
	{
		ReasonSettingsInvalid, ClassSandbox, ExitSettings,
		"A flag, a variable or a file that the agent was given cannot be used.",
		"Correct what the message names; `agent build --help` lists every flag.",
	},
	{
		ReasonInterrupted, ClassInterrupted, ExitInterrupted,
		"The build was stopped by a signal.",
		"Build again; on a cluster a new pod is started by itself.",
	},
	{
		ReasonDeadlineExceeded, ClassInterrupted, ExitInterrupted,
		"The build did not end before its deadline.",
		"Raise --deadline, or look at the seconds of each phase for the one that is slow.",
	},
	{
		ReasonInternalError, "", ExitFailed,
		"The agent met an error that it does not know.",
		"Report the message and the log with --log-level debug: this is a fault of the agent.",
	},
}

var byReason = func() map[Reason]Entry {
	m := make(map[Reason]Entry, len(entries))
	for _, e := range entries {
		m[e.Reason] = e
	}
	return m
}()

// Entries returns the table of reasons in its documented order.
func Entries() []Entry { return append([]Entry(nil), entries...) }

// Entry returns the documentation of the reason, that of InternalError for one
// that is not in the table.
func (r Reason) Entry() Entry {
	if e, ok := byReason[r]; ok {
		return e
	}
	return byReason[ReasonInternalError]
}

// Known tells whether the reason is in the table.
func (r Reason) Known() bool {
	_, ok := byReason[r]
	return ok
}
