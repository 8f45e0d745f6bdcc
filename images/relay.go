package images

import (
	"context"
	"io"
	"path/filepath"
	"sync"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/buildah/define"
	"go.podman.io/buildah/pkg/cli"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"

	"github.com/strata-build/strata/images/blobs"
	"github.com/strata-build/strata/images/distribution"
)

// relay passes the layers of a base image on to the registry that the image will be
// pushed to, as they were pulled: none is compressed again. What that registry cannot
// take from itself is kept in the store (package blobs), and is sent while the steps
// run (earlyPush). It only ever saves time: what it did not do, the push does.
type relay struct {
	engine *Engine
	kept   *blobs.Dir

	mu sync.Mutex // guards what follows
	// to is where the image goes, nil where nothing is passed on. only is the one
	// compression that its layers may have, nil for any.
	to   *Destination
	only *compression.Algorithm
	// compression is that of layers of steps.
	compression Compression
	ours        func() bool // tells whether a layer that is made now is one of the image
	// noRoom tells that nothing more is kept, for want of space; said that this was said.
	noRoom, said bool
	delivered    bool                 // the image is at its destination
	admitted     *distribution.Client // by which a push was found to be let in
	early        *earlyPush
	progress     func() // told when something was sent; nil for nobody
}

// relayDir is the directory, beside the ledgers, in which builds keep blobs.
const relayDir = "blobs"

// keptBy is the directory of blobs of the build with this name, whose ledger is in dir.
func keptBy(dir, name string) *blobs.Dir { return blobs.At(filepath.Join(dir, relayDir, name)) }

// PlanPush tells, before anything is pulled, where the image of the specification will
// be pushed to, nil for nowhere: layers of its base are kept for it, unless they will
// not be wanted as they are.
func (e *Engine) PlanPush(d *Destination, spec BuildSpec) {
	why := ""
	switch {
	case d == nil:
		return
	case d.Local():
		why = "the image is written to a file"
	case d.signingKey != "":
		why = "an image that is signed is pushed by containers/image"
	case spec.Squash:
		why = "the image gets a single layer"
	}
	only, err := spec.Compression.algorithm()
	if format, formatErr := cli.GetFormat(spec.Format); formatErr == nil && format == define.Dockerv2ImageManifest {
		only = &compression.Gzip // it knows no other
	}
	if err != nil {
		return // which the push says
	}
	if why != "" {
		e.log.Debug("Layers of the base image are not passed on as they are pulled", "cause", why)
		return
	}
	e.relay.mu.Lock()
	defer e.relay.mu.Unlock()
	e.relay.to, e.relay.only, e.relay.compression = d, only, spec.Compression
}

// admit takes the connection by which a push was found to be let in, or closes it.
func (r *relay) admit(client *distribution.Client) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to == nil || r.admitted != nil {
		client.Close()
		return
	}
	r.admitted = client
}

// wanted begins to find out whether a blob that is about to be fetched from a place
// should be kept, and returns what tells.
func (r *relay) wanted(ctx context.Context, info types.BlobInfo, from reference.Named) func() bool {
	r.mu.Lock()
	to, only, early := r.to, r.only, r.early
	r.mu.Unlock()
	no := func() bool { return false }
	blob, algorithm := info.Digest, compressionOf(info.MediaType)
	switch {
	case to == nil || algorithm == nil || only != nil && only.Name() != algorithm.Name():
		return no
	case r.kept.Has(blob):
		r.offer(blob)
		return no
	case early == nil: // a registry takes a blob from itself
		return func() bool { return reference.Domain(from) != to.host }
	}
	answer := make(chan bool, 1)
	go func() { answer <- !early.has(ctx, blob) }()
	return func() bool { return <-answer }
}

// keep returns a stream that reads as the one it is given, and from which a blob of size
// bytes, -1 when that is not known, is kept and sent on.
func (r *relay) keep(stream io.ReadCloser, blob digest.Digest, size int64) io.ReadCloser {
	if !r.room(uint64(max(size, 0))) {
		return stream
	}
	return r.kept.Tee(stream, blob, func(err error) {
		if err != nil {
			r.engine.log.Debug("A layer is not kept as it was pulled", "layer", blob.String(), "error", err)
			return
		}
		r.offer(blob)
	})
}

