package images

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

// CheckUserNS is the name of the check that finds out in which user namespace a
// build can run.
const CheckUserNS = "user namespace"

// mountCap is the capability to mount.
const mountCap = capability.CAP_SYS_ADMIN

// rootCaps are what root needs beside CAP_SYS_ADMIN to build without a user
// namespace of its own: those that buildah gives to steps (containers.conf,
// default_capabilities), and to pass these on.
var rootCaps = []capability.Cap{
	capability.CAP_CHOWN, capability.CAP_DAC_OVERRIDE, capability.CAP_FOWNER, capability.CAP_FSETID,
	capability.CAP_KILL, capability.CAP_NET_BIND_SERVICE, capability.CAP_SETFCAP, capability.CAP_SETGID,
	capability.CAP_SETPCAP, capability.CAP_SETUID, capability.CAP_SYS_CHROOT,
}

// mapCaps are what root needs to give a user namespace of its own more than one id
// (user_namespaces(7), "Defining user and group ID mappings").
var mapCaps = []capability.Cap{capability.CAP_SETUID, capability.CAP_SETGID, capability.CAP_SETFCAP}

// Lines of a pod's specification, each of which lets a build run.
const (
	podMapCaps  = "securityContext: {runAsUser: 0, capabilities: {add: [SETUID, SETGID, SETFCAP]}}, with hostUsers: false in the spec of the pod"
	podAdmin    = "hostUsers: false in the spec of the pod, with securityContext: {runAsUser: 0, capabilities: {add: [SYS_ADMIN, SYS_CHROOT, SETFCAP]}}"
	podSeccomp  = "securityContext: {seccompProfile: {type: Unconfined}}"
	podAppArmor = "securityContext: {appArmorProfile: {type: Unconfined}}"
)

// usable is a user namespace in which a build can run.
type usable struct {
	kind string
	// ids is the mapping of one that is still to be made, nil for the one that is there.
	ids *mapping
}

// chooseUserNS finds out, by trying, in which user namespace a build can run that has
// these needs.
func chooseUserNS(p *privileges, needs Needs) (usable, Finding) {
	u, f := decideUserNS(p, needs)
	f.Check = CheckUserNS
	return u, f
}

func decideUserNS(p *privileges, needs Needs) (usable, Finding) {
	single := needs.Single
	admin := p.effective[mountCap] && p.uid == 0
	if admin && len(p.missing(rootCaps)) == 0 {
		return asItIs(p, single)
	}
	m, f := p.ranges()
	if f.Severity == SeverityOK {
		t := tryMapping(m)
		if t.worked() {
			return usable{UserNSOwn, &m}, f
		}
		f = p.diagnose(t)
		if beside, g := p.besideRoot(); t.Mapping != "" && g.Severity == SeverityWarning && tryMapping(beside, needs.withStore()).worked() {
			return usable{UserNSOwn, &beside}, g
		}
	} else if t := tryMapping(p.singleID()); t.NewNamespace != 0 {
		f = p.noNamespace(t.NewNamespace) // no range of ids would help
	}
	if admin && f.Severity == SeverityFailure {
		f = failure(f.Reason, "root has CAP_SYS_ADMIN, but lacks other capabilities that steps need: %s",
			strings.Join(p.missing(rootCaps), ", ")).hinted("securityContext: {capabilities: {add: [%s]}}", strings.Join(p.missing(rootCaps), ", "))
	}
	if !single {
		return usable{}, f
	}
	m = p.singleID()
	if t := tryMapping(m); !t.worked() {
		return usable{}, p.diagnose(t)
	}
	return usable{UserNSSingle, &m}, warning("the user namespace has a single id, as --single-id allows: every file in the image belongs to root, and chown fails (%s)", f.Found).hinted("%s", f.Hint)
}

