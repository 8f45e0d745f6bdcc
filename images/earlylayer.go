package images

import (
	"context"
	"fmt"
	"io"
	"os"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"
)

// stepLayer is a layer that a step made, which is compressed and sent before the push.
// Without it, the push would have the store put the layer together again, would write
// it to a file, and would compress it when everything else is done.
type stepLayer struct {
	plain digest.Digest // of the tar
	tar   *os.File
	done  chan struct{} // closed when packed is known
	// packed and kind are of the compressed layer, empty when it was not sent.
	packed digest.Digest
	kind   layerKind
}

// maxStepLayers is how many layers of steps wait at most. Each keeps its tar until then,
// which is as large as what the step wrote.
const maxStepLayers = 4

// committed is told that a layer was made from a tar. The file that this is in may be
// removed when it returns.
func (r *relay) committed(layer *storage.Layer, tar io.Reader) {
	r.mu.Lock()
	early, compression, ours := r.early, r.compression, r.ours
	r.mu.Unlock()
	file, ok := tar.(*os.File)
	switch {
	case early == nil || !ok || ours == nil || !ours():
		return
	case layer.UncompressedDigest == "" || layer.CompressedDigest != "" && layer.CompressedDigest != layer.UncompressedDigest:
		return // it was pulled
	case compression.Format == "zstd:chunked":
		return // its layers have annotations, which only the copy of an image gives them
	}
	space, err := statSpace(r.engine.store.GraphRoot())
	if err != nil || !space.leaves(uint64(max(layer.UncompressedSize, 0))) {
		return
	}
	opened, err := os.Open(file.Name())
	if err != nil {
		return
	}
	if !early.offerLayer(&stepLayer{plain: layer.UncompressedDigest, tar: opened, done: make(chan struct{})}) {
		_ = opened.Close()
	}
}

// building tells, while a build goes on, whether a layer that is made now is one of the
// image; nil ends that.
func (r *relay) building(ours func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ours = ours
}

// awaitLayer waits for a layer of a step that is compressed and sent. ok is false where
// there is none, or where that failed.
func (r *relay) awaitLayer(ctx context.Context, plain digest.Digest) (packed digest.Digest, kind layerKind, ok bool) {
	r.mu.Lock()
	early := r.early
	r.mu.Unlock()
	if early == nil {
		return "", layerKind{}, false
	}
	early.mu.Lock()
	layer := early.layers[plain]
	early.mu.Unlock()
	if layer == nil {
		return "", layerKind{}, false
	}
	select {
	case <-layer.done:
		return layer.packed, layer.kind, layer.packed != ""
	case <-ctx.Done():
		return "", layerKind{}, false
	}
}

// offerLayer lets a layer of a step be compressed and sent, and tells whether it will be.
func (p *earlyPush) offerLayer(layer *stepLayer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.layers[layer.plain] != nil || len(p.waiting) >= maxStepLayers {
		return false
	}
	p.layers[layer.plain] = layer
	p.waiting = append(p.waiting, layer)
	if !p.packing {
		p.packing = true
		p.senders.Go(p.packAll)
	}
	return true
}

// packAll compresses and sends the layers that wait, one after the other, until there
// are none. When nothing is to be sent any more, what waits is left to the push.
func (p *earlyPush) packAll() {
	for {
		p.mu.Lock()
		if len(p.waiting) == 0 {
			p.packing = false
			p.mu.Unlock()
			return
		}
		layer, ended := p.waiting[0], p.ended
		p.waiting = p.waiting[1:]
		p.mu.Unlock()
		if !ended {
			if err := p.sendLayer(layer); err != nil {
				p.fail(p.ctx, layer.plain, err)
			}
		}
		_ = layer.tar.Close()
		close(layer.done)
	}
}

// sendLayer compresses a layer on its way to the destination.
func (p *earlyPush) sendLayer(layer *stepLayer) error {
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		_ = w.CloseWithError(p.pack(w, layer)) // which never fails
		close(packed)
	}()
	put, err := p.destination.PutBlob(p.ctx, sending{r, p.relay}, types.BlobInfo{Size: -1}, p.cache, false)
	_ = r.Close()
	<-packed
	if err != nil {
		return err
	}
	// What was read had the digest of the layer, or the blob would not have come to its end.
	p.cache.RecordDigestUncompressedPair(put.Digest, layer.plain)
	layer.packed, layer.kind = put.Digest, layerKind{size: put.Size, algorithm: p.destination.ref.algorithm}
	return nil
}

// pack compresses a layer, as the push would: the digest of an image does not depend on
// who came first.
func (p *earlyPush) pack(w io.Writer, layer *stepLayer) error {
	verifier := layer.plain.Verifier()
	// It looks at the beginning, as the copy of an image does: how zstd divides what it
	// gets depends on that.
	_, _, tar, err := compression.DetectCompressionFormat(io.TeeReader(layer.tar, verifier))
	if err != nil {
		return err
	}
	z, err := compression.CompressStream(w, p.destination.ref.algorithm, p.level)
	if err != nil {
		return err
	}
	_, err = io.Copy(z, tar)
	if closeErr := z.Close(); err == nil {
		err = closeErr
	}
	if err == nil && !verifier.Verified() {
		err = fmt.Errorf("the tar of a layer is not %s", layer.plain)
	}
	return err
}