// room tells whether the store has room for a blob beside what is unpacked from it, and
// says once that it has none.
func (r *relay) room(size uint64) bool {
	_, unpacked := spaceNeeded([]uint64{size}, false)
	r.forecast(size + unpacked)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.noRoom && !r.said {
		r.said = true
		r.engine.log.Info("The store has no room to keep layers of the base image as they are pulled: the push will compress them again")
	}
	return !r.noRoom
}

// expect is told of the layers of an image before they are fetched.
func (r *relay) expect(layers []manifest.LayerInfo) {
	packed, need := r.engine.spaceFor(layers)
	r.forecast(packed + need)
}

// forecast keeps nothing more where so many bytes would not leave enough space.
func (r *relay) forecast(bytes uint64) {
	space, err := statSpace(r.engine.store.GraphRoot())
	if err == nil && space.leaves(bytes) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noRoom = true
}

// leaves tells whether there is enough space left when so many bytes more are written.
func (s Space) leaves(bytes uint64) bool {
	if s.Free < bytes {
		return false
	}
	s.Free -= bytes
	return !inPod() || !s.Tight()
}

// free gives free what is kept, since there is no space left, and keeps nothing more.
func (r *relay) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noRoom = true
	if err := r.kept.Clear(); err != nil {
		r.engine.log.Debug("Layers that were kept are left behind", "error", err)
	}
}

// based tells that an image in the store is the base of the one that will be pushed.
// What an earlier build kept of it is sent on.
func (r *relay) based(image *storage.Image) {
	if image == nil {
		return
	}
	for layer := range r.engine.layersOf(*image) {
		if r.kept.Has(layer) {
			r.offer(layer)
		}
	}
}

// offer lets a blob that is kept be sent now, if anything is.
func (r *relay) offer(blob digest.Digest) {
	r.mu.Lock()
	early := r.early
	r.mu.Unlock()
	if early != nil {
		early.offer(blob)
	}
}

// handOver ends what is sent early, but for blobs that are on their way, since the push
// has begun. progress is told when something of these was sent.
func (r *relay) handOver(progress func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.progress = progress
	if r.early != nil {
		r.early.end()
	}
}

// await waits for a blob that is on its way.
func (r *relay) await(ctx context.Context, blob digest.Digest) {
	r.mu.Lock()
	early := r.early
	r.mu.Unlock()
	if early != nil {
		early.await(ctx, blob)
	}
}

// damaged forgets a blob that is not what was kept.
func (r *relay) damaged(blob digest.Digest, err error) {
	r.engine.log.Warn("A layer that was kept is damaged: it is compressed again", "layer", blob.String(), "error", err)
	r.kept.Remove(blob)
}

// moved is told that something was sent.
func (r *relay) moved() {
	r.mu.Lock()
	progress := r.progress
	r.mu.Unlock()
	if progress != nil {
		progress()
	}
}

// arrived tells that the image is at its destination.
func (r *relay) arrived() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delivered = true
}

// sentEarly is how many bytes were sent before the push, since it was last asked.
func (r *relay) sentEarly() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.early == nil {
		return 0
	}
	return r.early.takeSent()
}

// close ends it. What was kept goes, unless the push is yet to be: then it is for
// another build, and left tells so.
func (r *relay) close() (left bool) {
	r.mu.Lock()
	early, admitted, keep := r.early, r.admitted, r.to != nil && !r.delivered
	r.mu.Unlock()
	if early != nil {
		early.close()
	}
	if admitted != nil {
		admitted.Close()
	}
	if keep && !r.kept.Empty() {
		return true
	}
	if err := r.kept.Clear(); err != nil {
		r.engine.log.Debug("Layers that were kept are left behind", "error", err)
		return true
	}
	return false
}

// sending is a blob that is sent; the relay is told of it.
type sending struct {
	io.Reader
	relay *relay
}

// Read implements io.Reader.
func (s sending) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	s.relay.moved()
	return n, err
}
