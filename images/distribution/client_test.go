package distribution

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
)

// server starts a server and returns its host.
func server(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func connect(t *testing.T, host string, change func(*Options)) *Client {
	t.Helper()
	o := Options{Host: host, Repository: "os/x", PlainHTTP: true, User: "robot", Password: "word"}
	if change != nil {
		change(&o)
	}
	c, err := Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func wantStatus(t *testing.T, err error, status int) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status {
		t.Fatalf("error %v, want one of status %d", err, status)
	}
	return e
}

// uploads is a registry that takes an upload of one blob.
func uploads(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
		w.Header().Set("Location", "/upload")
		w.WriteHeader(http.StatusAccepted)
	case http.MethodPatch:
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusAccepted)
	case http.MethodPut:
		w.WriteHeader(http.StatusCreated)
	}
}

// stream is a body that cannot be read twice.
func stream(text string) io.Reader { return io.MultiReader(strings.NewReader(text)) }

func TestConnectToARegistryThatSaysNothing(t *testing.T) {
	release := make(chan struct{})
	host := server(t, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	_, err := Connect(t.Context(), Options{Host: host, PlainHTTP: true, Stall: 100 * time.Millisecond})
	if !errors.Is(err, ErrStalled) {
		t.Errorf("error %v", err)
	}
}

// TestConnectAgainstABreak is of a registry that speaks https, one connection to
// which breaks: that it answers http with 400 does not make it one of http.
func TestConnectAgainstABreak(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(uploads))
	defer s.Close()
	var dialed atomic.Int32
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if dialed.Add(1) == 1 {
				_ = c.Close()
				continue
			}
			up, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(up, c) }()
			go func() { _, _ = io.Copy(c, up) }()
		}
	}()
	o := Options{Host: l.Addr().String(), Repository: "os/x", PlainHTTP: true, TLS: &tls.Config{InsecureSkipVerify: true}}
	_, err = Connect(t.Context(), o)
	var answer *Error
	if err == nil || errors.As(err, &answer) {
		t.Fatalf("error %v, want that of the connection", err)
	}
	c, err := Connect(t.Context(), o)
	if err != nil || c.base.Scheme != "https" {
		t.Fatalf("error %v, want a connection by https", err)
	}
}

