package distribution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	digest "github.com/opencontainers/go-digest"
)

// resumeAfter is how many bytes a download has to have brought since it was last
// taken up again: one that breaks off sooner fails, and is the caller's to repeat.
// The figure is that of containers/image (docker/body_reader.go). The first time
// anything will do.
const resumeAfter = 1 << 20

// asItIs asks for a blob without an encoding for the way. A layer is compressed already,
// and there are servers that declare this as such an encoding: what they send would be
// unpacked, and would not have the digest of the blob any more.
const asItIs = "identity"

// Blob opens a blob and returns its size in bytes, -1 when that is not known. A
// download that breaks off is taken up where it was, also from a registry that
// sends everything anew; one that stalls fails with ErrStalled.
func (c *Client) Blob(ctx context.Context, d digest.Digest) (io.ReadCloser, int64, error) {
	target := c.url("/blobs/" + d.String())
	resp, err := c.do(ctx, http.MethodGet, target, http.Header{"Accept-Encoding": {asItIs}}, nil, 0, http.StatusOK)
	if err != nil {
		return nil, 0, err
	}
	return &download{client: c, ctx: ctx, target: target, body: resp.Body, size: resp.ContentLength}, resp.ContentLength, nil
}

// BlobStart returns the first n bytes of a blob, or all of one that is smaller, and its
// size in bytes, -1 when that is not known. ok is false when the repository does not have
// the blob.
func (c *Client) BlobStart(ctx context.Context, d digest.Digest, n int) (start []byte, size int64, ok bool, err error) {
	header := http.Header{"Range": {fmt.Sprintf("bytes=0-%d", n-1)}, "Accept-Encoding": {asItIs}}
	resp, err := c.do(ctx, http.MethodGet, c.url("/blobs/"+d.String()), header, nil, 0, http.StatusOK, http.StatusPartialContent, http.StatusNotFound)
	if err != nil {
		return nil, 0, false, err
	}
	defer resp.Body.Close()
	size = resp.ContentLength
	switch resp.StatusCode {
	case http.StatusNotFound:
		return nil, 0, false, nil
	case http.StatusPartialContent:
		var first, last int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &size); err != nil {
			size = -1 // as RFC 9110 has it, in section 14.4: the whole may be unknown
		}
		if first != 0 {
			return nil, 0, false, fmt.Errorf("%s was asked for the start of a blob and answered with %q", c.options.Host, resp.Header.Get("Content-Range"))
		}
	}
	if start, err = io.ReadAll(io.LimitReader(resp.Body, int64(n))); err != nil {
		return nil, 0, false, fmt.Errorf("reading the start of a blob from %s: %w", c.options.Host, err)
	}
	return start, size, true, nil
}

// download is a blob that is read.
type download struct {
	client *Client
	ctx    context.Context
	target string
	body   io.ReadCloser
	size   int64 // -1 when it is not known
	offset int64 // what was read
	last   int64 // the offset at which it was last taken up again
}

// Read implements io.Reader.
func (d *download) Read(p []byte) (int, error) {
	n, err := d.body.Read(p)
	d.offset += int64(n)
	if err == nil || n > 0 && !errors.Is(err, io.EOF) {
		return n, nil // an error is there again at the next call
	}
	if errors.Is(err, io.EOF) && (d.size < 0 || d.offset >= d.size) || d.ctx.Err() != nil {
		return n, err
	}
	if errors.Is(err, ErrStalled) || d.offset-d.last < resumeAfter && (d.last > 0 || d.offset == 0) {
		return n, fmt.Errorf("reading a blob from %s: %w", d.client.options.Host, err)
	}
	if again := d.resume(); again != nil {
		return n, fmt.Errorf("reading a blob from %s: %w, and to take it up again failed: %w", d.client.options.Host, err, again)
	}
	return n, nil
}

// resume asks for what is not read yet.
func (d *download) resume() error {
	_ = d.body.Close()
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-", d.offset)}, "Accept-Encoding": {asItIs}}
	resp, err := d.client.do(d.ctx, http.MethodGet, d.target, header, nil, 0, http.StatusOK, http.StatusPartialContent)
	if err != nil {
		return err
	}
	d.body, d.last = resp.Body, d.offset
	if resp.StatusCode == http.StatusOK { // from the start
		_, err = io.CopyN(io.Discard, d.body, d.offset)
		return err
	}
	var first int64
	if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &first); err != nil || first != d.offset {
		return fmt.Errorf("it was asked for the bytes from %d on and answered with %q", d.offset, resp.Header.Get("Content-Range"))
	}
	return nil
}

// Close implements io.Closer.
func (d *download) Close() error { return d.body.Close() }
