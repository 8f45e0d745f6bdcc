package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"slices"
	"strings"
	"time"

	digest "github.com/opencontainers/go-digest"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

// ownSource makes a reference to an image in a registry one that is read through a
// client of our own, and notes in tried where. ok is false for an image that is in none.
// Layers of a base of the final stage are passed on as they are pulled.
func (e *Engine) ownSource(ref types.ImageReference, final bool, tried *endpoints) (own pullReference, ok bool) {
	if ref.Transport().Name() != docker.Transport.Name() {
		return own, false
	}
	own = pullReference{ImageReference: ref, engine: e, stall: e.config.Stall, tried: tried}
	if final {
		own.relay = e.relay
	}
	return own, true
}

// wantsSignature tells whether the policy asks more of an image than to be there
// (containers-policy.json(5), "Policy requirements").
func (e *Engine) wantsSignature(ref types.ImageReference) bool {
	policy, err := signature.DefaultPolicy(&e.sys)
	if err != nil {
		return true // which the library reports
	}
	requirements := policy.Default
	if scopes, ok := policy.Transports[ref.Transport().Name()]; ok {
		for _, scope := range append([]string{ref.PolicyConfigurationIdentity()}, append(ref.PolicyConfigurationNamespaces(), "")...) {
			if found, ok := scopes[scope]; ok {
				requirements = found
				break
			}
		}
	}
	for _, requirement := range requirements {
		var kind struct{ Type string }
		text, err := json.Marshal(requirement)
		if err != nil || json.Unmarshal(text, &kind) != nil || kind.Type != "insecureAcceptAnything" && kind.Type != "reject" {
			return true
		}
	}
	return false
}

// libraryReference is a reference to an image in a registry that containers/image
// reads or writes itself, with all authorities that there are.
type libraryReference struct {
	types.ImageReference
	engine *Engine
}

// NewImageSource implements types.ImageReference.
func (r libraryReference) NewImageSource(ctx context.Context, sys *types.SystemContext) (types.ImageSource, error) {
	sys, err := r.withCertificates(sys)
	if err != nil {
		return nil, err
	}
	return r.ImageReference.NewImageSource(ctx, sys)
}

// NewImageDestination implements types.ImageReference.
func (r libraryReference) NewImageDestination(ctx context.Context, sys *types.SystemContext) (types.ImageDestination, error) {
	sys, err := r.withCertificates(sys)
	if err != nil {
		return nil, err
	}
	return r.ImageReference.NewImageDestination(ctx, sys)
}

func (r libraryReference) withCertificates(sys *types.SystemContext) (*types.SystemContext, error) {
	dir, err := r.engine.certificates(reference.Domain(r.DockerReference()))
	if err != nil {
		return nil, unavailable("the certificates of authorities cannot be collected", err)
	}
	own := *sys
	own.DockerCertPath = dir
	return &own, nil
}

// pullReference is a reference to an image in a registry that is read through a
// client of our own, from the first endpoint that has it: a mirror, or the registry
// itself (containers-registries.conf(5)).
type pullReference struct {
	types.ImageReference
	engine *Engine
	// stall is how long it may make no progress, 0 for ever.
	stall time.Duration
	tried *endpoints
	// relay passes on what is read; nil passes on nothing.
	relay *relay
}

// endpoints are the places that one pull has asked for an image.
type endpoints struct {
	// failed is why one is not asked again, by its reference.
	failed map[string]error
	// mirror is that which the image is read from, nil for the registry itself.
	mirror reference.Named
}

func newEndpoints() *endpoints { return &endpoints{failed: map[string]error{}} }

// giveUp puts the mirror aside that the image was read from, and did not come from
// whole. It is false where there is none, or where another place could not do better.
func (e *endpoints) giveUp(err error, v verdict) bool {
	if e.mirror == nil {
		return false
	}
	switch v.class {
	case result.ClassTransient, result.ClassAuth, result.ClassRejected:
	default:
		if v.reason != result.ReasonBaseImageNotFound {
			return false
		}
	}
	e.failed[e.mirror.String()] = err
	e.mirror = nil // the next failure is not of this one
	return true
}

