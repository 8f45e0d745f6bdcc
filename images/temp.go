package images

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"go.podman.io/buildah/pkg/parse"

	"github.com/moby/sys/mountinfo"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

// tempPrefix begins the name of each build's directory of temporary files.
const tempPrefix = "strata-"

// lookAtTemp makes a directory for the temporary files of this build: in TMPDIR
// when that is set, else beside the store, where there is room for layers and
// where an overlay over the build context can be mounted. The libraries take it
// from TMPDIR.
func (e *Engine) lookAtTemp() (Finding, error) {
	parent, what := os.Getenv("TMPDIR"), "the directory of temporary files that TMPDIR names,"
	if parent == "" {
		parent, what = filepath.Join(e.options.GraphRoot, "tmp"), "the directory of temporary files beside the store,"
	}
	parent = absolute(parent)
	var err error
	e.space = watchSpace(e.log, append([]string{e.options.GraphRoot, parent}, e.config.Paths...)...)
	if e.ledger, err = openLedger(e.options.GraphRoot, parent, e.log); err != nil {
		return cannotWrite("the store", e.options.GraphRoot, err), nil
	}
	if err = os.MkdirAll(parent, 0o700); err == nil {
		tmp := filepath.Join(parent, e.ledger.name)
		if err = os.Mkdir(tmp, 0o700); err == nil {
			e.tmp = tmp
		}
	}
	if err == nil {
		err = os.Setenv("TMPDIR", e.tmp)
	}
	if err != nil {
		f := cannotWrite(what, parent, err)
		if os.Getenv("TMPDIR") != "" {
			f.Hint = "let TMPDIR name a directory that can be written to, or unset it: then it is beside the store"
		}
		return f, nil
	}
	return ok("%s on %s", parent, filesystemOf(parent)), nil
}

// cacheMounts is the directory in which the content of RUN --mount=type=cache is kept
// from build to build, and the path below the temporary files of this one at which
// buildah looks for it.
func (e *Engine) cacheMounts() (kept, sought string) {
	name := parse.BuildahCacheDir + "-" + strconv.Itoa(unshare.GetRootlessUID())
	return filepath.Join(filepath.Dir(e.tmp), name), filepath.Join(os.Getenv("TMPDIR"), name)
}

// keepCacheMounts lets the content of RUN --mount=type=cache outlive this build, whose
// temporary files it would go with otherwise.
func (e *Engine) keepCacheMounts() error {
	kept, sought := e.cacheMounts()
	if err := os.MkdirAll(kept, 0o755); err != nil { // the mode is buildah's, below a directory of 0700
		return err
	}
	if err := os.Symlink(kept, sought); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// lookAtMounts tries whether an overlay can be mounted, as is done over the build
// context, whatever the driver of the store is. Where the directory of temporary files
// does not carry one, as when it is on an overlay itself, temporary files are kept in
// memory.
func (e *Engine) lookAtMounts() (Finding, error) {
	if err := PrivateMounts(); err != nil {
		return e.cannotMount(err), nil
	}
	if program := optionOf(e.options.GraphDriverOptions, "mount_program"); program != "" {
		return ok("overlays are mounted by %s", program), nil
	}
	err := tryOverlay(e.tmp)
	if err == nil {
		return ok("overlays can be mounted in %s", e.tmp), nil
	}
	on := filesystemOf(e.tmp)
	memory := filepath.Join(e.tmp, "memory")
	if mkdirErr := os.Mkdir(memory, 0o700); mkdirErr != nil {
		return cannotWrite("the directory of temporary files", e.tmp, mkdirErr), nil
	}
	if mountErr := unix.Mount("strata", memory, "tmpfs", 0, "mode=0700"); mountErr != nil {
		return e.cannotMount(mountErr), nil
	}
	if memoryErr := tryOverlay(memory); memoryErr != nil {
		return failure(result.ReasonStorageUnavailable, "no overlay can be mounted over the build context: neither on %s at %s (%v) nor in memory (%v)", on.kind, on.mountpoint, err, memoryErr).
			hinted("use a kernel with overlayfs (modprobe overlay on the node)"), nil
	}
	if err := os.Setenv("TMPDIR", memory); err != nil {
		return Finding{}, fmt.Errorf("setting TMPDIR: %w", err)
	}
	return warning("%s at %s carries no overlay (%v): what steps write to the build context, and what ADD downloads, is kept in memory", on.kind, on.mountpoint, err).
		hinted("put the store, or TMPDIR, on a filesystem that is not %s, such as an emptyDir volume", on.kind), nil
}

func (e *Engine) cannotMount(err error) Finding {
	p, readErr := readPrivileges()
	if readErr != nil {
		return failure(result.ReasonUserNamespaceUnavailable, "nothing can be mounted: %v", err)
	}
	return p.cannotMount(err.Error())
}

// tryOverlay mounts an overlay in a directory, and takes it away again.
func tryOverlay(dir string) error {
	dir, err := os.MkdirTemp(dir, "trial-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return err
		}
	}
	// By its descriptor, since a comma in the path would end the option.
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", fmt.Sprintf("/proc/self/fd/%d", fd))
	if unshare.IsRootless() {
		options += ",userxattr"
	}
	merged := filepath.Join(dir, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return err
	}
	return unix.Unmount(merged, unix.MNT_DETACH)
}

// removeTemp removes the directory, unmounting first what a build that ended
// early left mounted there, so that nothing is deleted through a mount. It tells
// whether the directory is gone.
func removeTemp(dir string, log *slog.Logger) bool {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	for i := len(mounts) - 1; i >= 0 && err == nil; i-- {
		err = unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		log.Warn("temporary files are left behind", "directory", dir, "error", err)
	}
	return err == nil
}
