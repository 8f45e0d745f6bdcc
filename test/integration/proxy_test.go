package integration

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// proxy is an HTTP proxy that wants a password, answers everything itself, and
// keeps the hosts that it was asked for.
type proxy struct {
	*httptest.Server
	mu    sync.Mutex
	hosts []string
}

func startProxy(t *testing.T) *proxy {
	t.Helper()
	p := &proxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.hosts = append(p.hosts, r.Host)
		p.mu.Unlock()
		if r.Header.Get("Proxy-Authorization") == "" {
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		_, _ = io.WriteString(w, "through the proxy\n")
	}))
	t.Cleanup(p.Close)
	return p
}

// url is the proxy's URL with its password.
func (p *proxy) url() string { return strings.Replace(p.URL, "http://", "http://lab:labpass@", 1) }

func TestL14ProxyWithAPassword(t *testing.T) {
	for _, variable := range []string{"HTTP_PROXY", "http_proxy"} {
		t.Run(variable, func(t *testing.T) {
			l := newLab(t).withBusy()
			p := startProxy(t)
			l.secrets = append(l.secrets, "labpass")
			l.env = append(l.env, variable+"="+p.url(), "NO_PROXY=127.0.0.1")
			l.containerfile("FROM HOST/base/busy:1",
				"RUN test -n \"$HTTP_PROXY\" && test \"$HTTP_PROXY\" = \"$http_proxy\" && test \"$no_proxy\" = 127.0.0.1",
				"RUN wget -q -O /page http://example.test && grep proxy /page")
			o := l.build("--tag", l.image("os/proxied:1"), "--push", "--log-level", "debug")
			o.wantSuccess(t)
			for _, host := range p.hosts {
				if host != "example.test" {
					t.Errorf("the proxy was asked for %s", host)
				}
			}
			if len(p.hosts) == 0 {
				t.Error("nothing went through the proxy")
			}
			wantNowhere(t, l, "os/proxied:1", "labpass")
		})
	}
}

// tunnel is an HTTP proxy with a password that leads everything to one server.
func tunnel(t *testing.T, server string) string {
	t.Helper()
	direct := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Host = server }}
	p := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("lab:labpass")) {
			w.Header().Set("Proxy-Authenticate", `Basic realm="proxy"`)
			w.WriteHeader(http.StatusProxyAuthRequired)
			return
		}
		if r.Method != http.MethodConnect {
			direct.ServeHTTP(w, r)
			return
		}
		up, err := net.Dial("tcp", server)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer up.Close()
		down, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer down.Close()
		_, _ = io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
		go func() { _, _ = io.Copy(up, down) }()
		_, _ = io.Copy(down, up)
	}))
	t.Cleanup(p.Close)
	return p.Listener.Addr().String()
}

// TestProxyThatRefuses is named, with the variable that names it, in each kind of
// request that goes through it.
func TestProxyThatRefuses(t *testing.T) {
	for _, scheme := range []string{"HTTPS", "HTTP"} {
		var opts []registry.Option
		if scheme == "HTTPS" {
			opts = append(opts, registry.WithTLS())
		}
		variable := scheme + "_PROXY"
		l := newLab(t, opts...)
		l.secrets = append(l.secrets, "labpass", "another-word", "bGFiOmFub3RoZXItd29yZA==")
		proxy := tunnel(t, l.registry.Host())
		_, port, _ := net.SplitHostPort(l.registry.Host())
		host := "registry.example:" + port
		env := l.env
		for name, tt := range map[string]struct {
			from   string
			push   bool
			phase  result.Phase
			reason result.Reason
		}{
			"pull": {"FROM " + host + "/base/none:1", false, result.Pull, result.ReasonBaseImageUnauthorized},
			"push": {"FROM scratch", true, result.Push, result.ReasonPushUnauthorized},
			"ADD":  {"FROM scratch\nADD " + strings.ToLower(scheme) + "://" + host + "/v2/ /x", false, result.Build, result.ReasonBaseImageUnauthorized},
		} {
			for user, want := range map[string]string{"": "wants credentials, and " + variable + " has none", "lab:another-word@": "refused the credentials that " + variable + " has"} {
				t.Run(scheme+"/"+name+"/"+want, func(t *testing.T) {
					l.t = t
					l.env = append(env[:len(env):len(env)], variable+"=http://"+user+proxy)
					l.containerfile(tt.from, "COPY Containerfile /")
					args := []string{"--retry-on", "transient", "--no-cache"}
					if tt.push {
						args = append(args, "--tag", host+"/os/x:1", "--push")
					}
					o := l.build(args...)
					o.wantFailure(t, tt.reason, "the proxy "+proxy, want, "407")
					o.wantAttempts(t, tt.phase, 1)
					if last := o.result.Attempts[len(o.result.Attempts)-1]; last.Host != proxy || last.Status != http.StatusProxyAuthRequired {
						t.Errorf("attempt %+v", last)
					}
				})
			}
		}
		l.t = t
		l.env = append(env[:len(env):len(env)], variable+"=http://lab:labpass@"+proxy)
		l.containerfile("FROM scratch", "COPY Containerfile /", "ADD "+strings.ToLower(scheme)+"://"+host+"/v2/ /x")
		l.build("--tag", host+"/os/x:1", "--push").wantSuccess(t)
		l.containerfile("FROM "+host+"/os/x:1", "COPY Containerfile /y")
		l.build().wantSuccess(t)
	}
}