// asItIs is the user namespace that root with CAP_SYS_ADMIN is in.
func asItIs(p *privileges, single bool) (usable, Finding) {
	if t := tryMounts(); !t.worked() {
		return usable{}, p.diagnose(t)
	}
	switch {
	case p.hostIDs():
		return usable{kind: UserNSNone}, ok("none is needed: root with CAP_SYS_ADMIN")
	case count(p.uids) > 1 && count(p.gids) > 1:
		return usable{kind: UserNSPod}, ok("that of the pod, with %d ids: root with CAP_SYS_ADMIN in it", count(p.uids))
	case single:
		return usable{kind: UserNSSingle}, warning("the user namespace that this process is in has a single id, as --single-id allows: every file in the image belongs to root, and chown fails")
	}
	return usable{}, failure(result.ReasonUserNamespaceUnavailable, "the user namespace that this process is in has a single id, so that files in an image could belong to nobody but root").
		hinted("%s", p.choose("give it more ids: hostUsers: false in the spec of the pod, or /etc/subuid and /etc/subgid entries for the user who runs the container",
			"enter it with more ids, such as by `podman unshare`, or build with --single-id"))
}

// singleID maps root in a user namespace to the user of this process, and nobody else.
func (p *privileges) singleID() mapping {
	return mapping{uids: mapFromZero(p.uid, nil), gids: mapFromZero(p.gid, nil)}
}

// ranges are the ids that a user namespace made by this process can have. The finding
// is a failure where it can have only one, and else says what the ids are, for when
// they turn out to work.
func (p *privileges) ranges() (mapping, Finding) {
	if p.uid == 0 {
		if count(p.uids) < 2 || count(p.gids) < 2 {
			return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "the user namespace that this process is in has a single id").
				hinted("give it more ids: hostUsers: false in the spec of the pod, or /etc/subuid and /etc/subgid entries for the user who runs the container")
		}
		return mapping{uids: keepIDs(p.uids), gids: keepIDs(p.gids)},
			ok("one made here, with the %d ids that this process has, by CAP_SETUID, CAP_SETGID and CAP_SETFCAP", count(p.uids))
	}
	for _, helper := range []string{"newuidmap", "newgidmap"} {
		if lookPath(helper) == "" {
			return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "the agent runs as %s, and %s, which gives a user namespace more ids than one, is not installed",
				p.who(), helper).hinted("%s", p.choose(podMapCaps, "install it: apt-get install uidmap, or dnf install shadow-utils"))
		}
	}
	if p.user == "" && p.uselessHelper() {
		return mapping{}, p.helperRefused(trial{Helper: "newuidmap"})
	}
	if p.user == "" {
		return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "uid %d has no entry in /etc/passwd, without which newuidmap gives no ids", p.uid).
			hinted("%s", p.choose(podMapCaps+" (OpenShift: an SCC with runAsUser: {type: RunAsAny} that allows these)", fmt.Sprintf("add a line for uid %d to /etc/passwd, and entries to /etc/subuid and /etc/subgid", p.uid)))
	}
	uids, gids, err := unshare.GetSubIDMappings(p.user, p.user)
	if err != nil || len(uids) == 0 || len(gids) == 0 {
		if p.uselessHelper() {
			return mapping{}, p.helperRefused(trial{Helper: "newuidmap"})
		}
		file := "/etc/subuid"
		if err != nil && strings.Contains(err.Error(), "gid range") {
			file = "/etc/subgid"
		} else if err != nil && os.IsNotExist(rootCause(err)) {
			file = "/etc/subuid or /etc/subgid, which do not both exist"
		}
		return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "user %s has no range of ids in %s", p.user, file).
			hinted("%s", p.choose(fmt.Sprintf("add the line %s:10000:55000 to /etc/subuid and /etc/subgid of the image, or run as root: %s", p.user, podMapCaps),
				fmt.Sprintf("usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", p.user)))
	}
	for _, r := range []struct {
		file         string
		wanted, have []specs.LinuxIDMapping
	}{{"/etc/subuid", uids, p.uids}, {"/etc/subgid", gids, p.gids}} {
		for _, m := range r.wanted {
			if !exists(r.have, m.HostID, m.Size) {
				return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "the range %d:%d of user %s in %s is outside of the ids of this container (%s)",
					m.HostID, m.Size, p.user, r.file, describeIDs(r.have)).
					hinted("write a range inside of these into %s of the image, such as %s:%s", r.file, p.user, rangeInside(r.have, p.uid))
			}
		}
	}
	return mapping{uids: mapFromZero(p.uid, uids), gids: mapFromZero(p.gid, gids), helpers: true},
		ok("one made here, with %d ids that newuidmap gives %s", count(uids)+1, p.user)
}

