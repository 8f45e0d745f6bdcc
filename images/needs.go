package images

import (
	"errors"
	"path/filepath"

	"go.podman.io/storage"
	"golang.org/x/sys/unix"
)

// Needs are what a worker has to get at, whatever ids it has.
type Needs struct {
	// Single lets a user namespace with a single id do.
	Single bool
	// StorageRoot is the directory of the store, empty for what is configured.
	StorageRoot string
	// Read are files and directories that are read, where they are there. Write are
	// directories in which files are made; one that is not there is to be made.
	Read, Write []string
}

// needsVariable hands the needs of a worker to a trial, as JSON.
const needsVariable = "_STRATA_NEEDS"

// withStore adds the store to what is written to.
func (n Needs) withStore() Needs {
	if n.StorageRoot == "" {
		if options, err := storage.DefaultStoreOptions(); err == nil { // which a build says more of
			n.StorageRoot = options.GraphRoot
		}
	}
	n.Write = append(n.Write[:len(n.Write):len(n.Write)], n.StorageRoot)
	return n
}

// outOfReach is the first of the needs that this process cannot get at, empty for none.
func (n Needs) outOfReach() string {
	for _, path := range n.Read {
		if err := unix.Access(path, unix.R_OK); errors.Is(err, unix.EACCES) {
			return path
		}
	}
	for _, dir := range n.Write {
		at := dir
		err := unix.Access(at, unix.W_OK|unix.X_OK)
		for ; errors.Is(err, unix.ENOENT) && at != filepath.Dir(at); err = unix.Access(at, unix.W_OK|unix.X_OK) {
			at = filepath.Dir(at)
		}
		if err != nil {
			return dir
		}
	}
	return ""
}
