package layers

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"
)

// untar makes the files of an archive in a directory, out of which no name in the archive
// leads: the thread that makes them has it as its root directory. It is ErrUnsuited where
// a thread may not have one, as a seccomp profile may have it.
func untar(tar io.Reader, dir string, options *archive.TarOptions) error {
	_ = unshare.IsRootless() // looks into /proc, and remembers
	if options.IgnoreChownErrors && singleID() {
		// Nobody else can own a file, and archive would say so of each.
		own := *options
		own.NoLchown = true
		options = &own
	}
	source := &failing{Reader: tar}
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return unsuited("a thread may not have a root directory of its own: %v", err)
		}
		if err := unix.Chroot(dir); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			return unsuited("a thread may not have a root directory of its own: chroot: %v", err)
		} else if err != nil {
			return &fs.PathError{Op: "chroot", Path: dir, Err: err}
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		err := archive.Unpack(source, "/", options)
		if source.err != nil && errors.Is(err, source.err) {
			return err
		}
		return outside(err, dir)
	})
}

// singleID tells whether the user namespace has one user and one group.
func singleID() bool {
	users, groups, err := unshare.GetHostIDMappings("")
	return err == nil && len(users) == 1 && users[0].Size == 1 && len(groups) == 1 && groups[0].Size == 1
}

// failing remembers the error of a reader.
type failing struct {
	io.Reader
	err error
}

// Read implements io.Reader.
func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// outside makes the path in an error that of a process whose root directory is not dir.
// Where there is no space, it is that of the store which matters, and not an error's.
func outside(err error, dir string) error {
	var path *fs.PathError
	var link *os.LinkError
	if errors.As(err, &path) {
		if isFull(err) {
			return fmt.Errorf("%s: %w", path.Path, path.Err)
		}
		path.Path = filepath.Join(dir, path.Path)
	}
	if errors.As(err, &link) {
		if isFull(err) {
			return fmt.Errorf("%s: %w", link.New, link.Err)
		}
		link.New = filepath.Join(dir, link.New)
	}
	return err
}

// onThread calls f on a thread that does nothing else and ends with it. It is never the
// first thread of the process, which cannot end, and whose root directory is that of the
// process for everybody else. A panic of f is an error.
func onThread(f func() error) error {
	result := make(chan error, 1)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			again := make(chan struct{})
			go func() {
				defer close(again)
				run()
			}()
			<-again
			runtime.UnlockOSThread()
			return
		}
		defer func() {
			if p := recover(); p != nil {
				result <- fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		result <- f()
	}
	go run()
	return <-result
}
