package bases_test

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

var both = map[string][]bases.Option{"docker": nil, "oci": {bases.OCI()}}

func TestBusy(t *testing.T) {
	img := bases.Busy(t)
	bases.Check(t, img)
	tree := bases.Flatten(t, img)
	for path, want := range map[string]struct {
		kind byte
		mode int64
	}{
		"/bin":         {tar.TypeDir, 0o755},
		"/bin/busybox": {tar.TypeReg, 0o755},
		"/tmp":         {tar.TypeDir, 0o1777},
		"/root":        {tar.TypeDir, 0o700},
		"/etc/passwd":  {tar.TypeReg, 0o644},
		"/etc/group":   {tar.TypeReg, 0o644},
	} {
		_, header := tree.File(t, path)
		if header.Typeflag != want.kind || header.Mode != want.mode || header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s has type %c, mode %o and owner %d:%d", path, header.Typeflag, header.Mode, header.Uid, header.Gid)
		}
	}
	for _, applet := range strings.Fields("sh cat ls echo printf sleep true false wget id mkdir") {
		if _, header := tree.File(t, "/bin/"+applet); header.Typeflag != tar.TypeSymlink || header.Linkname != "busybox" {
			t.Errorf("/bin/%s has type %c and leads to %q", applet, header.Typeflag, header.Linkname)
		}
	}
	passwd, _ := tree.File(t, "/etc/passwd")
	if !bytes.HasPrefix(passwd, []byte("root:x:0:0:")) {
		t.Errorf("/etc/passwd is %q", passwd)
	}
	config := bases.Config(t, img)
	if config.OS != "linux" || config.Architecture != runtime.GOARCH {
		t.Errorf("the platform is %s/%s", config.OS, config.Architecture)
	}
	if !slices.Equal(config.Config.Cmd, []string{"/bin/sh"}) || !slices.Equal(config.Config.Env, []string{"PATH=" + bases.Path}) {
		t.Errorf("the config is %+v", config.Config)
	}
}

func TestMediaTypes(t *testing.T) {
	for name, want := range map[string]struct{ manifest, config, layer, index types.MediaType }{
		"docker": {types.DockerManifestSchema2, types.DockerConfigJSON, types.DockerLayer, types.DockerManifestList},
		"oci":    {types.OCIManifestSchema1, types.OCIConfigJSON, types.OCILayer, types.OCIImageIndex},
	} {
		for _, img := range []v1.Image{bases.Busy(t, both[name]...), bases.Owner(t, both[name]...), bases.Arm(t, both[name]...)} {
			m := bases.Manifest(t, img)
			if m.MediaType != want.manifest || m.Config.MediaType != want.config {
				t.Errorf("%s: manifest %s with config %s", name, m.MediaType, m.Config.MediaType)
			}
			for i, l := range m.Layers {
				if l.MediaType != want.layer {
					t.Errorf("%s: layer %d is %s", name, i, l.MediaType)
				}
			}
		}
		index := bases.Multi(t, both[name]...)
		m, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if m.MediaType != want.index || m.Manifests[0].MediaType != want.manifest {
			t.Errorf("%s: index %s of %s", name, m.MediaType, m.Manifests[0].MediaType)
		}
	}
}

func TestNoShell(t *testing.T) {
	img := bases.NoShell(t)
	bases.Check(t, img)
	if got := bases.Flatten(t, img).Paths(); !slices.Equal(got, []string{"/echo"}) {
		t.Errorf("the image has %q", got)
	}
	if got := bases.Config(t, img).Config.Entrypoint; !slices.Equal(got, []string{"/echo"}) {
		t.Errorf("the entrypoint is %q", got)
	}
	program, header := bases.File(t, img, "/echo")
	if header.Mode != 0o755 || !bytes.HasPrefix(program, []byte("\x7fELF")) {
		t.Errorf("/echo is no program: mode %o, %d bytes", header.Mode, len(program))
	}
}

