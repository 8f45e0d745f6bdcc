package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
)

// hub is a registry that answers as a test wants it to.
type hub struct {
	*httptest.Server
	host string

	mu        sync.Mutex
	blobs     map[digest.Digest][]byte
	manifests map[string][]byte // by tag or digest
	sessions  map[string][]byte // by the path of an upload
	fault     func(http.ResponseWriter, *http.Request) bool
}

func newHub(t *testing.T) *hub {
	t.Helper()
	h := unstartedHub()
	h.start(t)
	return h
}

func unstartedHub() *hub {
	h := &hub{blobs: map[digest.Digest][]byte{}, manifests: map[string][]byte{}, sessions: map[string][]byte{}}
	h.Server = httptest.NewUnstartedServer(h)
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	return h
}

func (h *hub) start(t *testing.T) {
	t.Helper()
	if h.TLS != nil {
		h.StartTLS()
	} else {
		h.Start()
	}
	t.Cleanup(h.Close)
	h.host = h.Listener.Addr().String()
}

// failing makes the requests that match fail with the answer until the next call.
func (h *hub) failing(method, path string, answer http.HandlerFunc) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if (method != "" && r.Method != method) || !strings.Contains(r.URL.Path, path) {
			return false
		}
		answer(w, r)
		return true
	}
}

// ServeHTTP implements http.Handler.
func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	fault := h.fault
	h.mu.Unlock()
	if fault != nil && fault(w, r) {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, last, _ := strings.Cut(r.URL.Path[1:], "/")
	last = last[strings.LastIndexByte(last, '/')+1:]
	switch {
	case r.URL.Path == "/v2/":
	case strings.Contains(r.URL.Path, "/blobs/uploads/"):
		h.upload(w, r, body)
	case strings.Contains(r.URL.Path, "/blobs/"):
		h.serve(w, r, h.blobs[digest.Digest(last)])
	case r.Method == http.MethodPut:
		h.manifests[last] = body
		h.manifests[digest.FromBytes(body).String()] = body
		w.WriteHeader(http.StatusCreated)
	default:
		m := h.manifests[last]
		if m != nil {
			w.Header().Set("Content-Type", manifest.GuessMIMEType(m))
			w.Header().Set("Docker-Content-Digest", digest.FromBytes(m).String())
		}
		h.serve(w, r, m)
	}
}

func (h *hub) upload(w http.ResponseWriter, r *http.Request, body []byte) {
	session := r.URL.Path
	switch r.Method {
	case http.MethodPost:
		session += fmt.Sprint(len(h.sessions))
		h.sessions[session] = nil
	case http.MethodPatch:
		h.sessions[session] = body
	case http.MethodPut:
		h.blobs[digest.Digest(r.URL.Query().Get("digest"))] = h.sessions[session]
		w.WriteHeader(http.StatusCreated)
		return
	}
	w.Header().Set("Location", session)
	w.WriteHeader(http.StatusAccepted)
}

func (*hub) serve(w http.ResponseWriter, r *http.Request, content []byte) {
	if content == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if r.Method != http.MethodHead {
		_, _ = w.Write(content)
	}
}

// add puts an image for an architecture under the tag, with one layer that holds
// a file of the tag's name, and returns its manifest and the descriptor of that.
func (h *hub) add(t *testing.T, tag, arch string) (imgspecv1.Descriptor, imgspecv1.Manifest) {
	t.Helper()
	return h.addFile(t, tag, arch, nil)
}

func (h *hub) addFile(t *testing.T, tag, arch string, content []byte) (imgspecv1.Descriptor, imgspecv1.Manifest) {
	t.Helper()
	var layer, packed bytes.Buffer
	archive := tar.NewWriter(&layer)
	header := &tar.Header{Name: tag, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}
	if err := errors.Join(archive.WriteHeader(header), second(archive.Write(content)), archive.Close()); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&packed)
	if err := errors.Join(second(z.Write(layer.Bytes())), z.Close()); err != nil {
		t.Fatal(err)
	}
	config := encode(t, imgspecv1.Image{
		Platform: imgspecv1.Platform{OS: "linux", Architecture: arch},
		RootFS:   imgspecv1.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(layer.Bytes())}},
	})
	m := imgspecv1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imgspecv1.MediaTypeImageManifest,
		Config: h.addBlob(imgspecv1.MediaTypeImageConfig, config),
		Layers: []imgspecv1.Descriptor{h.addBlob(imgspecv1.MediaTypeImageLayerGzip, packed.Bytes())},
	}
	d := h.addManifest(tag, m.MediaType, encode(t, m))
	d.Platform = &imgspecv1.Platform{OS: "linux", Architecture: arch}
	return d, m
}

func second(_ int, err error) error { return err }

func (h *hub) addBlob(mime string, content []byte) imgspecv1.Descriptor {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := digest.FromBytes(content)
	h.blobs[d] = content
	return imgspecv1.Descriptor{MediaType: mime, Digest: d, Size: int64(len(content))}
}

func (h *hub) addManifest(tag, mime string, content []byte) imgspecv1.Descriptor {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := digest.FromBytes(content)
	h.manifests[tag], h.manifests[d.String()] = content, content
	return imgspecv1.Descriptor{MediaType: mime, Digest: d, Size: int64(len(content))}
}

// otherArchitecture is one that this machine is not.
func otherArchitecture() string {
	if runtime.GOARCH == "s390x" {
		return "amd64"
	}
	return "s390x"
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// answer is a reply with a status and a body. A registry that limits the rate
// does not want a client of these tests to wait.
func answer(status int, mime, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", mime)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// hangUp closes the connection in place of an answer.
func hangUp(w http.ResponseWriter, _ *http.Request) { cut(w, "") }

// cutAnswer closes the connection within the body of an answer.
func cutAnswer(w http.ResponseWriter, _ *http.Request) {
	cut(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nthe beginning")
}

func cut(w http.ResponseWriter, before string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, before)
}

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{}
	a.cert, a.key = sign(t, nil, x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	})
	return a
}

// directory returns a directory with the authority's certificate, as --cert-dir
// names one.
func (a *authority) directory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir+"/ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})))
	return dir
}

// certify returns the configuration of a server with a certificate for an
// address or name, good until a time.
func (a *authority) certify(t *testing.T, name string, until time.Time) *tls.Config {
	t.Helper()
	template := x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: until.Add(-48 * time.Hour), NotAfter: until}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	cert, key := sign(t, a, template)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
}

func sign(t *testing.T, by *authority, template x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if by == nil {
		by = &authority{cert: &template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, by.cert, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// guard lets only the user in.
func (h *hub) guard(user, password string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if u, p, _ := r.BasicAuth(); u == user && p == password {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
}
