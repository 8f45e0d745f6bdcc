package images

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

// Space is how full a filesystem is.
type Space struct {
	// Mount is where it is mounted.
	Mount string
	// Size, Used and Free are in bytes; Free is what a process without privileges
	// gets. Inodes and FreeInodes are 0 where inodes are not counted.
	Size, Used, Free   uint64
	Inodes, FreeInodes uint64
}

// SpaceAt looks at the filesystem that holds the path, or would hold it.
func SpaceAt(path string) (Space, error) {
	for path = absolute(path); ; path = filepath.Dir(path) {
		s, err := statSpace(path)
		if err == nil {
			s.Mount = filesystemOf(path).mountpoint
			return s, nil
		}
		if path == filepath.Dir(path) {
			return Space{}, err
		}
	}
}

// statSpace does not tell the mount.
func statSpace(path string) (Space, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return Space{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	block := uint64(stat.Frsize) //nolint:gosec // the size of a block is positive
	return Space{
		Size: stat.Blocks * block, Used: (stat.Blocks - stat.Bfree) * block, Free: stat.Bavail * block,
		Inodes: stat.Files, FreeInodes: stat.Ffree,
	}, nil
}

// A program that found no space has left less than what it wanted to write at once.
const (
	fullBytes  = 1 << 20
	fullInodes = 16
)

// Full tells whether a program that wrote to it has failed for that.
func (s Space) Full() bool { return s.Size > 0 && s.Free < fullBytes || s.outOfInodes() }

func (s Space) outOfInodes() bool { return s.Inodes > 0 && s.FreeInodes < fullInodes }

// share is how much of it is used, of bytes or inodes whichever is more: 0 to 1.
func (s Space) share() (used float64) {
	if s.Size > 0 {
		used = 1 - float64(s.Free)/float64(s.Size)
	}
	if s.Inodes > 0 {
		used = max(used, 1-float64(s.FreeInodes)/float64(s.Inodes))
	}
	return used
}

// Tight tells whether a kubelet would begin to evict pods: by default where less
// than 10 percent of the bytes or 5 percent of the inodes are free (Kubernetes,
// "Node-pressure Eviction": nodefs.available, nodefs.inodesFree).
func (s Space) Tight() bool {
	return s.Free*10 < s.Size || s.FreeInodes*20 < s.Inodes
}

// String says how full it is, in a clause that begins with the mount.
func (s Space) String() string {
	bytes := fmt.Sprintf("%s of %s used", size(s.Used), size(s.Size))
	inodes := fmt.Sprintf("%d of %d inodes used", s.Inodes-s.FreeInodes, s.Inodes)
	switch {
	case s.Inodes == 0:
		return fmt.Sprintf("%s has %s", s.Mount, bytes)
	case (s.Inodes-s.FreeInodes)*2 > s.Inodes && (s.Size == 0 || s.Free >= fullBytes):
		return fmt.Sprintf("%s has %s, and %s", s.Mount, inodes, bytes)
	}
	return fmt.Sprintf("%s has %s, and %s", s.Mount, bytes, inodes)
}

// spaceInterval is how often the watch looks; a look takes some microseconds.
const spaceInterval = 50 * time.Millisecond

// spaceWatch watches the filesystems that a build writes to. What made one full may
// be deleted again before anybody can look: it remembers the worst.
type spaceWatch struct {
	log  *slog.Logger
	quit chan struct{}
	done sync.WaitGroup

	mu      sync.Mutex
	watched []*watchedSpace // set once
}

type watchedSpace struct {
	path, mount string
	worst       Space
	// atEnd tells that it was full when a step failed.
	atEnd, warned bool
}

// watchSpace begins to watch the filesystems of the paths.
func watchSpace(log *slog.Logger, paths ...string) *spaceWatch {
	w := &spaceWatch{log: log, quit: make(chan struct{})}
	seen := map[string]bool{}
	for _, path := range paths {
		s, err := SpaceAt(path)
		if err != nil || seen[s.Mount] {
			continue
		}
		seen[s.Mount] = true
		w.watched = append(w.watched, &watchedSpace{path: path, mount: s.Mount, worst: s})
	}
	w.done.Go(func() {
		tick := time.NewTicker(spaceInterval)
		defer tick.Stop()
		for {
			w.look()
			select {
			case <-w.quit:
				return
			case <-tick.C:
			}
		}
	})
	return w
}

// stop ends the watch.
func (w *spaceWatch) stop() {
	close(w.quit)
	w.done.Wait()
}

// reset forgets the worst.
func (w *spaceWatch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.watched {
		f.worst, f.atEnd = Space{Mount: f.mount}, false
	}
}

// stepFailed notes what a step has left that failed.
func (w *spaceWatch) stepFailed() {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.watched {
		f.atEnd = f.atEnd || f.now().Full()
	}
}

// explains tells whether a step failed for want of space: a filesystem was full when
// it did, or was full before and the step spoke of it.
func (w *spaceWatch) explains(output string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.watched {
		if f.atEnd || f.worst.Full() && isFullText(output) {
			return true
		}
	}
	return false
}

// look notes how full the filesystems are.
func (w *spaceWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.watched {
		s := f.now()
		if s.share() > f.worst.share() {
			f.worst = s
		}
		if s.Tight() && !f.warned && (inPod() || s.Free < littleBytes) {
			f.warned = true
			w.log.Warn("Little space is left: " + s.String() + "; a node evicts pods where that is so")
		}
	}
}

// littleBytes is less than what most steps need; with more, it is only worth a
// warning where pods are evicted.
const littleBytes = 1 << 30

// inPod tells whether this process is in a pod: each gets this variable.
func inPod() bool { return os.Getenv("KUBERNETES_SERVICE_HOST") != "" }

// now is how full the filesystem is; one that cannot be looked at is nothing.
func (f *watchedSpace) now() Space {
	for path := f.path; ; path = filepath.Dir(path) { // it may not be made yet
		if s, err := statSpace(path); err == nil {
			s.Mount = f.mount
			return s
		}
		if path == filepath.Dir(path) {
			return Space{Mount: f.mount}
		}
	}
}

// describe says which filesystems were full. Where nobody looked in time, it says how
// full the one of the error is now, else how full the fullest was.
func (w *spaceWatch) describe(err error) string {
	w.look()
	w.mu.Lock()
	defer w.mu.Unlock()
	var full []string
	var worst Space
	for _, f := range w.watched {
		if f.worst.Full() {
			full = append(full, f.worst.String())
		}
		if f.worst.share() > worst.share() {
			worst = f.worst
		}
	}
	if len(full) > 0 {
		return strings.Join(full, "; ")
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		if s, err := SpaceAt(path.Path); err == nil {
			for _, f := range w.watched {
				if f.mount == s.Mount {
					s = f.worst
				}
			}
			worst = s
		}
	}
	if worst.Mount == "" {
		return ""
	}
	return worst.String() + ", after what did not fit was removed"
}

// LittleSpace says which filesystems of the build were so full that it warned of it,
// empty for none.
func (e *Engine) LittleSpace() string {
	if e.space == nil {
		return ""
	}
	e.space.mu.Lock()
	defer e.space.mu.Unlock()
	var clauses []string
	for _, f := range e.space.watched {
		if f.warned && f.worst.Tight() {
			clauses = append(clauses, f.worst.String())
		}
	}
	return strings.Join(clauses, "; ")
}

// withSpace adds to an error of no space where there is none.
func (e *Engine) withSpace(err *Error) *Error {
	if err.Reason == result.ReasonNoSpace && e.space != nil {
		if text := e.space.describe(err.Err); text != "" {
			err.Message += " (" + text + ")"
		}
	}
	return err
}
