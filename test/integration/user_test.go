package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// install installs a Debian package unless it is there.
func install(t *testing.T, packages ...string) {
	t.Helper()
	for _, name := range packages {
		if exec.Command("dpkg", "-s", name).Run() == nil {
			continue
		}
		cmd := exec.Command("apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", name)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apt-get install %s: %v: %s", name, err, out)
		}
	}
}

// command runs a command that must succeed and returns what it wrote.
func command(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// user makes a user of the machine, with a range of ids in /etc/subuid and /etc/subgid,
// FIRST-LAST or empty for none, and returns its name and id.
func user(t *testing.T, subids string) (name, uid string) {
	t.Helper()
	install(t, "passwd", "uidmap")
	name = "strata-" + itoa(os.Getpid())
	command(t, "useradd", "-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/bin/sh", name)
	t.Cleanup(func() { command(t, "userdel", name) }) // with its ranges
	if subids != "" {
		command(t, "usermod", "--add-subuids", subids, "--add-subgids", subids, name)
	}
	return name, command(t, "id", "-u", name)
}

// hand gives everything of the lab to a user, and returns the command that runs
// another one as that user.
func (l *lab) hand(uid string) []string {
	l.t.Helper()
	command(l.t, "chown", "-R", uid+":"+uid, l.dir)
	if err := os.Chmod(filepath.Dir(l.dir), 0o755); err != nil {
		l.t.Fatal(err)
	}
	return []string{"setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all"}
}

// refuseVariable makes the test binary run its arguments under a seccomp filter that
// refuses unshare(2), as the default one of container runtimes does.
const refuseVariable = "INTEGRATION_REFUSE"

// refusing is the command that runs another one under that filter.
func refusing(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"env", refuseVariable + "=1", self}
}

// refuseUnshare puts the filter in force and runs argv; it never returns.
func refuseUnshare(argv []string) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_UNSHARE, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// All threads get it, as the one that goes on is not chosen here.
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, argv, os.Environ())
}

// mapVariable makes the test binary run its arguments in a user namespace of its own,
// whose ids from 0 on are those that the variable names as FIRST:COUNT.
const mapVariable = "INTEGRATION_MAP"

// mapped is the command that runs another one in such a user namespace, as its root.
func mapped(t *testing.T, ids string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"env", mapVariable + "=" + ids, self}
}

// runMapped runs argv there and returns its exit status.
func runMapped(ids string, argv []string) (int, error) {
	first, size, _ := strings.Cut(ids, ":")
	from, err := strconv.Atoi(first)
	if err != nil {
		return 1, err
	}
	n, err := strconv.Atoi(size)
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	ranges := []syscall.SysProcIDMap{{ContainerID: 0, HostID: from, Size: n}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ranges, GidMappings: ranges,
		GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{}, Pdeathsig: syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
