package images

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	digest "github.com/opencontainers/go-digest"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/agent/result"
)

func TestRegistryDestination(t *testing.T) {
	zero := "sha256:" + strings.Repeat("0", 64)
	for _, s := range []struct{ in, name, host string }{
		{"r.example/os:1", "r.example/os:1", "r.example"},
		{"r.example/a/b/c:1", "r.example/a/b/c:1", "r.example"},
		{"r.example:5000/os", "r.example:5000/os:latest", "r.example:5000"},
		{"docker://r.example/os:1", "r.example/os:1", "r.example"},
		{"localhost/os:1", "localhost/os:1", "localhost"},
		{"localhost:5000/os:1", "localhost:5000/os:1", "localhost:5000"},
		{"docker.io/library/os:1", "docker.io/library/os:1", "docker.io"},
		{"docker.io/os", "docker.io/library/os:latest", "docker.io"},
		{"r.example/os@" + zero, "r.example/os@" + zero, "r.example"},
	} {
		t.Run(s.in, func(t *testing.T) {
			d, err := RegistryDestination(s.in)
			if err != nil {
				t.Fatal(err)
			}
			if d.Name != s.name || d.host != s.host || d.Local() || d.path != "" {
				t.Errorf("name %q, host %q, local %t; want %q, %q", d.Name, d.host, d.Local(), s.name, s.host)
			}
		})
	}
	for _, s := range []struct{ name, in, text string }{
		{"nothing", "", "not the name of an image"},
		{"upper case", "r.example/OS:1", "not the name of an image"},
		{"bad tag", "r.example/os:a b", "not the name of an image"},
		{"no registry", "os:1", "registry.example/os:1"},
		{"no registry, with a user", "me/os:1", "registry.example/me/os:1"},
		{"tag and digest", "r.example/os:1@" + zero, "cannot be pushed to"},
		{"another transport", "oci:/srv/os", "not the name of an image"},
	} {
		t.Run(s.name, func(t *testing.T) {
			_, err := RegistryDestination(s.in)
			if err == nil || !strings.Contains(err.Error(), s.text) || !strings.Contains(err.Error(), fmt.Sprintf("%q", s.in)) {
				t.Errorf("error %v, want one that names %q and says %q", err, s.in, s.text)
			}
		})
	}
}

func TestOutputDestination(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, s := range []struct{ spec, path, ref string }{
		{"oci:" + dir + "/a", dir + "/a", "oci:PARTIAL"},
		{"oci:" + dir + "/a:name", dir + "/a", "oci:PARTIAL:name"},
		{"oci-archive:" + dir + "/a.tar", dir + "/a.tar", "oci-archive:PARTIAL"},
		{"oci-archive:" + dir + "/a.tar:name", dir + "/a.tar", "oci-archive:PARTIAL:name"},
		{"docker-archive:" + dir + "/a.tar", dir + "/a.tar", "docker-archive:PARTIAL"},
		{"docker-archive:" + dir + "/a.tar:r.example/os:1", dir + "/a.tar", "docker-archive:PARTIAL:r.example/os:1"},
		{"dir:" + dir + "/a", dir + "/a", "dir:PARTIAL"},
		{"dir:" + dir + "/a:b", dir + "/a:b", "dir:PARTIAL"},
		{"oci:a", dir + "/a", "oci:PARTIAL"},
		{"dir:./a", dir + "/a", "dir:PARTIAL"},
	} {
		t.Run(strings.ReplaceAll(s.spec, dir, ""), func(t *testing.T) {
			d, err := OutputDestination(s.spec)
			if err != nil {
				t.Fatal(err)
			}
			if d.Name != s.spec || d.path != s.path || !d.Local() {
				t.Errorf("name %q, path %q, local %t; want %q, %q", d.Name, d.path, d.Local(), s.spec, s.path)
			}
			if filepath.Dir(d.partial) != filepath.Dir(d.path) || d.partial == d.path {
				t.Errorf("the copy is made at %q, want a place beside %q", d.partial, d.path)
			}
			got := d.ref.Transport().Name() + ":" + d.ref.StringWithinTransport()
			want := strings.TrimSuffix(strings.ReplaceAll(s.ref, "PARTIAL", d.partial), ":")
			if strings.TrimSuffix(got, ":") != want {
				t.Errorf("reference %q, want %q", got, want)
			}
		})
	}

	exists, file := t.TempDir(), write(t, dir+"/file", "")
	for _, s := range []struct{ name, spec, text string }{
		{"nothing", "", "TRANSPORT:PATH"},
		{"no transport", dir + "/a", "TRANSPORT:PATH"},
		{"a registry", "docker://r.example/os:1", "TRANSPORT:PATH"},
		{"the store", "containers-storage:r.example/os:1", "TRANSPORT:PATH"},
		{"upper case", "OCI:" + dir + "/a", "TRANSPORT:PATH"},
		{"no path", "oci:", "TRANSPORT:PATH"},
		{"a name without a path", "oci::name", "names no path"},
		{"a directory that exists", "oci:" + exists, exists},
		{"a file that exists", "oci-archive:" + file, file},
		{"in a directory that is not there", "oci-archive:" + dir + "/none/a.tar", dir + "/none"},
		{"below a file", "dir:" + file + "/a", file},
		{"a name that is none", "docker-archive:" + dir + "/a.tar:NAME:1", "docker-archive"},
	} {
		t.Run(s.name, func(t *testing.T) {
			if _, err := OutputDestination(s.spec); err == nil || !strings.Contains(err.Error(), s.text) {
				t.Errorf("%q: error %v, want one that says %q", s.spec, err, s.text)
			}
		})
	}
}

