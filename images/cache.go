package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

// cacheStall is how long a cache may make no progress before it is left alone, or
// Config.Stall where that is shorter: a step is seldom worth a longer wait.
const cacheStall = 30 * time.Second

// The flags that name caches.
const (
	cacheFrom = "--cache-from"
	cacheTo   = "--cache-to"
)

// caches are the repositories of --cache-from and --cache-to of one build. They save
// time and are never worth a build: one that fails is named in one warning, and the
// build goes on as if it had not been asked for.
//
// buildah ends a build that cannot push to a cache, and pulls from one without the
// context of the build. So it is given references that come back here: what is read
// is read under the context of the build, and what is written to a cache that failed
// is swallowed.
type caches struct {
	engine *Engine
	mu     sync.Mutex // guards what follows
	left   map[string]bool
	known  map[digest.Digest]layerKind
}

// cacheUse is the caches in one attempt to build.
type cacheUse struct {
	caches *caches
	// build is the context of the attempt.
	build    context.Context
	authFile string
	spec     BuildSpec
	stall    time.Duration
}

// use returns the caches for one attempt; authFile has the credentials for all.
func (c *caches) use(ctx context.Context, spec BuildSpec, authFile string) *cacheUse {
	stall := cacheStall
	if c.engine.config.Stall > 0 {
		stall = min(stall, c.engine.config.Stall)
	}
	return &cacheUse{caches: c, build: ctx, authFile: authFile, spec: spec, stall: stall}
}

func cacheName(flag string, ref types.ImageReference) string {
	return flag + " " + ref.DockerReference().Name()
}

// isLeft tells whether a cache is not used any more.
func (c *caches) isLeft(flag string, ref types.ImageReference) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left[cacheName(flag, ref)]
}

// noneTakes tells whether nothing is pushed to any of the caches.
func (c *caches) noneTakes(names []reference.Named) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(names, func(named reference.Named) bool { return !c.left[cacheTo+" "+named.Name()] })
}

// leave says that a cache failed, once, and that it is not used any more: in both
// directions when it is the registry that failed, and not its answer to this request.
func (u *cacheUse) leave(flag string, ref types.ImageReference, err error) {
	named := ref.DockerReference()
	t := transfer{pulling, "pulling", "finished steps from the cache " + named.Name(), reference.Domain(named), u.credentials(flag, named)}
	if flag == cacheTo {
		t.direction, t.doing, t.what = pushing, "pushing", "a finished step to the cache "+named.Name()
	}
	failed := u.caches.engine.transferError(u.build, err, t)
	if failed.Class == result.ClassInterrupted {
		return
	}
	flags := []string{flag}
	if failed.Class == result.ClassTransient || failed.Reason == result.ReasonCertificateUntrusted {
		flags = []string{cacheFrom, cacheTo}
	}
	u.caches.mu.Lock()
	known := u.caches.left[cacheName(flag, ref)]
	for _, f := range flags {
		u.caches.left[cacheName(f, ref)] = true
	}
	u.caches.mu.Unlock()
	if known {
		return
	}
	args := []any{"cache", named.Name(), "host", failed.Host}
	if failed.Status != 0 {
		args = append(args, "status", failed.Status)
	}
	u.caches.engine.log.Warn("The build goes on without the cache of "+flag, append(args, "reason", string(failed.Reason), "error", failed.Message)...)
}

// credentials says whose credentials a cache was asked with: as the files were
// merged, those for a push go first.
func (u *cacheUse) credentials(flag string, named reference.Named) string {
	files := []string{u.spec.AuthFile}
	if len(u.spec.CacheTo) > 0 && u.spec.CacheAuthFile != "" {
		files = []string{u.spec.CacheAuthFile, u.spec.AuthFile}
	}
	for _, path := range files {
		if f, err := readAuthFile(path); path != "" && err == nil {
			if _, _, ok := f.match(named); ok {
				return f.describe(named)
			}
		}
	}
	if flag == cacheFrom {
		slices.Reverse(files)
	}
	return u.caches.engine.describeCredentials(files[0], named)
}