func TestBig(t *testing.T) {
	img := bases.Big(t)
	body, _ := bases.File(t, img, "/big")
	if len(body) != bases.BigSize {
		t.Errorf("/big has %d bytes", len(body))
	}
	layers := bases.Manifest(t, img).Layers
	if len(layers) != 2 || layers[1].Size < bases.BigSize {
		t.Errorf("the layers are %+v", layers)
	}
	// The content is the same on each machine, now and later.
	const want = "sha256:652c9788421598d48147bfd87834a0b1aed981e13fe0113c314e7c87b53572a1"
	if got := bases.Config(t, img).RootFS.DiffIDs[1].String(); got != want {
		t.Errorf("the big layer is %s, want %s", got, want)
	}
}

func TestOwner(t *testing.T) {
	tree := bases.Flatten(t, bases.Owner(t))
	for path, want := range map[string][2]int{"/owner/group": {0, 42}, "/owner/user": {70000, 70000}} {
		if _, header := tree.File(t, path); header.Uid != want[0] || header.Gid != want[1] {
			t.Errorf("%s belongs to %d:%d", path, header.Uid, header.Gid)
		}
	}
}

func TestPlatforms(t *testing.T) {
	if got := bases.Config(t, bases.Arm(t)).Architecture; got != "arm64" {
		t.Errorf("Arm is for %s", got)
	}
	r := registry.Start(t)
	for name, opts := range both {
		digest := bases.Push(t, r.Host(), "multi:"+name, bases.Multi(t, opts...))
		if got := r.Digest(t, "multi", name); got != digest {
			t.Errorf("digest %s, want %s", got, digest)
		}
		index, err := bases.PullIndex(t, r.Host(), "multi:"+name).IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		if len(index.Manifests) != 2 {
			t.Fatalf("the index has %d images", len(index.Manifests))
		}
		for i, arch := range []string{"amd64", "arm64"} {
			if got := index.Manifests[i].Platform.String(); got != "linux/"+arch {
				t.Errorf("image %d of the index is for %s", i, got)
			}
			img := bases.Pull(t, r.Host(), "multi:"+name, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
			if got := bases.Digest(t, img); got != index.Manifests[i].Digest.String() {
				t.Errorf("pulled %s for %s, want %s", got, arch, index.Manifests[i].Digest)
			}
			if got := bases.Config(t, img).Architecture; got != arch {
				t.Errorf("the image for %s says %s", arch, got)
			}
			if body, _ := bases.File(t, img, "/etc/platform"); string(body) != "linux/"+arch+"\n" {
				t.Errorf("the image for %s has %q", arch, body)
			}
		}
	}
}

func TestPushAndPull(t *testing.T) {
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("user:secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	user := remote.WithAuth(&authn.Basic{Username: "user", Password: "secret"})
	for name, c := range map[string]struct {
		server []registry.Option
		client []remote.Option
	}{
		"plain":     {},
		"basic":     {[]registry.Option{registry.WithBasicAuth(passwords)}, []remote.Option{user}},
		"tls":       {[]registry.Option{registry.WithTLS()}, nil},
		"tls basic": {[]registry.Option{registry.WithTLS(), registry.WithBasicAuth(passwords)}, []remote.Option{user}},
		"tls token": {[]registry.Option{registry.WithTLS(), registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwords})}, []remote.Option{user}},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry.Start(t, c.server...)
			opts := append(c.client, remote.WithTransport(r.Transport()))
			img := bases.Owner(t)
			digest := bases.Push(t, r.Host(), "some/owner:1", img, opts...)
			if got := r.Digest(t, "some/owner", "1"); got != digest || got != bases.Digest(t, img) {
				t.Errorf("pushed %s, the registry has %s", digest, got)
			}
			for _, ref := range []string{":1", "@" + digest} {
				pulled := bases.Pull(t, r.Host(), "some/owner"+ref, opts...)
				if body, _ := bases.File(t, pulled, "/owner/user"); string(body) != "user\n" {
					t.Errorf("/owner/user is %q", body)
				}
				if !slices.Equal(bases.LayerDigests(t, pulled), bases.LayerDigests(t, img)) {
					t.Error("the pulled image has other layers")
				}
			}
		})
	}
}

