package images

import (
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"
)

// EnsureHome sets HOME where it is not set, as in a container whose image has no
// /etc/passwd: the libraries give up without one. Nothing needs to be there, and
// nothing needs to be writable but for a store that no flag puts elsewhere.
func EnsureHome() error {
	if os.Getenv("HOME") != "" {
		return nil
	}
	home := "/root"
	if u, err := user.Current(); err == nil && u.HomeDir != "" {
		home = u.HomeDir
	} else if os.Geteuid() != 0 {
		home = os.TempDir()
	}
	return os.Setenv("HOME", home)
}

// EnsureRuntimeDir sees to it that the libraries find a place for what is gone after a
// reboot. For an ordinary user they give up, with any store, where there is no
// XDG_RUNTIME_DIR, and no /run/user and no /tmp that can be written to: then it is
// beside the store, whose directory is storageRoot, empty for the default, or in memory.
func EnsureRuntimeDir(storageRoot string) error {
	uid := strconv.Itoa(unshare.GetRootlessUID())
	if uid == "0" || os.Getenv("XDG_RUNTIME_DIR") != "" {
		return nil
	}
	for _, found := range []string{filepath.Join("/run/user", uid), filepath.Join(os.TempDir(), "storage-run-"+uid)} {
		if writable(found) {
			return nil
		}
	}
	if storageRoot == "" {
		storageRoot = filepath.Join(os.Getenv("HOME"), ".local/share/containers")
	}
	for _, dir := range []string{filepath.Join(storageRoot, "run"), "/dev/shm/strata-run-" + uid} {
		if writable(dir) {
			return os.Setenv("XDG_RUNTIME_DIR", dir)
		}
	}
	return nil // that nothing can be written to is said where it is needed
}

// writable tells whether a directory can be made, or is there, and can be written to
// by its owner alone, who is the user of this process.
func writable(dir string) bool {
	if os.MkdirAll(dir, 0o700) != nil {
		return false
	}
	var stat unix.Stat_t
	return unix.Lstat(dir, &stat) == nil && stat.Uid == uint32(os.Geteuid()) && stat.Mode&unix.S_IFMT == unix.S_IFDIR && //nolint:gosec // an id of the kernel's fits
		stat.Mode&0o022 == 0 && unix.Access(dir, unix.W_OK) == nil
}
