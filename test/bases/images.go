package bases

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Option changes how an image is made.
type Option func(*style)

type style struct{ manifest, config, index types.MediaType }

// OCI gives the image the media types of OCI in place of those of docker's
// schema 2.
func OCI() Option {
	return func(s *style) {
		*s = style{types.OCIManifestSchema1, types.OCIConfigJSON, types.OCIImageIndex}
	}
}

func styleOf(opts []Option) style {
	s := style{types.DockerManifestSchema2, types.DockerConfigJSON, types.DockerManifestList}
	for _, opt := range opts {
		opt(&s)
	}
	return s
}

// BigSize is the size of the file /big in Big.
const BigSize = 32 << 20

// Path is the PATH of the images that have a shell.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// scratch returns an image for this machine without a layer.
func scratch(t testing.TB, opts []Option) v1.Image {
	t.Helper()
	s := styleOf(opts)
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, s.config), s.manifest)
	return Configure(t, img, func(c *v1.ConfigFile) {
		c.OS, c.Architecture = "linux", runtime.GOARCH
		c.Created = v1.Time{Time: moment}
	})
}

// Busy returns an image with a static busybox as /bin/busybox, all its applets
// as symbolic links in /bin, and what programs expect to find in /etc, /root and
// /tmp. Its command is /bin/sh.
func Busy(t testing.TB, opts ...Option) v1.Image {
	t.Helper()
	b := mustBusybox(t)
	img := appendKept(t, scratch(t, opts), "busy", func() []Entry {
		entries := []Entry{
			Dir("/bin", 0o755),
			Regular("/bin/busybox", 0o755, b.program),
			Dir("/etc", 0o755),
			Regular("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")),
			Regular("/etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n")),
			Dir("/root", 0o700),
			Dir("/tmp", 0o1777),
		}
		for _, applet := range b.applets {
			entries = append(entries, Symlink("/bin/"+applet, "busybox"))
		}
		return entries
	})
	return Configure(t, img, func(c *v1.ConfigFile) {
		c.Config.Env = []string{"PATH=" + Path}
		c.Config.Cmd = []string{"/bin/sh"}
	})
}

// NoShell returns an image with a single file, the static program /echo, which
// is its entrypoint.
func NoShell(t testing.TB, opts ...Option) v1.Image {
	t.Helper()
	// Busybox acts as the applet by whose name it is called.
	img := Append(t, scratch(t, opts), Regular("/echo", 0o755, mustBusybox(t).program))
	return Configure(t, img, func(c *v1.ConfigFile) { c.Config.Entrypoint = []string{"/echo"} })
}

// Big returns Busy with one more layer: /big, BigSize bytes that do not shrink,
// the same each time.
func Big(t testing.TB, opts ...Option) v1.Image {
	t.Helper()
	return appendKept(t, Busy(t, opts...), "big", func() []Entry {
		body := make([]byte, BigSize)
		rand.NewChaCha8([32]byte{'b', 'i', 'g'}).Read(body)
		return []Entry{Regular("/big", 0o644, body)}
	})
}

// Owner returns Busy with the files /owner/group of 0:42 and /owner/user of
// 70000:70000.
func Owner(t testing.TB, opts ...Option) v1.Image {
	t.Helper()
	return Append(t, Busy(t, opts...),
		Dir("/owner", 0o755),
		Regular("/owner/group", 0o640, []byte("group\n")).OwnedBy(0, 42),
		Regular("/owner/user", 0o600, []byte("user\n")).OwnedBy(70000, 70000),
	)
}

// Arm returns Busy with a config that says linux/arm64. The programs in it are
// those of this machine.
func Arm(t testing.TB, opts ...Option) v1.Image {
	t.Helper()
	return platform(t, Busy(t, opts...), "arm64")
}

// Multi returns an index of two images, for linux/amd64 and linux/arm64: Busy
// with a file /etc/platform that says which it is. The programs in both are those
// of this machine.
func Multi(t testing.TB, opts ...Option) v1.ImageIndex {
	t.Helper()
	index := mutate.IndexMediaType(empty.Index, styleOf(opts).index)
	for _, arch := range []string{"amd64", "arm64"} {
		img := platform(t, Busy(t, opts...), arch)
		img = Append(t, img, Regular("/etc/platform", 0o644, []byte("linux/"+arch+"\n")))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index
}

func platform(t testing.TB, img v1.Image, arch string) v1.Image {
	t.Helper()
	return Configure(t, img, func(c *v1.ConfigFile) { c.Architecture = arch })
}

// Append returns the image with one more layer.
func Append(t testing.TB, img v1.Image, entries ...Entry) v1.Image {
	t.Helper()
	return appendLayer(t, img, layer(t, layerType(t, img), entries))
}

// kept has the layers that take long to make.
var kept = struct {
	sync.Mutex
	layers map[string]v1.Layer
}{layers: make(map[string]v1.Layer)}

// appendKept is Append with a layer that is made once for each name and type.
func appendKept(t testing.TB, img v1.Image, name string, entries func() []Entry) v1.Image {
	t.Helper()
	kept.Lock()
	defer kept.Unlock()
	mediaType := layerType(t, img)
	key := name + " " + string(mediaType)
	if kept.layers[key] == nil {
		kept.layers[key] = layer(t, mediaType, entries())
	}
	return appendLayer(t, img, kept.layers[key])
}

func appendLayer(t testing.TB, img v1.Image, layer v1.Layer) v1.Image {
	t.Helper()
	bigger, err := mutate.Append(img, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: moment}, CreatedBy: "bases"},
	})
	if err != nil {
		t.Fatalf("bases: appending a layer: %v", err)
	}
	return bigger
}

// layerType returns the media type of layers that suits the image's own.
func layerType(t testing.TB, img v1.Image) types.MediaType {
	t.Helper()
	manifestType, err := img.MediaType()
	if err != nil {
		t.Fatalf("bases: media type of an image: %v", err)
	}
	if manifestType == types.OCIManifestSchema1 {
		return types.OCILayer
	}
	return types.DockerLayer
}

// Configure returns the image with another config.
func Configure(t testing.TB, img v1.Image, change func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	config := Config(t, img).DeepCopy()
	change(config)
	changed, err := mutate.ConfigFile(img, config)
	if err != nil {
		t.Fatalf("bases: changing a config: %v", err)
	}
	return changed
}