func TestFlatten(t *testing.T) {
	hard := bases.Regular("/hard", 0o644, nil)
	hard.Typeflag, hard.Linkname = tar.TypeLink, "kept/a"
	img := bases.Append(t, bases.Busy(t),
		bases.Dir("/kept", 0o755),
		bases.Regular("/kept/a", 0o600, []byte("first")),
		bases.Regular("/kept/b", 0o644, []byte("b")),
		bases.Dir("/gone", 0o755),
		bases.Regular("/gone/c", 0o644, []byte("c")),
		bases.Dir("/opaque", 0o755),
		bases.Regular("/opaque/old", 0o644, []byte("old")),
		bases.Symlink("/link", "kept/a"),
		hard,
	)
	img = bases.Append(t, img,
		bases.Regular("/kept/a", 0o640, []byte("second")).OwnedBy(7, 8),
		bases.Whiteout("/kept/b"),
		bases.Whiteout("/gone"),
		bases.Dir("/opaque", 0o700),
		bases.Whiteout("/opaque/.wh..opq"),
		bases.Regular("/opaque/new", 0o644, []byte("new")),
	)
	bases.Check(t, img)
	tree := bases.Flatten(t, img)
	body, header := tree.File(t, "/kept/a")
	if string(body) != "second" || header.Mode != 0o640 || header.Uid != 7 || header.Gid != 8 {
		t.Errorf("/kept/a is %q with mode %o of %d:%d", body, header.Mode, header.Uid, header.Gid)
	}
	for _, path := range []string{"/kept/b", "/gone", "/gone/c", "/opaque/old", "/kept/.wh.b", "/.wh.gone"} {
		if _, ok := tree[path]; ok {
			t.Errorf("%s is there", path)
		}
	}
	if _, ok := tree["/opaque/new"]; !ok {
		t.Error("/opaque/new is not there")
	}
	if body, header := tree.File(t, "/hard"); string(body) != "second" || header.Typeflag != tar.TypeLink {
		t.Errorf("/hard is %q with type %c", body, header.Typeflag)
	}
	if _, header := tree.File(t, "/link"); header.Linkname != "kept/a" {
		t.Errorf("/link leads to %s", header.Linkname)
	}

	var names []string
	for _, e := range bases.Layer(t, img, -1) {
		names = append(names, e.Name)
	}
	want := []string{"/kept/a", "/kept/.wh.b", "/.wh.gone", "/opaque", "/opaque/.wh..wh..opq", "/opaque/new"}
	if !slices.Equal(names, want) {
		t.Errorf("the top layer has %q, want %q", names, want)
	}
	if got := bases.Layer(t, img, 0)[0].Name; got != "/bin" {
		t.Errorf("the lowest layer begins with %s", got)
	}
}

func TestConfigure(t *testing.T) {
	img := bases.Busy(t)
	changed := bases.Configure(t, img, func(c *v1.ConfigFile) { c.Config.User = "nobody" })
	if got := bases.Config(t, changed).Config.User; got != "nobody" {
		t.Errorf("the user is %q", got)
	}
	if got := bases.Config(t, img).Config.User; got != "" {
		t.Errorf("the image that was changed has the user %q", got)
	}
	if !slices.Equal(bases.LayerDigests(t, img), bases.LayerDigests(t, changed)) {
		t.Error("the layers differ")
	}
}

func TestLayout(t *testing.T) {
	busy, none := bases.Busy(t, bases.OCI()), bases.NoShell(t, bases.OCI())
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(busy, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "busy"})); err != nil {
		t.Fatal(err)
	}
	if got := bases.Digest(t, bases.Layout(t, dir, "")); got != bases.Digest(t, busy) {
		t.Errorf("the only image is %s", got)
	}
	if err := path.AppendImage(none, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "none"})); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]v1.Image{"busy": busy, "none": none} {
		got := bases.Layout(t, dir, ref)
		bases.Check(t, got)
		if bases.Digest(t, got) != bases.Digest(t, want) {
			t.Errorf("the image %s is another", ref)
		}
	}
}
