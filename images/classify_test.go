package images

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/distribution/registry/api/errcode"
	v2 "github.com/docker/distribution/registry/api/v2"
	specs "github.com/opencontainers/image-spec/specs-go"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

const htmlPage = "<html>\n<head><title>Sorry</title></head>\n<body>nginx says\nno</body>\n</html>\n"

// errorBody is what a registry answers by the distribution specification.
func errorBody(code, message string) string {
	return fmt.Sprintf(`{"errors":[{"code":%q,"message":%q}]}`, code, message)
}

// courier moves an image from and to a hub as a build does.
type courier struct {
	*bench
	hub    *hub
	id     string // of an image in the store
	stored string // its name
	origin *hub   // where it came from
}

func newCourier(t *testing.T, change ...func(*Config)) *courier {
	t.Helper()
	c := &courier{bench: open(t, change...), hub: newHub(t)}
	origin := newHub(t) // another one, so that a push has everything to send
	origin.add(t, "stored", runtime.GOARCH)
	c.origin, c.stored = origin, origin.host+"/base:stored"
	if _, err := c.Pull(t.Context(), "Containerfile", Base{Name: c.stored}, ""); err != nil {
		t.Fatalf("pulling the image of the test: %v", err)
	}
	images, err := c.store.Images()
	if err != nil || len(images) != 1 {
		t.Fatalf("the store has %d images (%v), want 1", len(images), err)
	}
	c.id = images[0].ID
	return c
}

// wantSignatures makes the policy ask for a signature of what is in the hub, which
// makes containers/image the one that reads it. It returns c.
func (c *courier) wantSignatures(t *testing.T) *courier {
	t.Helper()
	c.sys.SignaturePolicyPath = write(t, t.TempDir()+"/policy.json", fmt.Sprintf(
		`{"default":[{"type":"insecureAcceptAnything"}],"transports":{"docker":{%q:[{"type":"signedBy","keyType":"GPGKeys","keyPath":"/no/such"}]}}}`, c.hub.host))
	return c
}

// clients are those that a pull is made with.
var clients = map[string]func(*courier, *testing.T) *courier{
	"own":     func(c *courier, _ *testing.T) *courier { return c },
	"library": (*courier).wantSignatures,
	"staged": func(c *courier, t *testing.T) *courier { // where layers are put into the store one by one
		t.Helper()
		config := c.config
		c.bench = open(t, func(o *Config) {
			config.StorageRoot, config.StorageDriver, config.Output = o.StorageRoot, driverOverlay, o.Output
			*o = config
		})
		return c
	},
}

// pull fails to pull an image that is in no store yet.
func (c *courier) pull(t *testing.T, ref string) *Error {
	t.Helper()
	_, err := c.Pull(t.Context(), "Containerfile", Base{Name: ref, Line: 3, From: true}, "")
	return mustFail(t, err)
}

// push fails to push the image in the store.
func (c *courier) push(t *testing.T, ref string) *Error {
	t.Helper()
	d, err := RegistryDestination(ref)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Push(t.Context(), c.id, d, Compression{}, "")
	return mustFail(t, err)
}

func mustFail(t *testing.T, err error) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error %v, want an *Error", err)
	}
	return e
}

// wantMeaning checks what an error means and that its message is one line that
// names the host and what it answered.
func wantMeaning(t *testing.T, e *Error, class result.Class, reason result.Reason, status int, host string) {
	t.Helper()
	if e.Class != class || e.Reason != reason || e.Status != status {
		t.Errorf("%s, %s, status %d; want %s, %s, status %d\nmessage: %s", e.Class, e.Reason, e.Status, class, reason, status, e.Message)
	}
	if e.Host != host {
		t.Errorf("host %q, want %q", e.Host, host)
	}
	wants := []string{host}
	if status != 0 {
		wants = append(wants, fmt.Sprint(status))
		if class != result.ClassAuth {
			wants = append(wants, http.StatusText(status))
		}
	}
	for _, want := range wants {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the message does not have %q: %s", want, e.Message)
		}
	}
	if strings.ContainsAny(e.Message, "\n\r") {
		t.Errorf("the message has more than one line: %q", e.Message)
	}
}