// besideRoot are the ids that a user namespace made by root without CAP_SETFCAP can have:
// all but root's own, which the kernel lets nobody map who has not that capability
// (user_namespaces(7)). Files of root can then be read and written as far as anybody may:
// that is enough in a pod whose inputs are readable and whose volumes are open. The finding
// is a failure where it is not to be tried.
func (p *privileges) besideRoot() (mapping, Finding) {
	missing := p.missing(mapCaps)
	if !p.pod || p.uid != 0 || len(missing) != 1 || p.effective[capability.CAP_SETFCAP] {
		return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "the ids beside root's are not enough here")
	}
	m := mapping{uids: withoutRoot(p.uids), gids: withoutRoot(p.gids)}
	if count(m.uids) < 2 || count(m.gids) < 2 {
		return mapping{}, failure(result.ReasonUserNamespaceUnavailable, "there are no ids beside root's")
	}
	return m, warning("the user namespace has the %d ids that this process has beside root's, since CAP_SETFCAP is missing: what only root may read or write here is out of reach", count(m.uids)).
		hinted("securityContext: {capabilities: {add: [SETFCAP]}}")
}

// withoutRoot maps 0 and what follows to the ids that exist here, but for 0.
func withoutRoot(ids []specs.LinuxIDMapping) []specs.LinuxIDMapping {
	var kept []specs.LinuxIDMapping
	next := uint32(0)
	for _, m := range ids {
		first, size := m.ContainerID, m.Size
		if first == 0 {
			first, size = 1, size-1
		}
		if size > 0 {
			kept = append(kept, specs.LinuxIDMapping{ContainerID: next, HostID: first, Size: size})
			next += size
		}
	}
	return kept
}

// diagnose says why a trial failed, and what to do about it.
func (p *privileges) diagnose(t trial) Finding {
	refused := func(format string, args ...any) Finding {
		return failure(result.ReasonUserNamespaceUnavailable, format, args...)
	}
	switch {
	case t.NewNamespace != 0:
		return p.noNamespace(t.NewNamespace)
	case t.Helper != "":
		return p.helperRefused(t)
	case t.Mapping != "":
		if names := p.missing(mapCaps); p.uid == 0 && len(names) > 0 {
			return refused("root without CAP_SYS_ADMIN needs a user namespace, and cannot map ids into one without the capabilities %s", strings.Join(names, ", ")).
				hinted("%s", podMapCaps)
		}
		return refused("the kernel does not let this process map ids into a user namespace: %s", t.Mapping).hinted("%s", p.choose(podMapCaps, "run the agent as root"))
	case t.Mount != "":
		return p.cannotMount(t.Mount)
	case t.Chroot != "":
		// The filters of podman and docker allow it to containers with the capability.
		return refused("chroot(2), with which layers are unpacked and steps are run, is refused, as by a seccomp filter (%s)", t.Chroot).
			hinted("%s", p.choose("securityContext: {capabilities: {add: [SYS_CHROOT]}}", "add the capability SYS_CHROOT to the container"))
	}
	if p.filtered {
		return refused("a process in a user namespace of its own does not come up, as when the seccomp filter of this process kills it: %s", t.Other).
			hinted("%s", p.choose(podSeccomp, "run the agent without the filter"))
	}
	return refused("a process in a user namespace of its own does not come up: %s", t.Other).hinted("%s", p.choose(podAdmin, "run the agent as root"))
}

