package registry

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

// exchange is one request and its reply, as they are on the wire. It is the
// ResponseWriter that faults and handlers get; it writes the record, and once the
// client is given up (gone) it lets nothing more through.
type exchange struct {
	http.ResponseWriter
	server *Server
	record *record
	head   bool            // a HEAD request: bodies are not sent
	over   <-chan struct{} // closed when the server stops
	cancel context.CancelFunc
	gone   bool
}

// Unwrap lets http.ResponseController flush and hijack.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader records the status and sends it.
func (x *exchange) WriteHeader(status int) {
	if x.gone {
		return
	}
	if status >= http.StatusOK {
		x.replied(status)
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write records the bytes before it sends them, so that no client can be ahead
// of the record.
func (x *exchange) Write(p []byte) (int, error) {
	if x.gone {
		return 0, http.ErrHijacked
	}
	x.replied(http.StatusOK)
	x.sent(len(p))
	n, err := x.ResponseWriter.Write(p)
	x.sent(n - len(p))
	return n, err
}

// wait waits until timer fires; it returns false if the client or the server
// leaves first. A nil timer never fires.
func (x *exchange) wait(ctx context.Context, timer <-chan time.Time) bool {
	select {
	case <-timer:
		return true
	case <-ctx.Done():
	case <-x.over:
	}
	return false
}

// leave gives the client up; its connection is closed when the handler returns.
func (x *exchange) leave() {
	x.gone = true
	x.cancel()
}

// cut resets the connection. What was written before but not flushed is lost.
func (x *exchange) cut() { x.reset(false) }

// cutDelivered resets the connection once everything written before has
// arrived at the other end.
func (x *exchange) cutDelivered() { x.reset(true) }

func (x *exchange) reset(deliver bool) {
	if x.gone {
		return
	}
	control := http.NewResponseController(x.ResponseWriter)
	if deliver {
		control.Flush() // an error means that the client is gone already
	}
	conn, _, err := control.Hijack()
	x.wasCut()
	x.leave()
	if err != nil {
		return // closed when the handler returns
	}
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn() // no farewell of TLS
	}
	if plain, ok := conn.(*net.TCPConn); ok {
		if deliver {
			awaitDelivery(plain, x.over)
		}
		plain.SetLinger(0) // closing then sends a reset
	}
	conn.Close()
}

// deliveryTimeout is how long a client that reads nothing can hold up a cut.
const deliveryTimeout = 10 * time.Second

// awaitDelivery waits until the peer's kernel has taken all that was sent, for a
// reset makes this side drop the rest.
func awaitDelivery(conn *net.TCPConn, over <-chan struct{}) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	timeout := time.NewTimer(deliveryTimeout)
	defer timeout.Stop()
	for before := -1; ; {
		var left int
		var failed error
		if err := raw.Control(func(fd uintptr) {
			left, failed = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		}); err != nil || failed != nil || left == 0 {
			return
		}
		if left != before {
			before = left
			timeout.Reset(deliveryTimeout)
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			return
		case <-over:
			return
		}
	}
}

// countedBody records how much of a request's body is read.
type countedBody struct {
	io.ReadCloser
	x *exchange
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.received(n)
	return n, err
}