// NewImageSource implements types.ImageReference.
func (r pullReference) NewImageSource(ctx context.Context, sys *types.SystemContext) (types.ImageSource, error) {
	named := r.DockerReference()
	registry, err := r.engine.registry(sys, named)
	if err != nil {
		return nil, err
	}
	if registry == nil {
		registry = &sysregistriesv2.Registry{Endpoint: sysregistriesv2.Endpoint{Location: named.String()}, Prefix: named.String()}
	}
	places, err := registry.PullSourcesFromReference(named)
	if err != nil {
		return nil, invalid("the registries configuration cannot be used", err)
	}
	var failed endpointErrors
	r.tried.mirror = nil
	for i, endpoint := range places {
		at := endpoint.Reference.String()
		if r.tried.failed[at] == nil {
			s, err := r.open(ctx, sys, endpoint)
			if err == nil {
				for _, f := range failed {
					r.engine.log.Warn(fmt.Sprintf("Accessing the mirror %s failed, %s is used: %s", f.ref, at, oneLine(f.err.Error())))
				}
				if i < len(places)-1 {
					r.tried.mirror = endpoint.Reference
				}
				return s, nil
			}
			r.tried.failed[at] = err
		}
		failed = append(failed, &endpointError{endpoint.Reference, r.tried.failed[at]})
	}
	return nil, failed
}

// open reads the manifest from one endpoint.
func (r pullReference) open(ctx context.Context, sys *types.SystemContext, at sysregistriesv2.PullSource) (*pullSource, error) {
	if _, err := r.engine.registry(sys, at.Reference); err != nil {
		return nil, err // a mirror may be blocked in its own right
	}
	client, err := r.engine.dial(ctx, sys, at.Reference, distribution.Options{
		PlainHTTP: at.Endpoint.Insecure, Namespace: at.Endpoint.NamespaceProxy, ReadOnly: true, Stall: r.stall,
	})
	if err != nil {
		return nil, err
	}
	s := &pullSource{logical: r, at: at.Reference, client: client}
	target := ""
	switch named := at.Reference.(type) {
	case reference.Digested:
		target = named.Digest().String()
	case reference.Tagged:
		target = named.Tag()
	}
	if s.manifest, s.mediaType, err = s.fetch(ctx, target); err != nil {
		client.Close()
		return nil, err
	}
	return s, nil
}

// endpointError is why an endpoint did not have the image.
type endpointError struct {
	ref reference.Named
	err error
}

// Error implements error.
func (e *endpointError) Error() string { return e.err.Error() }

// Unwrap implements errors.Unwrap.
func (e *endpointError) Unwrap() error { return e.err }

// endpointErrors are those of the mirrors of a registry and, last, of the registry
// itself, which is the one that counts. Its text is in the form of containers/image.
type endpointErrors []*endpointError

// Error implements error.
func (e endpointErrors) Error() string {
	last := e[len(e)-1]
	if len(e) == 1 {
		return last.Error()
	}
	mirrors := make([]string, 0, len(e))
	for _, failed := range e[:len(e)-1] {
		mirrors = append(mirrors, fmt.Sprintf("[%s: %v]", failed.ref, failed.err))
	}
	return fmt.Sprintf("(Mirrors also failed: %s): %s: %v", strings.Join(mirrors, " "), last.ref, last.err)
}

// Unwrap implements errors.Unwrap.
func (e endpointErrors) Unwrap() error { return e[len(e)-1] }

// pullSource implements types.ImageSource for one endpoint.
type pullSource struct {
	logical   pullReference
	at        reference.Named
	client    *distribution.Client
	manifest  []byte
	mediaType string
}

