package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
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
