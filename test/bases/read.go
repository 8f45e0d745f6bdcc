package bases

import (
	"archive/tar"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// Tree is a filesystem by absolute path.
type Tree map[string]Entry

// Flatten returns what a container of the image starts with: all layers, one
// over the other, less what whiteouts take away. Relative symbolic links that
// climb above the root are left out.
func Flatten(t testing.TB, img v1.Image) Tree {
	t.Helper()
	flat := mutate.Extract(img)
	defer flat.Close()
	tree := make(Tree)
	for _, e := range unpack(t, flat, "the flattened image") {
		tree[e.Name] = e
	}
	return tree
}

// Paths returns the paths of all entries in lexical order.
func (tree Tree) Paths() []string { return slices.Sorted(maps.Keys(tree)) }

// File returns the content and the header of the entry at an absolute path. A
// hard link has the content of the file that it stands for; no other links are
// followed. It fails the test if there is no such entry.
func (tree Tree) File(t testing.TB, name string) ([]byte, *tar.Header) {
	t.Helper()
	e, ok := tree[name]
	if !ok {
		t.Fatalf("bases: the image has no %s", name)
	}
	file := e
	for hops := 0; file.Typeflag == tar.TypeLink; hops++ {
		target := path.Join("/", file.Linkname)
		next, ok := tree[target]
		if !ok || hops == len(tree) {
			t.Fatalf("bases: %s is a hard link to %s, which the image does not have as a file", name, target)
		}
		file = next
	}
	return file.Body, &e.Header
}

// File returns Flatten's File.
func File(t testing.TB, img v1.Image, name string) ([]byte, *tar.Header) {
	t.Helper()
	return Flatten(t, img).File(t, name)
}

// Layer returns the entries of one layer, as they are and in their order,
// whiteouts included. Names are absolute paths. Layers count from 0, the lowest;
// negative numbers count from the top, -1 being the uppermost.
func Layer(t testing.TB, img v1.Image, n int) []Entry {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatalf("bases: layers of an image: %v", err)
	}
	i := n
	if n < 0 {
		i += len(layers)
	}
	if i < 0 || i >= len(layers) {
		t.Fatalf("bases: no layer %d in an image of %d layers", n, len(layers))
	}
	content, err := layers[i].Uncompressed()
	if err != nil {
		t.Fatalf("bases: reading layer %d: %v", n, err)
	}
	defer content.Close()
	return unpack(t, content, "a layer")
}

func unpack(t testing.TB, packed io.Reader, what string) []Entry {
	t.Helper()
	var entries []Entry
	r := tar.NewReader(packed)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("bases: reading %s: %v", what, err)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			t.Fatalf("bases: reading %s of %s: %v", header.Name, what, err)
		}
		e := Entry{Header: *header, Body: body}
		e.Name = path.Join("/", header.Name)
		entries = append(entries, e)
	}
	// The digest is checked at the very end.
	if _, err := io.Copy(io.Discard, packed); err != nil {
		t.Fatalf("bases: reading %s: %v", what, err)
	}
	return entries
}

// Config returns the image's config file.
func Config(t testing.TB, img v1.Image) *v1.ConfigFile {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatalf("bases: config of an image: %v", err)
	}
	return config
}

// Manifest returns the image's manifest, which has its annotations.
func Manifest(t testing.TB, img v1.Image) *v1.Manifest {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatalf("bases: manifest of an image: %v", err)
	}
	return manifest
}

// Digest returns the image's digest.
func Digest(t testing.TB, img v1.Image) string {
	t.Helper()
	digest, err := img.Digest()
	if err != nil {
		t.Fatalf("bases: digest of an image: %v", err)
	}
	return digest.String()
}

// LayerDigests returns the digests of the layers as they are stored, the lowest
// first.
func LayerDigests(t testing.TB, img v1.Image) []string {
	t.Helper()
	var digests []string
	for _, d := range Manifest(t, img).Layers {
		digests = append(digests, d.Digest.String())
	}
	return digests
}

// Check fails the test unless the image is sound: every digest and size in its
// manifest and config is that of what it stands for.
func Check(t testing.TB, img v1.Image) {
	t.Helper()
	if err := validate.Image(img); err != nil {
		t.Fatalf("bases: the image is not sound: %v", err)
	}
}
