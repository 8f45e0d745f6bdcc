package layers

import (
	"errors"
	"fmt"
	"io"
	"runtime"

	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/chrootarchive"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"
)

// errNoRoot is the error of a thread that may not have a root directory of its own.
var errNoRoot = errors.New("the thread cannot have a root directory of its own")

// untar makes the files of an archive in a directory, out of which no name in the archive
// leads: the thread that makes them has it as its root directory. Where a thread cannot
// have one, as a seccomp profile may have it, a process does.
func untar(tar io.Reader, dir string, options *archive.TarOptions) error {
	_ = unshare.IsRootless() // looks into /proc, and remembers
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("%w: %w", errNoRoot, err)
		}
		if err := unix.Chroot(dir); err != nil {
			return fmt.Errorf("%w: %w", errNoRoot, err)
		}
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		return archive.Unpack(tar, "/", options)
	})
	if errors.Is(err, errNoRoot) {
		return chrootarchive.UntarUncompressed(tar, dir, options)
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
