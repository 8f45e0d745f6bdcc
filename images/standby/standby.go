// Package standby has processes of this program ready for work that buildah starts one
// for. Buildah looks into a filesystem, copies from it and to it in a process that changes
// its root, which keeps a link in an image from leading out of it. That process is this
// program again, and starting it takes longer than the work does, since the packages of a
// builder have much to initialize. Each COPY starts six.
//
// A process that stands by has been started ahead, and waits at a socket. The one that
// buildah starts hands it its five descriptors before Go's runtime begins (handover.c), and
// waits for its end. The process that stood by runs the same function of buildah's as the
// other would have, changes its root as that does, and then changes it back and waits for
// the next.
//
// It is sound because:
//
//   - Nothing depends on it. A process that finds nobody free does its work itself, as it
//     does where nothing stands by. It is told that its work is done by another before
//     anything is read of its descriptors, so one of the two does it.
//   - The way back is a descriptor of the old root, which what is in the new root cannot
//     name but through a proc filesystem in it; and through one of those, the root of the
//     process that builds can be named as well.
//   - What a piece of work opened is closed before the next begins, also what Go closes
//     only when it collects garbage: it is made to, and the descriptors are seen closed
//     (serve.go). Work that fails ends the process.
//   - The sockets are in a directory of one user, and what connects must be of that user.
//     A process that stands by ends when the one that started it does, and when the one
//     ends whose work it does.
package standby

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// variable is where the names of the sockets begin, for the processes that this one
// starts: a digit from 0 on follows, and for the file that is locked by who uses one,
// ".lock" after that. handover.c has this, too.
const variable = "STRATA_STANDBY"

// Pool is the processes that stand by.
type Pool struct {
	path            string
	sockets         []string
	processes       []*exec.Cmd
	lifeline, alive *os.File // the ends of a pipe: who stands by ends when alive is closed
	null            *os.File
	done            *os.File // an eventfd that counts the pieces of work that were done
}

// Start has one process stand by for what this process starts until End. Its socket is
// made in dir, which only this user may enter. After an error everything works as without.
func Start(dir string) (*Pool, error) {
	p := &Pool{path: filepath.Join(dir, "standby")}
	err := p.open()
	if err == nil {
		err = p.Add()
	}
	if err == nil {
		err = os.Setenv(variable, p.path)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Pool) open() (err error) {
	if p.lifeline, p.alive, err = os.Pipe(); err != nil {
		return err
	}
	fd, err := unix.Eventfd(1, unix.EFD_CLOEXEC) // one ahead, so that reading it never waits
	if err != nil {
		return err
	}
	p.done = os.NewFile(uintptr(fd), "eventfd")
	p.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
	return err
}

// Add has one more process stand by.
func (p *Pool) Add() error {
	if err := p.add(fmt.Sprintf("%s%d", p.path, len(p.sockets))); err != nil {
		return fmt.Errorf("no process stands by: %w", err)
	}
	return nil
}

// add starts the process at a socket. It alone has the socket: it ends with the process,
// for those too that have connected and wait.
func (p *Pool) add(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	listener := os.NewFile(uintptr(fd), path)
	defer listener.Close()
	p.sockets = append(p.sockets, path)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		return err
	}
	if err := os.WriteFile(path+".lock", nil, 0o600); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{name}
	cmd.Dir = "/" // as buildah does
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{p.null, p.null, p.lifeline, listener, p.done}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.processes = append(p.processes, cmd)
	return nil
}

// End lets the processes that stand by end. What is being done is finished first.
func (p *Pool) End() {
	if os.Getenv(variable) == p.path {
		_ = os.Unsetenv(variable)
	}
	_ = p.alive.Close()
}

// Close ends the processes that stand by, and returns when they have ended and how many
// pieces of work they did.
func (p *Pool) Close() (done int) {
	p.End()
	for _, cmd := range p.processes {
		_ = cmd.Wait() // work that failed did so for who wanted it
	}
	for _, path := range p.sockets {
		_ = os.Remove(path)
		_ = os.Remove(path + ".lock")
	}
	_ = p.lifeline.Close()
	_ = p.null.Close()
	count := make([]byte, 8)
	if _, err := p.done.Read(count); err == nil {
		done = int(binary.NativeEndian.Uint64(count)) - 1 //nolint:gosec // it fits
	}
	_ = p.done.Close()
	return done
}
