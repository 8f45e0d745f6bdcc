package images

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/idtools"
)

// ownedContext returns the build context, or a copy of it when it belongs to somebody
// whom this user namespace has no id for, such as root to a user's: buildah makes
// directories for the owner of the context, which is not possible then.
func (e *Engine) ownedContext(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", invalid("the build context cannot be used", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return dir, nil
	}
	copied := filepath.Join(e.tmp, "own-context")
	switch err := os.Mkdir(copied, 0o700); {
	case errors.Is(err, os.ErrExist):
		return copied, nil // of an earlier attempt
	case err != nil:
		return "", unavailable("the build context cannot be copied", err)
	}
	if err := os.Chown(copied, int(stat.Uid), int(stat.Gid)); !errors.Is(err, syscall.EINVAL) {
		return dir, os.Remove(copied)
	}
	e.log.Info("The build context belongs to somebody who has no id here: a copy of it is used", "context", dir)
	files, err := archive.TarWithOptions(dir, &archive.TarOptions{ChownOpts: &idtools.IDPair{}})
	if err == nil {
		err = errors.Join(archive.Untar(files, copied, &archive.TarOptions{}), files.Close())
	}
	if err != nil {
		return "", unavailable("the build context cannot be copied", errors.Join(err, os.RemoveAll(copied)))
	}
	return copied, nil
}
