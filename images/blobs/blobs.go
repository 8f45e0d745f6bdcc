// Package blobs keeps compressed layers of base images as they were pulled.
//
// A store keeps a layer unpacked. To push it to a registry that does not have it, it
// would have to be packed and compressed again, which takes longer than the rest of the
// push, and makes another blob of it: one that neither this registry nor any node has.
// The very bytes that were pulled need no more than to be sent.
//
// It is sound because nothing here is believed. A blob gets its name when all of it was
// written and has the digest that is its name; one that is not complete never has a name.
// What happened to a file since then is found out when it is read: whoever sends it
// digests what is sent (distribution.Client.PutBlob), and so does the registry. That a
// blob is the layer of an image is not known here: whoever unpacked the layer has
// found that out, and without it a blob is of no use. A directory that is lost, or was
// never written for want of space, costs time and nothing else.
package blobs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	digest "github.com/opencontainers/go-digest"
)

// partial begins the name of a file that is not a blob yet.
const partial = ".partial-"

// Dir is a directory of blobs. It need not exist. It is safe for concurrent use.
type Dir struct {
	path   string
	closed atomic.Bool
}

// At is the directory with the path.
func At(path string) *Dir { return &Dir{path: path} }

// Path is the path of the directory.
func (d *Dir) Path() string { return d.path }

func (d *Dir) file(blob digest.Digest) string { return filepath.Join(d.path, blob.String()) }

// Has tells whether the blob is there.
func (d *Dir) Has(blob digest.Digest) bool {
	info, err := os.Lstat(d.file(blob))
	return err == nil && info.Mode().IsRegular()
}

// Empty tells whether no blob is there.
func (d *Dir) Empty() bool {
	entries, err := os.ReadDir(d.path)
	return err != nil || len(entries) == 0
}

// Open opens a blob and returns its size in bytes. What is read has to be digested: it
// may have been damaged. The error is fs.ErrNotExist when the blob is not there.
func (d *Dir) Open(blob digest.Digest) (*os.File, int64, error) {
	if err := blob.Validate(); err != nil {
		return nil, 0, err
	}
	file, err := os.Open(d.file(blob))
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// Remove removes a blob.
func (d *Dir) Remove(blob digest.Digest) { _ = os.Remove(d.file(blob)) }

// Clear removes the directory for good: nothing comes into it any more.
func (d *Dir) Clear() error {
	d.closed.Store(true)
	return os.RemoveAll(d.path)
}

// Adopt takes over the blobs of another directory of the same filesystem, and removes
// that. What is there already, or is not complete, is not taken over.
func (d *Dir) Adopt(other string) error {
	entries, err := os.ReadDir(other)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, entry := range entries {
		blob := digest.Digest(entry.Name())
		if blob.Validate() != nil || !entry.Type().IsRegular() {
			continue
		}
		if err := os.MkdirAll(d.path, 0o700); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(other, entry.Name()), d.file(blob)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(other)
}

// Tee returns a stream that reads as the one it is given, and writes what is read into
// the directory. When the blob with this digest was read to its end, it is kept, and done is
// told nil; when it cannot be kept, why. done is not called for a stream that
// was read in part, or that failed, of which nothing is kept. Nothing of this disturbs
// whoever reads.
func (d *Dir) Tee(stream io.ReadCloser, blob digest.Digest, done func(err error)) io.ReadCloser {
	t := &tee{ReadCloser: stream, dir: d, blob: blob, done: done}
	err := blob.Validate()
	if err == nil && d.closed.Load() {
		err = fs.ErrClosed
	}
	if err == nil {
		err = os.MkdirAll(d.path, 0o700)
	}
	if err == nil {
		t.file, err = os.CreateTemp(d.path, partial)
	}
	if err != nil {
		done(err)
		return stream
	}
	t.verifier = blob.Verifier()
	return t
}

// tee is a blob that is read and kept.
type tee struct {
	io.ReadCloser
	dir      *Dir
	blob     digest.Digest
	verifier digest.Verifier
	file     *os.File // nil when there is nothing more to write
	done     func(error)
}

// Read implements io.Reader.
func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	if t.file == nil {
		return n, err
	}
	if _, writeErr := t.file.Write(p[:n]); writeErr != nil {
		t.end(writeErr)
		return n, err
	}
	_, _ = t.verifier.Write(p[:n])
	if errors.Is(err, io.EOF) {
		t.end(nil)
	}
	return n, err
}

// Close implements io.Closer. Whoever knows the size of a blob need not have read that
// there is no more.
func (t *tee) Close() error {
	if t.file != nil {
		if t.verifier.Verified() {
			t.end(nil)
		} else {
			t.drop()
		}
	}
	return t.ReadCloser.Close()
}

// end keeps what was written, unless it failed or is not what it should be.
func (t *tee) end(err error) {
	path := t.file.Name()
	if closeErr := t.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil && !t.verifier.Verified() {
		err = fmt.Errorf("what was read is not %s", t.blob)
	}
	if err == nil {
		err = os.Rename(path, t.dir.file(t.blob))
	}
	if err == nil && t.dir.closed.Load() {
		err = fs.ErrClosed
		t.dir.Remove(t.blob)
	}
	if err != nil {
		_ = os.Remove(path)
	}
	t.file = nil
	t.done(err)
}

// drop removes what was written.
func (t *tee) drop() {
	_ = t.file.Close()
	_ = os.Remove(t.file.Name())
	t.file = nil
}