// TestProxyOfATokenServer is between here and the token server alone.
func TestProxyOfATokenServer(t *testing.T) {
	l := newLab(t)
	proxy := tunnel(t, l.registry.Host())
	l.registry.Fault(registry.Rule{Do: registry.Reply{Status: 401, Header: http.Header{"Www-Authenticate": {`Bearer realm="https://tokens.example/token",service="x"`}}}})
	l.env = append(l.env, "HTTPS_PROXY=http://"+proxy)
	auth := l.authFile("auth.json", "robot", "word-of-robot")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	o := l.build("--retry-on", "transient", "--tag", l.image("os/x:1"), "--push", "--push-authfile", auth)
	o.wantFailure(t, result.ReasonPushUnauthorized, "the proxy "+proxy, "HTTPS_PROXY", "407")
	o.wantAttempts(t, result.Push, 1)
	l.containerfile("FROM HOST/base/none:1")
	o = l.build("--retry-on", "transient", "--pull-authfile", auth)
	o.wantFailure(t, result.ReasonBaseImageUnauthorized, "the proxy "+proxy, "HTTPS_PROXY", "407")
	o.wantAttempts(t, result.Pull, 1)
}

// TestProxyThatIsNotReached is not to be taken for the registry.
func TestProxyThatIsNotReached(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := listener.Addr().String()
	_ = listener.Close()
	for proxy, want := range map[string]string{refused: "connection refused", "proxy.invalid:3128": "no such host"} {
		for _, variable := range []string{"HTTPS_PROXY", "HTTP_PROXY"} {
			l := newLab(t)
			l.secrets = append(l.secrets, "labpass")
			l.env = append(l.env, variable+"=http://lab:labpass@"+proxy)
			l.containerfile("FROM scratch", "ADD "+strings.ToLower(variable[:len(variable)-len("_PROXY")])+"://files.example/x /x")
			o := l.build("--retry-on", "transient", "--max-retries", "2")
			o.wantFailure(t, result.ReasonRegistryUnavailable, "the proxy "+proxy+", which "+variable+" names, cannot be reached", want)
			o.wantAttempts(t, result.Build, 2)
			if variable == "HTTP_PROXY" {
				continue // https is asked for first, and files.example is not there
			}
			l.containerfile("FROM registry.example/base/none:1")
			l.bare = true
			o = l.build("--retry-on", "transient", "--retry-delay", "50ms", "--max-retries", "2", "--storage-root", filepath.Join(l.dir, "store"), "--result", filepath.Join(l.dir, "result.json"), l.context)
			o.wantFailure(t, result.ReasonRegistryUnavailable, "the proxy "+proxy+", which "+variable+" names, cannot be reached", want)
			o.wantAttempts(t, result.Pull, 2)
			if o.result.Attempts[0].Host != proxy {
				t.Errorf("attempt %+v", o.result.Attempts[0])
			}
		}
	}
}

// TestProxyThatIsNone would be left out without a word, and the server be said to be
// nowhere.
func TestProxyThatIsNone(t *testing.T) {
	l := newLab(t)
	l.secrets = append(l.secrets, "labp%ss")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	l.env = append(l.env, "https_proxy=http://lab:labp%ss@proxy.example:3128", "HTTP_PROXY=proxy.example:3128")
	o := l.build()
	o.wantSuccess(t)
	o.wantLine(t, "Warning: The value of HTTPS_PROXY is not the URL of a proxy")
	if strings.Contains(o.stderr, "HTTP_PROXY is not") {
		t.Error("a proxy without a scheme is one")
	}
}

