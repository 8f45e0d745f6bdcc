package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	digest "github.com/opencontainers/go-digest"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/pkg/compression"
	dockerconfig "go.podman.io/image/v5/pkg/docker/config"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"

	"github.com/strata-build/strata/images/distribution"
)

// connect connects to the repository of ref, as one that is pushed to: mirrors do
// not apply. Everything that can change while a build runs is read anew.
func (e *Engine) connect(ctx context.Context, ref reference.Named, authFile string) (*distribution.Client, error) {
	return e.connectFor(ctx, ref, authFile, e.config.Stall)
}

// connectFor is connect where a transfer is given up sooner or later than others.
func (e *Engine) connectFor(ctx context.Context, ref reference.Named, authFile string, stall time.Duration) (*distribution.Client, error) {
	sys := e.system(authFile)
	registry, err := e.registry(sys, ref)
	if err != nil {
		return nil, err
	}
	return e.dial(ctx, sys, ref, distribution.Options{PlainHTTP: registry != nil && registry.Insecure, Stall: stall})
}

// registry is what the registries configuration says of where ref is, nil for
// nothing. It is an error that this is blocked.
func (e *Engine) registry(sys *types.SystemContext, ref reference.Named) (*sysregistriesv2.Registry, error) {
	registry, err := sysregistriesv2.FindRegistry(sys, ref.Name())
	switch {
	case err != nil:
		return nil, invalid("the registries configuration cannot be read", err)
	case registry != nil && registry.Blocked:
		return nil, invalid(ref.String()+" cannot be used", fmt.Errorf("the registries configuration blocks %s", registry.Prefix))
	}
	return registry, nil
}

// dial connects to the repository of ref with the credentials and certificates that
// there are for it. PlainHTTP in o tells what the registries configuration says;
// --tls-verify overrules it.
func (e *Engine) dial(ctx context.Context, sys *types.SystemContext, ref reference.Named, o distribution.Options) (*distribution.Client, error) {
	if verify := sys.DockerInsecureSkipTLSVerify; verify != types.OptionalBoolUndefined {
		o.PlainHTTP = verify == types.OptionalBoolTrue
	}
	host := reference.Domain(ref)
	var err error
	if o.TLS, err = e.tls(host, o.PlainHTTP); err != nil {
		return nil, err
	}
	auth, err := dockerconfig.GetCredentialsForRef(sys, ref)
	if err != nil {
		return nil, fmt.Errorf("getting username and password: %w", err)
	}
	o.Host, o.Repository = serviceHost(host), reference.Path(ref)
	o.User, o.Password, o.IdentityToken = auth.Username, auth.Password, auth.IdentityToken
	o.UserAgent, o.Proxy = e.config.UserAgent, http.ProxyFromEnvironment
	return distribution.Connect(ctx, o)
}

// serviceHost is the host that answers for a registry.
func serviceHost(registry string) string {
	if registry == "docker.io" {
		return "registry-1.docker.io"
	}
	return registry
}

// pushReference is a reference to an image in a registry that is written to
// through a client of our own.
type pushReference struct {
	types.ImageReference
	client *distribution.Client
	// known are compressed layers that may be at the destination.
	known map[digest.Digest]layerKind
	// algorithm is that of new layers; only tells that others are not wanted, and gzip
	// that the format of the manifest knows no other than that.
	algorithm  compression.Algorithm
	only, gzip bool
	outcome    *pushOutcome
	// relay has layers as they were pulled; nil has none.
	relay *relay
}

// pushOutcome is what a copy does not tell of a push.
type pushOutcome struct {
	sent int64 // the bytes of blobs that were sent
	// rejected is why a format of the manifest was not taken.
	rejected error
	// others tells that there are layers which are not compressed by gzip.
	others bool
}

// NewImageDestination implements types.ImageReference.
func (r pushReference) NewImageDestination(context.Context, *types.SystemContext) (types.ImageDestination, error) {
	return &pushDestination{ref: r}, nil
}

// layerKind is what has to be known of a compressed layer to put it in place of
// the uncompressed one.
type layerKind struct {
	size      int64
	algorithm compression.Algorithm
}

// takes tells whether a layer may be in the image that is compressed so.
func (r pushReference) takes(algorithm compression.Algorithm) bool {
	return (!r.only || algorithm.Name() == r.algorithm.Name()) && (!r.gzip || algorithm.Name() == compression.Gzip.Name())
}

