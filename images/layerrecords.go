package images

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"

	"go.podman.io/storage"
)

// layerRecords are the records of a store's layers, kept for as long as they do not
// change. The store opens, locks and reads three files for each record, and a build asks
// for all layers of an image whenever it looks at one.
//
// Whoever changes records, in this process or another, writes something new into the file
// that he has locked for it, before anybody else may read them. So the content of these
// files, read before the records were, tells that they are what they were.
type layerRecords struct {
	store storage.Store

	mu      sync.Mutex // guards what follows
	locks   []*os.File // nil before they are there
	seen    [][]byte   // what was in locks, nil where records is not known
	records map[string]storage.Layer
}

// lockContent is more than the bytes in a file that is locked.
const lockContent = 128

// open opens the files whose content tells of changes.
func (r *layerRecords) open() {
	dir := r.store.GraphDriverName() + "-layers"
	for _, path := range []string{
		filepath.Join(r.store.GraphRoot(), dir, "layers.lock"),
		filepath.Join(r.store.RunRoot(), dir, "mountpoints.lock"),
	} {
		lock, err := os.Open(path)
		if err != nil {
			r.close()
			return
		}
		r.locks = append(r.locks, lock)
	}
}

func (r *layerRecords) close() {
	for _, lock := range r.locks {
		_ = lock.Close()
	}
	r.locks, r.seen = nil, nil
}

// layer returns the record of a layer, nil where the store has to be asked: there may be
// none, or it is in a store of somebody else.
func (r *layerRecords) layer(id string) *storage.Layer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.current() {
		return nil
	}
	layer, ok := r.records[id]
	if !ok || layer.ReadOnly {
		return nil
	}
	return &layer
}

// current reads the records unless they are what they were, and tells whether there are
// any.
func (r *layerRecords) current() bool {
	if r.locks == nil {
		if r.store.ImageStore() != "" { // which may be somebody else's root, with another file that is locked
			return false
		}
		if r.open(); r.locks == nil {
			return false
		}
	}
	same := r.seen != nil
	seen := make([][]byte, len(r.locks))
	for i, lock := range r.locks {
		buffer := make([]byte, lockContent)
		n, err := lock.ReadAt(buffer, 0)
		if err != nil && !errors.Is(err, io.EOF) { // at which it ends, since it is shorter
			r.seen = nil
			return false
		}
		seen[i] = buffer[:n]
		same = same && bytes.Equal(seen[i], r.seen[i])
	}
	if same {
		return true
	}
	r.seen = nil
	layers, err := r.store.Layers()
	if err != nil {
		return false
	}
	r.seen, r.records = seen, make(map[string]storage.Layer, len(layers))
	for _, layer := range layers {
		r.records[layer.ID] = layer
	}
	return true
}
