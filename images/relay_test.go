package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"

	"github.com/strata-build/strata/agent/result"
)

// addLayersOfTypes puts an image under the tag with one layer of each media type, compressed
// as nobody here does it.
func (h *hub) addLayersOfTypes(t *testing.T, tag string, mediaTypes ...string) imgspecv1.Manifest {
	t.Helper()
	m := imgspecv1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imgspecv1.MediaTypeImageManifest}
	config := imgspecv1.Image{Platform: imgspecv1.Platform{OS: "linux", Architecture: runtime.GOARCH}, RootFS: imgspecv1.RootFS{Type: "layers"}}
	for i, mediaType := range mediaTypes {
		var layer, packed bytes.Buffer
		content := bytes.Repeat([]byte(fmt.Sprintf("%s of layer %d\n", tag, i)), 3000)
		archive := tar.NewWriter(&layer)
		header := &tar.Header{Name: fmt.Sprint("file", i), Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}
		var w io.WriteCloser = gzip.NewWriter(&packed)
		if strings.HasSuffix(mediaType, "zstd") {
			var err error
			if w, err = zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedFastest)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(archive.WriteHeader(header), second(archive.Write(content)), archive.Close(), second(w.Write(layer.Bytes())), w.Close()); err != nil {
			t.Fatal(err)
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(layer.Bytes()))
		if mediaType == imgspecv1.MediaTypeImageLayer {
			packed = layer
		}
		m.Layers = append(m.Layers, h.addBlob(mediaType, packed.Bytes()))
	}
	m.Config = h.addBlob(imgspecv1.MediaTypeImageConfig, encode(t, config))
	h.addManifest(tag, m.MediaType, encode(t, m))
	return m
}

// journey is a base image on its way from one registry, through a build, to another.
type journey struct {
	*site
	from, to    *hub
	base        imgspecv1.Manifest
	destination *Destination
	spec        BuildSpec
}

func newJourney(t *testing.T, mediaTypes ...string) *journey {
	t.Helper()
	if len(mediaTypes) == 0 {
		mediaTypes = []string{imgspecv1.MediaTypeImageLayerGzip, imgspecv1.MediaTypeImageLayerGzip}
	}
	j := &journey{site: newSite(t), from: newHub(t), to: newHub(t)}
	j.base = j.from.addLayersOfTypes(t, "base", mediaTypes...)
	j.destination = destination(t, j.to.host+"/os/layered:1")
	j.spec = BuildSpec{Context: j.context, Format: "oci", Layers: true, Jobs: 1}
	return j
}

// pull makes ready for the push, and pulls.
func (j *journey) pull(t *testing.T, early bool) {
	t.Helper()
	j.spec.Containerfile = j.containerfile(t, "FROM "+j.from.host+"/os:base\nCOPY a /a\n")
	j.PlanPush(j.destination, j.spec)
	if early {
		if err := j.CheckPush(t.Context(), j.destination, ""); err != nil {
			t.Fatal(err)
		}
		j.PushEarly(t.Context())
	}
	file, err := j.Parse(j.spec)
	if err != nil || len(file.Bases) != 1 || !file.Bases[0].Final {
		t.Fatalf("bases %+v (%v), want one of the final stage", file, err)
	}
	if _, err := j.Pull(t.Context(), "Containerfile", file.Bases[0], ""); err != nil {
		t.Fatal(err)
	}
}

