package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	digest "github.com/opencontainers/go-digest"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/pkg/blobinfocache"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/images/layers"
)

// stagedReference is a reference to a base image whose layers are put into the store by
// package layers when it is opened, so that the copy which opens it finds them there and
// has the rest to do. It leaves to the copy what that package does not do, and
// says so.
type stagedReference struct {
	types.ImageReference
	// blobs is where layers are read from, nil where that is the image itself: an image of
	// which a signature is wanted is opened by containers/image, which alone can look at it,
	// and its layers have the digests that the signed manifest names, wherever they are from.
	blobs  types.ImageReference
	engine *Engine
	name   string
	meter  *meter
	report *pullReport
}

var _ types.ImageReference = stagedReference{}

// NewImageSource implements types.ImageReference.
func (r stagedReference) NewImageSource(ctx context.Context, sys *types.SystemContext) (types.ImageSource, error) {
	opened, err := r.ImageReference.NewImageSource(ctx, sys)
	if err != nil {
		return nil, err
	}
	source := &keptSource{ImageSource: opened, manifests: map[digest.Digest]keptManifest{}, blobs: map[digest.Digest][]byte{}}
	err = r.stage(ctx, sys, source)
	if errors.Is(err, layers.ErrUnsuited) {
		r.engine.sayUnstaged(r.name, err)
		err = nil
	}
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	if r.blobs != nil {
		return opened, nil // around it, the copy would not see the signature
	}
	return source, nil
}

// stage puts the layers of the image that the copy will choose into the store.
func (r stagedReference) stage(ctx context.Context, sys *types.SystemContext, source *keptSource) error {
	unparsed, chosen, err := instance(ctx, sys, source)
	if err != nil {
		return err
	}
	// The copy asks, too, and says why not.
	if allowed, err := r.allowed(ctx, image.UnparsedInstance(source.ImageSource, chosen)); !allowed || err != nil {
		return nil
	}
	from := types.ImageSource(source)
	if r.blobs != nil {
		if from, err = r.blobs.NewImageSource(ctx, sys); err != nil {
			return err
		}
		defer from.Close()
	}
	img, err := image.FromUnparsedImage(ctx, sys, unparsed)
	if err != nil {
		return err
	}
	wanted, err := layersOf(ctx, img, source)
	if err != nil {
		return err
	}
	cache := blobinfocache.DefaultCache(sys)
	progress := newPullProgress(r.report, r.meter.events)
	defer progress.end()
	return r.engine.stager.Make(ctx, wanted, &layerSource{source: from, cache: cache, progress: progress})
}

// allowed tells whether the signature policy allows the image.
func (r stagedReference) allowed(ctx context.Context, unparsed types.UnparsedImage) (bool, error) {
	policy, err := signature.DefaultPolicy(&r.engine.sys)
	if err != nil {
		return false, err
	}
	judge, err := signature.NewPolicyContext(policy)
	if err != nil {
		return false, err
	}
	defer judge.Destroy() //nolint:errcheck // it holds nothing that could be lost
	return judge.IsRunningImageAllowed(ctx, unparsed)
}

// sayUnstaged says, once for each cause, why layers are not put into the store by package
// layers.
func (e *Engine) sayUnstaged(name string, why error) {
	text := strings.TrimPrefix(why.Error(), layers.ErrUnsuited.Error()+": ")
	if e.unstaged[text] {
		return
	}
	if e.unstaged == nil {
		e.unstaged = map[string]bool{}
	}
	e.unstaged[text] = true
	e.log.Info(fmt.Sprintf("The base image %s is unpacked by containers/image, one layer after the other: %s", name, text))
}

// instance is the image that a copy chooses: of several under one name, that of the
// platform, of which chosen is the digest.
func instance(ctx context.Context, sys *types.SystemContext, source types.ImageSource) (img *image.UnparsedImage, chosen *digest.Digest, err error) {
	img = image.UnparsedInstance(source, nil)
	text, mime, err := img.Manifest(ctx)
	if err != nil || !manifest.MIMETypeIsMultiImage(mime) {
		return img, nil, err
	}
	list, err := manifest.ListFromBlob(text, mime)
	if err != nil {
		return nil, nil, err
	}
	of, err := list.ChooseInstance(sys)
	if err != nil {
		return nil, nil, fmt.Errorf("choosing an image from %s: %w", source.Reference().DockerReference(), err)
	}
	return image.UnparsedInstance(source, &of), &of, nil
}

