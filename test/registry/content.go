package registry

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// Inside returns a transport that hands requests straight to distribution,
// whatever their host: past record, faults and authentication, and whether or
// not the registry listens. With it a test prepares or inspects the content.
func (r *Registry) Inside() http.RoundTripper { return inside{r.app} }

type inside struct{ app http.Handler }

func (i inside) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	defer in.Body.Close()
	if in.Host == "" {
		in.Host = in.URL.Host
	}
	in.RequestURI = in.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	reply := httptest.NewRecorder()
	i.app.ServeHTTP(reply, in)
	res := reply.Result()
	if in.Method == http.MethodHead {
		res.Body = http.NoBody
	}
	res.Request = req
	return res, nil
}

// manifestTypes are the kinds of manifests that the content may have.
var manifestTypes = []string{
	"application/vnd.oci.image.manifest.v1+json",
	"application/vnd.oci.image.index.v1+json",
	"application/vnd.docker.distribution.manifest.v2+json",
	"application/vnd.docker.distribution.manifest.list.v2+json",
}

// Digest returns the digest of the manifest or index that a tag names. It fails
// the test if there is none.
func (r *Registry) Digest(t testing.TB, repo, tag string) string {
	t.Helper()
	res, _ := r.look(t, http.MethodHead, "/v2/"+repo+"/manifests/"+tag)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("registry: manifest of %s:%s: %s", repo, tag, res.Status)
	}
	digest := res.Header.Get("Docker-Content-Digest")
	if digest == "" {
		t.Fatalf("registry: manifest of %s:%s: no Docker-Content-Digest", repo, tag)
	}
	return digest
}

// Has tells whether there is a manifest or an index by this tag or digest.
func (r *Registry) Has(t testing.TB, repo, ref string) bool {
	t.Helper()
	return r.exists(t, "/v2/"+repo+"/manifests/"+ref)
}

// HasBlob tells whether the repository has a blob.
func (r *Registry) HasBlob(t testing.TB, repo, digest string) bool {
	t.Helper()
	return r.exists(t, "/v2/"+repo+"/blobs/"+digest)
}

func (r *Registry) exists(t testing.TB, path string) bool {
	t.Helper()
	res, _ := r.look(t, http.MethodHead, path)
	switch res.StatusCode {
	case http.StatusOK:
		return true
	case http.StatusNotFound:
		return false
	}
	t.Fatalf("registry: HEAD %s: %s", path, res.Status)
	return false
}

// Tags returns the repository's tags in lexical order, none if there is no such
// repository.
func (r *Registry) Tags(t testing.TB, repo string) []string {
	t.Helper()
	res, body := r.look(t, http.MethodGet, "/v2/"+repo+"/tags/list")
	switch res.StatusCode {
	case http.StatusNotFound:
		return nil
	case http.StatusOK:
	default:
		t.Fatalf("registry: tags of %s: %s", repo, res.Status)
	}
	var list struct{ Tags []string }
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatalf("registry: tags of %s: %v", repo, err)
	}
	return list.Tags
}

// Delete takes a tag away, or a manifest with all its tags if ref is a digest.
// It fails the test if there is none.
func (r *Registry) Delete(t testing.TB, repo, ref string) {
	t.Helper()
	res, body := r.look(t, http.MethodDelete, "/v2/"+repo+"/manifests/"+ref)
	if res.StatusCode != http.StatusAccepted {
		t.Fatalf("registry: deleting %s of %s: %s: %s", ref, repo, res.Status, body)
	}
}

func (r *Registry) look(t testing.TB, method, path string) (*http.Response, []byte) {
	t.Helper()
	req := &http.Request{
		Method: method,
		URL:    &url.URL{Scheme: "http", Host: r.Host(), Path: path},
		Header: http.Header{"Accept": manifestTypes},
	}
	res, err := r.Inside().RoundTrip(req)
	if err != nil {
		t.Fatalf("registry: %s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("registry: %s %s: %v", method, path, err)
	}
	return res, body
}