// pushDestination implements types.ImageDestination. It may put blobs at once.
type pushDestination struct {
	ref pushReference
	mu  sync.Mutex // guards what follows, ref.known and ref.outcome
	// plain are digests of known layers without compression, as far as they were asked for.
	plain map[digest.Digest]digest.Digest
}

var _ types.ImageDestination = (*pushDestination)(nil)

// Reference implements types.ImageDestination.
func (d *pushDestination) Reference() types.ImageReference { return d.ref.ImageReference }

// Close implements types.ImageDestination; the client is its maker's to close.
func (d *pushDestination) Close() error { return nil }

// SupportedManifestMIMETypes implements types.ImageDestination.
func (d *pushDestination) SupportedManifestMIMETypes() []string {
	return []string{
		imgspecv1.MediaTypeImageManifest, manifest.DockerV2Schema2MediaType,
		imgspecv1.MediaTypeImageIndex, manifest.DockerV2ListMediaType,
	}
}

// SupportsSignatures implements types.ImageDestination.
func (d *pushDestination) SupportsSignatures(context.Context) error {
	return errors.New("signatures are not pushed")
}

// DesiredLayerCompression implements types.ImageDestination.
func (d *pushDestination) DesiredLayerCompression() types.LayerCompression { return types.Compress }

// AcceptsForeignLayerURLs implements types.ImageDestination.
func (d *pushDestination) AcceptsForeignLayerURLs() bool { return true }

// MustMatchRuntimeOS implements types.ImageDestination.
func (d *pushDestination) MustMatchRuntimeOS() bool { return false }

// IgnoresEmbeddedDockerReference implements types.ImageDestination.
func (d *pushDestination) IgnoresEmbeddedDockerReference() bool { return false }

// HasThreadSafePutBlob implements types.ImageDestination.
func (d *pushDestination) HasThreadSafePutBlob() bool { return true }

// scope is that in which blobs can be taken from one repository to another.
func (d *pushDestination) scope() types.BICTransportScope {
	return types.BICTransportScope{Opaque: reference.Domain(d.ref.DockerReference())}
}

func (d *pushDestination) location() types.BICLocationReference {
	return types.BICLocationReference{Opaque: d.ref.DockerReference().Name()}
}

// PutBlob implements types.ImageDestination.
func (d *pushDestination) PutBlob(ctx context.Context, stream io.Reader, info types.BlobInfo, cache types.BlobInfoCache, isConfig bool) (types.BlobInfo, error) {
	if info.Digest != "" && isConfig { // for a layer the copy has asked already
		if size, ok, err := d.has(ctx, info.Digest, info.Size); err == nil && ok {
			return types.BlobInfo{Digest: info.Digest, Size: size}, nil
		}
	}
	got, size, err := d.ref.client.PutBlob(ctx, stream, info.Digest, info.Size)
	var refused *distribution.Error
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusRequestEntityTooLarge:
		amount := "at least "
		if info.Size > size {
			size, amount = info.Size, ""
		}
		return types.BlobInfo{}, fmt.Errorf("a blob of %s%.1f MiB: %w", amount, float64(size)/(1<<20), err)
	case err != nil:
		return types.BlobInfo{}, err
	}
	d.mu.Lock()
	d.ref.outcome.sent += size
	if info.Digest == "" { // the copy compressed it on its way
		d.ref.known[got] = layerKind{size: size, algorithm: d.ref.algorithm}
	}
	d.mu.Unlock()
	d.record(cache, got)
	return types.BlobInfo{Digest: got, Size: size}, nil
}

// record enters that the repository has a blob. What is known is not entered again: that
// would be a transaction, with all that a disk has to do for one.
func (d *pushDestination) record(cache types.BlobInfoCache, blob digest.Digest) {
	for _, known := range cache.CandidateLocations(d.ref.Transport(), d.scope(), blob, false) {
		if known.Location == d.location() {
			return
		}
	}
	cache.RecordKnownLocation(d.ref.Transport(), d.scope(), blob, d.location())
}

