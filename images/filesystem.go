package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

// filesystem is what a directory is on.
type filesystem struct {
	mountpoint, kind string
	readOnly         bool
	// Sizes are in bytes; free is what is left for this process.
	size, free uint64
	// inodes is 0 where the filesystem does not count them.
	inodes, freeInodes uint64
}

// filesystemOf looks at the filesystem of a path, or, where there is no such path,
// of the directory in which it would be.
func filesystemOf(path string) filesystem {
	for {
		var stat unix.Statfs_t
		err := unix.Statfs(path, &stat)
		if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			continue
		}
		f := filesystem{mountpoint: path, kind: "unknown"}
		if err == nil {
			block := uint64(stat.Bsize) //nolint:gosec // the size of a block is positive
			f.size, f.free = stat.Blocks*block, stat.Bavail*block
			f.inodes, f.freeInodes = stat.Files, stat.Ffree
			f.readOnly = stat.Flags&unix.ST_RDONLY != 0
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		mounts, _ := mountinfo.GetMounts(mountinfo.ParentsFilter(path))
		longest := -1
		for _, m := range mounts { // of several at one place, the last is on top
			if len(m.Mountpoint) >= longest {
				longest, f.mountpoint, f.kind = len(m.Mountpoint), m.Mountpoint, m.FSType
			}
		}
		return f
	}
}

// String describes the filesystem: its kind, its place and what is free.
func (f filesystem) String() string {
	return fmt.Sprintf("%s at %s, %s of %s free", f.kind, f.mountpoint, size(f.free), size(f.size))
}

// size writes bytes in the unit that leaves at most four digits.
func size(bytes uint64) string {
	n, unit := float64(bytes), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n < 1024 {
			break
		}
		n, unit = n/1024, next
	}
	if n < 10 && unit != "B" {
		return fmt.Sprintf("%.1f %s", n, unit)
	}
	return fmt.Sprintf("%.0f %s", n, unit)
}

// isFull tells whether err says that a filesystem or a quota has nothing left.
func isFull(err error) bool {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return true
	}
	return isFullText(err.Error()) // the libraries do not always keep the error itself
}

// isFullText tells whether a text, such as what a program wrote, says so.
func isFullText(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, syscall.ENOSPC.Error()) || strings.Contains(text, syscall.EDQUOT.Error())
}

// cannotWrite says why a directory cannot be written to. what is the directory's
// part, such as "the store".
func cannotWrite(what, dir string, err error) Finding {
	on := filesystemOf(dir)
	volume := fmt.Sprintf("mount an emptyDir volume at %s (volumes: [{name: store, emptyDir: {}}], volumeMounts: [{name: store, mountPath: %s}])", dir, dir)
	if !inContainer() {
		volume = "name a directory that can be written to, with --storage-root"
	}
	cause := rootCause(err)
	switch {
	case isFull(err) && on.inodes > 0 && on.freeInodes == 0:
		return failure(result.ReasonNoSpace, "%s %s cannot be written to: the filesystem at %s (%s) is out of inodes, all %d are used (%v)", what, dir, on.mountpoint, on.kind, on.inodes, cause).
			hinted("remove files there, or give the volume more inodes")
	case isFull(err):
		return failure(result.ReasonNoSpace, "%s %s cannot be written to: the filesystem at %s (%s) is full, %s of %s are free (%v)", what, dir, on.mountpoint, on.kind, size(on.free), size(on.size), cause).
			hinted("remove files there, or give the volume more space")
	case errors.Is(err, syscall.EROFS):
		return failure(result.ReasonStorageUnavailable, "%s %s cannot be written to: the filesystem at %s (%s) is mounted read-only", what, dir, on.mountpoint, on.kind).hinted("%s", volume)
	case errors.Is(err, fs.ErrPermission):
		return failure(result.ReasonStorageUnavailable, "%s %s cannot be written to by uid %d: %v", what, dir, unshare.GetRootlessUID(), err).hinted("%s", volume)
	case errors.Is(err, syscall.ENOTDIR):
		return failure(result.ReasonStorageUnavailable, "%s %s cannot be made: a part of the path is not a directory (%v)", what, dir, err).hinted("name another directory, with --storage-root")
	}
	return failure(result.ReasonStorageUnavailable, "%s %s cannot be used: %v", what, dir, err).hinted("%s", volume)
}

// tryWriting writes a little more than fits into an inode to a directory, which it
// makes if it is missing.
func tryWriting(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".strata-trial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(make([]byte, 16<<10))
	return errors.Join(err, f.Close())
}

// IsMountpoint tells whether something is mounted at a path.
func IsMountpoint(path string) bool {
	is, err := mountinfo.Mounted(path)
	return err == nil && is
}
