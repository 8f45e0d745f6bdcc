package registry

import (
	"crypto/tls"
	"net/http"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
)

// Registry is a registry that runs in the test's own process.
type Registry struct {
	*Server
	app    http.Handler
	ca     *CA
	tokens *TokenServer
}

// Option changes how a registry is set up.
type Option func(*setup)

type setup struct {
	addr         string
	tls          bool
	ca           *CA
	passwordFile string
	tokens       *TokenAuth
}

// WithAddr makes the registry use the given IP address and port in place of a
// free port on 127.0.0.1. Port 0 stands for any free port.
func WithAddr(addr string) Option {
	return func(s *setup) { s.addr = addr }
}

// WithTLS makes the registry serve HTTPS with a certificate for 127.0.0.1, ::1
// and localhost that an authority of its own signed. See Registry.CA.
func WithTLS() Option {
	return func(s *setup) { s.tls = true }
}

// WithCA is WithTLS with an authority that the test made, so that several
// registries can share one.
func WithCA(ca *CA) Option {
	return func(s *setup) { s.tls, s.ca = true, ca }
}

// WithBasicAuth makes the registry ask each request for a user and a password.
// The file has one user:password a line and is read anew for each request.
func WithBasicAuth(passwordFile string) Option {
	return func(s *setup) { s.passwordFile = passwordFile }
}

// WithTokenAuth makes the registry ask each request for a bearer token, and
// starts a token server that hands them out. See Tokens.
func WithTokenAuth(auth TokenAuth) Option {
	return func(s *setup) { s.tokens = &auth }
}

// Start returns a registry that listens.
func Start(t testing.TB, opts ...Option) *Registry {
	t.Helper()
	r := New(t, opts...)
	r.Listen()
	return r
}

// New returns a registry whose address is reserved but which does not listen
// yet. A token server, if there is one, listens already.
func New(t testing.TB, opts ...Option) *Registry {
	t.Helper()
	s := setup{addr: "127.0.0.1:0"}
	for _, opt := range opts {
		opt(&s)
	}
	if s.passwordFile != "" && s.tokens != nil {
		t.Fatalf("registry: WithBasicAuth and WithTokenAuth exclude each other")
	}
	if s.tls && s.ca == nil {
		s.ca = NewCA(t)
	}
	r := &Registry{ca: s.ca}
	var secure *tls.Config
	if s.tls {
		secure = s.ca.serverConfig(t)
	}
	r.app = newApp(t)
	r.Server = newServer(t, "registry", s.addr, secure, r.ca)
	r.handler = r.app
	switch {
	case s.passwordFile != "":
		r.handler = guard(basicAuth{file: s.passwordFile}, r.app)
	case s.tokens != nil:
		r.tokens = newTokenServer(t, *s.tokens, r.Host(), secure, r.ca)
		r.handler = guard(r.tokens, r.app)
	}
	return r
}

// CA returns the authority that signed the registry's certificate, nil if the
// registry serves plain HTTP.
func (r *Registry) CA() *CA { return r.ca }

// Tokens returns the token server, nil without WithTokenAuth.
func (r *Registry) Tokens() *TokenServer { return r.tokens }

// newApp returns distribution's handler over an empty store.
func newApp(t testing.TB) http.Handler {
	t.Helper()
	app, shutdown := handler(storeName, configuration.Parameters{})
	t.Cleanup(func() {
		if err := shutdown(); err != nil {
			t.Errorf("registry: shutting distribution down: %v", err)
		}
	})
	return app
}
