package layers

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"
)

// untar makes the files of an archive in a directory, out of which no name in the archive
// leads: the thread that makes them has it as its root directory. It is ErrUnsuited where
// a thread cannot have one, as a seccomp profile may have it.
func untar(tar io.Reader, dir string, options *archive.TarOptions) error {
	_ = unshare.IsRootless() // looks into /proc, and remembers
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return unsuited("a thread cannot have a root directory of its own: %v", err)
		}
		if err := unix.Chroot(dir); err != nil {
			return unsuited("a thread cannot have a root directory of its own: chroot: %v", err)
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		return outside(archive.Unpack(tar, "/", options), dir)
	})
}

// outside makes the path in an error that of a process whose root directory is not dir.
func outside(err error, dir string) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		path.Path = filepath.Join(dir, path.Path)
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		link.New = filepath.Join(dir, link.New)
	}
	return err
}

// onThread calls f on a thread that does nothing else and ends with it. It is never the
// first thread of the process, which cannot end, and whose root directory is that of the
// process for everybody else.
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
		result <- f()
	}
	go run()
	return <-result
}