// build builds, and returns the id of the image.
func (j *journey) build(t *testing.T) string {
	t.Helper()
	file, err := j.Parse(j.spec)
	if err != nil {
		t.Fatal(err)
	}
	id, err := j.Build(t.Context(), j.spec, file)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// finish builds and pushes, and returns the manifest that was pushed.
func (j *journey) finish(t *testing.T) (m *manifest.OCI1, sent int64) {
	t.Helper()
	d, sent, err := j.Push(t.Context(), j.build(t), j.destination, j.spec.Compression, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Verify(t.Context(), j.destination, d, ""); err != nil {
		t.Error(err)
	}
	if m, err = manifest.OCI1FromManifest(j.to.manifests["1"]); err != nil {
		t.Fatal(err)
	}
	return m, sent
}

// anew forgets what this process knows of layers at the destination, as another would not
// know it.
func (j *journey) anew() {
	j.destination.known = nil
	if j.relay.early != nil {
		j.relay.early.close()
		j.relay.early = nil
	}
}

// wantPassed checks that the layers of the base are those that were pulled.
func (j *journey) wantPassed(t *testing.T, m *manifest.OCI1) {
	t.Helper()
	if len(m.Layers) != len(j.base.Layers)+1 {
		t.Fatalf("%d layers, want those of the base and one more", len(m.Layers))
	}
	for i, want := range j.base.Layers {
		if got := m.Layers[i]; got.Digest != want.Digest || got.Size != want.Size || got.MediaType != want.MediaType {
			t.Errorf("layer %d is %+v, want %+v as it was pulled", i, got, want)
		}
		if !bytes.Equal(j.to.blobs[want.Digest], j.from.blobs[want.Digest]) {
			t.Errorf("layer %d is not what was pulled", i)
		}
	}
}

// waitUntil waits until something is so.
func waitUntil(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !so(); {
		if time.Now().After(end) {
			t.Fatalf("it never came about that %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func (h *hub) has(blob digest.Digest) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.blobs[blob] != nil
}

// arrived is the size of the blobs in the registry.
func (h *hub) arrived() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, blob := range h.blobs {
		n += int64(len(blob))
	}
	return n
}

func TestLayersArePassedOnAsTheyWerePulled(t *testing.T) {
	mixed := []string{imgspecv1.MediaTypeImageLayerGzip, imgspecv1.MediaTypeImageLayerZstd, imgspecv1.MediaTypeImageLayerGzip}
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprint("early ", early), func(t *testing.T) {
			j := newJourney(t, mixed...)
			j.pull(t, early)
			if early { // before there is anything to push
				waitUntil(t, "the layers are sent while the build goes on", func() bool {
					return j.to.has(j.base.Layers[0].Digest) && j.to.has(j.base.Layers[1].Digest) && j.to.has(j.base.Layers[2].Digest)
				})
			}
			m, sent := j.finish(t)
			j.wantPassed(t, m)
			if last := m.Layers[3]; last.MediaType != imgspecv1.MediaTypeImageLayerGzip {
				t.Errorf("the new layer is %s, want gzip", last.MediaType)
			}
			if want := j.to.arrived(); sent != want || len(j.to.blobs) != 5 {
				t.Errorf("%d bytes in %d blobs arrived, want 4 layers and a config; %d are said to be sent", want, len(j.to.blobs), sent)
			}
			kept := j.relay.kept.Path()
			j.Close()
			if _, err := os.Stat(kept); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("what was kept is left: %v", err)
			}
		})
	}
}

// TestLayersBelowOneWithoutCompression are passed on like others.
func TestLayersBelowOneWithoutCompression(t *testing.T) {
	j := newJourney(t, imgspecv1.MediaTypeImageLayerGzip, imgspecv1.MediaTypeImageLayer)
	j.pull(t, false)
	m, _ := j.finish(t)
	if len(m.Layers) != 3 || m.Layers[0].Digest != j.base.Layers[0].Digest {
		t.Errorf("the layers are %+v, want the first as it was pulled, %s", m.Layers, j.base.Layers[0].Digest)
	}
	if !j.to.has(j.base.Layers[0].Digest) {
		t.Error("it was not sent")
	}
}

// TestCompressionThatIsDemanded is that of a layer, too, which the registry has without any.
func TestCompressionThatIsDemanded(t *testing.T) {
	j := newJourney(t, imgspecv1.MediaTypeImageLayer)
	j.to, j.destination = j.from, destination(t, j.from.host+"/os/layered:1")
	j.spec.Compression = Compression{Format: "zstd"}
	j.pull(t, true)
	m, _ := j.finish(t)
	for i, layer := range m.Layers {
		if layer.MediaType != imgspecv1.MediaTypeImageLayerZstd {
			t.Errorf("layer %d is %s, want zstd", i, layer.MediaType)
		}
	}
}

// TestLayersThatAreNotWantedAsTheyAre are not kept.
func TestLayersThatAreNotWantedAsTheyAre(t *testing.T) {
	for name, tt := range map[string]struct {
		mediaTypes []string
		change     func(*testing.T, *journey)
		kept       int
	}{
		"another compression": {change: func(_ *testing.T, j *journey) { j.spec.Compression.Format = "zstd" }},
		"that compression":    {change: func(_ *testing.T, j *journey) { j.spec.Compression.Format = "gzip" }, kept: 2},
		"zstd in the format of Docker": {
			mediaTypes: []string{imgspecv1.MediaTypeImageLayerGzip, imgspecv1.MediaTypeImageLayerZstd},
			change:     func(_ *testing.T, j *journey) { j.spec.Format = "docker" }, kept: 1,
		},
		"no compression":  {mediaTypes: []string{imgspecv1.MediaTypeImageLayerGzip}, change: func(*testing.T, *journey) {}, kept: 1},
		"a single layer":  {change: func(_ *testing.T, j *journey) { j.spec.Squash = true }},
		"a file":          {change: func(t *testing.T, j *journey) { j.destination = output(t, "oci:"+t.TempDir()+"/image") }},
		"a signature":     {change: func(_ *testing.T, j *journey) { j.destination.SignWith("/no/such/key", "") }},
		"the same place":  {change: func(t *testing.T, j *journey) { j.destination = destination(t, j.from.host+"/os/layered:1") }},
		"nothing special": {change: func(*testing.T, *journey) {}, kept: 2},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJourney(t, tt.mediaTypes...)
			tt.change(t, j)
			j.pull(t, false)
			entries, err := os.ReadDir(j.relay.kept.Path())
			if err != nil && !errors.Is(err, os.ErrNotExist) || len(entries) != tt.kept {
				t.Errorf("kept: %v (%v), want %d layers", entries, err, tt.kept)
			}
		})
	}
}