// has tells whether the repository has a blob and returns its size, which goes into
// the manifest: want bytes, -1 when that is not known. A registry that tells another
// size, or none where it is not known, does not have the blob.
func (d *pushDestination) has(ctx context.Context, blob digest.Digest, want int64) (size int64, ok bool, err error) {
	size, ok, err = d.ref.client.HasBlob(ctx, blob)
	if size < 0 {
		size = want
	}
	return size, ok && size >= 0 && (want < 0 || size == want), err
}

// TryReusingBlob implements types.ImageDestination.
func (d *pushDestination) TryReusingBlob(ctx context.Context, info types.BlobInfo, cache types.BlobInfoCache, canSubstitute bool) (bool, types.BlobInfo, error) {
	if d.ref.relay != nil && canSubstitute {
		if packed, kind, ok := d.ref.relay.awaitLayer(ctx, info.Digest); ok {
			d.mu.Lock()
			d.ref.known[packed] = kind
			d.mu.Unlock()
		}
	}
	found := d.candidates(info.Digest, cache, canSubstitute)
	missing := map[digest.Digest]bool{} // in the repository
	for _, candidate := range found {
		if d.ref.relay != nil {
			d.ref.relay.await(ctx, candidate.Digest)
		}
		reused := types.BlobInfo{Digest: candidate.Digest, Size: info.Size, MediaType: info.MediaType}
		seen := false // in the repository, just now
		if candidate.Digest != info.Digest {
			kind, there, known, err := d.kind(ctx, candidate)
			if err != nil {
				return false, types.BlobInfo{}, err
			}
			if !known || !d.ref.takes(kind.algorithm) {
				continue
			}
			seen = there
			reused.Size, reused.CompressionOperation, reused.CompressionAlgorithm = kind.size, types.Compress, &kind.algorithm
		}
		var (
			size = reused.Size
			ok   = seen
			err  error
		)
		if !seen && !missing[candidate.Digest] {
			size, ok, err = d.has(ctx, candidate.Digest, reused.Size)
			missing[candidate.Digest] = !ok
		}
		if err == nil && !ok && candidate.Location != d.location() {
			ok, err = d.mount(ctx, candidate)
			size = reused.Size
		}
		if err != nil {
			return false, types.BlobInfo{}, err
		}
		if ok {
			if reused.CompressionAlgorithm != nil {
				d.note(*reused.CompressionAlgorithm)
			}
			reused.Size = size
			d.record(cache, candidate.Digest)
			return true, reused, nil
		}
	}
	if d.ref.relay != nil {
		return d.pass(ctx, info, found, cache)
	}
	return false, types.BlobInfo{}, nil
}

// pass sends a layer in the form in which it was pulled, where that was kept.
func (d *pushDestination) pass(ctx context.Context, info types.BlobInfo, found []types.BICReplacementCandidate, cache types.BlobInfoCache) (bool, types.BlobInfo, error) {
	for _, candidate := range found {
		d.mu.Lock()
		kind, known := d.ref.known[candidate.Digest]
		d.mu.Unlock()
		if !known || !d.ref.takes(kind.algorithm) {
			continue
		}
		put, err := d.putKept(ctx, candidate.Digest, cache)
		switch {
		case err == nil:
			d.note(kind.algorithm)
			return true, types.BlobInfo{
				Digest: put.Digest, Size: put.Size, MediaType: info.MediaType,
				CompressionOperation: types.Compress, CompressionAlgorithm: &kind.algorithm,
			}, nil
		case errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, distribution.ErrWrongDigest):
			d.ref.relay.damaged(candidate.Digest, err)
		default:
			return false, types.BlobInfo{}, err
		}
	}
	return false, types.BlobInfo{}, nil
}

// note notes how a layer of the image is compressed.
func (d *pushDestination) note(algorithm compression.Algorithm) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ref.outcome.others = d.ref.outcome.others || algorithm.Name() != compression.Gzip.Name()
}

