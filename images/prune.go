package images

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.podman.io/common/libimage"
	"go.podman.io/storage"

	"github.com/strata-build/strata/agent/result"
)

// PruneOptions say what is to go beside what nobody can use any more.
type PruneOptions struct {
	// All removes images that have a name, too.
	All bool
	// Force prunes also while other builds work in the store.
	Force bool
}

// Pruned is what a prune removed.
type Pruned struct {
	// Images are the IDs of the images that are gone.
	Images []string
	// Layers is how many layers went that no image had.
	Layers int
	// Space is how full the filesystem of the store is now.
	Space Space
}

// Prune removes what earlier builds left and nothing uses: images without a name,
// which are those that a later build replaced and the results of steps of builds
// whose image is gone; layers of no image; what is damaged; and the caches of RUN --mount=type=cache. It keeps images that
// a container uses, of whichever program. Images on which one with a name is built
// stay, and so its steps are not run again.
func (e *Engine) Prune(ctx context.Context, options PruneOptions) (*Pruned, error) {
	if !e.ledger.alone() && !options.Force {
		return nil, &Error{
			Reason: result.ReasonStorageUnavailable, Class: result.ClassSandbox,
			Message: fmt.Sprintf("another build works in the store %s, and may be about to use what is removed: prune when it has ended, or with --force", e.StorageRoot()),
			Err:     errors.New("the store is in use"),
		}
	}
	pruned := &Pruned{}
	if err := e.repair(pruned); err != nil {
		return nil, unavailable("the store cannot be checked", err)
	}
	runtime, err := libimage.RuntimeFromStore(e.store, &libimage.RuntimeOptions{SystemContext: e.system("")})
	if err != nil {
		return nil, unavailable("the store cannot be read", err)
	}
	remove := &libimage.RemoveImagesOptions{Filters: []string{"readonly=false", "containers=false"}}
	if !options.All {
		remove.Filters = append(remove.Filters, "dangling=true")
	}
	// An image that others are built on goes after these: a further round finds it.
	for before := -1; before < len(pruned.Images); {
		before = len(pruned.Images)
		reports, errs := runtime.RemoveImages(ctx, nil, remove)
		for _, r := range reports {
			if r.Removed {
				pruned.Images = append(pruned.Images, r.ID)
			}
		}
		for _, err := range errs {
			if !errors.Is(err, storage.ErrImageUsedByContainer) && !errors.Is(err, storage.ErrImageUnknown) {
				return nil, unavailable("an image cannot be removed", err)
			}
		}
	}
	for _, a := range e.ledger.abandoned() {
		e.killed = true
		pruned.Layers += e.deleteLayers(a.layers)
	}
	e.built = true // what earlier builds left is not kept for a next attempt
	caches, _ := e.cacheMounts()
	if err := os.RemoveAll(caches); err != nil {
		return nil, unavailable("the caches of RUN steps cannot be removed", err)
	}
	pruned.Space, err = SpaceAt(e.StorageRoot())
	if err != nil {
		return nil, unavailable("the store cannot be looked at", err)
	}
	return pruned, nil
}

// repair removes what the store finds damaged, and layers that have been of no image
// for a day, by which containers/storage takes them to be of none that is being
// written (check.go, defaultMaximumUnreferencedLayerAge). Contents are not checked.
func (e *Engine) repair(pruned *Pruned) error {
	report, err := e.store.Check(&storage.CheckOptions{LayerData: true, ImageData: true})
	if err != nil {
		return err
	}
	for id, problems := range report.Images {
		e.log.Warn("An image is damaged and is removed", "image", id, "problem", errors.Join(problems...))
		pruned.Images = append(pruned.Images, id)
	}
	pruned.Layers += len(report.Layers)
	return errors.Join(e.store.Repair(report, &storage.RepairOptions{})...)
}
