package distribution

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialTime is how long a connection may take to come about.
const dialTime = 30 * time.Second

// maxUnsent is how much of a connection's data, in bytes, waits in the kernel to be
// sent. Without a limit it takes megabytes at once, and an upload that is slow but
// steady would look as one that makes no progress.
const maxUnsent = 256 << 10

// sendSteadily is net.Dialer.Control.
func sendSteadily(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// watchdog gives up on a request that makes no progress.
type watchdog struct {
	after time.Duration
	timer *time.Timer
}

func (c *Client) watch(cancel context.CancelCauseFunc) *watchdog {
	w := &watchdog{after: c.options.Stall}
	if w.after > 0 {
		w.timer = time.AfterFunc(w.after, func() { cancel(fmt.Errorf("%w for %v", ErrStalled, w.after)) })
	}
	return w
}

// progress says that something was transferred.
func (w *watchdog) progress() {
	if w.timer != nil {
		w.timer.Reset(w.after)
	}
}

// stop tells that nothing is waited for, until there is progress again.
func (w *watchdog) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// meteredReader is the body of a request; what is read of it was taken by the
// connection.
type meteredReader struct {
	reader io.Reader
	client *Client
	watch  *watchdog
	read   bool
}

// ErrSentInPart is the error of a body that would have to be sent once more and
// cannot: the server ended the connection, the token ran out or the upload was moved
// while it was sent.
var ErrSentInPart = errors.New("the upload has to be begun again: the registry gave it up when a part was sent")

// again is http.Request.GetBody: it starts anew where that is possible, because the
// body is a file or because nothing was read of it.
func (r *meteredReader) again() (io.ReadCloser, error) {
	if r.read {
		rewindable, ok := r.reader.(io.Seeker)
		if !ok {
			return nil, ErrSentInPart
		}
		if _, err := rewindable.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.NopCloser(r), nil
}

// Read implements io.Reader.
func (r *meteredReader) Read(p []byte) (int, error) {
	r.read = true
	n, err := r.reader.Read(p)
	r.client.sent.Add(int64(n))
	r.watch.progress()
	return n, err
}

// answerBody is the body of an answer. The request ends when it is closed.
type answerBody struct {
	io.ReadCloser
	ctx    context.Context
	watch  *watchdog
	cancel context.CancelCauseFunc
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	b.watch.progress()
	n, err := b.ReadCloser.Read(p)
	b.watch.stop()
	if cause := context.Cause(b.ctx); err != nil && errors.Is(cause, ErrStalled) {
		err = cause
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	b.watch.stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// counter counts what is written to it.
type counter struct{ n int64 }

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}