// layerTypes are the media types of layers that are archives, in a form that their
// beginning tells.
var layerTypes = map[string]bool{
	manifest.DockerV2Schema2LayerMediaType: true, manifest.DockerV2SchemaLayerMediaTypeUncompressed: true, manifest.DockerV2SchemaLayerMediaTypeZstd: true,
	imgspecv1.MediaTypeImageLayer: true, imgspecv1.MediaTypeImageLayerGzip: true, imgspecv1.MediaTypeImageLayerZstd: true,
}

// layersOf lists the layers of an image, which is in a source.
func layersOf(ctx context.Context, img types.Image, source *keptSource) ([]layers.Layer, error) {
	if _, mime, err := img.Manifest(ctx); err != nil {
		return nil, err
	} else if mime != imgspecv1.MediaTypeImageManifest && mime != manifest.DockerV2Schema2MediaType {
		return nil, fmt.Errorf("%w: its manifest is of the type %s", layers.ErrUnsuited, mime)
	}
	if changed, err := img.LayerInfosForCopy(ctx); err != nil {
		return nil, err
	} else if changed != nil {
		return nil, fmt.Errorf("%w: its source has the layers in another form", layers.ErrUnsuited)
	}
	blob, err := img.ConfigBlob(ctx)
	if err != nil {
		return nil, err
	}
	source.blobs[img.ConfigInfo().Digest] = blob
	config, err := img.OCIConfig(ctx)
	if err != nil {
		return nil, err
	}
	infos, diffIDs := img.LayerInfos(), config.RootFS.DiffIDs
	if len(infos) != len(diffIDs) {
		return nil, fmt.Errorf("%w: its manifest has %d layers, and its config %d", layers.ErrUnsuited, len(infos), len(diffIDs))
	}
	all := make([]layers.Layer, len(infos))
	for i, info := range infos {
		if !layerTypes[info.MediaType] || len(info.URLs) > 0 {
			return nil, fmt.Errorf("%w: a layer of it is of the type %s", layers.ErrUnsuited, info.MediaType)
		}
		for _, d := range []digest.Digest{info.Digest, diffIDs[i]} {
			if d.Validate() != nil || d.Algorithm() != digest.Canonical {
				return nil, fmt.Errorf("%w: a layer of it has the digest %q", layers.ErrUnsuited, d)
			}
		}
		all[i] = layers.Layer{Digest: info.Digest, DiffID: diffIDs[i], Size: info.Size, MediaType: info.MediaType}
	}
	return all, nil
}

// keptSource is a source of which nothing but layers is read twice.
type keptSource struct {
	types.ImageSource
	manifests map[digest.Digest]keptManifest // the one without a digest is under none
	blobs     map[digest.Digest][]byte
}

type keptManifest struct {
	text []byte
	mime string
}

// GetManifest implements types.ImageSource.
func (s *keptSource) GetManifest(ctx context.Context, instance *digest.Digest) ([]byte, string, error) {
	var of digest.Digest
	if instance != nil {
		of = *instance
	}
	kept, ok := s.manifests[of]
	if !ok {
		var err error
		if kept.text, kept.mime, err = s.ImageSource.GetManifest(ctx, instance); err != nil {
			return nil, "", err
		}
		s.manifests[of] = kept
	}
	return kept.text, kept.mime, nil
}

// GetBlob implements types.ImageSource.
func (s *keptSource) GetBlob(ctx context.Context, info types.BlobInfo, cache types.BlobInfoCache) (io.ReadCloser, int64, error) {
	if kept, ok := s.blobs[info.Digest]; ok {
		return io.NopCloser(strings.NewReader(string(kept))), int64(len(kept)), nil
	}
	return s.ImageSource.GetBlob(ctx, info, cache)
}

// layerSource implements layers.Source.
type layerSource struct {
	source   types.ImageSource
	cache    types.BlobInfoCache
	progress *pullProgress
}

// Open implements layers.Source.
func (s *layerSource) Open(ctx context.Context, layer layers.Layer) (io.ReadCloser, int64, error) {
	s.progress.begin(layer)
	blob, size, err := s.source.GetBlob(ctx, types.BlobInfo{Digest: layer.Digest, Size: layer.Size, MediaType: layer.MediaType}, s.cache)
	if err != nil {
		return nil, 0, fmt.Errorf("reading blob %s: %w", layer.Digest, err)
	}
	return blob, size, nil
}

// Progress implements layers.Source.
func (s *layerSource) Progress(layer layers.Layer, read int64) { s.progress.read(layer, read) }

// Done implements layers.Source.
func (s *layerSource) Done(layer layers.Layer, read int64) {
	// A push finds by it which of the blobs in a registry are those of the image.
	s.cache.RecordDigestUncompressedPair(layer.Digest, layer.DiffID)
	s.progress.done(layer, read)
}