func output(t *testing.T, spec string) *Destination {
	t.Helper()
	d, err := OutputDestination(spec)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFormatOfDocker has gzip alone, whatever the base has: where it is asked for, and
// where the registry takes no other.
func TestFormatOfDocker(t *testing.T) {
	for name, change := range map[string]func(*journey){
		"asked for": func(j *journey) { j.spec.Format = "docker" },
		"all that the registry takes": func(j *journey) {
			j.to.mu.Lock()
			defer j.to.mu.Unlock()
			j.to.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut || r.Header.Get("Content-Type") != imgspecv1.MediaTypeImageManifest {
					return false
				}
				answer(http.StatusUnsupportedMediaType, "text/plain", "")(w, r)
				return true
			}
		},
	} {
		for _, early := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " early ", early), func(t *testing.T) {
				j := newJourney(t, imgspecv1.MediaTypeImageLayerGzip, imgspecv1.MediaTypeImageLayerZstd)
				change(j)
				j.pull(t, early)
				_, _ = j.finish(t)
				m, err := manifest.Schema2FromManifest(j.to.manifests["1"])
				if err != nil {
					t.Fatal(err)
				}
				for i, layer := range m.LayersDescriptors {
					if layer.MediaType != manifest.DockerV2Schema2LayerMediaType {
						t.Errorf("layer %d is %s", i, layer.MediaType)
					}
					if _, err := gzip.NewReader(bytes.NewReader(j.to.blobs[layer.Digest])); err != nil {
						t.Errorf("layer %d: %v", i, err)
					}
				}
				if got := m.LayersDescriptors[0].Digest; got != j.base.Layers[0].Digest {
					t.Errorf("the first layer is %s, want the one that was pulled", got)
				}
			})
		}
	}
}

// TestLayerThatIsDamaged in the store is never sent under its name.
func TestLayerThatIsDamaged(t *testing.T) {
	for _, size := range []string{"same", "another"} {
		t.Run("with the "+size+" size", func(t *testing.T) {
			j := newJourney(t)
			j.pull(t, false)
			bad := j.base.Layers[0].Digest
			path := filepath.Join(j.relay.kept.Path(), bad.String())
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if size == "another" {
				data = data[:len(data)-1]
			}
			write(t, path, string(data))
			m, _ := j.finish(t)
			if j.to.has(bad) || m.Layers[0].Digest == bad || !j.to.has(m.Layers[0].Digest) {
				t.Errorf("the damaged layer was pushed as %s", m.Layers[0].Digest)
			}
			if m.Layers[1].Digest != j.base.Layers[1].Digest {
				t.Errorf("the other layer is %s, want the one that was pulled", m.Layers[1].Digest)
			}
			if !strings.Contains(j.log.String(), "is damaged") || !strings.Contains(j.log.String(), bad.String()) {
				t.Errorf("the log does not say so: %s", j.log)
			}
			for i, layer := range m.Layers {
				r, err := gzip.NewReader(bytes.NewReader(j.to.blobs[layer.Digest]))
				if err == nil {
					_, err = io.Copy(io.Discard, r)
				}
				if err != nil {
					t.Errorf("layer %d in the registry: %v", i, err)
				}
			}
		})
	}
}

