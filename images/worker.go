package images

import (
	"os"
	"os/exec"
	"strings"
	"syscall"

	"go.podman.io/buildah"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	_ "github.com/strata-build/strata/images/prefault" // for its effect on each process
	"github.com/strata-build/strata/images/standby"
)

// The kinds of user namespace in which a build can run; the words of
// result.Sandbox.UserNS.
const (
	UserNSNone   = "none"
	UserNSPod    = "pod"
	UserNSOwn    = "own"
	UserNSSingle = "single"
)

// PrivateMounts keeps the mounts of this process, which has a mount namespace of
// its own, from spreading to the one that it came from.
func PrivateMounts() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
}

// Reexec runs the part of a build for which this process was started anew, if
// it was (untar in a chroot, the steps of chroot isolation, the trial of a user
// namespace), and tells whether it did. A main function calls it first and returns
// when it is true.
func Reexec() bool {
	if standby.Serve(func() { buildah.InitReexec() }) {
		return true
	}
	if strings.HasPrefix(os.Args[0], stepHelper) {
		offerToOOMKiller()
	}
	return buildah.InitReexec()
}

// stepHelper begins the names by which buildah starts what starts a step.
const stepHelper = "buildah-chroot-"

// Worker is a process of this program that may mount filesystems and, where
// that is possible, own files of more than one user.
type Worker struct {
	cmd *unshare.Cmd
	// Cmd is the process; its stdio and extra files are the caller's to set.
	Cmd *exec.Cmd
	// UserNS is the kind of user namespace that the worker runs in.
	UserNS string
	// Finding says what was found out about user namespaces, and what was chosen.
	Finding Finding
}

// NewWorker prepares a worker with argv, whose first word is the name under
// which it recognises itself. The worker has a mount namespace of its own, so
// that no mount outlives it. Where this process is not root with CAP_SYS_ADMIN it
// also has a user namespace of its own: as root with the ids that this process has,
// as another user with those that /etc/subuid and /etc/subgid give it, and with
// single, where there are none, with one. Whether that works is tried first, which
// takes less than a second. The error is an *Error with the reason
// UserNamespaceUnavailable.
func NewWorker(needs Needs, argv ...string) (*Worker, error) {
	p, err := readPrivileges()
	if err != nil {
		f := failure(result.ReasonUserNamespaceUnavailable, "what this process may do cannot be read: %v", err).hinted("mount /proc")
		f.Check = CheckUserNS
		return &Worker{Finding: f}, f.Err()
	}
	chosen, f := chooseUserNS(p, needs)
	w := &Worker{UserNS: chosen.kind, Finding: f}
	if err := f.Err(); err != nil {
		return w, err
	}
	w.cmd = unshare.Command(argv...)
	w.Cmd = w.cmd.Cmd
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	w.cmd.UnshareFlags = syscall.CLONE_NEWNS
	if chosen.ids != nil {
		chosen.ids.apply(w.cmd)
		// Libraries ask this variable whether they are already in their namespace.
		w.cmd.Env = append(os.Environ(), unshare.UsernsEnvName+"=1")
	}
	return w, nil
}

// Start starts the worker. The thread that calls it must stay locked until Wait
// has returned: the worker is killed when the thread ends.
func (w *Worker) Start() error {
	if err := w.cmd.Start(); err != nil {
		f := failure(result.ReasonUserNamespaceUnavailable, "the process that builds cannot be started: %v", err)
		return f.Err()
	}
	return nil
}

// Wait waits for the worker to end.
func (w *Worker) Wait() error { return w.cmd.Wait() }
