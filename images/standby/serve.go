package standby

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The names of a process that stands by, and of those whose work it does.
const (
	name   = "strata-standby"
	copier = "buildah-copier" // as handover.c and buildah have it
)

// The descriptors of a process that stands by. Those below handedOver are for those of
// another; while there is no work, nothing is there but standard error.
const (
	handedOver = 5 // their number; handover.c has it, too
	lifeline   = 5 // ends with the process that started this one
	socket     = 6
	report     = 7 // an eventfd that counts the pieces of work that were done
)

// What the two processes say to each other, one byte each; handover.c has them, too.
const (
	taken = 't' // the descriptors are mine
	done  = 'd' // what was to do is done
)

// Go closes what nobody uses any longer soon after it has collected garbage. It is looked
// for that so often, and no longer than patience.
const (
	lookAgain = 200 * time.Microsecond
	patience  = 2 * time.Second
)

// Serve tells whether this process was started to stand by, and if so, does until the
// process ends that started it: it runs do for each one that hands it its work, with the
// name and the descriptors of that one, which ends when do returns. Where do ends this
// process, it kills the other.
func Serve(do func()) bool {
	if os.Args[0] != name {
		return false
	}
	s := &server{do: do}
	if err := s.serve(); err != nil {
		fmt.Fprintf(os.Stderr, "a process that stood by ends: %v\n", err)
	}
	return true
}

type server struct {
	do     func()
	root   int // the directory to which this process comes back
	stderr int // its own standard error
	null   int
}

func (s *server) serve() (err error) {
	_ = os.Unsetenv(variable)
	for fd := lifeline; fd <= report; fd++ {
		unix.CloseOnExec(fd)
	}
	if s.root, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if s.null, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if s.stderr, err = unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, handedOver); err != nil {
		return err
	}
	for {
		conn, err := accept()
		if err != nil || conn < 0 {
			return err
		}
		if err := s.work(conn); err != nil {
			return err
		}
	}
}

// accept returns the next connection, negative when there will be none.
func accept() (conn int, err error) {
	events := []unix.PollFd{{Fd: socket, Events: unix.POLLIN}, {Fd: lifeline}}
	for {
		_, err := unix.Poll(events, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case events[1].Revents != 0:
			return -1, nil
		default:
			conn, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC)
			if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNABORTED) {
				return conn, err
			}
		}
	}
}

// work does what the process at the other end of a connection was to do, if it is one that
// hands over its work.
func (s *server) work(conn int) error {
	defer func() { _ = unix.Close(conn) }()
	level, descriptors := receive(conn)
	if descriptors == nil {
		return nil
	}
	for fd, theirs := range descriptors {
		if err := unix.Dup3(theirs, fd, 0); err != nil {
			return err
		}
		_ = unix.Close(theirs)
	}
	if err := os.Setenv("LOGLEVEL", level); err != nil {
		return err
	}
	os.Args = []string{copier}
	finished := watch(conn)

	s.do()

	finished.Store(true)
	if err := s.clear(); err != nil {
		return err
	}
	one := binary.NativeEndian.AppendUint64(nil, 1)
	if _, err := unix.Write(report, one); err != nil {
		return err
	}
	if err := unix.Send(conn, []byte{done}, unix.MSG_NOSIGNAL); err != nil {
		return nil // the other was ended meanwhile, and nothing is wrong here
	}
	return s.forget()
}

// receive takes what the process at the other end hands over, and tells it so; nothing
// where that is of another user, has ended, or does not do as handover.c does.
func receive(conn int) (level string, descriptors []int) {
	peer, err := unix.GetsockoptUcred(conn, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || int(peer.Uid) != os.Geteuid() {
		return "", nil
	}
	text, rights := make([]byte, 64), make([]byte, unix.CmsgSpace(handedOver*4))
	n, size, _, _, err := unix.Recvmsg(conn, text, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return "", nil
	}
	messages, err := unix.ParseSocketControlMessage(rights[:size])
	if err != nil || len(messages) != 1 {
		return "", nil
	}
	descriptors, err = unix.ParseUnixRights(&messages[0])
	if err == nil && len(descriptors) == handedOver && unix.Send(conn, []byte{taken}, unix.MSG_NOSIGNAL) == nil {
		return string(text[:n]), descriptors
	}
	for _, fd := range descriptors {
		_ = unix.Close(fd)
	}
	return "", nil
}

// watch ends this process when the one at the other end has ended, unless what it wanted
// is finished: whoever ended that one wants the work to end.
func watch(conn int) (finished *atomic.Bool) {
	finished = new(atomic.Bool)
	end, err := unix.FcntlInt(uintptr(conn), unix.F_DUPFD_CLOEXEC, handedOver)
	go func() {
		for err == nil || errors.Is(err, unix.EINTR) {
			var n int
			events := []unix.PollFd{{Fd: int32(end), Events: unix.POLLRDHUP}} //nolint:gosec // a descriptor fits
			if n, err = unix.Poll(events, -1); n > 0 {
				break
			}
		}
		_ = unix.Close(end)
		if !finished.Load() {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}()
	return finished
}

// clear leaves the root and the descriptors of the work that was done.
func (s *server) clear() error {
	if err := unix.Fchdir(s.root); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	for fd := range handedOver {
		from := s.null
		if fd == 2 {
			from = s.stderr
		}
		if err := unix.Dup3(from, fd, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	return nil
}

// forget has Go close the files that buildah's function made of descriptors and left to
// the collector of garbage, which would close those of later work when it comes to it. The
// error says that it did not.
func (s *server) forget() error {
	look := time.NewTicker(lookAgain)
	defer look.Stop()
	begun := time.Now()
	for fd := 3; fd < handedOver; fd++ {
		for isOpen(fd) {
			if time.Since(begun) > patience {
				return errors.New("what it worked with stays open")
			}
			runtime.GC()
			<-look.C
		}
		if err := unix.Dup3(s.null, fd, unix.O_CLOEXEC); err != nil { // the place stays taken
			return err
		}
	}
	return nil
}

func isOpen(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}
