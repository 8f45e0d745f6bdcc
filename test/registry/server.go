package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
)

// Server is an HTTP server with a record of its requests and with faults. It is
// the outer part of a registry and of a token server. Its methods may be called
// from any goroutine.
type Server struct {
	t       testing.TB
	what    string // how messages call it
	handler http.Handler
	secure  *tls.Config // nil for plain HTTP
	ca      *CA         // nil for plain HTTP

	turn    sync.Mutex // held while listening starts or stops
	port    *port
	current *session // nil while stopped
	ended   bool     // the test is over

	mu      sync.Mutex // guards what follows
	faults  []*Fault
	records []*record
}

// session is one time of listening, from Listen to Stop.
type session struct {
	server *http.Server
	over   chan struct{} // closed when Stop begins
	served chan struct{} // closed when nothing is accepted any more

	mu       sync.Mutex
	stopping bool
	handlers sync.WaitGroup
}

func newServer(t testing.TB, what, addr string, secure *tls.Config, ca *CA) *Server {
	t.Helper()
	port, err := reserve(addr)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	s := &Server{t: t, what: what, port: port, secure: secure, ca: ca}
	t.Cleanup(s.end)
	return s
}

// Host returns the address as it stands in image names, such as 127.0.0.1:5000.
func (s *Server) Host() string { return s.port.addr.String() }

// URL returns the address with its scheme, such as http://127.0.0.1:5000.
func (s *Server) URL() string {
	if s.secure != nil {
		return "https://" + s.Host()
	}
	return "http://" + s.Host()
}

// Listen starts serving, again and on the same address after a Stop. It does
// nothing if the server listens already or if the test is over, so that a timer
// may call it.
func (s *Server) Listen() {
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.current != nil || s.ended {
		return
	}
	listener, err := s.port.listen()
	if err != nil {
		s.t.Errorf("%s: %v", s.what, err)
		return
	}
	if s.secure != nil {
		listener = tls.NewListener(listener, s.secure)
	}
	current := &session{over: make(chan struct{}), served: make(chan struct{})}
	current.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.serve(current, w, r)
		}),
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.current = current
	go func() {
		defer close(current.served)
		if err := current.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.t.Errorf("%s: serving %s: %v", s.what, s.Host(), err)
		}
	}()
}

// Stop cuts all connections, waits until no request is being handled, and from
// then on refuses connections. The content stays. It does nothing if the server
// does not listen. A Call must not wait for it.
func (s *Server) Stop() {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.stop()
}

func (s *Server) stop() {
	current := s.current
	if current == nil {
		return
	}
	current.mu.Lock()
	current.stopping = true
	current.mu.Unlock()
	close(current.over)
	if err := current.server.Close(); err != nil {
		s.t.Errorf("%s: closing %s: %v", s.what, s.Host(), err)
	}
	<-current.served
	current.handlers.Wait()
	s.current = nil
	if err := s.port.bind(); err != nil {
		s.t.Errorf("%s: keeping the port: %v", s.what, err)
	}
}

func (s *Server) end() {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.stop()
	s.port.release()
	s.ended = true
}

// begin counts a request in, unless the session is stopping.
func (se *session) begin() bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if !se.stopping {
		se.handlers.Add(1)
	}
	return !se.stopping
}

// serve records a request and passes it through the faults that it meets to the
// handler.
func (s *Server) serve(current *session, w http.ResponseWriter, r *http.Request) {
	if !current.begin() {
		panic(http.ErrAbortHandler)
	}
	defer current.handlers.Done()
	defer func() {
		if p := recover(); p != nil {
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				s.t.Errorf("%s: %s %s: panic: %v\n%s", s.what, r.Method, r.URL.Path, p, debug.Stack())
			}
			panic(http.ErrAbortHandler)
		}
	}()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	x := &exchange{
		ResponseWriter: w,
		server:         s,
		record:         s.arrived(r),
		head:           r.Method == http.MethodHead,
		over:           current.over,
		cancel:         cancel,
	}
	defer x.end()
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &countedBody{ReadCloser: r.Body, x: x}
	}
	handler := s.handler
	for _, f := range slices.Backward(s.met(r)) {
		next := handler
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.fire()
			f.rule.Do.act(x, w, r, next)
		})
	}
	handler.ServeHTTP(x, r)
	if x.gone {
		panic(http.ErrAbortHandler) // closes the connection without a reply
	}
	x.replied(http.StatusOK) // which net/http sends if nothing was written
}

// Transport returns a new transport that trusts the server's certificate and
// uses no proxy. Its idle connections are closed when the test ends.
func (s *Server) Transport() *http.Transport {
	transport := &http.Transport{}
	if s.ca != nil {
		transport.TLSClientConfig = &tls.Config{RootCAs: s.ca.Pool()}
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// Client returns a client over a new Transport.
func (s *Server) Client() *http.Client { return &http.Client{Transport: s.Transport()} }
