package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// diskUsage is what the files below a directory take on the disk, in bytes; a file with
// several names counts once. A directory that does not exist has nothing.
func diskUsage(dir string) (int64, error) {
	var sum int64
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a server may still clean up
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // it is on Linux
		if stat.Nlink > 1 && !d.IsDir() {
			if seen[stat.Ino] {
				return nil
			}
			seen[stat.Ino] = true
		}
		sum += stat.Blocks * 512
		return nil
	})
	return sum, err
}

// copyLinks makes a directory with the same files under further names, which is a copy
// as long as none is changed in place: a registry changes none.
func copyLinks(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target = filepath.Join(to, target)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		return os.Link(path, target)
	})
}

// freeBytes is what the filesystem of a directory has left.
func freeBytes(dir string) (int64, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return int64(stat.Bavail) * stat.Bsize, nil
}

// settle writes what is to be written, lets the kernel forget what it has of the disk in
// memory, and reads the files below paths into it. Without that, a run pays for what
// was removed before it: ext4 without a journal looks at each inode that was removed in
// the last minutes when it hands out new ones, as long as it has it in memory, which has
// cost 30 s of CPU. Where the kernel does not let it forget, as in some containers, it
// says so to log.
func settle(log io.Writer, paths ...string) error {
	syscall.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0o200); err != nil {
		fmt.Fprintf(log, "what was removed before may slow the next run down: %v\n", err)
	}
	for _, root := range paths {
		if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			file, err := os.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = io.Copy(struct{ io.Writer }{io.Discard}, file)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
