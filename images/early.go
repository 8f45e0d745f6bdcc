package images

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/pkg/blobinfocache"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/images/distribution"
)

// earlyPush sends layers of a base image, and those that steps made, to the destination
// of a build while it pulls and while its steps run. A layer that is in a registry before
// an image names it does no harm: when the build fails, the registry collects it, as it
// does with those of a push that failed. What goes wrong is never an error of the build:
// the push finds out what is missing, and sends it with all the attempts that it has.
type earlyPush struct {
	relay       *relay
	destination *pushDestination
	cache       types.BlobInfoCache
	ctx         context.Context
	cancel      context.CancelFunc
	senders     sync.WaitGroup
	level       *int // of the compression of layers of steps, nil for its default

	mu sync.Mutex // guards what follows
	// queue are blobs that wait to be sent, seen those that ever did or need not.
	queue  []digest.Digest
	seen   map[digest.Digest]bool
	moving map[digest.Digest]chan struct{} // closed when the blob is not on its way any more
	// layers are those of steps, by the digests of their tars, waiting those that are not
	// begun. packing tells that one is compressed.
	layers  map[digest.Digest]*stepLayer
	waiting []*stepLayer
	packing bool
	// active is how many senders there are, failed how many blobs could not be sent.
	active, failed int
	ended          bool
}

// earlySenders is how many blobs are sent at once. A single connection seldom fills a
// network; more would take from the pull, and from the steps.
const earlySenders = 2

// earlyAnswer is how long a pull waits to hear whether the destination has a layer.
const earlyAnswer = 5 * time.Second

// earlyFailures is how many blobs may fail before nothing more is sent early.
const earlyFailures = 3

// PushEarly begins to send layers of the base image to where the image will be pushed
// to, as PlanPush has it: as soon as they are pulled, until the push begins. It uses the
// connection by which CheckPush was let in, and does nothing where that was not. It
// returns at once. ctx is that of the build.
func (e *Engine) PushEarly(ctx context.Context) {
	r := e.relay
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.to == nil || r.admitted == nil || r.early != nil {
		return
	}
	algorithm := compression.Gzip
	if named, err := r.compression.algorithm(); err == nil && named != nil {
		algorithm = *named
	}
	early := &earlyPush{
		relay: r, cache: blobinfocache.DefaultCache(&e.sys), level: r.compression.Level,
		seen: map[digest.Digest]bool{}, moving: map[digest.Digest]chan struct{}{}, layers: map[digest.Digest]*stepLayer{},
		destination: &pushDestination{ref: pushReference{
			ImageReference: r.to.ref, client: r.admitted, algorithm: algorithm, known: map[digest.Digest]layerKind{}, outcome: &pushOutcome{},
		}},
	}
	early.ctx, early.cancel = context.WithCancel(ctx)
	r.early = early
}

// has tells whether the destination has a blob, or could take it from another of its
// repositories. It is false where that could not be found out.
func (p *earlyPush) has(ctx context.Context, blob digest.Digest) bool {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, earlyAnswer)
	defer cancel()
	ok, _, err := p.destination.TryReusingBlob(limited, types.BlobInfo{Digest: blob, Size: -1}, p.cache, false)
	if err != nil {
		p.fail(ctx, blob, err)
		return false
	}
	if ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen[blob] = true
	}
	return ok
}

// offer lets a blob be sent that is kept.
func (p *earlyPush) offer(blob digest.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.seen[blob] {
		return
	}
	p.seen[blob] = true
	p.queue = append(p.queue, blob)
	if p.active < earlySenders {
		p.active++
		p.senders.Go(p.run)
	}
}

// run sends what waits, until nothing does.
func (p *earlyPush) run() {
	for {
		blob, ok := p.next()
		if !ok {
			return
		}
		if err := p.send(blob); err != nil {
			p.fail(p.ctx, blob, err)
		}
		p.mu.Lock()
		close(p.moving[blob])
		delete(p.moving, blob)
		p.mu.Unlock()
	}
}

// next takes a blob from the queue; when there is none, the sender is not active any
// more.
func (p *earlyPush) next() (blob digest.Digest, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || len(p.queue) == 0 {
		p.active--
		return "", false
	}
	blob, p.queue = p.queue[0], p.queue[1:]
	p.moving[blob] = make(chan struct{})
	return blob, true
}

// send sends a blob, unless the destination has it.
func (p *earlyPush) send(blob digest.Digest) error {
	file, size, err := p.relay.kept.Open(blob)
	if err != nil {
		return err
	}
	defer file.Close()
	info := types.BlobInfo{Digest: blob, Size: size}
	if ok, _, err := p.destination.TryReusingBlob(p.ctx, info, p.cache, false); err != nil || ok {
		return err
	}
	_, err = p.destination.PutBlob(p.ctx, sending{file, p.relay}, info, p.cache, false)
	return err
}

// fail notes that a blob could not be sent. One that is refused will be refused again,
// and a registry that wants to be left alone is.
func (p *earlyPush) fail(ctx context.Context, blob digest.Digest, err error) {
	if ctx.Err() != nil {
		return
	}
	p.relay.engine.log.Debug("A layer is left to the push", "layer", blob.String(), "error", err)
	var answer *distribution.Error
	refused := errors.As(err, &answer) && (answer.RetryAfter > 0 || answer.Status >= http.StatusBadRequest && answer.Status < http.StatusInternalServerError)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed++
	if refused || p.failed >= earlyFailures {
		p.ended = true
	}
}

// await waits until a blob is not on its way, or ctx ends.
func (p *earlyPush) await(ctx context.Context, blob digest.Digest) {
	p.mu.Lock()
	done, ok := p.moving[blob]
	p.mu.Unlock()
	if !ok {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// takeSent is how many bytes of blobs were sent since it was last asked.
func (p *earlyPush) takeSent() (sent int64) {
	p.destination.mu.Lock()
	defer p.destination.mu.Unlock()
	sent, p.destination.ref.outcome.sent = p.destination.ref.outcome.sent, 0
	return sent
}

// end lets nothing be sent any more but what is on its way.
func (p *earlyPush) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

// close ends everything, and waits for it.
func (p *earlyPush) close() {
	p.end()
	p.cancel()
	p.senders.Wait()
}
