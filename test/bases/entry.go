package bases

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"path"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// moment is the time of everything in these images.
var moment = time.Date(2020, time.January, 2, 3, 4, 5, 0, time.UTC)

// Entry is one entry of a layer.
type Entry struct {
	tar.Header
	Body []byte
}

// Dir returns a directory of root's.
func Dir(name string, mode int64) Entry {
	return entry(tar.TypeDir, name, mode, nil)
}

// Regular returns a regular file of root's.
func Regular(name string, mode int64, body []byte) Entry {
	return entry(tar.TypeReg, name, mode, body)
}

// Symlink returns a symbolic link to target.
func Symlink(name, target string) Entry {
	e := entry(tar.TypeSymlink, name, 0o777, nil)
	e.Linkname = target
	return e
}

// Whiteout returns the mark that takes name away from the layers below.
func Whiteout(name string) Entry {
	return Regular(path.Join(path.Dir(name), ".wh."+path.Base(name)), 0o644, nil)
}

// OwnedBy returns the entry with other owners.
func (e Entry) OwnedBy(uid, gid int) Entry {
	e.Uid, e.Gid = uid, gid
	return e
}

func entry(kind byte, name string, mode int64, body []byte) Entry {
	return Entry{
		Header: tar.Header{
			Typeflag: kind,
			Name:     path.Join("/", name)[1:],
			Mode:     mode,
			Size:     int64(len(body)),
			ModTime:  moment,
		},
		Body: body,
	}
}

// layer packs entries into a layer of the given media type.
func layer(t testing.TB, mediaType types.MediaType, entries []Entry) v1.Layer {
	t.Helper()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, e := range entries {
		header := e.Header
		if header.Typeflag == tar.TypeDir {
			header.Name += "/"
		}
		if err := w.WriteHeader(&header); err != nil {
			t.Fatalf("bases: packing %s: %v", e.Name, err)
		}
		if _, err := w.Write(e.Body); err != nil {
			t.Fatalf("bases: packing %s: %v", e.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatalf("bases: packing a layer: %v", err)
	}
	made, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed.Bytes())), nil },
		tarball.WithMediaType(mediaType),
		tarball.WithCompressionLevel(levelFor(entries)),
		tarball.WithCompressedCaching,
	)
	if err != nil {
		t.Fatalf("bases: making a layer: %v", err)
	}
	// The layer's own descriptor has annotations that are there but empty, which
	// makes a manifest that is not what it reads back as.
	return struct{ v1.Layer }{made}
}

// levelFor returns the level of compression that suits entries: what is big is
// random and does not shrink.
func levelFor(entries []Entry) int {
	for _, e := range entries {
		if e.Size >= BigSize {
			return gzip.NoCompression
		}
	}
	return gzip.BestSpeed
}
