package images

import (
	"os"
	"os/user"
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
