package images

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"
	"go.podman.io/storage/pkg/reexec"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"
)

// trialName is the name by which a process recognises that it is a trial.
const trialName = "strata-trial"

func init() { reexec.Register(trialName, standTrial) }

// mapping is how the ids of a user namespace are to be mapped.
type mapping struct {
	uids, gids []specs.LinuxIDMapping
	// helpers is set where newuidmap and newgidmap write the maps.
	helpers bool
}

// trial is what came of an attempt to make a user namespace and to mount in it.
type trial struct {
	// NewNamespace is why there is no user namespace, 0 where there is one.
	NewNamespace syscall.Errno
	// Mapping is why the ids were not mapped, empty where they were: what the
	// kernel said, or what newuidmap or newgidmap wrote.
	Mapping string
	// Helper is the program that failed to map, empty where none did.
	Helper string
	// Mount is why nothing can be mounted there, empty where it can.
	Mount string
	// Reach is the first thing that is needed and out of reach there, empty for none.
	Reach string
	// Chroot is why no root directory can be changed to, empty where it can.
	Chroot string
	// Other is any other cause of failure.
	Other string
}

func (t trial) worked() bool { return t == trial{} }

// trialTime is how long a trial may take: it is a process that makes a few system calls.
const trialTime = time.Second

// tryMapping makes a process in a user namespace of its own, as a worker will be one,
// and has it mount something. With needs, it looks whether it gets at these first.
func tryMapping(m mapping, needs ...Needs) (t trial) {
	cmd := unshare.Command(trialName)
	for _, n := range needs {
		text, err := json.Marshal(n)
		if err != nil {
			return trial{Other: err.Error()}
		}
		cmd.Env = append(os.Environ(), needsVariable+"="+string(text))
	}
	m.apply(cmd)
	cmd.UnshareFlags |= syscall.CLONE_NEWNS
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	runtime.LockOSThread() // the process is killed when the thread ends
	defer runtime.UnlockOSThread()
	said := listen()
	err := cmd.Start()
	helpers := said()
	t.Helper, t.Mapping = helperFailure(helpers)
	if err != nil {
		for _, errno := range []syscall.Errno{syscall.EPERM, syscall.EACCES, syscall.ENOSPC, syscall.EUSERS, syscall.EINVAL, syscall.ENOSYS} {
			// What the part of the library says that runs before the runtime of Go does.
			if strings.Contains(stderr.String(), "unshare(CLONE_NEWUSER): "+cText(errno)) {
				t.NewNamespace = errno
				return t
			}
		}
		if strings.Contains(err.Error(), "_map") {
			t.Mapping = rootCause(err).Error()
			return t
		}
		t.Other = oneLine(err.Error() + " " + stderr.String())
		return t
	}
	timer := time.AfterFunc(trialTime, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err = cmd.Wait()
	if t.Mapping != "" {
		return t
	}
	if json.Unmarshal(stdout.Bytes(), &t) != nil {
		t.Other = oneLine(strings.TrimSpace(stderr.String()))
		if t.Other == "" && err != nil {
			t.Other = err.Error()
		}
	}
	return t
}

// cText is the text that the C library has for an error: Go's begins with a small letter.
func cText(errno syscall.Errno) string {
	text := errno.Error()
	return strings.ToUpper(text[:1]) + text[1:]
}

// apply sets the mapping of a command.
func (m mapping) apply(cmd *unshare.Cmd) {
	cmd.UnshareFlags |= syscall.CLONE_NEWUSER
	cmd.UidMappings, cmd.GidMappings = m.uids, m.gids
	cmd.UseNewuidmap, cmd.UseNewgidmap = m.helpers, m.helpers
	// A process that may not set groups outside may not allow it inside either.
	cmd.GidMappingsEnableSetgroups = count(m.gids) > 1
}

var listening sync.Mutex

// listen keeps what the library logs of newuidmap and newgidmap: that these failed
// is told nowhere else, as it goes on without them.
func listen() (said func() string) {
	listening.Lock()
	logger := logrus.StandardLogger()
	out, formatter, hooks := logger.Out, logger.Formatter, logger.ReplaceHooks(logrus.LevelHooks{})
	var buf bytes.Buffer
	logger.SetOutput(&buf)
	logger.SetFormatter(plainText{})
	return func() string {
		logger.SetOutput(out)
		logger.SetFormatter(formatter)
		logger.ReplaceHooks(hooks)
		listening.Unlock()
		return buf.String()
	}
}

// plainText writes the message of a record on a line.
type plainText struct{}

// Format implements logrus.Formatter.
func (plainText) Format(e *logrus.Entry) ([]byte, error) {
	return []byte(oneLine(e.Message) + "\n"), nil
}

// helperFailure finds in what the library logged the helper that failed first, and
// what it wrote.
func helperFailure(log string) (helper, text string) {
	for line := range strings.Lines(log) {
		for _, name := range []string{"newgidmap", "newuidmap"} {
			if _, rest, found := strings.Cut(line, "running "+name+": "); found {
				return name, strings.TrimSpace(rest)
			}
		}
	}
	return "", ""
}

// standTrial is the process of a trial: it mounts, and says what came of it.
func standTrial() {
	var t trial
	var needs Needs
	if text := os.Getenv(needsVariable); text != "" && json.Unmarshal([]byte(text), &needs) == nil {
		t.Reach = needs.outOfReach()
	}
	t.try()
	_ = json.NewEncoder(os.Stdout).Encode(t)
}

// try does, in a mount namespace that ends soon, what a build does all the time.
func (t *trial) try() {
	if err := PrivateMounts(); err != nil {
		t.Mount = err.Error()
		return
	}
	if err := unix.Mount("strata", "/", "tmpfs", 0, ""); err != nil {
		t.Mount = err.Error()
		return
	}
	if err := unix.Chroot("/"); err != nil {
		t.Chroot = err.Error()
	}
}

// tryMounts tries, in a mount namespace that ends with this call, whether this
// process may mount as it is.
func tryMounts() (t trial) {
	done := make(chan trial)
	go func() {
		// The thread is never unlocked: it ends with this function, and its mount
		// namespace with it.
		runtime.LockOSThread()
		var t trial
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
			t.Mount = "unshare(CLONE_NEWNS): " + err.Error()
		} else {
			t.try()
		}
		done <- t
	}()
	return <-done
}

// lookPath is exec.LookPath, empty where there is no such program.
func lookPath(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}
