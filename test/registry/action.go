package registry

import (
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
)

// Action is what a fault does to a request: Reply, Close, CutRequest,
// CutResponse, Delay, Stall, StallResponse, Corrupt or Call.
type Action interface {
	// act treats a request; next passes it on.
	act(x *exchange, w http.ResponseWriter, r *http.Request, next http.Handler)
}

// Reply answers in place of the registry, after it has read the request's body,
// so that the client surely gets to see the answer.
type Reply struct {
	Status int
	Header http.Header
	Body   string
}

// Refuse returns a Reply with the status and the JSON body that distribution
// uses for an error code, such as errcode.ErrorCodeDenied. An empty message
// stands for the code's own.
func Refuse(code errcode.ErrorCode, message string) Reply {
	failure := code.WithMessage(message)
	if message == "" {
		failure = code.WithMessage(code.Message())
	}
	body, err := json.Marshal(errcode.Errors{failure})
	if err != nil {
		panic(err) // strings always marshal
	}
	return Reply{
		Status: code.Descriptor().HTTPStatusCode,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   string(body) + "\n",
	}
}

func (a Reply) act(_ *exchange, w http.ResponseWriter, r *http.Request, _ http.Handler) {
	io.Copy(io.Discard, r.Body)
	for key, values := range a.Header {
		w.Header()[http.CanonicalHeaderKey(key)] = values
	}
	w.WriteHeader(a.Status)
	io.WriteString(w, a.Body)
}

// Close resets the connection without a reply and without reading the request's
// body.
//
// Go's http.Transport sends a request that can be repeated once more by itself
// if this happens on a connection that it used before. Such a client sees only
// the second of two resets; the record has both.
type Close struct{}

func (Close) act(x *exchange, _ http.ResponseWriter, _ *http.Request, _ http.Handler) { x.cut() }

// CutRequest lets the registry read so many bytes of the request's body and then
// resets the connection without a reply. To the registry this is a client that
// vanished. A body that is not longer passes whole.
type CutRequest int64

func (a CutRequest) act(x *exchange, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.Body != nil && r.Body != http.NoBody {
		r = r.WithContext(r.Context()) // a copy
		r.Body = &cutBody{ReadCloser: r.Body, x: x, left: int64(a)}
	}
	next.ServeHTTP(w, r)
}

type cutBody struct {
	io.ReadCloser
	x    *exchange
	left int64
}

func (b *cutBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.x.cut()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// CutResponse sends the real reply up to so many bytes of its body, waits until
// they have arrived, and resets the connection. A body that is not longer passes
// whole.
type CutResponse int64

func (a CutResponse) act(x *exchange, w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&shortened{ResponseWriter: w, left: int64(a), end: x.cutDelivered}, r)
}

// shortened lets so many bytes of a body through and then ends it.
type shortened struct {
	http.ResponseWriter
	left int64
	end  func()
	done bool
}

func (s *shortened) Unwrap() http.ResponseWriter { return s.ResponseWriter }

func (s *shortened) Write(p []byte) (int, error) {
	if s.done {
		return 0, http.ErrHijacked
	}
	if int64(len(p)) <= s.left {
		n, err := s.ResponseWriter.Write(p)
		s.left -= int64(n)
		return n, err
	}
	n, err := s.ResponseWriter.Write(p[:s.left])
	s.done = true
	s.end()
	if err == nil {
		err = io.ErrClosedPipe
	}
	return n, err
}

// Delay waits before it passes the request on.
type Delay time.Duration

func (a Delay) act(x *exchange, w http.ResponseWriter, r *http.Request, next http.Handler) {
	timer := time.NewTimer(time.Duration(a))
	defer timer.Stop()
	if x.wait(r.Context(), timer.C) {
		next.ServeHTTP(w, r)
	} else {
		x.leave()
	}
}

// Stall reads the request and never answers. It lasts until the client goes away
// or the server stops.
type Stall struct{}

func (Stall) act(x *exchange, _ http.ResponseWriter, r *http.Request, _ http.Handler) {
	io.Copy(io.Discard, r.Body) // a client's departure shows only past the body
	x.wait(r.Context(), nil)
	x.leave()
}

// StallResponse sends the real reply up to so many bytes of its body and then
// nothing more, as Stall does. A body that is not longer passes whole.
type StallResponse int64

func (a StallResponse) act(x *exchange, w http.ResponseWriter, r *http.Request, next http.Handler) {
	end := func() {
		http.NewResponseController(w).Flush() // an error means that the client is gone already
		x.wait(r.Context(), nil)
		x.leave()
	}
	next.ServeHTTP(&shortened{ResponseWriter: w, left: int64(a), end: end}, r)
}

// Corrupt inverts the byte at this offset of the reply's body.
type Corrupt int64

func (a Corrupt) act(_ *exchange, w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&corrupted{ResponseWriter: w, before: int64(a)}, r)
}

type corrupted struct {
	http.ResponseWriter
	before int64 // bytes still to come before the one to invert
}

func (c *corrupted) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *corrupted) Write(p []byte) (int, error) {
	if 0 <= c.before && c.before < int64(len(p)) {
		changed := append([]byte(nil), p...)
		changed[c.before] ^= 0xff
		p = changed
	}
	n, err := c.ResponseWriter.Write(p)
	c.before -= int64(n)
	return n, err
}

// Call calls a function and passes the request on. With it a test does something
// at a certain point of its client's work, such as changing a password file.
type Call func()

func (a Call) act(_ *exchange, w http.ResponseWriter, r *http.Request, next http.Handler) {
	a()
	next.ServeHTTP(w, r)
}
