package result

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// TerminationLog is where Kubernetes looks for the termination message of a
// container that names no other place (terminationMessagePath).
const TerminationLog = "/dev/termination-log"

// Write puts an encoded Result at path in one piece: a regular file is replaced
// by a rename, so that a reader never sees half of it, and what cannot be
// replaced (the termination log is a mount, /dev/stderr a pipe) is written to
// with a single write.
func Write(path string, data []byte) error {
	if isDescriptor(path) {
		return write(path, os.O_APPEND, data)
	}
	target := path
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		target = resolved
	} else if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return writeInPlace(path, data) // a link to a file that is not there yet
	}
	info, err := os.Stat(target)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		return write(target, syscall.O_NONBLOCK, data) // a pipe that nobody reads is an error
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	err = replace(target, data)
	if err == nil || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return err // what is there already is kept rather than cut short
	}
	return writeInPlace(target, data)
}

// isDescriptor tells whether a path names a descriptor of this process. Behind it
// may be a file that others write to, too: nothing of it may go.
func isDescriptor(path string) bool {
	for _, prefix := range []string{"/dev/std", "/dev/fd/", "/proc/self/fd/"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

func replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".result-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func writeInPlace(path string, data []byte) error {
	return write(path, os.O_TRUNC|os.O_CREATE, data)
}

// pipeTime is how long a pipe may be without a reader.
const pipeTime = time.Second

func write(path string, flags int, data []byte) error {
	f, err := open(path, flags)
	for start := time.Now(); errors.Is(err, syscall.ENXIO) && time.Since(start) < pipeTime; {
		<-time.After(10 * time.Millisecond) // nobody reads the pipe yet
		f, err = open(path, flags)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

func open(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|flags, 0o644) //nolint:gosec // a result is for others to read
}
