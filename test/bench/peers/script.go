package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// script is what a builder does in one run, from nothing running to nothing running.
type script struct {
	// Store is the directory in which the builder keeps everything. /var/tmp and
	// the cache of containers/image are in it too.
	Store string
	// Group is a control group of memory to run in, "" for none.
	Group string
	// Daemon is started first and ended at last; Ready succeeds once it serves.
	Daemon, Ready []string
	// Builds run at the same time, each of them commands one after the other.
	Builds [][][]string
	Env    []string
	// Mapped tells that the builds run as root of a user namespace, as in pods with
	// hostUsers: false. What they use is given to mappedRoot.
	Mapped bool
}

// mappedRoot is who the root of a user namespace is outside of it, mappedIDs how many ids
// there are: as many as the kubelet gives a pod.
const (
	mappedRoot = 100_000
	mappedIDs  = 65_536
)

const (
	scriptCommand = "script"
	// daemonPatience is how long a daemon has to begin to serve, and to end.
	daemonPatience = 30 * time.Second
)

// line is the command that runs the script in a mount namespace of its own.
func (s script) line() ([]string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{"unshare", "--mount", "--propagation", "private", "--", self, scriptCommand, string(text)}, nil
}

// runScript is the process that line starts.
func runScript(ctx context.Context, text string) error {
	var s script
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	// Orphans come to this process, which waits for them, so that they count.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	if s.Group != "" {
		if err := os.WriteFile(filepath.Join(s.Group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return err
		}
	}
	if err := s.mount(); err != nil {
		return err
	}
	err := s.run(ctx)
	for {
		if _, none := syscall.Wait4(-1, nil, 0, nil); none != nil && !errors.Is(none, syscall.EINTR) {
			return err
		}
	}
}

// mount puts the directories that builders share with all others of this machine into
// the store, and hides the programs that some use when they find them: a build pod has
// none of them.
func (s script) mount() error {
	for target, source := range map[string]string{"/var/tmp": "tmp", "/var/lib/containers/cache": "cache"} {
		source = filepath.Join(s.Store, source)
		if err := errors.Join(os.MkdirAll(source, 0o1777), os.MkdirAll(target, 0o755)); err != nil {
			return err
		}
		if s.Mapped {
			if err := os.Chown(source, mappedRoot, mappedRoot); err != nil {
				return err
			}
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", target, err)
		}
	}
	for _, name := range []string{"pigz", "unpigz", "igzip"} {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if err := unix.Mount("/dev/null", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hiding %s: %w", path, err)
		}
	}
	return nil
}

func (s script) run(ctx context.Context) (err error) {
	if s.Daemon != nil {
		daemon := s.command(ctx, s.Daemon)
		if err := daemon.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end(daemon)) }()
		if err := s.awaitDaemon(ctx); err != nil {
			return err
		}
	}
	failed := make([]error, len(s.Builds))
	var builds sync.WaitGroup
	for i, lines := range s.Builds {
		builds.Go(func() {
			for _, line := range lines {
				if err := s.command(ctx, line).Run(); err != nil {
					failed[i] = fmt.Errorf("%s: %w", strings.Join(line, " "), err)
					return
				}
			}
		})
	}
	builds.Wait()
	return errors.Join(failed...)
}

func (s script) command(ctx context.Context, line []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if s.Mapped {
		ids := []syscall.SysProcIDMap{{HostID: mappedRoot, Size: mappedIDs}}
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
			Credential: &syscall.Credential{}, // of the namespace
		}
	}
	return cmd
}

func (s script) awaitDaemon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ready := exec.CommandContext(ctx, s.Ready[0], s.Ready[1:]...)
		if ready.Run() == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w", s.Daemon[0], ctx.Err())
		}
	}
}

// end asks a daemon to end and waits for it.
func end(daemon *exec.Cmd) error {
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	slow := time.AfterFunc(daemonPatience, func() { _ = daemon.Process.Kill() })
	defer slow.Stop()
	var exit *exec.ExitError
	if err := daemon.Wait(); err != nil && !errors.As(err, &exit) { // ended by a signal is ended
		return err
	}
	return nil
}
