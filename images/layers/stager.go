package layers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/storage"
	drivers "go.podman.io/storage/drivers"
	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/idtools"
	"golang.org/x/sys/unix"
)

// most is how many layers are made at once where there are many processors: as many as
// containers/image reads at once (copy.go, maxParallelDownloads). Each takes about 4 MiB
// for buffers. Elsewhere it is one more than there are processors, since each layer waits
// at times for the network or the disk.
const most = 6

// Stager makes the layers of images in a store. What an attempt has read that failed, the
// next one does not read again.
type Stager struct {
	store storage.Store
	turns string // the path of a file

	mu sync.Mutex
	// staged are layers that are not in place yet, by their Digest: the layers below are
	// missing. An image may have one layer twice.
	staged map[digest.Digest][]*drivers.DriverWithDifferOutput
}

// NewStager returns a Stager for a store that suits it. turns is the path of a file which
// the processes that use the store have in common; it is made when it is missing. The store has to return
// storage.ErrDuplicateID when a staged layer is applied that is there, as it does when one
// is put that way. (That of containers/storage would replace the files of the layer,
// which another process may use.)
func NewStager(store storage.Store, turns string) *Stager {
	return &Stager{store: store, turns: turns, staged: map[digest.Digest][]*drivers.DriverWithDifferOutput{}}
}

// Make makes the layers of an image, the lowest first, that are not in the store, from a
// source. It is ErrUnsuited where the store has layers that this package cannot put others
// on. When it fails, those of the layers that are below the one that failed are in
// the store, and others that were read are kept for the next call.
func (s *Stager) Make(ctx context.Context, image []Layer, source Source) error {
	chain := ids(image)
	var jobs []*job
	for i, l := range image {
		there, err := s.store.Layer(chain[i])
		switch {
		case errors.Is(err, storage.ErrLayerUnknown):
			parent := ""
			if i > 0 {
				parent = chain[i-1]
			}
			jobs = append(jobs, &job{layer: l, id: chain[i], parent: parent, done: make(chan struct{})})
		case err != nil:
			return err
		case len(there.UIDMap)+len(there.GIDMap) > 0:
			return unsuited("the layer %s in the store maps the owners of files", there.ID)
		}
	}
	turns, err := openTurns(s.turns)
	if err != nil {
		return err
	}
	defer turns.close() // which ends all turns
	var workers sync.WaitGroup
	queue, failed := make(chan *job), make(chan struct{})
	for range min(runtime.GOMAXPROCS(0)+1, most, len(jobs)) {
		workers.Go(func() {
			for j := range queue {
				j.run(ctx, s, turns, source)
			}
		})
	}
	workers.Go(func() {
		defer close(queue)
		for _, j := range jobs {
			select {
			case queue <- j:
			case <-failed:
				return
			}
		}
	})
	for _, j := range jobs {
		<-j.done
		if err = j.err; err == nil && j.staged != nil {
			err = s.put(j)
		}
		if err != nil {
			break
		}
		turns.give(j.id)
	}
	close(failed)
	workers.Wait() // those that have begun are of use to the next attempt
	for _, j := range jobs {
		s.keep(j.layer, j.staged)
	}
	if isFull(err) {
		s.Close()
	}
	return err
}

// Put makes one layer of its archive, which is not compressed, on the layer parent, or on
// none, and returns it. It is ErrUnsuited where it cannot be put on that, and
// storage.ErrDuplicateID where it is there already. After any other error the store is as
// it was, and some of the archive has been read.
func (s *Stager) Put(id, parent string, diffID digest.Digest, archive io.Reader) (*storage.Layer, error) {
	if parent != "" {
		below, err := s.store.Layer(parent)
		if err != nil {
			return nil, err
		}
		if len(below.UIDMap)+len(below.GIDMap) > 0 {
			return nil, unsuited("the layer %s in the store maps the owners of files", parent)
		}
	}
	layer := Layer{Digest: diffID, DiffID: diffID}
	staged, err := s.prepare(context.Background(), layer, func(context.Context) (*opened, error) {
		return &opened{archive: archive, compressed: diffID, end: func() error { return nil }, close: func() {}}, nil
	})
	if err != nil {
		return nil, err
	}
	return s.apply(&job{layer: layer, id: id, parent: parent, staged: staged})
}

