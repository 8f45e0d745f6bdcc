package result

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// TerminationLog is where Kubernetes looks for the termination message of a
// container that names no other place (terminationMessagePath).
const TerminationLog = "/dev/termination-log"

// Write puts an encoded Result at path in one piece: a regular file is replaced
// by a rename, so that a reader never sees half of it, and what cannot be
// replaced (the termination log is a mount, /dev/stderr a pipe) is written to
// with a single write.
func Write(path string, data []byte) error {
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
		return writeInPlace(target, data)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if replace(target, data) == nil {
		return nil
	}
	return writeInPlace(target, data)
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
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|os.O_CREATE, 0o644) //nolint:gosec // a result is for others to read
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
