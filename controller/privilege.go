package controller

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Privilege is how much a build pod may. The modes are those in which the agent
// was seen to build with all user ids; docs/privileges.md has the table.
type Privilege string

// The modes, from the default on.
const (
	// PrivilegeUserNamespace is root with SYS_ADMIN inside a user namespace of the
	// pod's own, where it is no privilege over the node, under the runtime's seccomp filter.
	PrivilegeUserNamespace Privilege = "userns"
	// PrivilegeNested has three capabilities inside the pod's user namespace and
	// makes one more itself, which the runtime's seccomp filter would refuse.
	PrivilegeNested Privilege = "nested"
	// PrivilegeHost is root with SYS_ADMIN in the node's user namespace, for nodes
	// without user namespaces for pods.
	PrivilegeHost Privilege = "host"
	// PrivilegePrivileged is a privileged container.
	PrivilegePrivileged Privilege = "privileged"
)

// usual are the capabilities that a container runtime gives by default, but for
// those that a build has no use for.
var usual = []corev1.Capability{
	"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
	"NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// security is what a mode means in a pod.
type security struct {
	// hostUsers is nil where the cluster's default is to hold.
	hostUsers *bool
	container corev1.SecurityContext
}

var securityOf = map[Privilege]security{
	PrivilegeUserNamespace: {ptr.To(false), withCapabilities(append(slices.Clone(usual), "SYS_ADMIN"), corev1.SeccompProfileTypeRuntimeDefault, nil)},
	PrivilegeNested:        {ptr.To(false), withCapabilities([]corev1.Capability{"SETUID", "SETGID", "SETFCAP"}, corev1.SeccompProfileTypeUnconfined, ptr.To(false))},
	PrivilegeHost:          {nil, withCapabilities(append(slices.Clone(usual), "SYS_ADMIN"), corev1.SeccompProfileTypeRuntimeDefault, nil)},
	PrivilegePrivileged:    {nil, corev1.SecurityContext{Privileged: ptr.To(true), RunAsUser: ptr.To(int64(0))}},
}

func withCapabilities(add []corev1.Capability, seccomp corev1.SeccompProfileType, escalation *bool) corev1.SecurityContext {
	return corev1.SecurityContext{
		RunAsUser:                ptr.To(int64(0)),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: add},
		SeccompProfile:           &corev1.SeccompProfile{Type: seccomp},
		AllowPrivilegeEscalation: escalation,
	}
}

func privileges() (names []string) {
	for _, p := range slices.Sorted(maps.Keys(securityOf)) {
		names = append(names, string(p))
	}
	return names
}

// Allowed lists what a SecurityContextConstraints has to allow for the mode:
// capabilities, and the seccomp profile by the name that it has there.
func (p Privilege) Allowed() (capabilities []string, seccomp string) {
	c := securityOf[p].container
	if c.Capabilities != nil {
		for _, name := range c.Capabilities.Add {
			capabilities = append(capabilities, string(name))
		}
	}
	if c.SeccompProfile != nil && c.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault {
		return capabilities, "runtime/default"
	}
	return capabilities, "'*'"
}
