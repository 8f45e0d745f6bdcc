package bases

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// Push pushes an image or an index to host, under a name such as "base/busy:1",
// and returns its digest.
func Push(t testing.TB, host, name string, img remote.Taggable, opts ...remote.Option) string {
	t.Helper()
	ref := reference(t, host, name)
	if err := remote.Push(ref, img, opts...); err != nil {
		t.Fatalf("bases: pushing %s: %v", ref, err)
	}
	described, ok := img.(interface{ Digest() (v1.Hash, error) })
	if !ok {
		t.Fatalf("bases: pushed %s, a %T without a digest", ref, img)
	}
	digest, err := described.Digest()
	if err != nil {
		t.Fatalf("bases: digest of %s: %v", ref, err)
	}
	return digest.String()
}

// Pull returns an image from host; name may end in a tag or in @ and a digest.
// Of an index it returns the image for remote's platform, by default
// linux/amd64. Layers are fetched when they are read.
func Pull(t testing.TB, host, name string, opts ...remote.Option) v1.Image {
	t.Helper()
	ref := reference(t, host, name)
	img, err := remote.Image(ref, opts...)
	if err != nil {
		t.Fatalf("bases: pulling %s: %v", ref, err)
	}
	return img
}

// PullIndex returns an index from host.
func PullIndex(t testing.TB, host, name string, opts ...remote.Option) v1.ImageIndex {
	t.Helper()
	ref := reference(t, host, name)
	index, err := remote.Index(ref, opts...)
	if err != nil {
		t.Fatalf("bases: pulling the index %s: %v", ref, err)
	}
	return index
}

func reference(t testing.TB, host, rest string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(host+"/"+rest, name.StrictValidation)
	if err != nil {
		t.Fatalf("bases: %v", err)
	}
	return ref
}

// refName is the annotation that names an image in the index of a layout.
const refName = "org.opencontainers.image.ref.name"

// Layout returns an image from a directory in OCI image layout: the one named
// ref, or if ref is "" the only one.
func Layout(t testing.TB, dir, ref string) v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatalf("bases: reading the layout %s: %v", dir, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatalf("bases: reading the index of the layout %s: %v", dir, err)
	}
	var found []v1.Descriptor
	for _, d := range manifest.Manifests {
		if ref == "" || d.Annotations[refName] == ref {
			found = append(found, d)
		}
	}
	if len(found) != 1 {
		t.Fatalf("bases: the layout %s has %d images by the name %q, not one", dir, len(found), ref)
	}
	img, err := index.Image(found[0].Digest)
	if err != nil {
		t.Fatalf("bases: reading %s from the layout %s: %v", found[0].Digest, dir, err)
	}
	return img
}