func TestCredentialsAreForTheRegistryAlone(t *testing.T) {
	var seen atomic.Value
	store := server(t, func(w http.ResponseWriter, r *http.Request) {
		if h := r.Header.Get("Authorization"); h != "" {
			seen.Store(h)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="store"`)
		w.WriteHeader(http.StatusUnauthorized)
	})
	host := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.Header().Set("Location", "http://"+store+"/up?sig=abc")
			w.WriteHeader(http.StatusAccepted)
		}
	})
	c := connect(t, host, nil)
	if err := c.CheckPush(t.Context()); err != nil {
		t.Error(err)
	}
	_, _, err := c.PutBlob(t.Context(), stream("text"), "", -1)
	if e := wantStatus(t, err, http.StatusUnauthorized); e.Host != store {
		t.Errorf("host %s, want the store", e.Host)
	}
	if got := seen.Load(); got != nil {
		t.Errorf("the store got %v", got)
	}
}

func TestLocationOfHTTPIsReachedByHTTPS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.Header().Set("Location", "http://"+r.Host+"/upload")
			w.WriteHeader(http.StatusAccepted)
			return
		}
		uploads(w, r)
	}))
	defer s.Close()
	c := connect(t, s.Listener.Addr().String(), func(o *Options) {
		o.TLS = &tls.Config{InsecureSkipVerify: true}
	})
	if _, _, err := c.PutBlob(t.Context(), stream("text"), "", -1); err != nil {
		t.Error(err)
	}
}

func TestUploadThatWouldHaveToBeSentAgain(t *testing.T) {
	for name, refuse := range map[string]http.HandlerFunc{
		"token that ran out": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPatch {
					uploads(w, r)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				refuse(w, r)
			}), nil)
			if _, _, err := c.PutBlob(t.Context(), stream("text"), "", -1); !errors.Is(err, ErrSentInPart) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestUploadToARegistryThatExpectsNothing(t *testing.T) {
	c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") != "" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		uploads(w, r)
	}), nil)
	got, n, err := c.PutBlob(t.Context(), stream("text"), "", -1)
	if err != nil || n != 4 || got != digest.FromString("text") {
		t.Errorf("%s, %d bytes, error %v", got, n, err)
	}
}

func TestUploadIsTakenWithAnyStatusOfSuccess(t *testing.T) {
	for _, status := range []int{200, 201, 202, 204} {
		c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				uploads(w, r)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
		}), nil)
		if _, _, err := c.PutBlob(t.Context(), stream("text"), "", -1); err != nil {
			t.Errorf("status %d: %v", status, err)
		}
		if err := c.PutManifest(t.Context(), "1", "text/plain", []byte("{}")); err != nil {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

func TestSeveralChallenges(t *testing.T) {
	for name, challenges := range map[string][]string{
		"one header":  {`Negotiate, Basic realm="r"`},
		"two headers": {"Negotiate", `Basic realm="r"`},
		"in front":    {`Basic realm="r", Negotiate`},
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
				if _, password, _ := r.BasicAuth(); password != "word" {
					w.Header()["Www-Authenticate"] = challenges
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				uploads(w, r)
			}), nil)
			if err := c.CheckPush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	both := `Basic realm="r", Bearer realm="http://token.example/",service="s", Negotiate`
	if got, want := challenge(both), `Bearer realm="http://token.example/",service="s", Negotiate`; got != want {
		t.Errorf("of %q: %q, want %q", both, got, want)
	}
}

func TestCredentialWithoutAPassword(t *testing.T) {
	c := connect(t, server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
		w.WriteHeader(http.StatusUnauthorized)
	}), func(o *Options) { o.Password = "" })
	wantStatus(t, c.CheckPush(t.Context()), http.StatusUnauthorized)
}

func TestWishOfATokenServer(t *testing.T) {
	var host string
	host = server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			w.Header().Set("Retry-After", "5")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=\"s\"", (&url.URL{Scheme: "http", Host: host, Path: "/token"}).String()))
		w.WriteHeader(http.StatusUnauthorized)
	})
	e := wantStatus(t, connect(t, host, nil).CheckPush(t.Context()), http.StatusServiceUnavailable)
	if e.RetryAfter != 5*time.Second {
		t.Errorf("to be left alone for %v, want 5s", e.RetryAfter)
	}
}

func TestDigestFromARegistryThatTakesNoHead(t *testing.T) {
	c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}), nil)
	if got, err := c.ManifestDigest(t.Context(), "1", nil); err != nil || got != digest.FromString("{}") {
		t.Errorf("%s, error %v", got, err)
	}
}

func TestErrorWhoseBodyDoesNotEnd(t *testing.T) {
	release := make(chan struct{})
	c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return
		}
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "be")
		_ = http.NewResponseController(w).Flush()
		<-release
	}), nil)
	defer close(release)
	if e := wantStatus(t, c.CheckPush(t.Context()), http.StatusServiceUnavailable); e.RetryAfter != 7*time.Second {
		t.Errorf("to be left alone for %v, want 7s", e.RetryAfter)
	}
}

// TestSlowUploadIsNoStall is of a registry that reads steadily, if slowly: 800 kB/s.
func TestSlowUploadIsNoStall(t *testing.T) {
	c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			for {
				time.Sleep(50 * time.Millisecond)
				if _, err := io.CopyN(io.Discard, r.Body, 40<<10); err != nil {
					break
				}
			}
		}
		uploads(w, r)
	}), func(o *Options) { o.Stall = 2 * time.Second })
	if _, _, err := c.PutBlob(t.Context(), stream(strings.Repeat("x", 6<<20)), "", 6<<20); err != nil {
		t.Error(err)
	}
}

func TestLocationOfTheRegistryItself(t *testing.T) {
	for _, tt := range []struct{ base, location, want string }{
		{"https://r.example", "https://r.example:443/up", "https://r.example/up"},
		{"https://r.example:443", "https://r.example/up", "https://r.example:443/up"},
		{"http://r.example", "http://r.example:80/up", "http://r.example/up"},
		{"https://r.example", "http://r.example/up", "https://r.example/up"},
		{"https://r.example", "/up", "https://r.example/up"},
		{"https://r.example", "https://r.example:8443/up", "https://r.example:8443/up"},
		{"https://r.example", "http://r.example:80/up", "http://r.example:80/up"},
		{"http://r.example:5000", "https://r.example:5000/up", "https://r.example:5000/up"},
		{"https://r.example", "https://store.example/up", "https://store.example/up"},
	} {
		base, err := url.Parse(tt.base)
		if err != nil {
			t.Fatal(err)
		}
		c := &Client{base: *base}
		resp := &http.Response{Header: http.Header{"Location": {tt.location}}, Request: &http.Request{URL: base}}
		if got, err := c.location(resp); err != nil || got.String() != tt.want {
			t.Errorf("from %s to %s: %v, error %v; want %s", tt.base, tt.location, got, err, tt.want)
		}
	}
}

// TestConnectionsAreKept has requests that are made at once, twice: the second time they
// find the connections of the first.
func TestConnectionsAreKept(t *testing.T) {
	const atOnce = 6
	var opened atomic.Int32
	all := make(chan struct{}) // is closed when all are there
	var waiting atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/") && waiting.Add(1) == atOnce {
			close(all)
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			<-all
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	c := connect(t, s.Listener.Addr().String(), nil)
	for round := range 2 {
		before := opened.Load()
		waiting.Store(0)
		all = make(chan struct{})
		var asked sync.WaitGroup
		for range atOnce {
			asked.Go(func() {
				if _, _, err := c.HasBlob(t.Context(), digest.FromString("x")); err != nil {
					t.Error(err)
				}
			})
		}
		asked.Wait()
		if n := opened.Load() - before; round > 0 && n > 0 {
			t.Errorf("%d connections were opened, want those that there were", n)
		}
	}
}