// statuses is what an answer without a code of the specification means.
var statuses = []struct {
	status              int
	pulled, pushed      result.Class
	pullReason, pushing result.Reason
}{
	{400, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{401, result.ClassAuth, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized},
	{403, result.ClassAuth, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushDenied},
	{404, result.ClassInput, result.ClassRejected, result.ReasonBaseImageNotFound, result.ReasonPushRejected},
	{405, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{408, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{409, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{413, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{415, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{429, result.ClassTransient, result.ClassTransient, result.ReasonRateLimited, result.ReasonRateLimited},
	{500, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{501, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{502, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{503, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{504, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{507, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{511, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
}

// bodies is what stands behind a status when it is not the registry that answers.
var bodies = []struct{ name, mime, body string }{
	{"empty", "text/plain", ""},
	{"HTML", "text/html", htmlPage},
	{"JSON without errors", "application/json", `{"message":"no"}`},
}

// uploads are the requests of a push, in order.
var uploads = []struct{ name, method, path string }{
	{"blob POST", http.MethodPost, "/blobs/uploads/"},
	{"blob PATCH", http.MethodPatch, "/blobs/uploads/"},
	{"blob PUT", http.MethodPut, "/blobs/uploads/"},
	{"manifest PUT", http.MethodPut, "/manifests/"},
}

func TestStatusOfAPull(t *testing.T) {
	for name, client := range clients {
		c := client(newCourier(t, insecure), t)
		for _, s := range statuses {
			for _, b := range bodies {
				t.Run(fmt.Sprintf("%s %d %s", name, s.status, b.name), func(t *testing.T) {
					c.hub.failing(http.MethodGet, "/manifests/", answer(s.status, b.mime, b.body))
					wantMeaning(t, c.pull(t, c.hub.host+"/base:none"), s.pulled, s.pullReason, s.status, c.hub.host)
				})
			}
		}
	}
}

func TestStatusOfABlobThatIsPulled(t *testing.T) {
	c := newCourier(t, insecure)
	c.hub.add(t, "2", "")
	for _, s := range statuses {
		t.Run(fmt.Sprint(s.status), func(t *testing.T) {
			c.hub.failing(http.MethodGet, "/blobs/", answer(s.status, "text/html", htmlPage))
			wantMeaning(t, c.pull(t, c.hub.host+"/base:2"), s.pulled, s.pullReason, s.status, c.hub.host)
		})
	}
}

func TestStatusOfAPush(t *testing.T) {
	c := newCourier(t, insecure)
	for _, u := range uploads {
		for _, s := range statuses {
			for _, b := range bodies {
				t.Run(fmt.Sprintf("%s %d %s", u.name, s.status, b.name), func(t *testing.T) {
					c.hub.failing(u.method, u.path, answer(s.status, b.mime, b.body))
					class, reason := s.pushed, s.pushing
					if s.status == http.StatusNotFound && (u.name == "blob PATCH" || u.name == "blob PUT") {
						class, reason = result.ClassTransient, result.ReasonRegistryUnavailable // the upload was lost
					}
					wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), class, reason, s.status, c.hub.host)
				})
			}
		}
	}
	for _, s := range statuses {
		if s.status == http.StatusNotFound {
			continue // the blob is not there, which is no failure
		}
		t.Run(fmt.Sprintf("blob HEAD %d", s.status), func(t *testing.T) {
			c.hub.failing(http.MethodHead, "/blobs/", answer(s.status, "text/plain", ""))
			wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), s.pushed, s.pushing, s.status, c.hub.host)
		})
	}
}

// codes is what the error codes of the distribution specification mean, each
// with the status that registries send with it.
var codes = []struct {
	code                string
	status              int
	pulled, pushed      result.Class
	pullReason, pushing result.Reason
}{
	{"BLOB_UNKNOWN", 404, result.ClassInput, result.ClassTransient, result.ReasonBaseImageNotFound, result.ReasonRegistryUnavailable},
	{"BLOB_UPLOAD_INVALID", 404, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{"BLOB_UPLOAD_UNKNOWN", 404, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	{"DIGEST_INVALID", 400, result.ClassTransient, result.ClassTransient, result.ReasonDigestMismatch, result.ReasonDigestMismatch},
	{"MANIFEST_BLOB_UNKNOWN", 400, result.ClassRejected, result.ClassTransient, result.ReasonPullFailed, result.ReasonRegistryUnavailable},
	{"MANIFEST_INVALID", 400, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{"MANIFEST_UNVERIFIED", 400, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{"MANIFEST_UNKNOWN", 404, result.ClassInput, result.ClassRejected, result.ReasonBaseImageNotFound, result.ReasonPushRejected},
	{"NAME_INVALID", 400, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{"NAME_UNKNOWN", 404, result.ClassInput, result.ClassRejected, result.ReasonBaseImageNotFound, result.ReasonPushRejected},
	{"SIZE_INVALID", 400, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{"TAG_INVALID", 400, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{"UNAUTHORIZED", 401, result.ClassAuth, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized},
	{"DENIED", 403, result.ClassAuth, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushDenied},
	{"UNSUPPORTED", 405, result.ClassRejected, result.ClassRejected, result.ReasonPullFailed, result.ReasonPushRejected},
	{"TOOMANYREQUESTS", 429, result.ClassTransient, result.ClassTransient, result.ReasonRateLimited, result.ReasonRateLimited},
	{"UNAVAILABLE", 503, result.ClassTransient, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
}

func TestCodeOfAPull(t *testing.T) {
	for name, client := range clients {
		c := client(newCourier(t, insecure), t)
		for _, s := range codes {
			t.Run(name+" "+s.code, func(t *testing.T) {
				c.hub.failing(http.MethodGet, "/manifests/", answer(s.status, "application/json", errorBody(s.code, "as the registry says")))
				wantMeaning(t, c.pull(t, c.hub.host+"/base:none"), s.pulled, s.pullReason, s.status, c.hub.host)
			})
		}
	}
}

func TestCodeOfAPush(t *testing.T) {
	c := newCourier(t, insecure)
	for _, u := range uploads {
		for _, s := range codes {
			t.Run(u.name+" "+s.code, func(t *testing.T) {
				c.hub.failing(u.method, u.path, answer(s.status, "application/json", errorBody(s.code, "as the registry says")))
				wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), s.pushed, s.pushing, s.status, c.hub.host)
			})
		}
	}
}

// Registries have codes of their own, from which containers/image drops the
// status. Only an answer from 400 to 499 has a code that it reads.
func TestCodeThatIsNotOfTheSpecification(t *testing.T) {
	c := newCourier(t, insecure)
	for _, s := range []struct {
		name   string
		status int
		body   string
		class  result.Class
		reason result.Reason
		told   int
	}{
		{"Harbor has no such artifact", 404, errorBody("NOT_FOUND", "artifact os/base:none not found"), result.ClassInput, result.ReasonBaseImageNotFound, 404},
		{"registry.redhat.io has no such image", 404, errorBody("UNKNOWN", "Not Found"), result.ClassInput, result.ReasonBaseImageNotFound, 404},
		{"a code without a meaning", 400, errorBody("WHATEVER", "malformed"), result.ClassRejected, result.ReasonPullFailed, 400},
	} {
		t.Run("pull: "+s.name, func(t *testing.T) {
			c.hub.failing(http.MethodGet, "/manifests/", answer(s.status, "application/json", s.body))
			wantMeaning(t, c.pull(t, c.hub.host+"/base:none"), s.class, s.reason, s.told, c.hub.host)
		})
	}
	for _, s := range []struct {
		name   string
		status int
		body   string
	}{
		{"Harbor keeps the tag as it is", 412, errorBody("PRECONDITION", "Failed to process request due to 'immutable' policy")},
		{"a conflict", 409, errorBody("CONFLICT", "tag 1 is immutable")},
		{"too large", 413, errorBody("PAYLOAD_TOO_LARGE", "the layer is too large")},
	} {
		t.Run("push: "+s.name, func(t *testing.T) {
			c.hub.failing(http.MethodPut, "/manifests/", answer(s.status, "application/json", s.body))
			wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), result.ClassRejected, result.ReasonPushRejected, s.status, c.hub.host)
		})
	}
}

// What a registry says of its own disk is not said of the disk of this machine.
func TestRegistryWithoutSpaceIsNoLackOfSpaceHere(t *testing.T) {
	c := newCourier(t, insecure)
	for _, s := range []struct {
		name   string
		answer http.HandlerFunc
		class  result.Class
		reason result.Reason
		status int
	}{
		{"413 in text", answer(413, "text/plain", "no space left on device"), result.ClassRejected, result.ReasonPushRejected, 413},
		{"403 by quota", answer(403, "application/json", errorBody("DENIED", "disk quota exceeded")), result.ClassAuth, result.ReasonPushDenied, 403},
	} {
		t.Run(s.name, func(t *testing.T) {
			c.hub.failing(http.MethodPatch, "/blobs/", s.answer)
			wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), s.class, s.reason, s.status, c.hub.host)
		})
	}
}

func TestPageOfHTMLStaysOutOfTheMessage(t *testing.T) {
	c := newCourier(t, insecure)
	c.hub.failing(http.MethodGet, "/manifests/", answer(404, "text/html", htmlPage))
	pulled := c.pull(t, c.hub.host+"/base:none")
	c.hub.failing(http.MethodPatch, "/blobs/", answer(413, "text/html", htmlPage))
	for _, e := range []*Error{pulled, c.push(t, c.hub.host+"/os/layered:1")} {
		if strings.Contains(e.Message, "<html>") {
			t.Errorf("the message has a page of HTML in it: %s", e.Message)
		}
	}
}

func TestPingThatFails(t *testing.T) {
	c := newCourier(t, insecure)
	c.hub.failing(http.MethodGet, "/v2/", answer(503, "text/html", htmlPage))
	wantMeaning(t, c.pull(t, c.hub.host+"/base:none"), result.ClassTransient, result.ReasonRegistryUnavailable, 503, c.hub.host)
	wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), result.ClassTransient, result.ReasonRegistryUnavailable, 503, c.hub.host)
}

func TestTokenServerThatFails(t *testing.T) {
	tokens := newHub(t)
	c := newCourier(t, insecure)
	c.hub.failing("", "/v2/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://%s/token",service="x"`, tokens.host))
		w.WriteHeader(http.StatusUnauthorized)
	})
	for _, s := range []struct {
		status int
		class  result.Class
		pull   result.Reason
		push   result.Reason
	}{
		{401, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized},
		{403, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushDenied},
		{429, result.ClassTransient, result.ReasonRateLimited, result.ReasonRateLimited},
		{502, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable},
	} {
		t.Run(fmt.Sprint(s.status), func(t *testing.T) {
			tokens.failing(http.MethodGet, "/token", answer(s.status, "text/html", htmlPage))
			wantMeaning(t, c.pull(t, c.hub.host+"/base:none"), s.class, s.pull, s.status, c.hub.host)
			wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), s.class, s.push, s.status, c.hub.host)
		})
	}
}

func TestConnectionThatBreaks(t *testing.T) {
	c := newCourier(t, insecure)
	c.hub.add(t, "2", "")
	for _, s := range []struct {
		name, method, path string
		answer             http.HandlerFunc
	}{
		{"before the answer to a manifest GET", http.MethodGet, "/manifests/", hangUp},
		{"within a manifest", http.MethodGet, "/manifests/", cutAnswer},
		{"before the answer to a blob GET", http.MethodGet, "/blobs/", hangUp},
	} {
		t.Run("pull: "+s.name, func(t *testing.T) {
			c.hub.failing(s.method, s.path, s.answer)
			wantMeaning(t, c.pull(t, c.hub.host+"/base:2"), result.ClassTransient, result.ReasonRegistryUnavailable, 0, c.hub.host)
		})
	}
	t.Run("pull: within a blob, for good", func(t *testing.T) {
		c.hub.failing(http.MethodGet, "/blobs/", cutAnswer)
		wantMeaning(t, c.pull(t, c.hub.host+"/base:2"), result.ClassTransient, result.ReasonRegistryUnavailable, 0, c.hub.host)
	})
	for _, u := range uploads {
		t.Run("push: before the answer to a "+u.name, func(t *testing.T) {
			c.hub.failing(u.method, u.path, hangUp)
			wantMeaning(t, c.push(t, c.hub.host+"/os/layered:1"), result.ClassTransient, result.ReasonRegistryUnavailable, 0, c.hub.host)
		})
	}
}

func TestRegistryThatIsNotThere(t *testing.T) {
	c := newCourier(t, insecure)
	c.sys.DockerInsecureSkipTLSVerify = types.OptionalBoolFalse
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	listener.Close()
	for _, s := range []struct{ name, host, text string }{
		{"refused port", closed, "connection refused"},
		{"unknown host", "x.invalid", "x.invalid"},
	} {
		t.Run(s.name, func(t *testing.T) {
			for _, e := range []*Error{c.pull(t, s.host+"/base:1"), c.push(t, s.host+"/os/layered:1")} {
				wantMeaning(t, e, result.ClassTransient, result.ReasonRegistryUnavailable, 0, s.host)
				if !strings.Contains(e.Message, s.text) {
					t.Errorf("the message does not have %q: %s", s.text, e.Message)
				}
			}
		})
	}
}

func TestCertificateThatIsNotTrusted(t *testing.T) {
	c := newCourier(t, insecure)
	c.sys.DockerInsecureSkipTLSVerify = types.OptionalBoolFalse
	ca, stranger := newAuthority(t, "Known Authority"), newAuthority(t, "Strange Authority")
	c.sys.DockerCertPath = ca.directory(t)
	tomorrow := time.Now().Add(24 * time.Hour)
	for _, s := range []struct {
		name string
		tls  *tls.Config
		text string
	}{
		{"unknown authority", stranger.certify(t, "127.0.0.1", tomorrow), "unknown authority"},
		{"other host name", ca.certify(t, "other.example", tomorrow), "IP SANs"},
		{"other address", ca.certify(t, "127.0.0.2", tomorrow), "127.0.0.2"},
		{"expired", ca.certify(t, "127.0.0.1", time.Now().Add(-time.Hour)), "expired"},
		{"not TLS at all", nil, "HTTP response to HTTPS client"},
	} {
		t.Run(s.name, func(t *testing.T) {
			h := unstartedHub()
			h.TLS = s.tls
			h.start(t)
			h.add(t, "1", runtime.GOARCH)
			for _, e := range []*Error{c.pull(t, h.host+"/base:1"), c.push(t, h.host+"/os/layered:1")} {
				wantMeaning(t, e, result.ClassAuth, result.ReasonCertificateUntrusted, 0, h.host)
				if !strings.Contains(e.Message, s.text) {
					t.Errorf("the message does not have %q: %s", s.text, e.Message)
				}
			}
		})
	}
	t.Run("unknown authority: its name, and where others were looked for", func(t *testing.T) {
		h := unstartedHub()
		h.TLS = stranger.certify(t, "127.0.0.1", tomorrow)
		h.start(t)
		for _, e := range []*Error{c.pull(t, h.host+"/base:1"), c.push(t, h.host+"/os/layered:1")} {
			for _, want := range []string{"Strange Authority", c.sys.DockerCertPath} {
				if !strings.Contains(e.Message, want) {
					t.Errorf("the message does not have %q: %s", want, e.Message)
				}
			}
		}
	})
	t.Run("trusted", func(t *testing.T) {
		h := unstartedHub()
		h.TLS = ca.certify(t, "127.0.0.1", tomorrow)
		h.start(t)
		h.add(t, "1", runtime.GOARCH)
		if _, err := c.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1"}, ""); err != nil {
			t.Errorf("pulling from a registry with a certificate of the authority: %v", err)
		}
	})
}

func TestDigestThatDoesNotMatch(t *testing.T) {
	c := newCourier(t, insecure)
	d, m := c.hub.add(t, "2", runtime.GOARCH)
	c.hub.add(t, "3", runtime.GOARCH)
	other := string(c.hub.manifests["3"])
	damaged := func(d imgspecv1.Descriptor) http.HandlerFunc {
		return answer(200, "application/octet-stream", strings.Repeat("x", int(d.Size)))
	}
	t.Run("layer", func(t *testing.T) {
		c.hub.failing(http.MethodGet, m.Layers[0].Digest.String(), damaged(m.Layers[0]))
		wantMeaning(t, c.pull(t, c.hub.host+"/base:2"), result.ClassTransient, result.ReasonDigestMismatch, 0, c.hub.host)
	})
	t.Run("config", func(t *testing.T) {
		c.hub.failing(http.MethodGet, m.Config.Digest.String(), damaged(m.Config))
		wantMeaning(t, c.pull(t, c.hub.host+"/base:2"), result.ClassTransient, result.ReasonDigestMismatch, 0, c.hub.host)
	})
	t.Run("manifest by its digest", func(t *testing.T) {
		c.hub.failing(http.MethodGet, "/manifests/"+d.Digest.String(), answer(200, m.MediaType, other))
		wantMeaning(t, c.pull(t, c.hub.host+"/base@"+d.Digest.String()), result.ClassTransient, result.ReasonDigestMismatch, 0, c.hub.host)
	})
	t.Run("manifest in an index", func(t *testing.T) {
		c.hub.addManifest("index", imgspecv1.MediaTypeImageIndex, encode(t, index(d)))
		c.hub.failing(http.MethodGet, "/manifests/"+d.Digest.String(), answer(200, m.MediaType, other))
		wantMeaning(t, c.pull(t, c.hub.host+"/base:index"), result.ClassTransient, result.ReasonDigestMismatch, 0, c.hub.host)
	})
}

func index(children ...imgspecv1.Descriptor) imgspecv1.Index {
	return imgspecv1.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imgspecv1.MediaTypeImageIndex, Manifests: children,
	}
}

func TestArchitectureThatIsNotThere(t *testing.T) {
	c := newCourier(t, insecure)
	d, _ := c.hub.add(t, "2", otherArchitecture())
	list := manifest.Schema2ListFromComponents([]manifest.Schema2ManifestDescriptor{{
		Schema2Descriptor: manifest.Schema2Descriptor{MediaType: d.MediaType, Size: d.Size, Digest: d.Digest},
		Platform:          manifest.Schema2PlatformSpec{OS: "linux", Architecture: otherArchitecture()},
	}})
	c.hub.addManifest("oci", imgspecv1.MediaTypeImageIndex, encode(t, index(d)))
	c.hub.addManifest("docker", manifest.DockerV2ListMediaType, encode(t, list))
	for _, tag := range []string{"oci", "docker"} {
		t.Run(tag+" list", func(t *testing.T) {
			e := c.pull(t, c.hub.host+"/base:"+tag)
			wantMeaning(t, e, result.ClassInput, result.ReasonWrongArchitecture, 0, c.hub.host)
			if !strings.Contains(e.Message, runtime.GOARCH) || !strings.HasPrefix(e.Message, "Containerfile, line 3: ") {
				t.Errorf("the message does not have the line and %s: %s", runtime.GOARCH, e.Message)
			}
		})
	}
	t.Run("one image", func(t *testing.T) {
		e := c.pull(t, c.hub.host+"/base:2")
		if e.Class != result.ClassInput || e.Reason != result.ReasonWrongArchitecture {
			t.Errorf("%s, %s; want Input, WrongArchitecture", e.Class, e.Reason)
		}
		for _, want := range []string{"Containerfile, line 3: ", c.hub.host + "/base:2", otherArchitecture(), runtime.GOARCH, "--platform"} {
			if !strings.Contains(e.Message, want) {
				t.Errorf("the message does not have %q: %s", want, e.Message)
			}
		}
	})
	t.Run("one image that is only copied from", func(t *testing.T) {
		if _, err := c.Pull(t.Context(), "Containerfile", Base{Name: c.hub.host + "/base:2"}, ""); err != nil {
			t.Errorf("pulling: %v", err)
		}
	})
}

func TestSignatureThatThePolicyWants(t *testing.T) {
	for _, s := range []struct{ name, requirement, text string }{
		{"nothing is accepted", `{"type": "reject"}`, "rejected by policy"},
		{"no signature", `{"type": "sigstoreSigned", "keyData": "LS0tLS1CRUdJTiBQVUJMSUMgS0VZLS0tLS0KTUZrd0V3WUhLb1pJemowQ0FRWUlLb1pJemowREFRY0RRZ0FFRk9Fb2E0VFJzR0Y5MFVYc1Vqdmx1Y2NkUmpNaApQNFVsRGVPTStUZFVMMWVTSkdQNVlFQjB4SlFPWG5XNTFOZEtMWHNMRVJiK3p1UTJ1eG9OSkE9PQotLS0tLUVORCBQVUJMSUMgS0VZLS0tLS0K"}`, "signature was required"},
	} {
		t.Run(s.name, func(t *testing.T) {
			policy := write(t, t.TempDir()+"/policy.json", `{"default": [`+s.requirement+`]}`)
			b := open(t, insecure, func(c *Config) { c.SignaturePolicy = policy })
			h := newHub(t)
			h.add(t, "1", runtime.GOARCH)
			_, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1", Line: 3}, "")
			e := mustFail(t, err)
			wantMeaning(t, e, result.ClassInput, result.ReasonSignatureRejected, 0, h.host)
			for _, want := range []string{s.text, policy, "Containerfile, line 3: "} {
				if !strings.Contains(e.Message, want) {
					t.Errorf("the message does not have %q: %s", want, e.Message)
				}
			}
		})
	}
}

func TestStoreThatIsFull(t *testing.T) {
	for _, s := range []struct {
		name    string
		content []byte
	}{
		{"with the blob", random(4 << 20)},
		{"with the files of a layer", make([]byte, 4<<20)}, // which is unpacked by another process
	} {
		t.Run(s.name, func(t *testing.T) {
			root := t.TempDir()
			if err := unix.Mount("none", root, "tmpfs", 0, "size=2m"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
			b := open(t, insecure, func(c *Config) { c.StorageRoot = root })
			h := newHub(t)
			h.addFile(t, "1", runtime.GOARCH, s.content)
			_, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1", Line: 3}, "")
			e := mustFail(t, err)
			wantMeaning(t, e, result.ClassResource, result.ReasonNoSpace, 0, h.host)
			if !strings.Contains(e.Message, "no space left on device") {
				t.Errorf("the message does not have the cause: %s", e.Message)
			}
		})
	}
}

func random(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.Read(data)
	return data
}

// TestMirrors has a mirror that fails in one way and a registry that fails in
// another: it is the registry's failure that counts.
func TestMirrors(t *testing.T) {
	mirror := newHub(t)
	refused := unstartedHub()
	refused.start(t)
	refused.Close()
	registry := newHub(t)
	for _, s := range []struct {
		name       string
		registry   string
		mirror, at http.HandlerFunc
		class      result.Class
		reason     result.Reason
		status     int
	}{
		{"mirror 503, registry 404", registry.host, answer(503, "text/html", htmlPage), answer(404, "text/html", htmlPage), result.ClassInput, result.ReasonBaseImageNotFound, 404},
		{"mirror 404, registry 503", registry.host, answer(404, "text/html", htmlPage), answer(503, "text/html", htmlPage), result.ClassTransient, result.ReasonRegistryUnavailable, 503},
		{"mirror 404, registry 401", registry.host, answer(404, "text/html", htmlPage), answer(401, "text/html", htmlPage), result.ClassAuth, result.ReasonBaseImageUnauthorized, 401},
		{"mirror 404, registry 400", registry.host, answer(404, "text/html", htmlPage), answer(400, "text/html", htmlPage), result.ClassRejected, result.ReasonPullFailed, 400},
		{"mirror 404, registry refuses the connection", refused.host, answer(404, "text/html", htmlPage), nil, result.ClassTransient, result.ReasonRegistryUnavailable, 0},
		{"mirror unknown manifest, registry refuses the connection", refused.host, answer(404, "application/json", errorBody("MANIFEST_UNKNOWN", "manifest unknown")), nil, result.ClassTransient, result.ReasonRegistryUnavailable, 0},
		{"mirror hangs up, registry unknown manifest", registry.host, hangUp, answer(404, "application/json", errorBody("MANIFEST_UNKNOWN", "manifest unknown")), result.ClassInput, result.ReasonBaseImageNotFound, 404},
	} {
		t.Run(s.name, func(t *testing.T) {
			conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(`
[[registry]]
location = %q
insecure = true
[[registry.mirror]]
location = %q
insecure = true
`, s.registry, mirror.host))
			b := open(t, func(c *Config) { c.RegistriesConf = conf })
			mirror.failing(http.MethodGet, "/manifests/", s.mirror)
			if s.at != nil {
				registry.failing(http.MethodGet, "/manifests/", s.at)
			}
			_, err := b.Pull(t.Context(), "Containerfile", Base{Name: s.registry + "/base:1", Line: 3}, "")
			wantMeaning(t, mustFail(t, err), s.class, s.reason, s.status, s.registry)
		})
	}
}

// TestErrorsAsLibrariesMakeThem has what a server of a test cannot be made to
// say, or says only together with other things.
func TestErrorsAsLibrariesMakeThem(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://registry.example:5000/v2/", Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}
	timeout := &url.Error{Op: "Get", URL: "https://registry.example:5000/v2/", Err: context.DeadlineExceeded}
	unauthorized := docker.ErrUnauthorizedForCredentials{Err: errors.New("no")}
	for _, s := range []struct {
		name           string
		err            error
		class          result.Class
		pulled, pushed result.Reason
		status         int
	}{
		{"ENOSPC", &os.PathError{Op: "write", Path: "/layer", Err: syscall.ENOSPC}, result.ClassResource, result.ReasonNoSpace, result.ReasonNoSpace, 0},
		{"ENOMEM", &os.PathError{Op: "fork/exec", Path: "/proc/self/exe", Err: syscall.ENOMEM}, result.ClassResource, result.ReasonStepOutOfMemory, result.ReasonStepOutOfMemory, 0},
		{"ENOMEM as text", errors.New(`ApplyLayer stdout:  stderr: fork/exec /proc/self/exe: cannot allocate memory`), result.ClassResource, result.ReasonStepOutOfMemory, result.ReasonStepOutOfMemory, 0},
		{"ENOSPC as text", errors.New(`unpacking failed (error: exit status 1; output: write /usr/lib/x: no space left on device)`), result.ClassResource, result.ReasonNoSpace, result.ReasonNoSpace, 0},
		{"EDQUOT", &os.PathError{Op: "write", Path: "/layer", Err: syscall.EDQUOT}, result.ClassResource, result.ReasonNoSpace, result.ReasonNoSpace, 0},
		{"ENOSPC in ENOENT", errors.Join(os.ErrNotExist, fmt.Errorf("writing: %w", syscall.ENOSPC)), result.ClassResource, result.ReasonNoSpace, result.ReasonNoSpace, 0},

		{"too many requests", docker.ErrTooManyRequests, result.ClassTransient, result.ReasonRateLimited, result.ReasonRateLimited, 429},
		{"too many requests, wrapped", fmt.Errorf("copying: %w", docker.ErrTooManyRequests), result.ClassTransient, result.ReasonRateLimited, result.ReasonRateLimited, 429},
		{"credentials for a token", unauthorized, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized, 401},
		{"status", docker.UnexpectedHTTPStatusError{StatusCode: 502}, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 502},
		{"code", errcode.ErrorCodeDenied, result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushDenied, 403},
		{"code with a message", v2.ErrorCodeBlobUploadUnknown.WithMessage("gone"), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 404},
		{"list of codes", fmt.Errorf("pushing: %w", errcode.Errors{errcode.ErrorCodeUnauthorized.WithMessage("no"), errcode.ErrorCodeDenied.WithMessage("no")}), result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized, 401},
		{"list without codes", errcode.Errors{}, result.ClassTransient, result.ReasonPullFailed, result.ReasonPushFailed, 0},

		{"certificates of the system", &tls.CertificateVerificationError{Err: x509.SystemRootsError{Err: os.ErrPermission}}, result.ClassSandbox, result.ReasonSettingsInvalid, result.ReasonSettingsInvalid, 0},
		{"signature", signature.PolicyRequirementError("a signature was required"), result.ClassInput, result.ReasonSignatureRejected, result.ReasonSignatureRejected, 0},

		{"refused", refused, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"refused as errno", fmt.Errorf("dialing: %w", syscall.ECONNREFUSED), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"reset", &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"broken pipe", &net.OpError{Op: "write", Err: os.NewSyscallError("write", syscall.EPIPE)}, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"no route", fmt.Errorf("dialing: %w", syscall.EHOSTUNREACH), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"no network", fmt.Errorf("dialing: %w", syscall.ENETUNREACH), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"timed out as errno", fmt.Errorf("reading: %w", syscall.ETIMEDOUT), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"closed", fmt.Errorf("uploading: %w", net.ErrClosed), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"EOF", fmt.Errorf("reading blob: %w", io.EOF), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"cut", fmt.Errorf("reading blob: %w", io.ErrUnexpectedEOF), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"DNS", &net.DNSError{Err: "no such host", Name: "registry.example", IsNotFound: true}, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"timeout of a request", timeout, result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"timeout of nothing in particular", fmt.Errorf("waiting for headers: %w", context.DeadlineExceeded), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"deadline of a connection", fmt.Errorf("reading: %w", os.ErrDeadlineExceeded), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},

		{"joined: the last counts", errors.Join(unauthorized, refused), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 0},
		{"joined: the other way round", errors.Join(refused, unauthorized), result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized, 401},
		{"joined: the last means nothing", errors.Join(unauthorized, errors.New("cleaning up")), result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized, 401},
		{"joined, and wrapped", fmt.Errorf("2 errors: %w", errors.Join(refused, fmt.Errorf("copying: %w", docker.UnexpectedHTTPStatusError{StatusCode: 504}))), result.ClassTransient, result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable, 504},
		{"joined within joined", errors.Join(errors.Join(unauthorized, unauthorized), errors.Join(unauthorized, errcode.ErrorCodeDenied)), result.ClassAuth, result.ReasonBaseImageUnauthorized, result.ReasonPushDenied, 403},
		{"two causes in one sentence", fmt.Errorf("%w, then %w", refused, docker.ErrTooManyRequests), result.ClassTransient, result.ReasonRateLimited, result.ReasonRateLimited, 429},

		{"unknown", errors.New("nobody knows"), result.ClassTransient, result.ReasonPullFailed, result.ReasonPushFailed, 0},
	} {
		t.Run(s.name, func(t *testing.T) {
			host := "registry.example:5000"
			wantMeaning(t, new(Engine).transferError(t.Context(), s.err, transfer{pulling, "moving", "the base image " + host + "/base:1", host, "nobody"}), s.class, s.pulled, s.status, host)
			wantMeaning(t, new(Engine).transferError(t.Context(), s.err, transfer{pushing, "moving", host + "/os/layered:1", host, "nobody"}), s.class, s.pushed, s.status, host)
		})
	}
	t.Run("not in the store", func(t *testing.T) {
		err := fmt.Errorf("base: %w", storage.ErrImageUnknown)
		if v := classify(t.Context(), err, pulling); v.class != result.ClassInput || v.reason != result.ReasonBaseImageNotFound {
			t.Errorf("pulled: %s, %s; want Input, BaseImageNotFound", v.class, v.reason)
		}
	})
}

// A timeout of the library is an error like others as long as the build may go on.
func TestTimeoutWithinALivingBuild(t *testing.T) {
	stalled := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(stalled.Close)
	client := &http.Client{Timeout: 10 * time.Millisecond}
	_, err := client.Get(stalled.URL)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v, want one that wraps context.DeadlineExceeded", err)
	}
	host := strings.TrimPrefix(stalled.URL, "http://")
	wantMeaning(t, new(Engine).transferError(t.Context(), err, transfer{pushing, "moving", "x", "", ""}), result.ClassTransient, result.ReasonRegistryUnavailable, 0, host)
	wantMeaning(t, new(Engine).transferError(t.Context(), err, transfer{pulling, "moving", "x", "", ""}), result.ClassTransient, result.ReasonRegistryUnavailable, 0, host)
}

func TestBuildThatWasStopped(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithTimeout(t.Context(), 0)
	defer cancelLate()
	signalled, signal := context.WithCancelCause(t.Context())
	signal(errors.New("SIGTERM"))
	for _, s := range []struct {
		name   string
		ctx    context.Context
		reason result.Reason
	}{
		{"cancelled", cancelled, result.ReasonInterrupted},
		{"cancelled for a cause", signalled, result.ReasonInterrupted},
		{"at its deadline", late, result.ReasonDeadlineExceeded},
	} {
		for _, err := range []error{
			s.ctx.Err(),
			fmt.Errorf("reading: %w", context.Canceled),
			docker.UnexpectedHTTPStatusError{StatusCode: 503},
			&os.PathError{Op: "write", Path: "/layer", Err: syscall.ENOSPC},
			errors.New("signal: killed"),
		} {
			t.Run(s.name+": "+err.Error(), func(t *testing.T) {
				for _, d := range []direction{pulling, pushing} {
					e := new(Engine).transferError(s.ctx, err, transfer{d, "moving", "registry.example/os:1", "registry.example", "nobody"})
					wantMeaning(t, e, result.ClassInterrupted, s.reason, 0, "registry.example")
					if !strings.HasPrefix(e.Message, "stopped while ") {
						t.Errorf("the message does not say that it was stopped: %s", e.Message)
					}
				}
			})
		}
	}
}

func TestTransferThatIsStopped(t *testing.T) {
	c := newCourier(t, insecure)
	for _, s := range []struct {
		name   string
		end    func(context.Context) (context.Context, context.CancelFunc)
		reason result.Reason
	}{
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 100*time.Millisecond)
		}, result.ReasonDeadlineExceeded},
		{"signal", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, cancel)
			return ctx, cancel
		}, result.ReasonInterrupted},
	} {
		t.Run(s.name, func(t *testing.T) {
			stall := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
			ctx, cancel := s.end(t.Context())
			defer cancel()
			c.hub.failing(http.MethodGet, "/manifests/", stall)
			_, err := c.Pull(ctx, "Containerfile", Base{Name: c.hub.host + "/base:none"}, "")
			wantMeaning(t, mustFail(t, err), result.ClassInterrupted, s.reason, 0, c.hub.host)

			ctx, cancel = s.end(t.Context())
			defer cancel()
			c.hub.failing(http.MethodPost, "/blobs/", stall)
			d, err := RegistryDestination(c.hub.host + "/os/layered:1")
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = c.Push(ctx, c.id, d, Compression{}, "")
			wantMeaning(t, mustFail(t, err), result.ClassInterrupted, s.reason, 0, c.hub.host)
		})
	}
}

func TestStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := Stopped(ctx, "before the build")
	if e.Class != result.ClassInterrupted || e.Reason != result.ReasonInterrupted || e.Message != "stopped by a signal before the build" {
		t.Errorf("cancelled: %s, %s, %q", e.Class, e.Reason, e.Message)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	e = Stopped(ctx, "before the build")
	if e.Class != result.ClassInterrupted || e.Reason != result.ReasonDeadlineExceeded || e.Message != "the deadline passed before the build" {
		t.Errorf("late: %s, %s, %q", e.Class, e.Reason, e.Message)
	}
}

func TestAsError(t *testing.T) {
	inner := &Error{Reason: result.ReasonNoSpace, Message: "full", RunExitCode: 42}
	if e := AsError(fmt.Errorf("building: %w", inner)); e != inner || e.ExitCode() != 42 {
		t.Errorf("%v with exit code %d, want the error in the chain", e, e.ExitCode())
	}
	unknown := errors.New("nobody knows")
	e := AsError(unknown)
	if e.Reason != result.ReasonInternalError || e.Error() != "nobody knows" || !errors.Is(e, unknown) || e.ExitCode() != 1 {
		t.Errorf("%s, %q, exit code %d; want an InternalError of the cause", e.Reason, e.Error(), e.ExitCode())
	}
}

// TestWhoseCredentialsWereRefused is of the registry, whose service may have another
// name, and of a store that an upload is sent on to.
func TestWhoseCredentialsWereRefused(t *testing.T) {
	e := open(t)
	for _, s := range []struct{ registry, answered, want, not string }{
		{"r.example", "r.example", "user robot", "no credentials are sent"},
		{"docker.io", "registry-1.docker.io", "user robot", "no credentials are sent"},
		{"r.example", "store.example", "no credentials are sent, as it is not r.example", "user robot"},
	} {
		refused := &distribution.Error{Method: http.MethodPatch, Host: s.answered, Status: http.StatusUnauthorized}
		got := e.transferError(t.Context(), refused, transfer{pushing, "pushing", "x", s.registry, "user robot"})
		if !strings.Contains(got.Message, s.want) || strings.Contains(got.Message, s.not) {
			t.Errorf("%s of %s: %s", s.answered, s.registry, got.Message)
		}
	}
}
