package images

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ownerLock is the file in a build's directory of temporary files that it keeps
// locked as long as it lives.
const ownerLock = "owner"

// owner names this build: in its directory of temporary files, and in the names of
// the containers that it works in.
func (e *Engine) owner() string { return filepath.Base(e.tmp) }

// own marks the directory of temporary files as that of a build that lives. The
// kernel takes the mark away whatever ends the process.
func (e *Engine) own() (err error) {
	// It gets its name when it is locked: nobody finds it without the lock.
	unnamed := filepath.Join(e.tmp, ownerLock+".new")
	if e.lock, err = os.OpenFile(unnamed, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(e.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	return os.Rename(unnamed, filepath.Join(e.tmp, ownerLock))
}

// sweep removes what builds left that were killed: their working containers, which
// may hold copies of secrets, and their temporary files.
func (e *Engine) sweep() {
	siblings, err := filepath.Glob(filepath.Join(filepath.Dir(e.tmp), tempPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range siblings {
		if dir != e.tmp && abandoned(dir) {
			e.deleteContainers(filepath.Base(dir))
			removeTemp(dir, e.log)
			e.log.Debug("removed what a build left that was killed", "directory", dir)
		}
	}
}

// abandoned tells whether the build that a directory belongs to has ended.
func abandoned(dir string) bool {
	lock, err := os.OpenFile(filepath.Join(dir, ownerLock), os.O_RDWR, 0)
	if err != nil {
		return false // it is about to be locked, or not ours
	}
	defer lock.Close()
	return syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// deleteContainers deletes the working containers of a build.
func (e *Engine) deleteContainers(owner string) {
	containers, err := e.store.Containers()
	if err != nil {
		return
	}
	for _, c := range containers {
		for _, name := range c.Names {
			if !strings.Contains(name, owner) {
				continue
			}
			if err := e.store.DeleteContainer(c.ID); err != nil {
				e.log.Debug("a working container is left behind", "container", name, "error", err)
			}
		}
	}
}
