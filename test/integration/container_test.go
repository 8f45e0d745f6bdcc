package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// enterVariable makes the test binary the first process of a container instead:
// it enters the root filesystem that the variable names and runs its arguments.
const enterVariable = "INTEGRATION_ENTER"

// enterContainer changes into a root filesystem as a container runtime does, so
// that nothing of the machine can be reached, and never returns. It expects a
// mount namespace of its own.
func enterContainer(root string, argv []string) error {
	steps := []struct {
		what string
		do   func() error
	}{
		{"making mounts private", func() error { return syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "") }},
		{"making the root a mount", func() error { return syscall.Mount(root, root, "", syscall.MS_BIND|syscall.MS_REC, "") }},
		{"mounting /proc", func() error { return syscall.Mount("proc", filepath.Join(root, "proc"), "proc", 0, "") }},
		{"mounting /dev", func() error {
			return syscall.Mount("/dev", filepath.Join(root, "dev"), "", syscall.MS_BIND|syscall.MS_REC, "")
		}},
		{"mounting /sys", func() error {
			return syscall.Mount("/sys", filepath.Join(root, "sys"), "", syscall.MS_BIND|syscall.MS_REC, "")
		}},
		{"changing into the root", func() error { return os.Chdir(root) }},
		{"pivoting", func() error { return syscall.PivotRoot(".", ".") }},
		{"leaving the machine's root", func() error { return syscall.Unmount(".", syscall.MNT_DETACH) }},
		{"changing to /", func() error { return os.Chdir("/") }},
		{"running " + argv[0], func() error { return syscall.Exec(argv[0], argv, nil) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// inContainer runs argv in a container with the root filesystem, with no
// environment, and returns what it wrote.
func inContainer(t *testing.T, root string, argv ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", argv...)
	cmd.Env = []string{enterVariable + "=" + root}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	return string(out), err
}
