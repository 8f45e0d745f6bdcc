package layers

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	istorage "go.podman.io/image/v5/storage"
	"go.podman.io/storage/pkg/archive"

	"github.com/strata-build/strata/images/isal"
)

// bufferSize is what is read or written at once, in bytes.
const bufferSize = 128 << 10

// checked passes a blob on, and fails at its end if it is not the one that it was to be.
type checked struct {
	reader   io.Reader
	want     digest.Digest
	digester digest.Digester
	size     int64 // -1 where it is not known
	read     int64
	progress func(read int64)
	err      error
}

// Read implements io.Reader.
func (c *checked) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.reader.Read(p)
	if n > 0 {
		_, _ = c.digester.Hash().Write(p[:n])
		c.read += int64(n)
		c.progress(c.read)
	}
	if errors.Is(err, io.EOF) {
		switch got := c.digester.Digest(); {
		case got != c.want:
			err = fmt.Errorf("the digest did not match: the layer %s was asked for, and %s was sent", c.want, got)
		case c.size >= 0 && c.read != c.size:
			err = fmt.Errorf("the layer %s: %w", c.want, istorage.ErrBlobSizeMismatch)
		}
	}
	c.err = err
	return n, err
}

// decompress returns the archive that a layer is. Its form is recognised by how it begins,
// as containers/storage does it.
func decompress(layer io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(layer, bufferSize)
	head, err := buffered.Peek(10) // the longest of the beginnings has 6
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch archive.DetectCompression(head) {
	case archive.Uncompressed:
		return io.NopCloser(buffered), nil
	case archive.Gzip:
		return isal.NewReader(buffered)
	case archive.Zstd:
		// Layers are unpacked at the same time, and need no more goroutines each.
		decoder, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return decoder.IOReadCloser(), nil
	default:
		return archive.DecompressStream(buffered)
	}
}

// aheadBuffers is how many buffers an ahead may fill before they are read: enough for
// two goroutines to work at once although neither takes equally long for each.
const aheadBuffers = 4

// ahead reads from a reader in a goroutine of its own, before it is asked to.
type ahead struct {
	full    chan []byte
	empty   chan []byte
	stop    chan struct{}
	ended   chan struct{}
	err     error // with which the reader ended; valid after full was closed
	current []byte
	rest    []byte // what of current is to be read yet
	// over tells that the end was read, or the error in its place.
	over bool
}

// readAhead begins to read from r. The caller closes it, and makes reads from r fail
// first.
func readAhead(r io.Reader) *ahead {
	a := &ahead{
		full: make(chan []byte, aheadBuffers), empty: make(chan []byte, aheadBuffers),
		stop: make(chan struct{}), ended: make(chan struct{}),
	}
	for range aheadBuffers {
		a.empty <- make([]byte, bufferSize)
	}
	go a.run(r)
	return a
}

func (a *ahead) run(r io.Reader) {
	defer close(a.ended)
	defer close(a.full)
	for {
		var buffer []byte
		select {
		case buffer = <-a.empty:
		case <-a.stop:
			a.err = io.ErrClosedPipe
			return
		}
		n, err := fill(r, buffer)
		if n > 0 {
			a.full <- buffer[:n]
		}
		if err != nil {
			a.err = err
			return
		}
	}
}

// fill reads until the buffer is full, or as far as it comes. Unlike io.ReadFull, it
// returns the error of r as it is.
func fill(r io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var more int
		more, err = r.Read(buffer[n:])
		n += more
	}
	return n, err
}

// Read implements io.Reader.
func (a *ahead) Read(p []byte) (int, error) {
	if len(a.rest) == 0 {
		if a.current != nil {
			a.empty <- a.current[:bufferSize]
			a.current = nil
		}
		buffer, ok := <-a.full
		if !ok {
			a.over = true
			return 0, a.err
		}
		a.current, a.rest = buffer, buffer
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// failure is the error that was read in place of the end, nil where there was none.
func (a *ahead) failure() error {
	if !a.over || errors.Is(a.err, io.EOF) {
		return nil
	}
	return a.err
}

// Close ends the goroutine: r is not read from any more.
func (a *ahead) Close() {
	close(a.stop)
	<-a.ended
}
