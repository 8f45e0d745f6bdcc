package images

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/unshare"
)

// sweep removes what builds left that were killed: their working containers, which
// may hold copies of secrets, and their temporary files. Their layers stay, since
// this build may go on where they ended; so do layers that they kept as they were
// pulled, which become those of this build.
func (e *Engine) sweep() {
	for _, a := range e.ledger.abandoned() {
		e.killed = true
		if err := e.relay.kept.Adopt(a.kept().Path()); err != nil {
			e.log.Debug("Layers that a build kept are not taken over", "build", a.name, "error", err)
		}
		if e.clear(a) && len(e.orphans(a.layers)) == 0 {
			_ = os.Remove(a.path)
		}
		e.log.Debug("Removed what a build left that was killed", "build", a.name)
	}
}

// clear removes everything but the layers and tells whether it is gone.
func (e *Engine) clear(a abandoned) bool {
	freed := a.free(e.log)
	if err := a.kept().Clear(); err != nil {
		freed = false
	}
	return e.deleteContainers(a.name) && freed
}

// tidy removes layers of this build, and of those that were killed, that are part
// of no image: what an attempt left that another one could not use. It tells whether
// there are any that another build should see to, for which there are two causes.
// One that failed may be tried again and go on where it ended. And one that lives
// may be about to use them.
func (e *Engine) tidy() (left bool) {
	made := e.ledger.made()
	left = len(e.orphans(made)) > 0
	if !left && !e.killed {
		return false
	}
	if !e.built || !e.ledger.alone() {
		return left
	}
	ids := made
	for _, a := range e.ledger.abandoned() {
		if e.clear(a) { // it may have been killed since this build began
			ids = append(ids, a.layers...)
			defer os.Remove(a.path) //nolint:errcheck // what is left of it is found again
		}
	}
	if e.killed {
		ids = append(ids, e.bareLayers()...)
		e.forgetMounts()
	}
	for e.deleteLayers(ids) > 0 { // one may be the parent of one that came before it
		continue
	}
	e.ledger.removeUnnamed()
	if e.killed {
		if err := e.store.GarbageCollect(); err != nil {
			e.log.Debug("Removing what the store knows nothing of", "error", err)
		}
	}
	return false
}

// bareLayers lists the layers of working containers that are of no container: their
// build was killed while it made one. Other programs have none such, since a store
// is locked from when the layer is made until the container is there. Layers of images
// have digests.
func (e *Engine) bareLayers() (ids []string) {
	layers, err := e.store.Layers()
	if err != nil {
		return nil
	}
	for _, l := range layers {
		if l.UncompressedDigest == "" && l.CompressedDigest == "" && l.TOCDigest == "" {
			ids = append(ids, l.ID)
		}
	}
	return e.orphans(ids)
}

// forgetMounts corrects the count of mounts of layers that were mounted where builds
// worked that were killed, and went with these. Layers of containers are left alone;
// so is every one where others have mounts that cannot be seen from here.
func (e *Engine) forgetMounts() {
	layers, err := e.store.Layers()
	if err != nil || unshare.IsRootless() {
		return
	}
	containers, err := e.store.Containers()
	if err != nil {
		return
	}
	for _, l := range layers {
		if l.MountCount == 0 || slices.ContainsFunc(containers, func(c storage.Container) bool { return c.LayerID == l.ID }) {
			continue
		}
		if mounted, err := mountinfo.Mounted(l.MountPoint); err == nil && mounted {
			continue
		}
		if _, err := e.store.Unmount(l.ID, true); err != nil {
			e.log.Debug("The count of mounts of a layer is wrong", "layer", l.ID, "error", err)
		}
	}
}

// orphans lists those of the layers that are there and that no image and no container
// has.
func (e *Engine) orphans(ids []string) (found []string) {
	if len(ids) == 0 {
		return nil
	}
	layers, err := e.store.Layers()
	if err != nil {
		return nil
	}
	parents := map[string]string{}
	for _, layer := range layers {
		parents[layer.ID] = layer.Parent
	}
	used, err := usedLayers(e.store, parents)
	if err != nil {
		return nil
	}
	for _, id := range ids {
		if _, there := parents[id]; there && !used[id] {
			found = append(found, id)
		}
	}
	return found
}

// usedLayers are those that an image or a container has. parents maps each layer to
// the one below.
func usedLayers(store storage.Store, parents map[string]string) (map[string]bool, error) {
	used := map[string]bool{}
	use := func(tops ...string) {
		for _, id := range tops {
			for ; id != "" && !used[id]; id = parents[id] {
				used[id] = true
			}
		}
	}
	images, err := store.Images()
	if err != nil {
		return nil, err
	}
	for _, image := range images {
		use(image.TopLayer)
		use(image.MappedTopLayers...)
	}
	containers, err := store.Containers()
	if err != nil {
		return nil, err
	}
	for _, c := range containers {
		use(c.LayerID)
	}
	return used, nil
}

// deleteLayers deletes those of the layers that nothing uses; they are in the order
// in which they were made. The store looks, under its lock, whether something does.
func (e *Engine) deleteLayers(ids []string) (deleted int) {
	for _, id := range slices.Backward(ids) {
		switch err := e.store.DeleteLayer(id); {
		case err == nil:
			deleted++
		case errors.Is(err, storage.ErrLayerHasChildren), errors.Is(err, storage.ErrLayerUsedByImage),
			errors.Is(err, storage.ErrLayerUsedByContainer), errors.Is(err, storage.ErrNotALayer), errors.Is(err, storage.ErrLayerUnknown):
		default:
			e.log.Debug("A layer is left behind", "layer", id, "error", err)
		}
	}
	return deleted
}

// deleteContainers deletes the working containers of a build and tells whether all
// are gone.
func (e *Engine) deleteContainers(owner string) bool {
	containers, err := e.store.Containers()
	if err != nil {
		return false
	}
	gone := true
	for _, c := range containers {
		for _, name := range c.Names {
			if !strings.Contains(name, owner) {
				continue
			}
			if err := e.store.DeleteContainer(c.ID); err != nil && !errors.Is(err, storage.ErrContainerUnknown) {
				gone = false
				e.log.Debug("A working container is left behind", "container", name, "error", err)
			}
		}
	}
	return gone
}
