package images

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/strata-build/strata/agent/result"
)

// anyone is an ordinary user of a machine with nothing in the way.
func anyone(change func(*privileges)) *privileges {
	p := &privileges{
		uid: 1000, gid: 1000, user: "sam",
		effective: map[capability.Cap]bool{}, bounding: map[capability.Cap]bool{},
		uids: []specs.LinuxIDMapping{{Size: ^uint32(0)}}, gids: []specs.LinuxIDMapping{{Size: ^uint32(0)}},
		sysctls: map[string]string{maxUserNamespaces: "96365"},
	}
	for _, c := range capability.ListKnown() {
		p.bounding[c] = true
	}
	change(p)
	return p
}

// TestRefusedUserNamespaceNamesTheCause has what a machine may say that cannot be had
// on every machine.
func TestRefusedUserNamespaceNamesTheCause(t *testing.T) {
	for _, c := range []struct {
		name   string
		errno  syscall.Errno
		change func(*privileges)
		found  string
		hint   string
	}{
		{"limit of none", syscall.ENOSPC, func(p *privileges) { p.sysctls[maxUserNamespaces] = "0" }, "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=28633"},
		{"limit above", syscall.ENOSPC, func(*privileges) {}, "user.max_user_namespaces (96365) is reached", "sysctl -w user.max_user_namespaces=28633"},
		{"kernel of Debian", syscall.EPERM, func(p *privileges) { p.sysctls[unprivilegedClone] = "0" }, "kernel.unprivileged_userns_clone is 0", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"AppArmor of Ubuntu", syscall.EACCES, func(p *privileges) { p.sysctls[apparmorRestrictions] = "1" }, "kernel.apparmor_restrict_unprivileged_userns is 1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		{"filter of a pod", syscall.EPERM, func(p *privileges) { p.filtered, p.pod = true, true }, "seccomp filter", "securityContext: {seccompProfile: {type: Unconfined}}"},
		{"filter of a machine", syscall.EPERM, func(p *privileges) { p.filtered = true }, "seccomp filter", "run the agent without the filter"},
		{"filter that knows no such call", syscall.ENOSYS, func(p *privileges) { p.filtered = true }, "seccomp filter", "run the agent without the filter"},
		{"SELinux", syscall.EACCES, func(p *privileges) { p.selinux = true }, "SELinux refuses user_namespace create", "ausearch"},
		{"chroot", syscall.EPERM, func(p *privileges) { p.chrooted = true }, "none in a chroot", "pivot_root"},
		{"kernel without", syscall.EINVAL, func(*privileges) {}, "CONFIG_USER_NS", "use a kernel with CONFIG_USER_NS"},
		{"nothing known", syscall.EPERM, func(*privileges) {}, "the kernel refuses it (operation not permitted)", "run the agent as root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantRefused(t, anyone(c.change).diagnose(trial{NewNamespace: c.errno}), c.found, c.hint)
		})
	}
}

func TestRefusedMountNamesTheCause(t *testing.T) {
	for _, c := range []struct {
		name        string
		change      func(*privileges)
		found, hint string
	}{
		{"AppArmor of Ubuntu", func(p *privileges) { p.sysctls[apparmorRestrictions] = "1" }, "AppArmor takes its capabilities away", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
		{"AppArmor of a pod", func(p *privileges) { p.apparmor, p.pod = "cri-containerd.apparmor.d", true }, "profile cri-containerd.apparmor.d refuses it", "appArmorProfile: {type: Unconfined}"},
		{"seccomp", func(p *privileges) { p.filtered, p.pod = true, true }, "seccomp filter", "seccompProfile: {type: Unconfined}"},
		{"SELinux", func(p *privileges) { p.selinux, p.pod = true, true }, "SELinux", "seLinuxOptions: {type: container_engine_t}"},
		{"nothing known", func(*privileges) {}, "nothing can be mounted: operation not permitted", "run the agent as root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantRefused(t, anyone(c.change).diagnose(trial{Mount: "operation not permitted"}), c.found, c.hint)
		})
	}
}

func TestKilledTrialNamesTheFilter(t *testing.T) {
	f := anyone(func(p *privileges) { p.filtered, p.pod = true, true }).diagnose(trial{Other: "signal: bad system call"})
	wantRefused(t, f, "the seccomp filter of this process kills it: signal: bad system call", podSeccomp)
}

func TestRefusedChrootNamesTheCapability(t *testing.T) {
	f := anyone(func(p *privileges) { p.pod = true }).diagnose(trial{Chroot: "operation not permitted"})
	wantRefused(t, f, "chroot(2)", "capabilities: {add: [SYS_CHROOT]}")
}