var _ types.ImageSource = (*pullSource)(nil)

// Reference implements types.ImageSource: what the user named, not where it is.
func (s *pullSource) Reference() types.ImageReference { return s.logical }

// Close implements types.ImageSource.
func (s *pullSource) Close() error {
	s.client.Close()
	return nil
}

// GetManifest implements types.ImageSource.
func (s *pullSource) GetManifest(ctx context.Context, instance *digest.Digest) ([]byte, string, error) {
	if instance == nil {
		return s.manifest, s.mediaType, nil
	}
	if err := instance.Validate(); err != nil {
		return nil, "", err
	}
	return s.fetch(ctx, instance.String())
}

// fetch reads the manifest under a tag or digest.
func (s *pullSource) fetch(ctx context.Context, target string) ([]byte, string, error) {
	contentType, text, err := s.client.Manifest(ctx, target, manifest.DefaultRequestedManifestMIMETypes)
	if err != nil {
		return nil, "", fmt.Errorf("reading the manifest %s of %s: %w", target, s.at.Name(), s.failure(err))
	}
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil || !slices.Contains(manifest.DefaultRequestedManifestMIMETypes, mediaType) {
		// Of a registry that keeps plain files, the type says nothing.
		if mediaType = manifest.GuessMIMEType(text); mediaType == "" {
			return nil, "", s.failure(fmt.Errorf("what %s has under %s is no manifest of an image", s.at.Name(), target))
		}
	}
	if m, err := manifest.FromBlob(text, mediaType); err == nil && s.logical.relay != nil {
		s.logical.relay.expect(m.LayerInfos())
	}
	return text, mediaType, nil
}

// HasThreadSafeGetBlob implements types.ImageSource.
func (s *pullSource) HasThreadSafeGetBlob() bool { return true }

// GetBlob implements types.ImageSource.
func (s *pullSource) GetBlob(ctx context.Context, info types.BlobInfo, cache types.BlobInfoCache) (io.ReadCloser, int64, error) {
	if err := info.Digest.Validate(); err != nil {
		return nil, 0, err
	}
	// A push to the same registry can take it over from there.
	cache.RecordKnownLocation(s.logical.Transport(), types.BICTransportScope{Opaque: reference.Domain(s.at)}, info.Digest, types.BICLocationReference{Opaque: s.at.Name()})
	wanted := func() bool { return false }
	if relay := s.logical.relay; relay != nil {
		wanted = relay.wanted(ctx, info, s.at)
	}
	blob, size, err := s.client.Blob(ctx, info.Digest)
	if err != nil {
		return nil, 0, s.failure(err)
	}
	var stream io.ReadCloser = sourceBlob{blob, s}
	if wanted() {
		stream = s.logical.relay.keep(stream, info.Digest, size)
	}
	return stream, size, nil
}

// sourceBlob is a blob that is read from an endpoint.
type sourceBlob struct {
	io.ReadCloser
	source *pullSource
}

// Read implements io.Reader.
func (b sourceBlob) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.source.failure(err)
	}
	return n, err
}

// failure adds to an error of this endpoint which one it is.
func (s *pullSource) failure(err error) error { return &endpointError{s.at, err} }

// GetSignatures implements types.ImageSource. It is not asked where they matter.
func (s *pullSource) GetSignatures(context.Context, *digest.Digest) ([][]byte, error) {
	return nil, nil
}

// LayerInfosForCopy implements types.ImageSource.
func (s *pullSource) LayerInfosForCopy(context.Context, *digest.Digest) ([]types.BlobInfo, error) {
	return nil, nil
}

// endpointOf is where a transfer of ref failed, when the error tells: a mirror, or
// the place that the registries configuration puts in place of its registry.
func endpointOf(err error, ref reference.Named) reference.Named {
	var at *endpointError
	if errors.As(err, &at) {
		return at.ref
	}
	return ref
}