// noNamespace says why the kernel makes no user namespace.
func (p *privileges) noNamespace(errno syscall.Errno) Finding {
	refused := func(format string, args ...any) Finding {
		return failure(result.ReasonUserNamespaceUnavailable, format, args...)
	}
	sysctl := func(name, value string) string { return fmt.Sprintf("on the node: sysctl -w %s=%s", name, value) }
	const what = "no user namespace can be made"
	switch {
	case p.sysctls[maxUserNamespaces] == "0":
		return refused("%s: the sysctl %s is 0", what, maxUserNamespaces).hinted("%s", sysctl(maxUserNamespaces, "28633"))
	case errno == syscall.ENOSPC || errno == syscall.EUSERS:
		return refused("%s: the limit of the sysctl %s (%s) is reached, here or in a user namespace above", what, maxUserNamespaces, p.sysctls[maxUserNamespaces]).
			hinted("%s", sysctl(maxUserNamespaces, "28633"))
	case !p.filtered && (errno == syscall.EINVAL || errno == syscall.ENOSYS):
		return refused("%s: this kernel has none (CONFIG_USER_NS)", what).hinted("use a kernel with CONFIG_USER_NS, or run as root with CAP_SYS_ADMIN")
	case p.sysctls[unprivilegedClone] == "0":
		return refused("%s: the sysctl %s is 0", what, unprivilegedClone).hinted("%s", sysctl(unprivilegedClone, "1"))
	case p.sysctls[apparmorRestrictions] == "1" && !p.filtered:
		return refused("%s: AppArmor keeps them from programs without a profile, as the sysctl %s is 1", what, apparmorRestrictions).hinted("%s", sysctl(apparmorRestrictions, "0"))
	case p.filtered:
		return refused("%s: the seccomp filter of this process refuses unshare(CLONE_NEWUSER) (%v)", what, errno).
			hinted("%s", p.choose(podSeccomp+"; or, with the filter left on, "+podAdmin, "run the agent without the filter, or as root"))
	case p.selinux && errno == syscall.EACCES:
		return refused("%s: SELinux refuses user_namespace create", what).hinted("%s", p.choose("securityContext: {seLinuxOptions: {type: container_engine_t}}", "allow it: ausearch -m avc names the rule"))
	case p.chrooted:
		return refused("%s: the kernel makes none in a chroot", what).hinted("enter the root with pivot_root, as containers do, or run the agent outside of the chroot")
	}
	return refused("%s: the kernel refuses it (%v)", what, errno).hinted("%s", p.choose(podAdmin, "run the agent as root"))
}

// uselessHelper tells whether newuidmap can map for nobody here, whatever range of ids
// is his.
func (p *privileges) uselessHelper() bool {
	setuid, withCap, nosuid := programPrivilege(lookPath("newuidmap"), capability.CAP_SETUID)
	return p.noNewPrivs || nosuid || !setuid && !withCap
}

// helperRefused says why newuidmap or newgidmap gave no ids.
func (p *privileges) helperRefused(t trial) Finding {
	refused := func(format string, args ...any) Finding {
		return failure(result.ReasonUserNamespaceUnavailable, format, args...)
	}
	needed, file := capability.CAP_SETUID, "/etc/subuid"
	if t.Helper == "newgidmap" {
		needed, file = capability.CAP_SETGID, "/etc/subgid"
	}
	path := lookPath(t.Helper)
	setcap := fmt.Sprintf("setcap cap_%s+ep %s", needed, path)
	setuid, withCap, nosuid := programPrivilege(path, needed)
	switch {
	case p.noNewPrivs:
		return refused("no_new_privs is set, which takes from %s the privilege to map ids", path).
			hinted("%s", p.choose("securityContext: {allowPrivilegeEscalation: true}", "run the agent without no_new_privs (NoNewPrivileges=no in a unit of systemd)"))
	case nosuid:
		return refused("%s is on a filesystem mounted with nosuid, which takes from it the privilege to map ids", path).
			hinted("mount it without nosuid, or put %s on another filesystem", t.Helper)
	case !setuid && !withCap:
		return refused("%s has lost its privilege to map ids: it is neither setuid root nor has it the file capability cap_%s", path, needed).
			hinted("%s", p.choose("RUN "+setcap+" in the Containerfile of the image", setcap))
	case withCap && !p.bounding[needed]:
		return refused("%s has the file capability cap_%s, which this container does not let it use", path, needed).
			hinted("%s", p.choose("securityContext: {capabilities: {add: [SETUID, SETGID]}}", "add the capabilities SETUID and SETGID to the container"))
	case setuid && !p.bounding[mountCap]:
		// The kernel lets nobody write a map but the owner of the namespace, which root
		// is not, and root with CAP_SYS_ADMIN.
		return refused("%s is setuid root, which needs CAP_SYS_ADMIN to map ids in this container", path).
			hinted("%s", p.choose("RUN chmod u-s "+path+" && "+setcap+" in the Containerfile of the image", "chmod u-s "+path+" && "+setcap))
	case setuid && ownerOf(path) != 0:
		return refused("%s is setuid, but belongs to uid %d and not to root", path, ownerOf(path)).hinted("chown root %s && chmod u+s %s", path, path)
	case strings.Contains(t.Mapping, "not allowed"):
		return refused("%s does not give %s the ids in %s: %s", path, p.who(), file, t.Mapping).hinted("check the line of %s in %s", p.who(), file)
	}
	return refused("%s fails for %s: %s", path, p.who(), t.Mapping).hinted("%s", p.choose(podMapCaps, "check the line of "+p.who()+" in "+file))
}