// TestEarlyPushThatFails is no failure of anything: the push sends what is missing.
func TestEarlyPushThatFails(t *testing.T) {
	for name, tt := range map[string]struct {
		method string
		answer http.HandlerFunc
		// most is how many requests that fail are made.
		most int32
	}{
		"a connection that breaks": {http.MethodPatch, hangUp, 2},
		"an error of the server":   {http.MethodPatch, answer(500, "text/plain", ""), 2},
		"a refusal":                {http.MethodPatch, answer(403, "text/plain", ""), 2},
		"no answer to questions":   {http.MethodHead, hangUp, 6},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJourney(t)
			var failed atomic.Int32
			j.to.failing(tt.method, "/blobs/", func(w http.ResponseWriter, r *http.Request) {
				failed.Add(1)
				tt.answer(w, r)
			})
			before := strings.Count(j.log.String(), "level=WARN")
			j.pull(t, true)
			waitUntil(t, "it is tried", func() bool { return failed.Load() > 0 })
			waitUntil(t, "it is done", func() bool {
				j.relay.early.mu.Lock()
				defer j.relay.early.mu.Unlock()
				return len(j.relay.early.moving) == 0 && (len(j.relay.early.queue) == 0 || j.relay.early.ended)
			})
			if n := failed.Load(); n > tt.most {
				t.Errorf("%d requests failed, want at most %d", n, tt.most)
			}
			j.to.failing("none", "", nil)
			m, _ := j.finish(t)
			j.wantPassed(t, m)
			if text := j.log.String(); strings.Count(text, "level=WARN") > before || strings.Contains(text, "level=ERROR") {
				t.Errorf("the log has a warning: %s", text)
			}
		})
	}
}

// TestLayersOfStepsAreSentBeforeThePush in the form that the push would give them: the
// digest of the image is the same.
func TestLayersOfStepsAreSentBeforeThePush(t *testing.T) {
	for _, format := range []string{"", "gzip", "zstd", "zstd:chunked"} {
		t.Run("compressed by "+format, func(t *testing.T) {
			j := newJourney(t)
			j.spec.Compression.Format = format
			var uploads atomic.Int32
			j.to.mu.Lock()
			j.to.fault = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/blobs/") {
					uploads.Add(1)
				}
				return false
			}
			j.to.mu.Unlock()
			j.pull(t, true)
			file, err := j.Parse(j.spec)
			if err != nil {
				t.Fatal(err)
			}
			id, err := j.Build(t.Context(), j.spec, file)
			if err != nil {
				t.Fatal(err)
			}
			before := map[string]int32{"": 3, "gzip": 3, "zstd": 1, "zstd:chunked": 0}[format]
			waitUntil(t, "the layers are sent", func() bool { return uploads.Load() == before })
			late := newHub(t)
			for _, d := range []*Destination{j.destination, destination(t, late.host+"/os/layered:1")} {
				if _, _, err := j.Push(t.Context(), id, d, j.spec.Compression, ""); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(j.to.manifests["1"], late.manifests["1"]) {
				t.Errorf("the manifest is %s, without early layers %s", j.to.manifests["1"], late.manifests["1"])
			}
			if want := map[string]int32{"": 4, "gzip": 4, "zstd": 4, "zstd:chunked": 4}[format]; uploads.Load() != want {
				t.Errorf("%d uploads, want one of each of 3 layers and the config", uploads.Load())
			}
		})
	}
}

// TestTarThatIsNotTheLayer never becomes a blob.
func TestTarThatIsNotTheLayer(t *testing.T) {
	j := newJourney(t)
	j.pull(t, true)
	waitUntil(t, "the base is sent", func() bool {
		return len(j.base.Layers) == 2 && j.to.has(j.base.Layers[0].Digest) && j.to.has(j.base.Layers[1].Digest)
	})
	tar, err := os.Open(write(t, t.TempDir()+"/tar", strings.Repeat("not the layer", 100000)))
	if err != nil {
		t.Fatal(err)
	}
	defer tar.Close()
	layer := &stepLayer{plain: digest.FromString("the layer"), tar: tar, done: make(chan struct{})}
	if err := j.relay.early.sendLayer(layer); err == nil || layer.packed != "" {
		t.Errorf("it was sent as %s", layer.packed)
	}
	if len(j.to.blobs) != 2 {
		t.Errorf("the registry has %d blobs, want those of the base", len(j.to.blobs))
	}
}

