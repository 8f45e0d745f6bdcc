package integration

import (
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// relayLab is a lab with a base of several layers in its registry, and another registry
// to push to.
func relayLab(t *testing.T) (l *lab, to *registry.Registry, base v1.Image) {
	t.Helper()
	l = newLab(t)
	to = registry.Start(t)
	data := make([]byte, 2<<20)
	rand.NewChaCha8([32]byte{1}).Read(data)
	base = bases.Append(t, bases.Append(t, bases.Busy(t), bases.Regular("/data", 0o644, data)), bases.Regular("/motd", 0o644, []byte(strings.Repeat("hello ", 5000))))
	l.addBase("base/layers:1", base)
	l.file("context/a", strings.Repeat("content ", 10000))
	l.containerfile("FROM HOST/base/layers:1", "RUN echo b > /b && rm /motd", "COPY a /a")
	return l, to, base
}

// sizeOf is the size of the blobs of an image, each once.
func sizeOf(t *testing.T, img v1.Image) (n int64) {
	t.Helper()
	m := bases.Manifest(t, img)
	seen := map[string]bool{}
	for _, d := range append(m.Layers, m.Config) {
		if !seen[d.Digest.String()] {
			seen[d.Digest.String()] = true
			n += d.Size
		}
	}
	return n
}

// received is how many bytes of blobs a registry took.
func received(r *registry.Registry) (n int64) {
	for _, request := range r.Requests() {
		if request.Method == http.MethodPatch {
			n += request.Received
		}
	}
	return n
}

func inside(t *testing.T, r *registry.Registry, name string) v1.Image {
	t.Helper()
	return bases.Pull(t, r.Host(), name, remote.WithTransport(r.Inside()))
}

// TestBaseIsPushedAsItWasPulled to another registry: its layers have the digests that
// they had, each byte is sent once, and the image is the one that buildah makes.
func TestBaseIsPushedAsItWasPulled(t *testing.T) {
	for _, format := range []string{"oci", "docker"} {
		t.Run(format, func(t *testing.T) {
			p := newPeers(t)
			l, to, base := relayLab(t)
			o := l.build("--tag", to.Host()+"/os/layered:1", "--push", "--format", format)
			o.wantSuccess(t)
			image := inside(t, to, "os/layered:1")
			bases.Check(t, image)
			layers := bases.LayerDigests(t, base)
			if got := bases.LayerDigests(t, image); len(got) != len(layers)+2 || !slices.Equal(got[:len(layers)], layers) {
				t.Errorf("layers %v, want those of the base, %v, and two more", got, layers)
			}
			if got, want := received(to), sizeOf(t, image); got != want || *o.result.Phases[result.Push].Bytes != want {
				t.Errorf("%d bytes arrived, %d are said to be pushed; the blobs of the image have %d", got, *o.result.Phases[result.Push].Bytes, want)
			}
			if n := l.registry.Count(http.MethodGet, "/blobs/"); n != len(layers)+1 {
				t.Errorf("%d blobs were fetched, want %d layers and a config, once", n, len(layers))
			}
			l.checkStore()

			cmd := exec.Command("unshare", "-m", p.buildah, "--root", filepath.Join(l.dir, "their-store"), "--runroot", filepath.Join(l.dir, "their-run"),
				"build", "--isolation", "chroot", "--layers", "--format", format, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
				"--tls-verify=false", "--tag", "docker://"+l.image("theirs:1"), l.context)
			cmd.Env, cmd.Dir = append(l.env, "TMPDIR="+l.mkdir("tmp")), l.dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("buildah: %v\n%s", err, out)
			}
			wantSameImage(t, image, inside(t, l.registry, "theirs:1"))
		})
	}
}

// TestBaseIsSentWhileStepsRun: before there is anything to push, layers of the base and of
// finished steps are there.
func TestBaseIsSentWhileStepsRun(t *testing.T) {
	l, to, base := relayLab(t)
	l.containerfile("FROM HOST/base/layers:1", "RUN head -c 300000 /dev/urandom > /first", "RUN while ! test -e /counter/go; do sleep 0.1; done")
	l.mkdir("counter")
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter", "--tag", to.Host()+"/os/layered:1", "--push")
	waitFor(t, func() bool {
		for _, layer := range bases.LayerDigests(t, base) {
			if !to.HasBlob(t, "os/layered", layer) {
				return false
			}
		}
		return received(to) > sizeOf(t, base)-bases.Manifest(t, base).Config.Size+300000
	})
	if to.Count(http.MethodPut, "/manifests/") != 0 {
		t.Error("the image was pushed before it was built")
	}
	l.file("counter/go", "")
	o := done(cmd.Wait())
	o.wantSuccess(t)
	image := inside(t, to, "os/layered:1")
	bases.Check(t, image)
	if got, want := received(to), sizeOf(t, image); got != want || *o.result.Phases[result.Push].Bytes != want {
		t.Errorf("%d bytes arrived, %d are said to be pushed; the blobs of the image have %d", got, *o.result.Phases[result.Push].Bytes, want)
	}
	l.checkStore()
}