// kind tells what a compressed layer is, ok is false where that is not known. One that an
// earlier build sent, of which no manifest in the store tells, is looked at where it is:
// there tells that the repository has it.
func (d *pushDestination) kind(ctx context.Context, candidate types.BICReplacementCandidate) (kind layerKind, there, ok bool, err error) {
	d.mu.Lock()
	kind, ok = d.ref.known[candidate.Digest]
	d.mu.Unlock()
	if ok {
		return kind, false, true, nil
	}
	kind, there, ok, err = d.look(ctx, candidate.Digest)
	if err == nil && !there && candidate.Location != d.location() {
		if there, err = d.mount(ctx, candidate); err == nil && there {
			kind, there, ok, err = d.look(ctx, candidate.Digest)
		}
	}
	if err != nil || !there || !ok {
		return layerKind{}, false, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ref.known[candidate.Digest] = kind
	return kind, true, true, nil
}

// look asks the repository for the first bytes of a compressed layer. there tells whether
// it has the layer; ok whether it could be seen how that is compressed.
func (d *pushDestination) look(ctx context.Context, blob digest.Digest) (kind layerKind, there, ok bool, err error) {
	start, size, there, err := d.ref.client.BlobStart(ctx, blob, magicBytes)
	if err != nil && ctx.Err() == nil && !wantsRest(err) {
		// Those who push need not be let read, nor get at the store that a registry sends
		// readers to: the layer is sent again, and what is wrong beyond that is seen then.
		return layerKind{}, false, false, nil
	}
	if err != nil || !there || size < 0 {
		return layerKind{}, there, false, err
	}
	algorithm, _, _, err := compression.DetectCompressionFormat(bytes.NewReader(start))
	if name := algorithm.Name(); err != nil || name != compression.Gzip.Name() && name != compression.Zstd.Name() {
		return layerKind{}, true, false, nil //nolint:nilerr // what cannot be told apart is sent again
	}
	return layerKind{size: size, algorithm: algorithm}, true, true, nil
}

// magicBytes is how many bytes tell how a layer is compressed: more than any of the
// signatures that containers/image knows has (pkg/compression).
const magicBytes = 16

// putKept sends a blob that is kept. The error is fs.ErrNotExist when it is not.
func (d *pushDestination) putKept(ctx context.Context, blob digest.Digest, cache types.BlobInfoCache) (types.BlobInfo, error) {
	file, size, err := d.ref.relay.kept.Open(blob)
	if err != nil {
		return types.BlobInfo{}, err
	}
	defer file.Close()
	return d.PutBlob(ctx, sending{file, d.ref.relay}, types.BlobInfo{Digest: blob, Size: size}, cache, false)
}

// candidates lists places where the blob is, or where that may be another form of it, in
// the order in which to ask for them: compressed layers in the repository, the blob itself
// in it, and what other repositories have. The store knows layers without compression,
// which a registry seldom has: to ask for these first would be an answer to wait for in vain.
func (d *pushDestination) candidates(wanted digest.Digest, cache types.BlobInfoCache, canSubstitute bool) []types.BICReplacementCandidate {
	var here, elsewhere []types.BICReplacementCandidate
	if canSubstitute {
		d.mu.Lock()
		for known := range d.ref.known {
			if known != wanted && d.plainOf(known, cache) == wanted {
				here = append(here, types.BICReplacementCandidate{Digest: known, Location: d.location()})
			}
		}
		d.mu.Unlock()
	}
	for _, candidate := range cache.CandidateLocations(d.ref.Transport(), d.scope(), wanted, canSubstitute) {
		switch {
		case candidate.Digest == wanted && canSubstitute && d.ref.only: // it is not compressed
		case candidate.Location != d.location():
			elsewhere = append(elsewhere, candidate)
		case candidate.Digest != wanted && !slices.Contains(here, candidate):
			here = append(here, candidate)
		}
	}
	if !d.ref.only {
		here = append(here, types.BICReplacementCandidate{Digest: wanted, Location: d.location()})
	}
	return append(here, elsewhere...)
}

// plainOf is the digest of a known layer without compression, empty when the cache does
// not tell. The caller holds mu.
func (d *pushDestination) plainOf(known digest.Digest, cache types.BlobInfoCache) digest.Digest {
	plain, ok := d.plain[known]
	if !ok {
		if plain = cache.UncompressedDigest(known); plain != "" {
			if d.plain == nil {
				d.plain = map[digest.Digest]digest.Digest{}
			}
			d.plain[known] = plain
		}
	}
	return plain
}

func (d *pushDestination) mount(ctx context.Context, candidate types.BICReplacementCandidate) (bool, error) {
	from, err := reference.ParseNormalizedNamed(candidate.Location.Opaque)
	if err != nil || reference.Domain(from) != reference.Domain(d.ref.DockerReference()) {
		return false, nil //nolint:nilerr // a place that cannot be understood is none
	}
	ok, err := d.ref.client.Mount(ctx, candidate.Digest, reference.Path(from))
	var refused *distribution.Error
	if errors.As(err, &refused) && !wantsRest(err) {
		return false, nil // the blob is sent instead
	}
	return ok, err
}

// wantsRest tells whether a registry asks to be left alone for a while.
func wantsRest(err error) bool {
	var answer *distribution.Error
	return errors.As(err, &answer) && (answer.Status == http.StatusTooManyRequests || answer.RetryAfter > 0)
}

// PutManifest implements types.ImageDestination.
func (d *pushDestination) PutManifest(ctx context.Context, m []byte, instance *digest.Digest) error {
	target := ""
	switch named := d.ref.DockerReference().(type) {
	case reference.Tagged:
		target = named.Tag()
	case reference.Digested:
		target = named.Digest().String()
	}
	if instance != nil {
		target = instance.String()
	}
	err := d.ref.client.PutManifest(ctx, target, manifest.GuessMIMEType(m), m)
	var refused *distribution.Error
	if errors.As(err, &refused) && (refused.Status == http.StatusUnsupportedMediaType ||
		refused.Code == "MANIFEST_INVALID" || refused.Code == "TAG_INVALID" || refused.Code == "UNSUPPORTED") {
		d.ref.outcome.rejected = err
		return types.ManifestTypeRejectedError{Err: err} // another format may be taken
	}
	return err
}

// PutSignatures implements types.ImageDestination.
func (d *pushDestination) PutSignatures(_ context.Context, signatures [][]byte, _ *digest.Digest) error {
	if len(signatures) > 0 {
		return d.SupportsSignatures(context.Background())
	}
	return nil
}

// Commit implements types.ImageDestination; everything is there already.
func (d *pushDestination) Commit(context.Context, types.UnparsedImage) error { return nil }

// knownLayers collects the compressed layers that the manifests of images in the
// store name: base images, as they were pulled. Of an image in the store, those count that
// it is based on, empty for any: there may be many others.
func (e *Engine) knownLayers(id string) map[digest.Digest]layerKind {
	known := map[digest.Digest]layerKind{}
	stored, err := e.store.Images()
	if err != nil {
		return known
	}
	layers := e.chain(id)
	for _, image := range stored {
		if layers == nil || slices.ContainsFunc(append(image.MappedTopLayers, image.TopLayer), func(top string) bool { return layers[top] }) {
			maps.Copy(known, e.layersOf(image))
		}
	}
	return known
}

// chain is the set of the layers of an image, nil where that is not known.
func (e *Engine) chain(id string) map[string]bool {
	image, err := e.store.Image(id)
	if err != nil {
		return nil
	}
	layers := map[string]bool{}
	for at := image.TopLayer; at != ""; {
		layer, err := e.store.Layer(at)
		if err != nil {
			return nil
		}
		layers[at] = true
		at = layer.Parent
	}
	return layers
}

// layersOf collects the compressed layers that the manifests of an image in the store
// name.
func (e *Engine) layersOf(image storage.Image) map[digest.Digest]layerKind {
	layers := map[digest.Digest]layerKind{}
	for _, name := range image.BigDataNames {
		if !strings.HasPrefix(name, "manifest") {
			continue
		}
		data, err := e.store.ImageBigData(image.ID, name)
		if err != nil {
			continue
		}
		m, err := manifest.FromBlob(data, manifest.GuessMIMEType(data))
		if err != nil {
			continue
		}
		for _, layer := range m.LayerInfos() {
			if algorithm := compressionOf(layer.MediaType); algorithm != nil {
				layers[layer.Digest] = layerKind{size: layer.Size, algorithm: *algorithm}
			}
		}
	}
	return layers
}

// compressionOf is how a layer of a media type is compressed, nil for not at all or in
// a way that a push would not leave as it is.
func compressionOf(mediaType string) *compression.Algorithm {
	switch {
	case strings.HasSuffix(mediaType, "gzip"): // of OCI and of Docker
		return &compression.Gzip
	case strings.HasSuffix(mediaType, "+zstd"):
		return &compression.Zstd
	}
	return nil
}