func TestCheckTag(t *testing.T) {
	for _, name := range []string{"os", "os:1", "r.example/os:1", "r.example:5000/a/b", "docker://r.example/os:1"} {
		if err := CheckTag(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	zero := "sha256:" + strings.Repeat("0", 64)
	for name, text := range map[string]string{
		"":                          "not the name of an image",
		"R.example/OS:1":            "not the name of an image",
		"os:":                       "not the name of an image",
		"r.example/os@" + zero:      "digest",
		"r.example/os:1@" + zero:    "digest",
		"r.example/os@sha256:short": "not the name of an image",
	} {
		if err := CheckTag(name); err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("%q: error %v, want one that names it and says %q", name, err, text)
		}
	}
}

func destination(t *testing.T, ref string) *Destination {
	t.Helper()
	d, err := RegistryDestination(ref)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestPushToARegistry(t *testing.T) {
	c := newCourier(t, insecure)
	d := destination(t, c.hub.host+"/os/layered:1")
	digest, sent, err := c.Push(t.Context(), c.id, d, Compression{}, "")
	if err != nil {
		t.Fatal(err)
	}
	stored := c.hub.manifests["1"]
	if c.hub.manifests[digest] == nil || string(c.hub.manifests[digest]) != string(stored) {
		t.Errorf("digest %s, want that of the manifest in the registry", digest)
	}
	if sent == 0 {
		t.Error("nothing was sent, want the layer and the config")
	}
	if err := c.Verify(t.Context(), d, digest, ""); err != nil {
		t.Errorf("verifying: %v", err)
	}
	c.hub.failing(http.MethodPatch, "/blobs/", answer(500, "text/plain", "")) // no blob is to be sent
	again, sent, err := c.Push(t.Context(), c.id, d, Compression{}, "")
	if err != nil || again != digest || sent != 0 {
		t.Errorf("pushed again: %s, %d bytes, %v; want the same digest and no byte", again, sent, err)
	}
}

func TestPushCountsWhatItSends(t *testing.T) {
	c := newCourier(t, insecure)
	empty := newHub(t)
	digest, sent, err := c.Push(t.Context(), c.id, destination(t, empty.host+"/os/layered:1"), Compression{}, "")
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for _, blob := range empty.blobs {
		want += int64(len(blob))
	}
	if sent != want || len(empty.blobs) != 2 {
		t.Errorf("%d bytes in %d blobs arrived, but %d are said to be sent (%s)", want, len(empty.blobs), sent, digest)
	}
}

// TestSizeThatTheRegistryTells is of registries that answer for a blob that is there
// without its size, or with another one: the manifest has the right size all the same.
func TestSizeThatTheRegistryTells(t *testing.T) {
	for _, length := range []string{"", "0", "7"} {
		t.Run("Content-Length "+length, func(t *testing.T) {
			c := newCourier(t, insecure)
			target := newHub(t)
			d := destination(t, target.host+"/os/layered:1")
			if _, _, err := c.Push(t.Context(), c.id, d, Compression{}, ""); err != nil {
				t.Fatal(err)
			}
			target.failing(http.MethodHead, "/blobs/", func(w http.ResponseWriter, r *http.Request) {
				target.mu.Lock()
				defer target.mu.Unlock()
				if target.blobs[digest.Digest(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])] == nil {
					w.WriteHeader(http.StatusNotFound)
					return
				}
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
			})
			if _, _, err := c.Push(t.Context(), c.id, d, Compression{}, ""); err != nil {
				t.Fatal(err)
			}
			m, err := manifest.OCI1FromManifest(target.manifests["1"])
			if err != nil {
				t.Fatal(err)
			}
			for _, blob := range append(m.Layers, m.Config) {
				if int64(len(target.blobs[blob.Digest])) != blob.Size {
					t.Errorf("a blob of %d bytes has the size %d in the manifest", len(target.blobs[blob.Digest]), blob.Size)
				}
			}
		})
	}
}

// TestSettingThatStopsAPush is found out as what it is, not as a failure that may heal.
func TestSettingThatStopsAPush(t *testing.T) {
	conf := write(t, t.TempDir()+"/registries.conf", "[[registry]]\nlocation = \"r.example\"\nblocked = true\n")
	b := open(t, func(c *Config) { c.RegistriesConf = conf })
	err := b.CheckPush(t.Context(), destination(t, "r.example/os/x:1"), "")
	wantFailure(t, err, result.ClassSandbox, result.ReasonSettingsInvalid, "blocks r.example")
}

func TestPushToAFile(t *testing.T) {
	c := newCourier(t, insecure)
	for _, transport := range []string{"oci", "oci-archive", "docker-archive", "dir"} {
		t.Run(transport, func(t *testing.T) {
			path := t.TempDir() + "/image"
			d, err := OutputDestination(transport + ":" + path)
			if err != nil {
				t.Fatal(err)
			}
			digest, _, err := c.Push(t.Context(), c.id, d, Compression{}, "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Error(err)
			}
			if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			if err := c.Verify(t.Context(), d, digest, ""); err != nil {
				t.Errorf("verifying: %v", err)
			}
			other := "sha256:" + strings.Repeat("0", 64)
			if transport == "docker-archive" {
				return // which keeps no manifest
			}
			e := mustFail(t, c.Verify(t.Context(), d, other, ""))
			if e.Reason != result.ReasonDigestMismatch || !strings.Contains(e.Message, other) || !strings.Contains(e.Message, digest) {
				t.Errorf("%s, %q; want DigestMismatch with both digests", e.Reason, e.Message)
			}
		})
	}
}

func TestPushToAFileThatFails(t *testing.T) {
	c := newCourier(t, insecure)
	dir := filepath.Dir(write(t, t.TempDir()+"/gone/x", ""))
	path := dir + "/image"
	d, err := OutputDestination("oci-archive:" + path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_, _, err = c.Push(t.Context(), c.id, d, Compression{}, "")
	e := mustFail(t, err)
	if e.Host != "" || e.Status != 0 || !strings.Contains(e.Message, path) {
		t.Errorf("host %q, status %d, %q; want no host and the path", e.Host, e.Status, e.Message)
	}
}

func TestPushWithACompressionThatIsNone(t *testing.T) {
	c := newCourier(t, insecure)
	_, _, err := c.Push(t.Context(), c.id, destination(t, c.hub.host+"/os:1"), Compression{Format: "lha"}, "")
	e := mustFail(t, err)
	if e.Reason != result.ReasonSettingsInvalid || !strings.Contains(e.Message, "lha") || !strings.Contains(e.Message, "--compression-format") {
		t.Errorf("%s, %q; want SettingsInvalid that names the flag and lha", e.Reason, e.Message)
	}
}

// A registries.conf says where to pull from; what is pushed goes where it is told.
func TestPushGoesPastMirrors(t *testing.T) {
	c := newCourier(t, insecure)
	mirror := newHub(t)
	c.sys.SystemRegistriesConfPath = write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(
		"[[registry]]\nlocation = %q\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", c.hub.host, mirror.host))
	d := destination(t, c.hub.host+"/os:1")
	digest, _, err := c.Push(t.Context(), c.id, d, Compression{}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Verify(t.Context(), d, digest, ""); err != nil {
		t.Errorf("verifying: %v", err)
	}
	if len(mirror.blobs) > 0 || len(mirror.manifests) > 0 || c.hub.manifests["1"] == nil {
		t.Error("the image is in the mirror, want it in the registry")
	}
}

func TestVerify(t *testing.T) {
	c := newCourier(t, insecure)
	image, _ := c.hub.add(t, "1", runtime.GOARCH)
	d := destination(t, c.hub.host+"/os:1")
	want := image.Digest.String()
	for _, s := range []struct {
		name   string
		answer http.HandlerFunc
		class  result.Class
		reason result.Reason
		status int
	}{
		{"the registry lost it", answer(404, "text/plain", ""), result.ClassTransient, result.ReasonPushFailed, 404},
		{"the registry is down", answer(503, "text/plain", ""), result.ClassTransient, result.ReasonRegistryUnavailable, 503},
		{"the credentials may not read", answer(401, "text/plain", ""), result.ClassAuth, result.ReasonPushUnauthorized, 401},
		{"the connection breaks", hangUp, result.ClassTransient, result.ReasonRegistryUnavailable, 0},
	} {
		t.Run(s.name, func(t *testing.T) {
			c.hub.failing(http.MethodHead, "/manifests/", s.answer)
			e := mustFail(t, c.Verify(t.Context(), d, want, ""))
			if e.Class != s.class || e.Reason != s.reason || e.Status != s.status || e.Host != c.hub.host {
				t.Errorf("%s, %s, status %d, host %q; want %s, %s, %d, %q\n%s", e.Class, e.Reason, e.Status, e.Host, s.class, s.reason, s.status, c.hub.host, e.Message)
			}
			if !strings.Contains(e.Message, "verif") {
				t.Errorf("the message does not say that it was verified: %s", e.Message)
			}
		})
	}
	t.Run("another digest", func(t *testing.T) {
		other := "sha256:" + strings.Repeat("0", 64)
		c.hub.failing(http.MethodHead, "/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Docker-Content-Digest", other)
		})
		e := mustFail(t, c.Verify(t.Context(), d, want, ""))
		if e.Class != result.ClassTransient || e.Reason != result.ReasonDigestMismatch || !strings.Contains(e.Message, want) || !strings.Contains(e.Message, other) {
			t.Errorf("%s, %s, %q; want Transient, DigestMismatch with both digests", e.Class, e.Reason, e.Message)
		}
	})
}

