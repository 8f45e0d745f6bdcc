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
// reboot. For an ordinary user they give up where there is no XDG_RUNTIME_DIR, and no
// /run/user and no /tmp that can be written to, even when the store is elsewhere: then
// it is beside the store, whose directory is storageRoot, empty for the default.
func EnsureRuntimeDir(storageRoot string) error {
	uid := unshare.GetRootlessUID()
	if uid == 0 || os.Getenv("XDG_RUNTIME_DIR") != "" {
		return nil
	}
	if storageRoot == "" {
		storageRoot = filepath.Join(os.Getenv("HOME"), ".local/share/containers")
	}
	beside := filepath.Join(storageRoot, "run")
	for _, dir := range []string{
		filepath.Join("/run/user", strconv.Itoa(uid)), filepath.Join(os.TempDir(), "storage-run-"+strconv.Itoa(uid)), beside,
	} {
		if os.MkdirAll(dir, 0o700) != nil || unix.Access(dir, unix.W_OK) != nil {
			continue
		}
		if dir == beside {
			return os.Setenv("XDG_RUNTIME_DIR", beside)
		}
		return nil
	}
	return nil // that the store cannot be written to is said where it is opened
}
