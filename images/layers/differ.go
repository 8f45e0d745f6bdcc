package layers

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	digest "github.com/opencontainers/go-digest"
	"github.com/vbatts/tar-split/archive/tar"
	"github.com/vbatts/tar-split/tar/asm"
	tarsplit "github.com/vbatts/tar-split/tar/storage"
	drivers "go.podman.io/storage/drivers"
	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/tarlog"

	"github.com/strata-build/strata/images/isal"
)

// differ makes the files of one layer in the staging directory that a driver gives it, and
// collects what the store has to know of the layer. It implements drivers.Differ.
type differ struct {
	layer Layer
	// open opens the layer.
	open func(ctx context.Context) (*opened, error)
	ctx  context.Context
	// began tells that the driver had a staging directory.
	began bool
}

// opened is a layer that can be read.
type opened struct {
	archive io.Reader // uncompressed
	// compressed is the digest under which the store will find the layer.
	compressed digest.Digest
	// end says what is wrong with the layer when the archive has been read.
	end   func() error
	close func()
}

var _ drivers.Differ = (*differ)(nil)

// Close implements drivers.Differ.
func (*differ) Close() error { return nil }

// ApplyDiff implements drivers.Differ.
func (d *differ) ApplyDiff(dest string, options *archive.TarOptions, how *drivers.DifferOptions) (out drivers.DriverWithDifferOutput, err error) {
	d.began = true
	if how == nil || how.Format != drivers.DifferOutputFormatDir || options.ForceMask != nil {
		return out, unsuited("the driver wants another form of them")
	}
	record, err := unnamedFile(how.StagingDirectory)
	if err != nil {
		return out, err
	}
	defer func() {
		if err != nil {
			_ = record.Close()
		}
	}()
	// What reads the layer ends when the context does.
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	layer, err := d.open(ctx)
	if err != nil {
		return out, err
	}
	defer layer.close()
	hash := digest.Canonical.Digester()
	var size counter
	owners, err := newOwners()
	if err != nil {
		return out, err
	}
	defer owners.close()
	source := readAhead(io.TeeReader(layer.archive, io.MultiWriter(hash.Hash(), &size, owners.log)))
	defer source.Close()
	defer cancel() // before the source waits for its goroutine
	if err := unpack(source, record, dest, options); err != nil {
		return out, err
	}
	if err := layer.end(); err != nil {
		return out, err
	}
	if got := hash.Digest(); got != d.layer.DiffID {
		return out, fmt.Errorf("the layer %s does not match config's DiffID: it is %s when it is unpacked, and the config of the image says %s", d.layer.Digest, got, d.layer.DiffID)
	}
	owners.close()
	out = drivers.DriverWithDifferOutput{
		Differ: d, Size: int64(size), UncompressedDigest: d.layer.DiffID, CompressedDigest: layer.compressed,
		UIDs: slices.Sorted(maps.Keys(owners.uids)), GIDs: slices.Sorted(maps.Keys(owners.gids)), TarSplit: record,
	}
	if owners.root != nil { // otherwise the driver gives the root the mode of that below
		mode := owners.root.FileInfo().Mode()
		out.RootDirMode = &mode
	}
	return out, nil
}

// unpack makes the files of an archive in dest, and in record what is needed to make the
// same archive of these again.
func unpack(source *ahead, record io.Writer, dest string, options *archive.TarOptions) error {
	buffered := bufio.NewWriterSize(record, bufferSize)
	payload, done, err := asm.NewInputTarStreamWithDone(source, tarsplit.NewJSONPacker(buffered), checksums{make([]byte, bufferSize)})
	if err != nil {
		return err
	}
	// What makes the files is on a thread of its own, which is slow to wait often.
	files := readAhead(payload)
	unpacked := untar(files, dest, options)
	if unpacked == nil {
		_, unpacked = io.Copy(io.Discard, files) // the record has what is behind the archive, too
	}
	_ = payload.Close()
	files.Close()
	recorded := <-done
	switch {
	case source.failure() != nil:
		return source.failure() // of which the others are consequences
	case unpacked != nil:
		return unpacked
	case recorded != nil:
		return recorded
	}
	return buffered.Flush()
}

// checksums is what the record of an archive has of the files in it: their CRC-64. It
// implements storage.FilePutter of tar-split.
type checksums struct{ buffer []byte }

// Put implements storage.FilePutter.
func (c checksums) Put(_ string, file io.Reader) (size int64, sum []byte, err error) {
	var crc uint64
	for err == nil {
		var n int
		n, err = file.Read(c.buffer)
		crc, size = isal.UpdateCRC64(crc, c.buffer[:n]), size+int64(n)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return size, binary.BigEndian.AppendUint64(nil, crc), err
}

// owners collects who owns what is in an archive.
type owners struct {
	// log is what the archive is written to.
	log        io.WriteCloser
	uids, gids map[uint32]struct{}
	// root is the entry of the root directory, nil where there is none that counts. It is
	// known, and so are the others, when the log is closed.
	root *tar.Header
}

func newOwners() (*owners, error) {
	o := &owners{uids: map[uint32]struct{}{}, gids: map[uint32]struct{}{}}
	var err error
	o.log, err = tarlog.NewLogger(func(h *tar.Header) {
		if !strings.HasPrefix(path.Base(h.Name), archive.WhiteoutPrefix) {
			o.uids[uint32(h.Uid)] = struct{}{} //nolint:gosec // as containers/storage has them
			o.gids[uint32(h.Gid)] = struct{}{} //nolint:gosec // as above
		}
		// What is called . is passed over when the archive is unpacked.
		if path.Join("/", h.Name) == "/" && path.Clean(h.Name) != "." {
			o.root = h
		}
	})
	return o, err
}

// close may be called twice.
func (o *owners) close() {
	if o.log != nil {
		_ = o.log.Close()
		o.log = nil
	}
}

// counter counts the bytes that are written to it.
type counter int64

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

// unnamedFile makes a file in a directory that is gone when it is closed.
func unnamedFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "record-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}