// isFull tells whether err says that there was no space.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// job is one layer that is to be made.
type job struct {
	layer      Layer
	id, parent string
	// done is closed when the layer is staged or in place, or err says why not.
	done chan struct{}
	err  error
	// staged is the layer, nil when it is in place.
	staged *drivers.DriverWithDifferOutput
}

func (j *job) run(ctx context.Context, s *Stager, turns *turns, source Source) {
	defer close(j.done)
	if j.err = turns.take(ctx, j.id, func() { source.Progress(j.layer, 0) }); j.err != nil {
		return
	}
	if _, err := s.store.Layer(j.id); err == nil {
		return // another process made it meanwhile
	}
	if j.staged = s.take(j.layer); j.staged == nil {
		j.staged, j.err = s.stage(ctx, j.layer, source)
	}
}

// stage makes the files of a layer in a staging directory.
func (s *Stager) stage(ctx context.Context, layer Layer, source Source) (*drivers.DriverWithDifferOutput, error) {
	if found := s.find(layer); found != nil {
		staged, err := s.prepare(ctx, layer, func(context.Context) (*opened, error) { return s.openAgain(layer, found) })
		if err == nil || ctx.Err() != nil {
			return staged, err
		} // such as where the store does not know how the archive was made
	}
	var read *checked
	staged, err := s.prepare(ctx, layer, func(ctx context.Context) (o *opened, err error) {
		o, read, err = open(ctx, layer, source)
		return o, err
	})
	if err == nil {
		source.Done(layer, read.read)
	}
	return staged, err
}

// attempts is how often a staging directory is asked for. Where another process cleans up
// behind itself, the store may remove one between when it makes and when it locks it.
const attempts = 3

func (s *Stager) prepare(ctx context.Context, layer Layer, open func(context.Context) (*opened, error)) (*drivers.DriverWithDifferOutput, error) {
	for n := 1; ; n++ {
		d := &differ{layer: layer, open: open, ctx: ctx}
		staged, err := s.store.PrepareStagedLayer(&drivers.ApplyDiffWithDifferOpts{}, d)
		if err == nil {
			return staged, nil
		}
		s.discard(staged)
		if d.began || n == attempts || isFull(err) {
			return nil, err
		}
	}
}

// open opens a layer in its source.
func open(ctx context.Context, layer Layer, source Source) (*opened, *checked, error) {
	body, size, err := source.Open(ctx, layer)
	if err != nil {
		return nil, nil, err
	}
	blob := &checked{
		reader: body, want: layer.Digest, digester: layer.Digest.Algorithm().Digester(), size: size,
		progress: func(read int64) { source.Progress(layer, read) },
	}
	tar, err := decompress(blob)
	if err != nil {
		_ = body.Close()
		return nil, nil, err
	}
	return &opened{
		archive: tar, compressed: layer.Digest,
		end: func() error { _, err := io.Copy(io.Discard, blob); return err },
		close: func() {
			_ = tar.Close()
			_ = body.Close()
		},
	}, blob, nil
}

// find finds a layer in the store that was made of the same blob, on others.
func (s *Stager) find(layer Layer) *storage.Layer {
	found, err := s.store.LayersByCompressedDigest(layer.Digest)
	if err != nil || len(found) == 0 {
		found, err = s.store.LayersByUncompressedDigest(layer.Digest)
	}
	if err != nil {
		return nil
	}
	for _, l := range found {
		if l.UncompressedDigest == layer.DiffID {
			return &l
		}
	}
	return nil
}

