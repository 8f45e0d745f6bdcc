package images

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"

	"github.com/strata-build/strata/agent/result"
)

func TestWhatThePolicyAsksOfAnImage(t *testing.T) {
	const anything, signed, reject = `[{"type":"insecureAcceptAnything"}]`, `[{"type":"signedBy","keyType":"GPGKeys","keyPath":"/key"}]`, `[{"type":"reject"}]`
	for name, tt := range map[string]struct {
		policy string
		want   bool
	}{
		"nothing":                         {`{"default":` + anything + `}`, false},
		"never":                           {`{"default":` + reject + `}`, false},
		"by default":                      {`{"default":` + signed + `}`, true},
		"of another registry":             {`{"default":` + anything + `,"transports":{"docker":{"other.example":` + signed + `}}}`, false},
		"of another transport":            {`{"default":` + anything + `,"transports":{"oci":{"":` + signed + `}}}`, false},
		"of this transport":               {`{"default":` + anything + `,"transports":{"docker":{"":` + signed + `}}}`, true},
		"of the registry":                 {`{"default":` + anything + `,"transports":{"docker":{"r.example":` + signed + `}}}`, true},
		"of the registry, not of the one": {`{"default":` + signed + `,"transports":{"docker":{"r.example":` + signed + `,"r.example/os/base":` + anything + `}}}`, false},
		"of the tag":                      {`{"default":` + anything + `,"transports":{"docker":{"r.example/os/base:1":` + signed + `}}}`, true},
		"of a wildcard":                   {`{"default":` + anything + `,"transports":{"docker":{"*.example":` + signed + `}}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			b.sys.SignaturePolicyPath = write(t, t.TempDir()+"/policy.json", tt.policy)
			ref, err := docker.ParseReference("//r.example/os/base:1")
			if err != nil {
				t.Fatal(err)
			}
			if got := b.wantsSignature(ref); got != tt.want {
				t.Errorf("a signature is wanted: %v, want %v", got, tt.want)
			}
		})
	}
}

// TestMirrorThatServes has a registry that is not there, and mirrors of which the
// second has the image.
func TestMirrorThatServes(t *testing.T) {
	first, second, gone := newHub(t), newHub(t), newHub(t)
	gone.Close()
	second.add(t, "1", runtime.GOARCH)
	first.failing(http.MethodGet, "/manifests/", answer(503, "text/html", htmlPage))
	conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(
		"[[registry]]\nlocation = %q\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", gone.host, first.host, second.host))
	b := open(t, func(c *Config) { c.RegistriesConf = conf })
	if _, err := b.Pull(t.Context(), "Containerfile", Base{Name: gone.host + "/base:1", Line: 3}, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Image(gone.host + "/base:1"); err != nil {
		t.Errorf("the image is not in the store under its name: %v", err)
	}
	log := b.log.String()
	for _, want := range []string{first.host, "503", second.host} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not have %s: %s", want, log)
		}
	}
}

// TestMirrorsThatAllFail has each endpoint named with its own cause.
func TestMirrorsThatAllFail(t *testing.T) {
	first, second, registry := newHub(t), newHub(t), newHub(t)
	first.failing(http.MethodGet, "/manifests/", answer(503, "text/html", htmlPage))
	second.failing(http.MethodGet, "/manifests/", answer(401, "text/html", htmlPage))
	conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(
		"[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", registry.host, first.host, second.host))
	b := open(t, func(c *Config) { c.RegistriesConf = conf })
	_, err := b.Pull(t.Context(), "Containerfile", Base{Name: registry.host + "/base:1", Line: 3}, "")
	e := mustFail(t, err)
	wantMeaning(t, e, result.ClassInput, result.ReasonBaseImageNotFound, 404, registry.host)
	for _, want := range []string{first.host + "/base:1: ", first.host + " answered 503", second.host + " answered 401", registry.host + " answered 404"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the message does not have %q: %s", want, e.Message)
		}
	}
}

// TestMirrorWithoutTheWholeImage is as one that is not there: the rest comes from the
// next place, within the attempt.
func TestMirrorWithoutTheWholeImage(t *testing.T) {
	for name, tt := range map[string]struct {
		path   string
		answer http.HandlerFunc
		want   string
	}{
		"no blob":                  {"/blobs/", answer(404, "text/html", htmlPage), "404"},
		"blobs that fail":          {"/blobs/", answer(503, "text/html", htmlPage), "503"},
		"blobs that are others'":   {"/blobs/", answer(403, "text/html", htmlPage), "403"},
		"other blobs":              {"/blobs/", answer(200, "application/octet-stream", "something else"), "does not match"},
		"a page in place of a tag": {"/manifests/", answer(200, "text/html", htmlPage), "no manifest"},
		"blobs that are cut": {"/blobs/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte("x"))
		}, "unexpected EOF"},
	} {
		for _, driver := range []string{driverVFS, driverOverlay} { // the first leaves layers to containers/image
			t.Run(name+" on "+driver, func(t *testing.T) {
				mirror, registry := newHub(t), newHub(t)
				mirror.add(t, "1", runtime.GOARCH)
				registry.add(t, "1", runtime.GOARCH)
				mirror.failing(http.MethodGet, tt.path, tt.answer)
				conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(
					"[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", registry.host, mirror.host))
				b := open(t, func(c *Config) { c.RegistriesConf, c.StorageDriver = conf, driver })
				base := Base{Name: registry.host + "/base:1", Line: 3}
				if _, err := b.Pull(t.Context(), "Containerfile", base, ""); err != nil {
					t.Fatal(err)
				}
				b.wantStaged(t, driver == driverOverlay)
				want := fmt.Sprintf("Accessing the mirror %s/base:1 failed, %s/base:1 is used: ", mirror.host, registry.host)
				if log := b.log.String(); strings.Count(log, want) != 1 || !strings.Contains(log, tt.want) {
					t.Errorf("the log does not have %q with %q once: %s", want, tt.want, log)
				}
			})
		}
	}
	mirror, registry := newHub(t), newHub(t)
	mirror.add(t, "1", runtime.GOARCH)
	mirror.failing(http.MethodGet, "/blobs/", answer(503, "text/html", htmlPage))
	conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(
		"[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", registry.host, mirror.host))
	b := open(t, func(c *Config) { c.RegistriesConf = conf })
	_, err := b.Pull(t.Context(), "Containerfile", Base{Name: registry.host + "/base:1", Line: 3}, "")
	e := mustFail(t, err)
	wantMeaning(t, e, result.ClassInput, result.ReasonBaseImageNotFound, 404, registry.host)
	if want := mirror.host + " answered 503"; !strings.Contains(e.Message, want) {
		t.Errorf("the message does not have %q: %s", want, e.Message)
	}
}

// TestManifestOfAnyContentType is known by what it holds: of a registry that is made of
// plain files, the type says nothing.
func TestManifestOfAnyContentType(t *testing.T) {
	for _, contentType := range []string{"", "application/json", "application/octet-stream", "text/plain; charset=utf-8", ";;;"} {
		t.Run(contentType, func(t *testing.T) {
			h := newHub(t)
			h.add(t, "1", runtime.GOARCH)
			h.failing(http.MethodGet, "/manifests/", func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{contentType}
				_, _ = w.Write(h.manifests["1"])
			})
			b := open(t, func(c *Config) { c.TLSVerify = new(bool) })
			if _, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1", Line: 3}, ""); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestRegistryInPlaceOfAnother has the credentials of the place that is asked, which
// is not the one that is named.
func TestRegistryInPlaceOfAnother(t *testing.T) {
	h := newHub(t)
	h.guard("robot", "right")
	conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf("[[registry]]\nprefix = \"named.example\"\nlocation = %q\ninsecure = true\n", h.host))
	b := open(t, func(c *Config) { c.RegistriesConf = conf })
	auth := write(t, t.TempDir()+"/auth.json", fmt.Sprintf(`{"auths":{"named.example":{"auth":"bm8="},%q:{"auth":"cm9ib3Q6d3Jvbmc="}}}`, h.host))
	_, err := b.Pull(t.Context(), "Containerfile", Base{Name: "named.example/base:1", Line: 3}, auth)
	e := mustFail(t, err)
	wantMeaning(t, e, result.ClassAuth, result.ReasonBaseImageUnauthorized, 401, h.host)
	if want := fmt.Sprintf(`user "robot" from %s, entry %s`, auth, h.host); !strings.Contains(e.Message, want) {
		t.Errorf("the message does not have %q: %s", want, e.Message)
	}
}

func TestRegistryThatIsBlocked(t *testing.T) {
	h := newHub(t)
	h.add(t, "1", runtime.GOARCH)
	asked := 0
	h.failing("", "", func(http.ResponseWriter, *http.Request) { asked++ })
	conf := write(t, t.TempDir()+"/registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\nblocked = true\n", h.host))
	b := open(t, func(c *Config) { c.RegistriesConf = conf })
	_, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1", Line: 3}, "")
	if e := mustFail(t, err); e.Reason != result.ReasonSettingsInvalid || !strings.Contains(e.Message, "blocks "+h.host) {
		t.Errorf("%s: %s", e.Reason, e.Message)
	}
	if asked != 0 {
		t.Errorf("it was asked %d times", asked)
	}
}

// TestMirrorIsGivenUpOnce: where the next try does not get as far as to open another place,
// as when a registry is gone whose signatures are asked for first, nothing is left to give up.
func TestMirrorIsGivenUpOnce(t *testing.T) {
	mirror, err := reference.ParseNamed("mirror.example/os/base:1")
	if err != nil {
		t.Fatal(err)
	}
	tried, cut := newEndpoints(), errors.New("reset")
	transient := verdict{class: result.ClassTransient}
	if tried.giveUp(cut, transient) {
		t.Error("the registry itself was given up")
	}
	tried.mirror = mirror
	if !tried.giveUp(cut, transient) || tried.failed[mirror.String()] == nil {
		t.Error("the mirror was not given up")
	}
	if tried.giveUp(cut, transient) {
		t.Error("the mirror was given up again: a pull would never end")
	}
}