// TestStoreGetsLayersAsTheyAre: what is compressed for a store, which unpacks it, is so in
// vain.
func TestStoreGetsLayersAsTheyAre(t *testing.T) {
	s := newSite(t)
	id, _, err := s.build(t, "FROM scratch\nCOPY a /a\n")
	if err != nil {
		t.Fatal(err)
	}
	image, err := s.store.Image(id)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := s.store.Layer(image.TopLayer)
	if err != nil || layer.CompressedDigest != layer.UncompressedDigest {
		t.Errorf("the layer came as %s, and is %s (%v)", layer.CompressedDigest, layer.UncompressedDigest, err)
	}
}

// TestPushWaitsForALayerThatIsOnItsWay, and does not send it a second time.
func TestPushWaitsForALayerThatIsOnItsWay(t *testing.T) {
	j := newJourney(t)
	release := make(chan struct{})
	var sent atomic.Int32
	j.to.mu.Lock()
	j.to.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			if sent.Add(1) <= earlySenders {
				<-release
			}
		}
		return false
	}
	j.to.mu.Unlock()
	j.pull(t, true)
	waitUntil(t, "both layers are on their way", func() bool { return sent.Load() == 2 })
	time.AfterFunc(300*time.Millisecond, func() { close(release) })
	m, bytes := j.finish(t)
	j.wantPassed(t, m)
	if n := sent.Load(); n != 4 || bytes != j.to.arrived() {
		t.Errorf("%d uploads of %d bytes, want one of each of 3 layers and the config, %d bytes", n, bytes, j.to.arrived())
	}
}

// TestDestinationThatSaysNothing holds up no pull for long.
func TestDestinationThatSaysNothing(t *testing.T) {
	j := newJourney(t)
	release := make(chan struct{})
	j.to.failing(http.MethodHead, "/blobs/", func(http.ResponseWriter, *http.Request) { <-release })
	before := time.Now()
	j.pull(t, true)
	if took := time.Since(before); took > 3*earlyAnswer {
		t.Errorf("the pull took %v", took)
	}
	close(release)
	j.to.failing("none", "", nil)
	m, _ := j.finish(t)
	j.wantPassed(t, m)
}

// TestCloseEndsWhatIsOnItsWay at once.
func TestCloseEndsWhatIsOnItsWay(t *testing.T) {
	j := newJourney(t)
	release := make(chan struct{})
	defer close(release)
	var begun atomic.Bool
	j.to.failing(http.MethodPatch, "/blobs/", func(http.ResponseWriter, *http.Request) {
		begun.Store(true)
		<-release
	})
	j.pull(t, true)
	waitUntil(t, "a layer is on its way", begun.Load)
	before := time.Now()
	j.Close()
	if took := time.Since(before); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestBuildThatIsTriedAgain by another process goes on with what the first one kept, and
// leaves nothing.
func TestBuildThatIsTriedAgain(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprint("early ", early), func(t *testing.T) {
			j := newJourney(t)
			j.pull(t, false)
			root, cache := j.StorageRoot(), j.sys.BlobInfoCacheDir
			j.Close() // without a push

			again := func() {
				config, b := configured(t, insecure, func(c *Config) { c.StorageRoot = root })
				t.Setenv("TMPDIR", "")
				e, err := Open(config)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(e.Close)
				e.sys.BlobInfoCacheDir = cache
				b.Engine, j.bench = e, b
			}
			again()
			j.from.failing("", "/blobs/", answer(500, "text/plain", "")) // nothing is to be fetched
			j.pull(t, early)
			if early {
				waitUntil(t, "the layers are sent", func() bool { return j.to.has(j.base.Layers[0].Digest) && j.to.has(j.base.Layers[1].Digest) })
			}
			m, _ := j.finish(t)
			j.wantPassed(t, m)
			j.Close()
			for _, pattern := range []string{"strata/strata-*", "strata/blobs/*"} {
				if left, _ := filepath.Glob(filepath.Join(root, pattern)); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
			}
		})
	}
}