// cannotMount says why a process that has CAP_SYS_ADMIN cannot mount.
func (p *privileges) cannotMount(text string) Finding {
	refused := func(format string, args ...any) Finding {
		return failure(result.ReasonUserNamespaceUnavailable, format, args...)
	}
	switch {
	case p.sysctls[apparmorRestrictions] == "1" && p.uid != 0:
		return refused("nothing can be mounted in a user namespace: AppArmor takes its capabilities away, as the sysctl %s is 1 (%s)", apparmorRestrictions, text).
			hinted("on the node: sysctl -w %s=0", apparmorRestrictions)
	case p.apparmor != "":
		return refused("nothing can be mounted: the AppArmor profile %s refuses it (%s)", p.apparmor, text).
			hinted("%s", p.choose(podAppArmor, "run the agent without the profile"))
	case p.filtered:
		return refused("nothing can be mounted: the seccomp filter of this process refuses it (%s)", text).
			hinted("%s", p.choose(podSeccomp, "run the agent without the filter"))
	case p.selinux:
		return refused("nothing can be mounted: SELinux refuses it (%s)", text).hinted("%s", p.choose("securityContext: {seLinuxOptions: {type: container_engine_t}}", "allow it: ausearch -m avc names the rule"))
	}
	return refused("nothing can be mounted: %s", text).hinted("%s", p.choose(podAdmin, "run the agent as root"))
}

// choose returns the hint for where this process is.
func (p *privileges) choose(pod, machine string) string {
	if p.pod {
		return pod
	}
	return machine
}

// programPrivilege tells by which means a program gets a capability that its caller
// does not have, and whether its filesystem takes them away.
func programPrivilege(path string, needed capability.Cap) (setuid, withCap, nosuid bool) {
	if info, err := os.Stat(path); err == nil {
		setuid = info.Mode()&os.ModeSetuid != 0
	}
	if caps, err := capability.NewFile2(path); err == nil && caps.Load() == nil {
		withCap = caps.Get(capability.PERMITTED, needed)
	}
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) == nil {
		nosuid = fs.Flags&unix.ST_NOSUID != 0
	}
	return setuid, withCap, nosuid
}

func ownerOf(path string) uint32 {
	var stat unix.Stat_t
	if unix.Stat(path, &stat) != nil {
		return 0
	}
	return stat.Uid
}

// describeIDs lists ranges of ids as FIRST-LAST.
func describeIDs(ids []specs.LinuxIDMapping) string {
	var texts []string
	for _, m := range ids {
		texts = append(texts, fmt.Sprintf("%d-%d", m.ContainerID, uint64(m.ContainerID)+uint64(m.Size)-1))
	}
	return strings.Join(texts, ", ")
}

// rangeInside proposes FIRST:COUNT that exists, above the id of the user.
func rangeInside(ids []specs.LinuxIDMapping, id int) string {
	if len(ids) == 0 {
		return "1:1"
	}
	largest := slices.MaxFunc(ids, func(a, b specs.LinuxIDMapping) int { return int(int64(a.Size) - int64(b.Size)) })
	first, last := uint64(largest.ContainerID), uint64(largest.ContainerID)+uint64(largest.Size)-1
	if first <= uint64(id) && uint64(id) < last { //nolint:gosec // ids are not negative
		first = uint64(id) + 1 //nolint:gosec // see above
	}
	return fmt.Sprintf("%d:%d", first, min(last-first+1, 65536))
}

// keepIDs maps every id that exists here to itself.
func keepIDs(ids []specs.LinuxIDMapping) []specs.LinuxIDMapping {
	kept := slices.Clone(ids)
	for i := range kept {
		kept[i].HostID = kept[i].ContainerID
	}
	return kept
}

// mapFromZero maps 0 to id, and the ids that follow to the ranges, in turn.
func mapFromZero(id int, ranges []specs.LinuxIDMapping) []specs.LinuxIDMapping {
	ids := append([]specs.LinuxIDMapping{{HostID: uint32(id), Size: 1}}, ranges...) //nolint:gosec // an id of the kernel's fits
	next := uint32(0)
	for i := range ids {
		ids[i].ContainerID = next
		next += ids[i].Size
	}
	return ids
}
