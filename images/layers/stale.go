package layers

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveStale removes what processes staged that have ended, from below home, which is the
// directory of a store's overlay driver. The store removes it, too, but not before it
// is shut down, and is not needed for it. The caller has nothing staged itself: a process
// does not see its own locks.
func RemoveStale(home string) {
	staging := filepath.Join(home, "staging")
	entries, err := os.ReadDir(staging)
	if err != nil {
		return
	}
	for _, e := range entries {
		dir := filepath.Join(staging, e.Name())
		// One without a lock is about to get it.
		lock, err := os.OpenFile(filepath.Join(dir, "staging.lock"), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// As containers/storage locks it (internal/rawfilelock).
		if unix.FcntlFlock(lock.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}