// TestLayersOfOtherStagesStayHere: nothing is sent that is not of the image.
func TestLayersOfOtherStagesStayHere(t *testing.T) {
	l, to, _ := relayLab(t)
	l.addBase("base/big:1", bases.Big(t))
	l.containerfile("FROM HOST/base/big:1 AS one", "COPY a /one",
		"FROM HOST/base/layers:1 AS two", "COPY a /two", "FROM two", "COPY --from=one /one /one")
	l.build("--tag", to.Host()+"/os/layered:1", "--push").wantSuccess(t)
	image := inside(t, to, "os/layered:1")
	bases.Check(t, image)
	if got, want := received(to), sizeOf(t, image); got != want {
		t.Errorf("%d bytes arrived, the blobs of the image have %d", got, want)
	}
	l.checkStore()
}

// TestFaultsOfTheEarlyPush are no failed attempts of the push.
func TestFaultsOfTheEarlyPush(t *testing.T) {
	for name, rule := range map[string]registry.Rule{
		"connection that is cut": {Method: http.MethodPatch, From: 1, To: 1, Do: registry.CutRequest(1000)},
		"closed before a reply":  {Method: http.MethodPatch, From: 2, To: 2, Do: registry.Close{}},
		"error of the server":    {Method: http.MethodPost, Path: "/uploads/", From: 2, To: 3, Do: registry.Reply{Status: 503}},
		"refusal":                {Method: http.MethodPatch, From: 1, To: 1, Do: registry.Reply{Status: 403}},
	} {
		t.Run(name, func(t *testing.T) {
			l, to, base := relayLab(t)
			l.containerfile("FROM HOST/base/layers:1", "RUN sleep 2", "COPY a /a")
			fault := to.Fault(rule)
			o := l.build("--tag", to.Host()+"/os/layered:1", "--push")
			o.wantSuccess(t)
			o.wantAttempts(t, result.Push, 1)
			if fault.Fired() == 0 {
				t.Error("the fault was not met")
			}
			layers, got := bases.LayerDigests(t, base), bases.LayerDigests(t, inside(t, to, "os/layered:1"))
			if !slices.Equal(got[:len(layers)], layers) {
				t.Errorf("layers %v, want those of the base, %v, and more", got, layers)
			}
			l.checkStore()
		})
	}
}

// TestPushThatIsTriedAgain fetches nothing again and sends no blob twice.
func TestPushThatIsTriedAgain(t *testing.T) {
	l, to, base := relayLab(t)
	to.Fault(registry.Rule{Method: http.MethodPut, Path: "/manifests/", From: 1, To: 2, Do: registry.Reply{Status: 500}})
	o := l.build("--tag", to.Host()+"/os/layered:1", "--push")
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 3)
	image := inside(t, to, "os/layered:1")
	if got, want := received(to), sizeOf(t, image); got != want {
		t.Errorf("%d bytes arrived, the blobs of the image have %d", got, want)
	}
	if n := l.registry.Count(http.MethodGet, "/blobs/"); n != len(bases.LayerDigests(t, base))+1 {
		t.Errorf("%d blobs were fetched", n)
	}
	l.checkStore()
}

// TestBuildAfterOneThatFailed, by another process, pushes the base as the first one
// pulled it, and to a registry that has nothing of it.
func TestBuildAfterOneThatFailed(t *testing.T) {
	l, to, base := relayLab(t)
	other := registry.Start(t)
	l.containerfile("FROM HOST/base/layers:1", "RUN exit 3")
	l.build("--tag", to.Host()+"/os/layered:1", "--push", "--max-retries", "1").wantFailure(t, result.ReasonStepFailed)
	l.registry.Reset()
	l.containerfile("FROM HOST/base/layers:1", "COPY a /a")
	l.build("--tag", other.Host()+"/os/layered:1", "--push").wantSuccess(t)
	layers, got := bases.LayerDigests(t, base), bases.LayerDigests(t, inside(t, other, "os/layered:1"))
	if !slices.Equal(got[:len(layers)], layers) {
		t.Errorf("layers %v, want those of the base, %v, and more", got, layers)
	}
	if n := l.registry.Count(http.MethodGet, "/blobs/"); n != 0 {
		t.Errorf("%d blobs were fetched again", n)
	}
	l.checkStore()
}