// wantNowhere fails the test if the text is in the config or a layer of an image.
func wantNowhere(t *testing.T, l *lab, name, text string) {
	t.Helper()
	img := bases.Pull(t, l.registry.Host(), name)
	config, err := json.Marshal(bases.Config(t, img))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(config), text) {
		t.Errorf("%q is in the config: %s", text, config)
	}
	for path, entry := range bases.Flatten(t, img) {
		if strings.Contains(string(entry.Body), text) {
			t.Errorf("%q is in %s", text, path)
		}
	}
}

func TestB13ProxyAsABuildArgument(t *testing.T) {
	for name, lines := range map[string][]string{"not declared": nil, "declared": {"ARG HTTP_PROXY"}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			p := startProxy(t)
			l.secrets = append(l.secrets, "labpass")
			l.containerfile(append(append([]string{"FROM HOST/base/busy:1"}, lines...), "RUN wget -q -O /page http://example.test && grep proxy /page")...)
			o := l.build("--build-arg", "HTTP_PROXY="+p.url(), "--tag", l.image("os/arg:1"), "--push", "--log-level", "debug")
			o.wantSuccess(t)
			if len(p.hosts) == 0 {
				t.Error("nothing went through the proxy")
			}
			wantNowhere(t, l, "os/arg:1", "labpass")
		})
	}
}

func TestB15VolumeOfAnotherUser(t *testing.T) {
	l := newLab(t).withBusy()
	key := l.file("entitlement/key.pem", "the private key\n")
	chown(t, key, 1234, 0o600)
	chown(t, filepath.Dir(key), 1234, 0o700)
	l.containerfile("FROM HOST/base/busy:1", "RUN cat /etc/pki/entitlement/key.pem | wc -c > /size")
	o := l.build("--volume", filepath.Dir(key)+":/etc/pki/entitlement:ro", "--tag", l.image("os/entitled:1"), "--push")
	o.wantSuccess(t)
	wantNowhere(t, l, "os/entitled:1", "the private key")
	if size, _ := bases.File(t, bases.Pull(t, l.registry.Host(), "os/entitled:1"), "/size"); strings.TrimSpace(string(size)) != "16" {
		t.Errorf("the step read %q bytes", size)
	}
	if uid, mode := owner(t, key); uid != 1234 || mode != 0o600 {
		t.Errorf("the key belongs to %d with mode %o now", uid, mode)
	}
}

func TestB17AddFromAServerWithItsOwnAuthority(t *testing.T) {
	l := newLab(t).withBusy()
	files := registry.Start(t, registry.WithTLS()) // any https server does
	files.Fault(registry.Rule{Path: "/file", Do: registry.Reply{Status: 200, Body: "from the server\n"}})
	certs := l.mkdir("certs")
	files.CA().WriteFile(t, filepath.Join(certs, "ca.crt"))
	l.containerfile("FROM HOST/base/busy:1", "ADD https://"+files.Host()+"/file /added")
	l.bare = true
	args := []string{
		"--storage-root", filepath.Join(l.dir, "store"), "--result", filepath.Join(l.dir, "result.json"), "--retry-delay", "50ms", "--retry-on", "transient",
		"--registries-conf", l.file("registries.conf", "[[registry]]\nlocation = \""+l.registry.Host()+"\"\ninsecure = true\n"),
	}
	o := l.build(append(args, l.context)...)
	o.wantFailure(t, result.ReasonCertificateUntrusted, "unknown authority", registry.CAName)

	o = l.build(append(args, "--cert-dir", certs, l.context)...)
	o.wantSuccess(t)
	env := l.env
	l.env = append(env, "SSL_CERT_DIR="+certs)
	l.build(append(args, "--no-cache", l.context)...).wantSuccess(t)

	l.env = env
	perHost := l.mkdir("home/.config/containers/certs.d/" + files.Host())
	files.CA().WriteFile(t, filepath.Join(perHost, "ca.crt"))
	l.build(append(args, "--no-cache", l.context)...).wantSuccess(t)
}
