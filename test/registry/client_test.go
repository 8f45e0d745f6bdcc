package registry_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/strata-build/strata/test/registry"
)

// patience is how long a test waits for what should happen at once.
const patience = 20 * time.Second

// content returns n bytes that are the same each time.
func content(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func digestOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// seed puts a blob into a repository behind the registry's front and returns its
// URL at the front.
func seed(t *testing.T, r *registry.Registry, repo string, blob []byte) string {
	t.Helper()
	inside := &http.Client{Transport: r.Inside()}
	res := send(t, inside, http.MethodPost, r.URL()+"/v2/"+repo+"/blobs/uploads/", nil)
	wantStatus(t, res, http.StatusAccepted)
	place := res.Header.Get("Location") + "&digest=" + digestOf(blob)
	wantStatus(t, send(t, inside, http.MethodPut, place, bytes.NewReader(blob)), http.StatusCreated)
	return r.URL() + "/v2/" + repo + "/blobs/" + digestOf(blob)
}

// beginUpload returns the URL of a new upload.
func beginUpload(t *testing.T, r *registry.Registry, repo string) string {
	t.Helper()
	res := send(t, &http.Client{Transport: r.Inside()}, http.MethodPost, r.URL()+"/v2/"+repo+"/blobs/uploads/", nil)
	wantStatus(t, res, http.StatusAccepted)
	return res.Header.Get("Location")
}

func send(t *testing.T, c *http.Client, method, url string, body io.Reader, header ...string) *http.Response {
	t.Helper()
	res, err := try(t, c, method, url, body, header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return res
}

// try sends a request; header has keys and values in turn. The reply's body is
// closed when the test ends.
func try(t *testing.T, c *http.Client, method, url string, body io.Reader, header ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	if err == nil {
		t.Cleanup(func() { res.Body.Close() })
	}
	return res, err
}

func wantStatus(t *testing.T, res *http.Response, status int) {
	t.Helper()
	if res.StatusCode != status {
		body, _ := io.ReadAll(res.Body)
		t.Fatalf("%s %s: status %d, want %d: %s", res.Request.Method, res.Request.URL, res.StatusCode, status, body)
	}
}

func read(t *testing.T, res *http.Response) []byte {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("reading the reply: %v", err)
	}
	return body
}

// once returns a client that makes a new connection for each request, so that
// it repeats none by itself.
func once(r *registry.Registry) *http.Client {
	transport := r.Transport()
	transport.DisableKeepAlives = true
	return &http.Client{Transport: transport}
}

// wantReset fails the test unless err comes from a connection that was reset.
func wantReset(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("error %v, want a connection reset", err)
	}
}

// wantCut is wantReset for a client that was sending a body. It may notice the
// reset in other ways: one half of it writes into the broken connection, or finds
// it closed by the other half.
func wantCut(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) {
		wantReset(t, err)
	}
}

// last returns the last request on record.
func last(t *testing.T, s *registry.Server) registry.Request {
	t.Helper()
	all := s.Requests()
	if len(all) == 0 {
		t.Fatal("no request on record")
	}
	return all[len(all)-1]
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// inTime fails the test if a function takes longer than patience.
func inTime(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("not done within %v: %s", patience, what)
	}
}

func randomImage(t *testing.T) v1.Image {
	t.Helper()
	img, err := random.Image(4096, 2)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func imageDigest(t *testing.T, img v1.Image) string {
	t.Helper()
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest.String()
}

func reference(t *testing.T, r *registry.Registry, rest string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(r.Host() + "/" + rest)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// from returns the options with which go-containerregistry reaches a registry.
// It tries again at once what failed for reasons of the network.
func from(r *registry.Registry, more ...remote.Option) []remote.Option {
	return append([]remote.Option{
		remote.WithTransport(r.Transport()),
		remote.WithRetryBackoff(remote.Backoff{Duration: time.Millisecond, Factor: 1, Steps: 3}),
	}, more...)
}

func push(t *testing.T, r *registry.Registry, rest string, img v1.Image, more ...remote.Option) {
	t.Helper()
	if err := remote.Write(reference(t, r, rest), img, from(r, more...)...); err != nil {
		t.Fatalf("pushing %s: %v", rest, err)
	}
}

// readLayers reads all layers of an image.
func readLayers(img v1.Image) error {
	layers, err := img.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		c, err := l.Compressed()
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.Copy(io.Discard, c); err != nil {
			return err
		}
	}
	return nil
}

func wantContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q lacks %q", text, part)
		}
	}
}