// TestBaseThatWasInTheStore is compressed again where it is not at the destination: what
// was pulled of it is gone since its first push.
func TestBaseThatWasInTheStore(t *testing.T) {
	l, to, base := relayLab(t)
	l.build("--tag", to.Host()+"/os/layered:1", "--push").wantSuccess(t)
	l.checkStore()
	again := registry.Start(t)
	l.build("--tag", again.Host()+"/os/layered:1", "--push").wantSuccess(t)
	image := inside(t, again, "os/layered:1")
	bases.Check(t, image)
	if got, want := bases.Config(t, image).RootFS.DiffIDs, bases.Config(t, inside(t, to, "os/layered:1")).RootFS.DiffIDs; !slices.Equal(got, want) {
		t.Errorf("the second image has the layers %v, the first %v", got, want)
	}
	if n := l.registry.Count(http.MethodGet, "/blobs/"); n != len(bases.LayerDigests(t, base))+1 {
		t.Errorf("%d blobs were fetched", n)
	}
	l.checkStore()
}

// TestBuildAfterAnotherOne sends what has changed, and nothing else: not the steps that
// did not run again, nor a base that an earlier build had to compress.
func TestBuildAfterAnotherOne(t *testing.T) {
	for _, format := range []string{"gzip", "zstd"} {
		t.Run(format, func(t *testing.T) {
			l, to, _ := relayLab(t)
			l.containerfile("FROM HOST/base/layers:1", "RUN head -c 300000 /dev/urandom > /random", "COPY a /a")
			other := registry.Start(t)
			for _, r := range []*registry.Registry{to, other} {
				l.file("context/a", strings.Repeat("content ", 10000))
				push := []string{"--tag", r.Host() + "/os/layered:1", "--push", "--compression-format", format}
				l.build(push...).wantSuccess(t)
				r.Reset()
				l.file("context/a", strings.Repeat("other ", 10000))
				l.build(push...).wantSuccess(t)
				image := inside(t, r, "os/layered:1")
				m := bases.Manifest(t, image)
				for i, layer := range m.Layers {
					if got, want := string(layer.MediaType), "application/vnd.oci.image.layer.v1.tar+"+format; got != want {
						t.Errorf("layer %d is %s, want %s", i, got, want)
					}
				}
				if got, want := received(r), m.Layers[len(m.Layers)-1].Size+m.Config.Size; got != want {
					t.Errorf("%d bytes arrived, want the %d of the last layer and the config", got, want)
				}
			}
			l.checkStore()
			l.newStore()
			l.containerfile("FROM "+other.Host()+"/os/layered:1", "RUN test $(wc -c < /a) = 60000 && test $(wc -c < /random) = 300000 && test $(wc -c < /motd) = 30000")
			l.build().wantSuccess(t)
		})
	}
}

// TestBaseOfTheSameRegistry is mounted, and nothing of it is kept.
func TestBaseOfTheSameRegistry(t *testing.T) {
	l, _, base := relayLab(t)
	o := l.build("--tag", l.image("os/layered:1"), "--push")
	o.wantSuccess(t)
	image := inside(t, l.registry, "os/layered:1")
	own := sizeOf(t, image)
	for _, layer := range bases.Manifest(t, base).Layers {
		own -= layer.Size
	}
	if got := received(l.registry); got != own {
		t.Errorf("%d bytes arrived, want %d of what is not of the base", got, own)
	}
	l.checkStore()
}

// TestInterruptWhileLayersAreSent ends at once, and leaves what a next build puts away.
func TestInterruptWhileLayersAreSent(t *testing.T) {
	l, to, _ := relayLab(t)
	stall := to.Fault(registry.Rule{Method: http.MethodPatch, Do: registry.Stall{}})
	l.containerfile("FROM HOST/base/layers:1", "RUN touch /counter/runs; sleep 60")
	l.mkdir("counter")
	counter := filepath.Join(l.dir, "counter") + ":/counter"
	cmd, done := l.start("--volume", counter, "--tag", to.Host()+"/os/layered:1", "--push")
	waitFor(t, func() bool {
		_, err := os.Stat(filepath.Join(l.dir, "counter", "runs"))
		return stall.Fired() > 0 && err == nil
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	o := done(cmd.Wait())
	if o.code != 143 || o.result.Reason != result.ReasonInterrupted {
		t.Errorf("exit %d, %+v", o.code, o.result)
	}
	to.ClearFaults()
	l.containerfile("FROM HOST/base/layers:1", "COPY a /a")
	l.build("--tag", to.Host()+"/os/layered:1", "--push").wantSuccess(t)
	bases.Check(t, inside(t, to, "os/layered:1"))
	l.checkStore()
}
