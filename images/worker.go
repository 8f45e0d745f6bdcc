package images

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"go.podman.io/buildah"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
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
// it was (untar in a chroot, the steps of chroot isolation), and tells whether
// it did. A main function calls it first and returns when it is true.
func Reexec() bool { return buildah.InitReexec() }

// Worker is a process of this program that may mount filesystems and, where
// that is possible, own files of more than one user.
type Worker struct {
	cmd *unshare.Cmd
	// Cmd is the process; its stdio and extra files are the caller's to set.
	Cmd *exec.Cmd
	// UserNS is the kind of user namespace that the worker runs in.
	UserNS string
	// Warning, when it is not empty, says what the sandbox cannot do.
	Warning string
}

// NewWorker prepares a worker with argv, whose first word is the name under
// which it recognises itself. The worker has a mount namespace of its own, so
// that no mount outlives it. Where this process has no CAP_SYS_ADMIN it also has
// a user namespace of its own: as root with the ids that this process has, as
// another user with those that /etc/subuid and /etc/subgid give it.
func NewWorker(argv ...string) (*Worker, error) {
	privileged, err := hasCapability(capability.CAP_SYS_ADMIN)
	if err != nil {
		return nil, noUserNS("reading the capabilities of this process", err)
	}
	cmd := unshare.Command(argv...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.UnshareFlags = syscall.CLONE_NEWNS
	if privileged && os.Geteuid() == 0 {
		kind := UserNSNone
		if !hostIDs() {
			kind = UserNSPod
		}
		return &Worker{cmd: cmd, Cmd: cmd.Cmd, UserNS: kind}, nil
	}

	cmd.UnshareFlags |= syscall.CLONE_NEWUSER
	cmd.GidMappingsEnableSetgroups = true
	// Libraries ask this variable whether they are already in their namespace.
	cmd.Env = append(os.Environ(), unshare.UsernsEnvName+"=1")
	w := &Worker{cmd: cmd, Cmd: cmd.Cmd, UserNS: UserNSOwn}
	if os.Geteuid() == 0 {
		uids, gids, err := unshare.GetHostIDMappings("")
		if err != nil {
			return nil, noUserNS("reading the ids of this process", err)
		}
		cmd.UidMappings, cmd.GidMappings = keepIDs(uids), keepIDs(gids)
		return w, nil
	}
	w.useSubIDs(cmd)
	return w, nil
}

// useSubIDs maps root in the namespace to the user, and the ids above it to the
// ranges set aside for the user.
func (w *Worker) useSubIDs(cmd *unshare.Cmd) {
	name := strconv.Itoa(os.Geteuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	uids, gids, err := unshare.GetSubIDMappings(name, name)
	_, lookErr := exec.LookPath("newuidmap")
	switch {
	case err != nil || len(uids) == 0 || len(gids) == 0:
		w.UserNS = UserNSSingle
		w.Warning = fmt.Sprintf("user %s has no range in /etc/subuid and /etc/subgid: files in the image can only belong to root", name)
	case lookErr != nil:
		w.UserNS = UserNSSingle
		w.Warning = "newuidmap is not installed: files in the image can only belong to root"
	}
	if w.UserNS == UserNSSingle {
		uids, gids = nil, nil
		cmd.GidMappingsEnableSetgroups = false
	} else {
		cmd.UseNewuidmap, cmd.UseNewgidmap = true, true
	}
	cmd.UidMappings = mapFromZero(os.Geteuid(), uids)
	cmd.GidMappings = mapFromZero(os.Getegid(), gids)
}

// Start starts the worker. The thread that calls it must stay locked until Wait
// has returned: the worker is killed when the thread ends.
func (w *Worker) Start() error {
	if err := w.cmd.Start(); err != nil {
		return noUserNS("starting the build in a user namespace of its own", err)
	}
	return nil
}

// Wait waits for the worker to end.
func (w *Worker) Wait() error { return w.cmd.Wait() }

func noUserNS(doing string, err error) error {
	return &Error{
		Reason: result.ReasonUserNamespaceUnavailable, Class: result.ClassSandbox, Err: err,
		Message: fmt.Sprintf("this sandbox cannot build: %s: %v", doing, err),
	}
}

func hasCapability(c capability.Cap) (bool, error) {
	caps, err := capability.NewPid2(0)
	if err != nil {
		return false, err
	}
	if err := caps.Load(); err != nil {
		return false, err
	}
	return caps.Get(capability.EFFECTIVE, c), nil
}

// hostIDs tells whether this process has the ids of the machine, and so is in
// no user namespace but the first.
func hostIDs() bool {
	uids, _, err := unshare.GetHostIDMappings("")
	return err == nil && len(uids) == 1 && uids[0].HostID == 0 && uids[0].Size == ^uint32(0)
}

// keepIDs maps every id that exists here to itself.
func keepIDs(ids []specs.LinuxIDMapping) []specs.LinuxIDMapping {
	for i := range ids {
		ids[i].HostID = ids[i].ContainerID
	}
	return ids
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