func TestPushed(t *testing.T) {
	c := newCourier(t, insecure)
	_, m := c.hub.add(t, "plain", runtime.GOARCH)
	m.Annotations = map[string]string{BuildIDAnnotation: "build-1"}
	mine := c.hub.addManifest("mine", imgspecv1.MediaTypeImageManifest, encode(t, m)).Digest.String()
	for _, s := range []struct{ name, tag, id, want string }{
		{"of this build", "mine", "build-1", mine},
		{"of another build", "mine", "build-2", ""},
		{"of no build", "plain", "build-1", ""},
		{"not there", "none", "build-1", ""},
	} {
		t.Run(s.name, func(t *testing.T) {
			got, err := c.Pushed(t.Context(), destination(t, c.hub.host+"/os:"+s.tag), s.id, "")
			if err != nil || got != s.want {
				t.Errorf("%q, %v; want %q", got, err, s.want)
			}
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		c.hub.failing(http.MethodGet, "/manifests/", hangUp)
		_, err := c.Pushed(t.Context(), destination(t, c.hub.host+"/os:mine"), "build-1", "")
		if e := mustFail(t, err); e.Class != result.ClassTransient {
			t.Errorf("%s, want Transient", e.Class)
		}
	})
}

// What was pushed is asked for where it was pushed to.
func TestPushedGoesPastMirrors(t *testing.T) {
	c := newCourier(t, insecure)
	mirror := newHub(t)
	_, m := mirror.add(t, "1", runtime.GOARCH)
	m.Annotations = map[string]string{BuildIDAnnotation: "build-1"}
	mirror.addManifest("1", imgspecv1.MediaTypeImageManifest, encode(t, m))
	c.hub.add(t, "1", runtime.GOARCH)
	c.sys.SystemRegistriesConfPath = write(t, t.TempDir()+"/registries.conf", fmt.Sprintf(
		"[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", c.hub.host, mirror.host))
	c.sys.DockerInsecureSkipTLSVerify = types.OptionalBoolUndefined
	got, err := c.Pushed(t.Context(), destination(t, c.hub.host+"/os:1"), "build-1", "")
	if err != nil || got != "" {
		t.Errorf("%q, %v; want nothing, since only the mirror has an image of this build", got, err)
	}
}

// TestPushOfWhatIsThere asks once for each layer, as it was pulled or pushed before, and
// enters nothing anew that is known.
func TestPushOfWhatIsThere(t *testing.T) {
	j := newJourney(t)
	j.pull(t, true)
	id := j.build(t)
	push := func() (digest string, sent int64) {
		t.Helper()
		digest, sent, err := j.Push(t.Context(), id, j.destination, j.spec.Compression, "")
		if err != nil {
			t.Fatal(err)
		}
		return digest, sent
	}
	pushed, _ := push()
	known := filepath.Join(j.sys.BlobInfoCacheDir, "blob-info-cache-v1.sqlite")
	before, err := os.ReadFile(known)
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	j.to.mu.Lock()
	j.to.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		j.to.mu.Lock()
		defer j.to.mu.Unlock()
		if strings.Contains(r.URL.Path, "/blobs/") {
			asked = append(asked, path.Base(r.URL.Path))
		}
		return false
	}
	j.to.mu.Unlock()
	m, err := manifest.OCI1FromManifest(j.to.manifests[pushed])
	if err != nil {
		t.Fatal(err)
	}
	want := []string{m.Config.Digest.String()}
	for _, layer := range m.Layers {
		want = append(want, layer.Digest.String())
	}
	slices.Sort(want)
	for _, who := range []string{"the next attempt", "the next build, which has to see how layers of steps are compressed"} {
		asked = nil
		if again, sent := push(); again != pushed || sent != 0 {
			t.Errorf("%s: %s was pushed with %d bytes, want %s with none", who, again, sent, pushed)
		}
		slices.Sort(asked)
		if !slices.Equal(asked, want) {
			t.Errorf("%s: asked was for %q, want %q", who, asked, want)
		}
		j.anew()
	}
	if after, err := os.ReadFile(known); err != nil || !bytes.Equal(after, before) {
		t.Errorf("%s was written (%v)", known, err)
	}
}

// TestLayersThatMayNotBeRead are sent again by another build, which cannot see how they
// are compressed. A registry that wants to be left alone is.
func TestLayersThatMayNotBeRead(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		fails  bool
	}{
		"reading is forbidden": {answer(http.StatusForbidden, "text/plain", ""), false},
		"reading fails":        {answer(http.StatusBadGateway, "text/plain", ""), false},
		"the connection ends":  {hangUp, false},
		"too many requests":    {answer(http.StatusTooManyRequests, "text/plain", ""), true},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJourney(t)
			j.pull(t, true)
			id := j.build(t)
			pushed, _, err := j.Push(t.Context(), id, j.destination, j.spec.Compression, "")
			if err != nil {
				t.Fatal(err)
			}
			j.anew()
			j.to.failing(http.MethodGet, "/blobs/", tt.answer)
			again, sent, err := j.Push(t.Context(), id, j.destination, j.spec.Compression, "")
			if tt.fails {
				wantFailure(t, err, result.ClassTransient, result.ReasonRateLimited, "429")
			} else if err != nil || again != pushed || sent == 0 {
				t.Errorf("%s was pushed with %d bytes, error %v; want %s and the layer of the step", again, sent, err, pushed)
			}
		})
	}
}
