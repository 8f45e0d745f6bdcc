package images

import (
	"bufio"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/capability"
	"github.com/moby/sys/mountinfo"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/storage/pkg/unshare"
)

// privileges is what the machine or the pod allows this process, as the kernel
// tells it. Nothing here is a decision.
type privileges struct {
	uid, gid int
	// user is the name that belongs to uid, empty where no passwd entry has it.
	user string
	// effective and bounding are sets of capabilities.
	effective, bounding map[capability.Cap]bool
	// noNewPrivs is set where no program that is started gains a privilege
	// (allowPrivilegeEscalation: false).
	noNewPrivs bool
	// filtered is set where a seccomp filter is in force.
	filtered bool
	// apparmor is the name of the profile that confines this process, empty for none.
	apparmor string
	// selinux is set where SELinux is enforced.
	selinux bool
	// chrooted is set where / is no mount: the kernel makes no user namespace there.
	chrooted bool
	// uids and gids are the ids that exist in the user namespace of this process.
	uids, gids []specs.LinuxIDMapping
	// sysctls are those that limit user namespaces, of these that exist.
	sysctls map[string]string
	// pod is set in a container, where hints are lines of a pod's specification.
	pod bool
}

// The switches that limit user namespaces: user_namespaces(7), Debian's and
// Ubuntu's kernels.
const (
	maxUserNamespaces    = "user.max_user_namespaces"
	unprivilegedClone    = "kernel.unprivileged_userns_clone"
	apparmorRestrictions = "kernel.apparmor_restrict_unprivileged_userns"
)

// readPrivileges reads what this process may do.
func readPrivileges() (*privileges, error) {
	p := &privileges{uid: os.Geteuid(), gid: os.Getegid(), sysctls: map[string]string{}, pod: inContainer()}
	if u, err := user.LookupId(strconv.Itoa(p.uid)); err == nil {
		p.user = u.Username
	}
	caps, err := capability.NewPid2(0)
	if err == nil {
		err = caps.Load()
	}
	if err != nil {
		return nil, err
	}
	p.effective, p.bounding = map[capability.Cap]bool{}, map[capability.Cap]bool{}
	for _, c := range capability.ListKnown() {
		p.effective[c], p.bounding[c] = caps.Get(capability.EFFECTIVE, c), caps.Get(capability.BOUNDING, c)
	}
	if p.uids, p.gids, err = unshare.GetHostIDMappings(""); err != nil {
		return nil, err
	}
	status := procStatus()
	p.noNewPrivs = status["NoNewPrivs"] == "1"
	p.filtered = status["Seccomp"] == "2" // SECCOMP_MODE_FILTER
	p.apparmor = apparmorProfile()
	if enforce, err := os.ReadFile("/sys/fs/selinux/enforce"); err == nil {
		p.selinux = strings.TrimSpace(string(enforce)) == "1"
	}
	if mounts, err := mountinfo.GetMounts(nil); err == nil {
		p.chrooted = !slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == "/" })
	}
	for _, name := range []string{maxUserNamespaces, unprivilegedClone, apparmorRestrictions} {
		if value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/")); err == nil {
			p.sysctls[name] = strings.TrimSpace(string(value))
		}
	}
	return p, nil
}

// procStatus reads /proc/self/status (proc(5)).
func procStatus() map[string]string {
	fields := map[string]string{}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return fields
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

// apparmorProfile is the profile that confines this process, empty for none.
func apparmorProfile() string {
	for _, path := range []string{"/proc/self/attr/apparmor/current", "/proc/self/attr/current"} {
		data, err := os.ReadFile(path)
		profile, mode, confined := strings.Cut(strings.TrimRight(string(data), "\x00\n"), " (")
		if err == nil && confined && mode != "" {
			return profile
		}
	}
	return ""
}

// inContainer tells whether this process is in a pod or another container.
func inContainer() bool {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" || os.Getenv("container") != "" {
		return true
	}
	for _, mark := range []string{"/run/.containerenv", "/.dockerenv", "/var/run/secrets/kubernetes.io"} {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	return false
}

// missing lists those of the capabilities that this process does not have.
func (p *privileges) missing(caps []capability.Cap) (names []string) {
	for _, c := range caps {
		if !p.effective[c] {
			names = append(names, capName(c))
		}
	}
	return names
}

// capName is the name of a capability as a pod's specification has it.
func capName(c capability.Cap) string { return strings.ToUpper(c.String()) }

// hostIDs tells whether this process has the ids of the machine, and so is in
// no user namespace but the first.
func (p *privileges) hostIDs() bool {
	return len(p.uids) == 1 && p.uids[0].HostID == 0 && p.uids[0].Size == ^uint32(0)
}

// who names the user of this process.
func (p *privileges) who() string {
	if p.user != "" {
		return p.user
	}
	return "uid " + strconv.Itoa(p.uid)
}

// count is how many ids a map has.
func count(ids []specs.LinuxIDMapping) (n uint64) {
	for _, m := range ids {
		n += uint64(m.Size)
	}
	return n
}

// exists tells whether every id of a range exists in this process's namespace.
func exists(ids []specs.LinuxIDMapping, first, size uint32) bool {
	for size > 0 {
		i := slices.IndexFunc(ids, func(m specs.LinuxIDMapping) bool {
			return m.ContainerID <= first && uint64(first) < uint64(m.ContainerID)+uint64(m.Size)
		})
		if i < 0 {
			return false
		}
		here := ids[i].Size - (first - ids[i].ContainerID)
		if here >= size {
			return true
		}
		first, size = first+here, size-here
	}
	return true
}
