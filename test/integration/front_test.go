package integration

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// front is a server in front of a registry that may answer in ways that no HTTP
// server would. It returns its host.
func front(t *testing.T, registry, method, path string, answer func(real *http.Response) string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	matches := regexp.MustCompile(path)
	serve := func(c net.Conn) {
		defer c.Close()
		r := bufio.NewReader(c)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if req.Header.Get("Expect") != "" { // which the registry behind would be asked
				req.Header.Del("Expect")
				_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
			}
			req.URL.Scheme, req.URL.Host, req.RequestURI = "http", registry, ""
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				return
			}
			if req.Method == method && matches.MatchString(req.URL.Path) {
				if text := answer(resp); text != "" {
					_ = resp.Body.Close()
					_, _ = io.WriteString(c, text)
					return
				}
			}
			_ = resp.Write(c)
			_ = resp.Body.Close()
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return l.Addr().String()
}

// always answers with a text in place of the real answer.
func always(text string) func(*http.Response) string {
	return func(*http.Response) string { return text }
}

// header changes the header of the real answer.
func header(name, value string) func(*http.Response) string {
	return func(r *http.Response) string {
		r.Header.Set(name, value)
		return ""
	}
}

// longer says that the body has more bytes than it has.
func longer(r *http.Response) string {
	r.ContentLength += 1000
	return ""
}

// TestPullFromARegistryThatLies never takes what it says for the image.
func TestPullFromARegistryThatLies(t *testing.T) {
	zeros := "sha256:" + strings.Repeat("0", 64)
	for name, tt := range map[string]struct {
		path   string
		answer func(*http.Response) string
		want   result.Reason // empty for success
	}{
		"a header that is cut":              {"/manifests/", always("HTTP/1.1 200 OK\r\nContent-Le"), result.ReasonRegistryUnavailable},
		"no HTTP":                           {"/manifests/", always("220 mail.example ESMTP\r\n"), result.ReasonRegistryUnavailable},
		"a header without an end":           {"/manifests/", always("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 12<<20)), result.ReasonRegistryUnavailable},
		"a manifest that is shorter":        {"/manifests/", longer, result.ReasonRegistryUnavailable},
		"a blob that is shorter":            {"/blobs/", longer, result.ReasonRegistryUnavailable},
		"another digest of the manifest":    {"/manifests/", header("Docker-Content-Digest", zeros), ""},
		"what is no digest of the manifest": {"/manifests/", header("Docker-Content-Digest", "x"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			host := front(t, l.registry.Host(), http.MethodGet, tt.path, tt.answer)
			l.containerfile("FROM "+host+"/base/busy:1", "RUN true")
			o := l.build("--retry-on", "transient", "--max-retries", "2", "--stall-timeout", "5s")
			if tt.want == "" {
				o.wantSuccess(t)
				return
			}
			o.wantFailure(t, tt.want, host)
			o.wantAttempts(t, result.Pull, 2)
		})
	}
}

// TestPushToARegistryThatDiffers in what the specification leaves open, or does not.
func TestPushToARegistryThatDiffers(t *testing.T) {
	relative := func(r *http.Response) string {
		if at := r.Header.Get("Location"); at != "" {
			r.Header.Set("Location", "/v2/"+strings.SplitN(at, "/v2/", 2)[1]+"&more=a%2Fb")
		}
		return ""
	}
	ok := func(r *http.Response) string {
		r.Status, r.StatusCode = "200 OK", http.StatusOK
		return ""
	}
	for name, tt := range map[string]struct {
		method, path string
		answer       func(*http.Response) string
	}{
		"200 to a manifest":                  {http.MethodPut, "/manifests/", ok},
		"200 to a blob":                      {http.MethodPut, "/uploads/", ok},
		"200 to a part of a blob":            {http.MethodPatch, "/uploads/", ok},
		"a relative place for an upload":     {http.MethodPost, "/uploads/", relative},
		"a relative place for a part":        {http.MethodPatch, "/uploads/", relative},
		"no digest of the manifest":          {http.MethodHead, "/manifests/", func(r *http.Response) string { r.Header.Del("Docker-Content-Digest"); return "" }},
		"what is no digest of the manifest":  {http.MethodHead, "/manifests/", header("Docker-Content-Digest", "x")},
		"another digest of what was taken":   {http.MethodPut, "/uploads/", header("Docker-Content-Digest", "sha256:"+strings.Repeat("0", 64))},
		"a length of a blob that is not its": {http.MethodHead, "/blobs/", longer},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := pushLab(t)
			host := front(t, l.registry.Host(), tt.method, tt.path, tt.answer)
			o := l.build("--volume", filepath.Join(l.dir, "counter")+":/counter", "--push", "--tag", host+"/os/layered:2", "--retry-on", "transient", "--max-retries", "1")
			o.wantSuccess(t)
			if want := l.registry.Digest(t, "os/layered", "2"); o.result.Digest != want {
				t.Errorf("digest %s, the registry has %s", o.result.Digest, want)
			}
		})
	}
}

// TestPushThatIsCutInAHeader is tried again.
func TestPushThatIsCutInAHeader(t *testing.T) {
	for _, at := range [][2]string{{http.MethodPost, "/uploads/"}, {http.MethodPatch, "/uploads/"}, {http.MethodPut, "/uploads/"}, {http.MethodPut, "/manifests/"}, {http.MethodHead, "/manifests/"}} {
		l, counter := pushLab(t)
		host := front(t, l.registry.Host(), at[0], at[1], always("HTTP/1.1 201 Created\r\nDocker-Conte"))
		o := l.build("--volume", filepath.Join(l.dir, "counter")+":/counter", "--push", "--tag", host+"/os/layered:2", "--retry-on", "transient", "--max-retries", "2")
		o.wantFailure(t, result.ReasonRegistryUnavailable, host)
		if n := len(l.lines(counter)); n != 1 {
			t.Errorf("the RUN step ran %d times", n)
		}
	}
}
