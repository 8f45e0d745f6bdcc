// Package layers puts the layers of a base image into a store in one pass each, several
// at once. containers/image writes each compressed layer to a file, which it unpacks
// twice, once to hash it and once for its files, and makes the files of one layer after
// the other. Here a layer is read from its source, hashed, unpacked, hashed again, and
// made into files and a record of its archive while it is read. The layer that a step made
// is put into the store the same way, which saves the process that containers/storage
// starts for each.
//
// That is sound, because
//
//   - what comes about is what containers/image makes: the same files, by the same
//     code of containers/storage, on a thread whose root directory the layer is, with
//     the options that the driver of the store gives, and layers with the same ids,
//     digests, owners and archive records. It alone makes the image: it is asked
//     to copy it afterwards as ever, finds the layers, and judges them by its own rules.
//     What this package does not make, it makes.
//   - no layer is there before its compressed and its unpacked form have the digests that
//     the image names. Until then it is in a staging directory of the store, which is locked
//     as long as the process lives, and which the store removes after that.
//   - a layer that is there is never written to.
//
// The interface of the store that it uses is experimental: go.mod pins its version, and the
// tests compare what both ways make.
package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/storage"
	drivers "go.podman.io/storage/drivers"
)

// Layer is a layer of an image, as its manifest and its config name it.
type Layer struct {
	// Digest is that of the layer as it is in a registry, DiffID that of its archive.
	Digest, DiffID digest.Digest
	// Size is that of the layer in a registry, in bytes, -1 where nobody says.
	Size int64
	// MediaType is that of the layer in a registry.
	MediaType string
}

// Source is where layers are read from. Its methods are called by several goroutines.
type Source interface {
	// Open opens a layer as it is in a registry and returns its size in bytes, -1 when that
	// is not known. To read it must fail soon after the end of the context.
	Open(ctx context.Context, layer Layer) (io.ReadCloser, int64, error)
	// Progress tells how many bytes of a layer have been read in all: none as long as
	// another process makes it.
	Progress(layer Layer, read int64)
	// Done tells that a layer that was opened has been read and is what it was to be: read
	// bytes with its Digest, which are an archive with its DiffID.
	Done(layer Layer, read int64)
}

// ErrUnsuited is the error of what this package leaves to containers/image.
var ErrUnsuited = errors.New("layers cannot be staged")

func unsuited(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsuited, fmt.Sprintf(format, a...))
}

// Suits returns an error that is ErrUnsuited and says why the layers in a store cannot be
// made by this package, nil where they can.
func Suits(store storage.Store) error {
	driver, err := store.GraphDriver()
	if err != nil {
		return err
	}
	if _, ok := driver.(drivers.DriverWithDiffer); !ok || driver.String() != "overlay" {
		return unsuited("the driver %s of the store takes none", driver)
	}
	if len(store.UIDMap())+len(store.GIDMap()) > 0 {
		return unsuited("the store maps the owners of files")
	}
	// What has files in another form than their layer has them.
	for _, option := range store.GraphOptions() {
		name, value, _ := strings.Cut(option, "=")
		name = name[strings.LastIndexByte(name, '.')+1:]
		if slices.Contains([]string{"force_mask", "use_composefs", "additionallayerstore"}, name) && value != "" && value != "false" {
			return unsuited("the store has the option %s", name)
		}
	}
	return nil
}

// ids returns the ids that containers/image gives the layers of an image
// (storage_dest.go, layerID): those of the archives and of what is below.
func ids(image []Layer) []string {
	chain := make([]string, len(image))
	for i, l := range image {
		chain[i] = l.DiffID.Encoded()
		if i > 0 {
			chain[i] = digest.Canonical.FromString(chain[i-1] + "+" + chain[i]).Encoded()
		}
	}
	return chain
}