func wantRefused(t *testing.T, f Finding, found, hint string) {
	t.Helper()
	if f.Severity != SeverityFailure || f.Reason != result.ReasonUserNamespaceUnavailable {
		t.Errorf("%+v", f)
	}
	if !strings.Contains(f.Found, found) || !strings.Contains(f.Hint, hint) {
		t.Errorf("found %q, hint %q; want %q and %q", f.Found, f.Hint, found, hint)
	}
	message := AsError(f.Err()).Message
	if want := "this sandbox cannot build: " + f.Found + ". To mend it: " + f.Hint; message != want {
		t.Errorf("the message is %q", message)
	}
}

func TestExists(t *testing.T) {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, Size: 1}, {ContainerID: 1, Size: 999}, {ContainerID: 2000, Size: 10}}
	for _, c := range []struct {
		first, size uint32
		want        bool
	}{{0, 1000, true}, {0, 1001, false}, {999, 1, true}, {1000, 1, false}, {2000, 10, true}, {2005, 6, false}, {5000, 1, false}, {5000, 0, true}} {
		if got := exists(ids, c.first, c.size); got != c.want {
			t.Errorf("exists(%d, %d) is %v", c.first, c.size, got)
		}
	}
}

// TestIDsBesideRoot: root without CAP_SETFCAP may give away all ids but its own, and only
// in a pod is that of use.
func TestIDsBesideRoot(t *testing.T) {
	of := func(caps ...capability.Cap) func(*privileges) {
		return func(p *privileges) {
			p.uid, p.pod = 0, true
			p.uids = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 9, Size: 1}, {ContainerID: 1, Size: 999}, {ContainerID: 2000, HostID: 7, Size: 10}}
			for _, c := range caps {
				p.effective[c] = true
			}
		}
	}
	m, f := anyone(of(capability.CAP_SETUID, capability.CAP_SETGID)).besideRoot()
	if want := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1, Size: 999}, {ContainerID: 999, HostID: 2000, Size: 10}}; !slices.Equal(m.uids, want) {
		t.Errorf("the map is %v, want %v", m.uids, want)
	}
	if want := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 1, Size: ^uint32(0) - 1}}; !slices.Equal(m.gids, want) {
		t.Errorf("the map of groups is %v, want %v", m.gids, want)
	}
	if f.Severity != SeverityWarning || !strings.Contains(f.Found, "the 1009 ids") || !strings.Contains(f.Hint, "add: [SETFCAP]") {
		t.Errorf("%+v", f)
	}
	for name, change := range map[string]func(*privileges){
		"on a machine":     func(p *privileges) { of(capability.CAP_SETUID, capability.CAP_SETGID)(p); p.pod = false },
		"a user":           func(p *privileges) { of(capability.CAP_SETUID, capability.CAP_SETGID)(p); p.uid = 1000 },
		"without SETGID":   of(capability.CAP_SETUID),
		"with SETFCAP":     of(capability.CAP_SETUID, capability.CAP_SETFCAP),
		"with all of them": of(capability.CAP_SETUID, capability.CAP_SETGID, capability.CAP_SETFCAP),
		"a single id": func(p *privileges) {
			of(capability.CAP_SETUID, capability.CAP_SETGID)(p)
			p.uids = p.uids[:1]
		},
	} {
		if _, f := anyone(change).besideRoot(); f.Severity != SeverityFailure {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestRangeInside(t *testing.T) {
	for _, c := range []struct {
		ids  []specs.LinuxIDMapping
		id   int
		want string
	}{
		{[]specs.LinuxIDMapping{{ContainerID: 0, Size: 65536}}, 1000, "1001:64535"},
		{[]specs.LinuxIDMapping{{ContainerID: 0, Size: ^uint32(0)}}, 1000, "1001:65536"},
		{[]specs.LinuxIDMapping{{ContainerID: 0, Size: 1}, {ContainerID: 100, Size: 50}}, 0, "100:50"},
		{nil, 0, "1:1"},
	} {
		if got := rangeInside(c.ids, c.id); got != c.want {
			t.Errorf("in %s: %s, want %s", describeIDs(c.ids), got, c.want)
		}
	}
}

func TestHelperFailureIsFoundInTheLog(t *testing.T) {
	helper, text := helperFailure("running newgidmap: exit status 1: newgidmap: gid range [1-2) -> [5-6) not allowed\nFalling back to single mapping\nError running newuidmap: exit status 1: no\n")
	if helper != "newgidmap" || text != "exit status 1: newgidmap: gid range [1-2) -> [5-6) not allowed" {
		t.Errorf("%q said %q", helper, text)
	}
	if helper, text := helperFailure("something else\n"); helper != "" || text != "" {
		t.Errorf("%q said %q", helper, text)
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1 << 20: "1.0 MiB", 15 << 30: "15 GiB", 1500 << 40: "1500 TiB"} {
		if got := size(bytes); got != want {
			t.Errorf("size(%d) is %q, want %q", bytes, got, want)
		}
	}
}