// TestLayersOfABuildThatWasKilled are of no use to one that pushes nothing, and go.
func TestLayersOfABuildThatWasKilled(t *testing.T) {
	root := t.TempDir()
	killed := ledgerIn(t, root, t.TempDir())
	blob := digest.FromString("layer")
	write(t, filepath.Join(keptBy(killed.dir, killed.name).Path(), blob.String()), "layer")
	killed.kill()
	b := open(t, func(c *Config) { c.StorageRoot = root })
	if !b.relay.kept.Has(blob) {
		t.Error("the next build did not take the layer over")
	}
	b.Close()
	left, _ := filepath.Glob(filepath.Join(root, ledgerDir, relayDir, "*"))
	ledgers, _ := filepath.Glob(filepath.Join(root, ledgerDir, "strata-*"))
	if len(left)+len(ledgers) > 0 {
		t.Errorf("left: %v, %v", left, ledgers)
	}
}

// TestNoRoomForLayers: the build goes on without, and says so once.
func TestNoRoomForLayers(t *testing.T) {
	j := newJourney(t)
	j.relay.forecast(1 << 62)
	j.pull(t, true)
	if !j.relay.kept.Empty() {
		t.Error("layers were kept")
	}
	m, _ := j.finish(t)
	for i, layer := range m.Layers {
		if slices.ContainsFunc(j.base.Layers, func(d imgspecv1.Descriptor) bool { return d.Digest == layer.Digest }) {
			t.Errorf("layer %d was not compressed again", i)
		}
	}
	if n := strings.Count(j.log.String(), "no room to keep"); n != 1 {
		t.Errorf("it is said %d times: %s", n, j.log)
	}
}

// TestLayersAreFreedWhenSpaceRunsOut for the attempts to come.
func TestLayersAreFreedWhenSpaceRunsOut(t *testing.T) {
	j := newJourney(t)
	j.pull(t, false)
	if j.relay.kept.Empty() {
		t.Fatal("nothing was kept")
	}
	j.relay.free()
	if _, err := os.Stat(j.relay.kept.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("they are left: %v", err)
	}
	if _, sent := j.finish(t); sent != j.to.arrived() {
		t.Errorf("%d bytes were sent, %d arrived", sent, j.to.arrived())
	}
}

// TestLayersThatTheDestinationHas are neither kept nor sent.
func TestLayersThatTheDestinationHas(t *testing.T) {
	j := newJourney(t)
	j.to.mu.Lock()
	maps.Copy(j.to.blobs, j.from.blobs)
	j.to.mu.Unlock()
	var sent atomic.Int32
	j.to.mu.Lock()
	j.to.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			sent.Add(1)
		}
		return false
	}
	j.to.mu.Unlock()
	j.pull(t, true)
	if !j.relay.kept.Empty() || sent.Load() != 0 {
		t.Errorf("%d layers were sent", sent.Load())
	}
	m, _ := j.finish(t)
	j.wantPassed(t, m)
	if n := sent.Load(); n != 2 {
		t.Errorf("%d uploads, want those of the new layer and the config", n)
	}
}

// TestDestinationThatRefuses is sent nothing before the push.
func TestDestinationThatRefuses(t *testing.T) {
	j := newJourney(t)
	j.to.failing("", "/blobs/", answer(403, "text/plain", ""))
	j.PlanPush(j.destination, j.spec)
	err := j.CheckPush(t.Context(), j.destination, "")
	wantFailure(t, err, result.ClassAuth, result.ReasonPushDenied)
	j.PushEarly(t.Context())
	if j.relay.early != nil {
		t.Error("layers are sent all the same")
	}
}

// TestBaseOfTheFinalStage is the only one whose layers are those of the image.
func TestBaseOfTheFinalStage(t *testing.T) {
	file, err := ParseContainerfile("Containerfile", []byte(`FROM r.example/tools:1 AS tools
FROM r.example/base:1 AS middle
COPY --from=tools /a /a
FROM r.example/other:1 AS unused
FROM middle
COPY --from=r.example/files:1 /b /b
`), nil, "", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range file.Bases {
		if want := b.Name == "r.example/base:1"; b.Final != want {
			t.Errorf("%s is the base of the final stage: %v, want %v", b.Name, b.Final, want)
		}
	}
	if len(file.Bases) != 3 {
		t.Errorf("bases %+v", file.Bases)
	}
}