// errLeft is the error of a cache that is not used any more. It has no cause that
// a library would try again for.
var errLeft = errors.New("the cache is left alone")

// source is a libimage.LookupReferenceFunc for what is pulled from a cache.
func (u *cacheUse) source(ref types.ImageReference) (types.ImageReference, error) {
	return cacheSourceReference{ref, u}, nil
}

type cacheSourceReference struct {
	types.ImageReference
	use *cacheUse
}

// NewImageSource implements types.ImageReference. It is read without signatures,
// which nothing in a cache has: a policy that asks for them refuses it.
func (r cacheSourceReference) NewImageSource(_ context.Context, sys *types.SystemContext) (types.ImageSource, error) {
	if r.use.caches.isLeft(cacheFrom, r.ImageReference) {
		return nil, errLeft
	}
	source, err := pullReference{
		ImageReference: r.ImageReference, engine: r.use.caches.engine, stall: r.use.stall, tried: newEndpoints(),
	}.NewImageSource(r.use.build, sys)
	if err != nil {
		return nil, r.failed(err)
	}
	return &cacheSource{source, r}, nil
}

// failed leaves the cache for what went wrong, and returns an error that no library
// tries again for. That a step is not in the cache is no fault of it.
func (r cacheSourceReference) failed(err error) error {
	if distribution.IsNotFound(err) {
		return errors.New("the step is not in the cache")
	}
	r.use.leave(cacheFrom, r.ImageReference, err)
	return errLeft
}

// cacheSource is a finished step in a cache, read under the context of the build.
type cacheSource struct {
	types.ImageSource
	ref cacheSourceReference
}

// GetManifest implements types.ImageSource.
func (s *cacheSource) GetManifest(_ context.Context, instance *digest.Digest) ([]byte, string, error) {
	text, mime, err := s.ImageSource.GetManifest(s.ref.use.build, instance)
	if err != nil {
		return nil, "", s.ref.failed(err)
	}
	return text, mime, nil
}

// GetBlob implements types.ImageSource.
func (s *cacheSource) GetBlob(_ context.Context, info types.BlobInfo, cache types.BlobInfoCache) (io.ReadCloser, int64, error) {
	blob, size, err := s.ImageSource.GetBlob(s.ref.use.build, info, cache)
	if err != nil {
		return nil, 0, s.ref.failed(err)
	}
	return &cacheBlob{blob, s.ref, info.Digest, info.Digest.Verifier()}, size, nil
}

// cacheBlob is a blob that is read from a cache.
type cacheBlob struct {
	io.ReadCloser
	ref      cacheSourceReference
	digest   digest.Digest
	verifier digest.Verifier
}

// Read implements io.Reader.
func (b *cacheBlob) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, _ = b.verifier.Write(p[:n])
	switch {
	case errors.Is(err, io.EOF) && !b.verifier.Verified():
		return n, b.ref.failed(fmt.Errorf("the digest did not match: the blob is not %s", b.digest))
	case err != nil && !errors.Is(err, io.EOF):
		return n, b.ref.failed(err)
	}
	return n, err
}

// destination is a libimage.LookupReferenceFunc for what is pushed to a cache.
func (u *cacheUse) destination(ref types.ImageReference) (types.ImageReference, error) {
	return cacheDestinationReference{ref, u}, nil
}

type cacheDestinationReference struct {
	types.ImageReference
	use *cacheUse
}

