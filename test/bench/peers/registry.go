package main

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strata-build/strata/test/registry"
)

// server is a registry on a port of loopback that stays the same while what it serves
// changes: names of images hold the port, and builders keep names. It counts what is
// sent to it and can cut the connections.
type server struct {
	listener *wire
	http     *http.Server
	app      atomic.Pointer[http.Handler]
	end      func() error // of the content that is served
}

// listen starts a registry that has no content yet.
func listen() (*server, error) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{listener: &wire{Listener: inner, open: map[*net.TCPConn]bool{}}}
	nothing := http.NotFoundHandler()
	s.app.Store(&nothing)
	s.end = func() error { return nil }
	s.http = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.app.Load()).ServeHTTP(w, r) }),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0), // connections that are cut
	}
	go func() { _ = s.http.Serve(s.listener) }() // it ends with Close
	return s, nil
}

// host is the address as it stands in names of images.
func (s *server) host() string { return s.listener.Addr().String() }

// serve serves the content of a directory from now on, and counts from 0.
func (s *server) serve(dir string) error {
	if err := errors.Join(s.end(), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	app, end := registry.OnDisk(dir)
	s.app.Store(&app)
	s.end = end
	s.listener.reset()
	return nil
}

// close ends the registry.
func (s *server) close() error { return errors.Join(s.http.Close(), s.end()) }

// wire counts the bytes that connections bring, headers included, and resets all of
// them once when there were so many.
type wire struct {
	net.Listener

	mu       sync.Mutex
	received int64
	cutAt    int64 // 0 for never
	cuts     int
	open     map[*net.TCPConn]bool
}

func (w *wire) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received, w.cutAt, w.cuts = 0, 0, 0
}

// cut makes the wire reset all connections when so many bytes have come.
func (w *wire) cut(at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cutAt = at
}

// counts are the bytes received and the cuts since the last reset.
func (w *wire) counts() (received int64, cuts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.received, w.cuts
}

func (w *wire) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &counted{TCPConn: c.(*net.TCPConn), wire: w} //nolint:forcetypeassert // it listens for TCP
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[conn.TCPConn] = true
	return conn, nil
}

// arrived counts and cuts.
func (w *wire) arrived(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.received += int64(n)
	if w.cutAt == 0 || w.received < w.cutAt {
		return
	}
	w.cutAt = 0
	w.cuts++
	for conn := range w.open {
		_ = conn.SetLinger(0) // closing then sends a reset
		_ = conn.Close()
	}
}

type counted struct {
	*net.TCPConn
	wire *wire
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.wire.arrived(n)
	return n, err
}

func (c *counted) Close() error {
	c.wire.mu.Lock()
	delete(c.wire.open, c.TCPConn)
	c.wire.mu.Unlock()
	return c.TCPConn.Close()
}
