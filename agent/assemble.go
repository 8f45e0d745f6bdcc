package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/strata-build/strata/images"
)

// assemble makes the build context of a build pod in a directory of the build's own:
// the Containerfile, the MachineConfig and the trust bundle.
func (b *build) assemble() error {
	pod := b.settings.Pod
	if !pod.Context {
		return nil
	}
	dir := filepath.Join(b.engine.TempDir(), "context")
	if err := os.MkdirAll(filepath.Join(dir, "machineconfig"), 0o755); err != nil {
		return images.FileError("the build context cannot be made", err)
	}
	b.settings.Context = dir
	for name, source := range map[string]string{
		"Containerfile":               b.settings.Containerfile,
		filepath.Base(podTrustBundle): pod.TrustBundle,
	} {
		if source == "" {
			continue
		}
		if err := copyFile(source, filepath.Join(dir, name), 0); err != nil {
			return images.FileError("the build context cannot be made", err)
		}
	}
	if len(pod.MachineConfig) == 0 {
		return nil
	}
	data, err := encodedMachineConfig(pod.MachineConfig)
	if err != nil {
		return images.FileError("the MachineConfig cannot be used", err)
	}
	info, err := os.Stat(pod.MachineConfig[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "machineconfig", filepath.Base(podMachineConfig)), data, info.Mode().Perm())
	}
	if err != nil {
		return images.FileError("the build context cannot be made", err)
	}
	return nil
}

// mountCopies makes copies of what a build pod mounts for its steps, as it is now, and
// returns the build's volumes with them. They are for this user alone, since there are
// private keys among them, outside of the build context, and gone after the build. A
// target that a volume of the settings has is left to that.
func (b *build) mountCopies() ([]string, error) {
	volumes := slices.Clone(b.settings.Volumes)
	taken := func(target string) bool {
		return slices.ContainsFunc(b.settings.Volumes, func(volume string) bool {
			fields := strings.Split(volume, ":")
			return len(fields) > 1 && filepath.Clean(fields[1]) == target
		})
	}
	for i, m := range b.settings.Pod.Mounts {
		if taken(m.Target) {
			continue
		}
		dir := filepath.Join(b.engine.TempDir(), fmt.Sprintf("mount-%d", i))
		err := os.RemoveAll(dir) // of a former attempt
		if err == nil {
			err = copyTree(m.Source, dir, 0)
		}
		if err != nil {
			return nil, images.FileError(fmt.Sprintf("the %s for steps cannot be copied", m.What), err)
		}
		volumes = append(volumes, dir+":"+m.Target)
	}
	return volumes, nil
}

// maxDepth is how many directories deep what a pod mounts may be: ConfigMaps and
// Secrets have one, or a few with the paths of their items.
const maxDepth = 32

// copyTree copies a directory, following links, for this user alone. The entries
// that begin with two dots, by which a kubelet swaps the content of a volume, are left
// out: what is visible are links to them. A link to what is not there stays one: it may
// be there for steps.
func copyTree(source, target string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s is more than %d directories deep: do its links go round in a circle?", source, maxDepth)
	}
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		from, to := filepath.Join(source, entry.Name()), filepath.Join(target, entry.Name())
		info, err := os.Stat(from)
		switch {
		case errors.Is(err, fs.ErrNotExist) && entry.Type() == fs.ModeSymlink:
			err = copyLink(from, to)
		case err != nil:
			return err
		case info.IsDir():
			err = copyTree(from, to, depth+1)
		case info.Mode().IsRegular():
			err = copyFile(from, to, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyLink(source, target string) error {
	leads, err := os.Readlink(source)
	if err != nil {
		return err
	}
	return os.Symlink(leads, target)
}

// copyFile copies a file and gives the copy the mode, or that of the original when it
// is 0.
func copyFile(source, target string, mode fs.FileMode) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	if mode == 0 {
		info, err := in.Stat()
		if err != nil {
			return err
		}
		mode = info.Mode().Perm()
	}
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Close())
}