// NewImageDestination implements types.ImageReference.
func (r cacheDestinationReference) NewImageDestination(ctx context.Context, _ *types.SystemContext) (types.ImageDestination, error) {
	c := r.use.caches
	c.mu.Lock()
	if c.known == nil {
		c.known = c.engine.knownLayers("")
	}
	push := pushReference{ImageReference: r.ImageReference, known: maps.Clone(c.known), algorithm: compression.Gzip, outcome: &pushOutcome{}, relay: c.engine.relay}
	c.mu.Unlock()
	algorithm, err := r.use.spec.Compression.algorithm()
	if err != nil {
		return nil, err
	}
	if algorithm != nil {
		push.algorithm = *algorithm
	}
	d := &cacheDestination{pushDestination: &pushDestination{ref: push}, use: r.use}
	if !d.left() {
		if d.ref.client, err = c.engine.connectFor(ctx, r.DockerReference(), r.use.authFile, r.use.stall); err != nil {
			return d, d.swallow(err)
		}
	}
	return d, nil
}

// cacheDestination is a cache that is pushed to. Once it has failed it takes
// everything and keeps nothing.
type cacheDestination struct {
	*pushDestination
	use *cacheUse
}

func (d *cacheDestination) left() bool { return d.use.caches.isLeft(cacheTo, d.ref.ImageReference) }

// swallow leaves the cache for an error of it. What remains is the end of the build.
func (d *cacheDestination) swallow(err error) error {
	if err == nil {
		return nil
	}
	d.use.leave(cacheTo, d.ref.ImageReference, err)
	return d.use.build.Err()
}

// Close implements types.ImageDestination.
func (d *cacheDestination) Close() error {
	if d.ref.client != nil {
		d.ref.client.Close()
	}
	return nil
}

// nowhere is what a blob becomes that was not pushed. Its digest is one that no blob
// has: what the library remembers of it must not be of another.
func nowhere(info types.BlobInfo) types.BlobInfo {
	if info.Digest == "" {
		info.Digest = digest.FromString(time.Now().String() + info.MediaType)
	}
	return types.BlobInfo{Digest: info.Digest, Size: max(info.Size, 0)}
}

// PutBlob implements types.ImageDestination.
func (d *cacheDestination) PutBlob(ctx context.Context, stream io.Reader, info types.BlobInfo, cache types.BlobInfoCache, isConfig bool) (types.BlobInfo, error) {
	if d.left() {
		return nowhere(info), nil
	}
	put, err := d.pushDestination.PutBlob(ctx, stream, info, cache, isConfig)
	if err != nil {
		return nowhere(info), d.swallow(err)
	}
	d.mu.Lock()
	kind, compressed := d.ref.known[put.Digest]
	d.mu.Unlock()
	if compressed {
		d.use.caches.mu.Lock()
		d.use.caches.known[put.Digest] = kind
		d.use.caches.mu.Unlock()
	}
	return put, nil
}

// TryReusingBlob implements types.ImageDestination.
func (d *cacheDestination) TryReusingBlob(ctx context.Context, info types.BlobInfo, cache types.BlobInfoCache, canSubstitute bool) (bool, types.BlobInfo, error) {
	if !d.left() {
		ok, reused, err := d.pushDestination.TryReusingBlob(ctx, info, cache, canSubstitute)
		if err == nil {
			return ok, reused, nil
		}
		if err := d.swallow(err); err != nil {
			return false, types.BlobInfo{}, err
		}
	}
	return true, nowhere(info), nil
}

// PutManifest implements types.ImageDestination.
func (d *cacheDestination) PutManifest(ctx context.Context, m []byte, instance *digest.Digest) error {
	if d.left() {
		return nil
	}
	err := d.pushDestination.PutManifest(ctx, m, instance)
	if d.ref.outcome.rejected != nil {
		err = d.ref.outcome.rejected // other formats are not tried: it is but a cache
	}
	return d.swallow(err)
}

var (
	_ types.ImageSource      = (*cacheSource)(nil)
	_ types.ImageDestination = (*cacheDestination)(nil)
)

// isPushNotice tells whether buildah says that it pushes to a cache.
func isPushNotice(line string) bool { return strings.HasPrefix(line, "--> Pushing cache [") }