// openAgain opens the archive of a layer in the store.
func (s *Stager) openAgain(layer Layer, found *storage.Layer) (*opened, error) {
	form := archive.Uncompressed
	diff, err := s.store.Diff("", found.ID, &storage.DiffOptions{Compression: &form})
	if err != nil {
		return nil, err
	}
	compressed := layer.DiffID
	if found.CompressedDigest == layer.Digest {
		compressed = layer.Digest
	}
	return &opened{archive: diff, compressed: compressed, end: func() error { return nil }, close: func() { _ = diff.Close() }}, nil
}

// put puts a staged layer in place.
func (s *Stager) put(j *job) error {
	if _, err := s.apply(j); err != nil && !errors.Is(err, storage.ErrDuplicateID) { // for which another process was faster
		return err
	}
	return nil
}

// apply puts a staged layer in place and returns it. It is storage.ErrDuplicateID where it
// is there.
func (s *Stager) apply(j *job) (*storage.Layer, error) {
	staged := j.staged
	j.staged = nil
	if err := s.inherit(j.parent, staged); err != nil {
		s.discard(staged)
		return nil, err
	}
	layer, err := s.store.ApplyStagedLayer(storage.ApplyStagedLayerOptions{
		ID: j.id, ParentLayer: j.parent, DiffOutput: staged, DiffOptions: &drivers.ApplyDiffWithDifferOpts{},
	})
	if err != nil {
		s.discard(staged)
		return layer, fmt.Errorf("adding the layer %s: %w", j.layer.Digest, err)
	}
	_ = os.Remove(filepath.Dir(staged.Target)) // the layer was moved out of it
	return layer, nil
}

// inherit gives the root directory of a layer, where its archive has none, the owner and the
// mode that the driver gives it when it makes a layer itself: those of the layer
// below, as far as a directory can be made with them.
func (s *Stager) inherit(parent string, staged *drivers.DriverWithDifferOutput) error {
	if parent == "" || staged.RootDirMode != nil {
		return nil
	}
	driver, err := s.store.GraphDriver()
	if err != nil {
		return err
	}
	about, err := driver.Metadata(parent)
	if err != nil {
		return err
	}
	var below, made unix.Stat_t
	if err := unix.Stat(about["UpperDir"], &below); err != nil {
		return &os.PathError{Op: "stat", Path: about["UpperDir"], Err: err}
	}
	like := filepath.Join(filepath.Dir(staged.Target), "like")
	if err := idtools.MkdirAndChown(like, os.FileMode(below.Mode), idtools.IDPair{UID: int(below.Uid), GID: int(below.Gid)}); err != nil {
		return err
	}
	err = errors.Join(unix.Stat(like, &made), os.Remove(like),
		os.Chown(staged.Target, int(made.Uid), int(made.Gid)), unix.Chmod(staged.Target, made.Mode&0o7777))
	mode := os.FileMode(made.Mode & 0o777) // with which the driver leaves it alone
	staged.RootDirMode = &mode
	return err
}

// keep keeps a staged layer for the next attempt.
func (s *Stager) keep(layer Layer, staged *drivers.DriverWithDifferOutput) {
	if staged == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.staged[layer.Digest] = append(s.staged[layer.Digest], staged)
}

// take returns a layer that was kept, nil for none.
func (s *Stager) take(layer Layer) *drivers.DriverWithDifferOutput {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.staged[layer.Digest]
	for i, staged := range kept {
		if staged.UncompressedDigest == layer.DiffID {
			s.staged[layer.Digest] = slices.Delete(kept, i, i+1)
			return staged
		}
	}
	return nil
}

// discard removes a staged layer.
func (s *Stager) discard(staged *drivers.DriverWithDifferOutput) {
	if staged == nil || staged.Target == "" { // the store would remove something else
		return
	}
	// What cannot be removed goes when the store is shut down.
	_ = s.store.CleanupStagedLayer(staged)
}

// Close removes what was kept. The Stager can be used again.
func (s *Stager) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kept := range s.staged {
		for _, staged := range kept {
			s.discard(staged)
		}
	}
	clear(s.staged)
}
