package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	digest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/unshare"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

// openPair opens an engine that stages layers, and one that leaves them to
// containers/image.
func openPair(t *testing.T, change ...func(*Config)) (ours, stock *bench) {
	t.Helper()
	change = append([]func(*Config){insecure, func(c *Config) { c.StorageDriver = driverOverlay }}, change...)
	ours, stock = open(t, change...), open(t, change...)
	if ours.unsuited != nil {
		t.Fatalf("the store does not suit: %v", ours.unsuited)
	}
	stock.unsuited = errors.New("a test compares")
	stock.store.(*recordedStore).stager = nil
	return ours, stock
}

// tarOf makes an archive of entries, of which those with content are files.
func tarOf(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := h.PAXRecords["content"]
		if h.PAXRecords = maps.Clone(h.PAXRecords); h.PAXRecords != nil {
			delete(h.PAXRecords, "content")
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1_700_000_000, 0)
		}
		h.Size = int64(len(content))
		if err := errors.Join(w.WriteHeader(&h), second(w.Write([]byte(content)))); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// has is the content of a file for tarOf.
func has(content string) map[string]string { return map[string]string{"content": content} }

func gzipped(parts ...[]byte) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		w := gzip.NewWriter(&b)
		_, _ = w.Write(p)
		_ = w.Close()
	}
	return b.Bytes()
}

func zstandard(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// packed is a layer as it is in a registry.
type packed struct {
	mime    string
	blob    []byte
	archive []byte // what its DiffID is of
}

func gzipLayer(archive []byte) packed {
	return packed{imgspecv1.MediaTypeImageLayerGzip, gzipped(archive), archive}
}

// addLayers puts an image of layers under the tag, in the form of OCI or of Docker by the
// types of the layers, and returns it and its manifest.
func (h *hub) addLayers(t *testing.T, tag string, layers ...packed) imgspecv1.Manifest {
	t.Helper()
	created := time.Unix(1_600_000_000, 0).UTC()
	config := imgspecv1.Image{
		Created: &created, Platform: imgspecv1.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config: imgspecv1.ImageConfig{Labels: map[string]string{"tag": tag}}, RootFS: imgspecv1.RootFS{Type: "layers"},
	}
	m := imgspecv1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: imgspecv1.MediaTypeImageManifest}
	configType := imgspecv1.MediaTypeImageConfig
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(l.archive))
		config.History = append(config.History, imgspecv1.History{CreatedBy: "test"})
		m.Layers = append(m.Layers, h.addBlob(l.mime, l.blob))
		if strings.Contains(l.mime, "docker") {
			m.MediaType, configType = manifest.DockerV2Schema2MediaType, manifest.DockerV2Schema2ConfigMediaType
		}
	}
	m.Config = h.addBlob(configType, encode(t, config))
	h.addManifest(tag, m.MediaType, encode(t, m))
	return m
}

func (b *bench) pullTag(t *testing.T, h *hub, tag string) error {
	t.Helper()
	_, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:" + tag, Line: 1, From: true}, "")
	return err
}

// wantStaged says that the layers of an engine were not staged, or were.
func (b *bench) wantStaged(t *testing.T, want bool) {
	t.Helper()
	if said := strings.Contains(b.log.String(), "is unpacked by containers/image"); said == want {
		t.Errorf("staged: %t, want %t: %s", !said, want, b.log)
	}
}

// inventory is everything that a store has of its layers and images, by what it is of.
func (b *bench) inventory(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	layers, err := b.store.Layers()
	if err != nil {
		t.Fatal(err)
	}
	driver, err := b.store.GraphDriver()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		all["layer "+l.ID] = fmt.Sprintf("parent %s, names %v, compressed %s, archive %s of %d, toc %q, owners %v %v, maps %v %v, flags %v, metadata %q, data %v",
			l.Parent, l.Names, l.CompressedDigest, l.UncompressedDigest, l.UncompressedSize, l.TOCDigest, l.UIDs, l.GIDs, l.UIDMap, l.GIDMap, l.Flags, l.Metadata, l.BigDataNames)
		plain := archive.Uncompressed
		diff, err := b.store.Diff("", l.ID, &storage.DiffOptions{Compression: &plain})
		if err != nil {
			t.Fatal(err)
		}
		made, err := digest.FromReader(diff)
		all["archive of "+l.ID] = made.String()
		if err != nil { // as where a hostile one has names that are no paths
			all["archive of "+l.ID] = "none"
		}
		_ = diff.Close()
		about, err := driver.Metadata(l.ID)
		if err != nil {
			t.Fatal(err)
		}
		for name, what := range tree(t, about["UpperDir"]) {
			all["file "+l.ID[:8]+" "+name] = what
		}
	}
	images, err := b.store.Images()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range images {
		slices.Sort(i.BigDataNames)
		all["image "+i.ID] = fmt.Sprintf("names %v, digests %v, top %s, created %v, metadata %q, data %v", i.Names, i.Digests, i.TopLayer, i.Created, i.Metadata, i.BigDataNames)
		for _, name := range i.BigDataNames {
			data, err := b.store.ImageBigData(i.ID, name)
			if err != nil {
				t.Fatal(err)
			}
			all["data "+i.ID+" "+name] = string(data)
		}
	}
	return all
}

// tree describes the files below a directory, and itself.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		what := fmt.Sprintf("mode %o, owner %d:%d, device %d", s.Mode, s.Uid, s.Gid, s.Rdev)
		if s.Mtim.Sec < 1_750_000_000 { // otherwise, it is when the test made it
			what += fmt.Sprintf(", time %d.%d", s.Mtim.Sec, s.Mtim.Nsec)
		}
		switch s.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what += ", content " + digest.FromBytes(data).String()
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += ", target " + target
		}
		if s.Mode&unix.S_IFMT != unix.S_IFDIR {
			if inodes[s.Ino] == "" {
				inodes[s.Ino] = name
			}
			what += ", file of " + inodes[s.Ino]
		}
		names := make([]byte, 64<<10)
		n, err := unix.Llistxattr(path, names)
		if err != nil {
			return err
		}
		attributes := strings.Split(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00")
		slices.Sort(attributes)
		for _, a := range attributes {
			if a == "" {
				continue
			}
			value := make([]byte, 64<<10)
			n, err := unix.Lgetxattr(path, a, value)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(", %s=%q", a, value[:n])
		}
		all[name] = what
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// wantSame compares what two stores have.
func wantSame(t *testing.T, ours, stock map[string]string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(stock)) {
		if ours[key] != stock[key] {
			t.Errorf("%s:\n%.600q, want\n%.600q", key, ours[key], stock[key])
		}
	}
	for key, what := range ours {
		if _, ok := stock[key]; !ok {
			t.Errorf("%s: %.600q is there, which should not be", key, what)
		}
	}
}

// checkStore is what the store finds wrong with itself.
func (b *bench) checkStore(t *testing.T) string {
	t.Helper()
	report, err := b.store.Check(&storage.CheckOptions{LayerData: true, LayerDigests: true, LayerMountable: true, LayerContents: true, ImageData: true})
	if err != nil {
		t.Fatal(err)
	}
	var problems []string
	for id, found := range report.Layers {
		for _, problem := range found {
			problems = append(problems, id+": "+regexp.MustCompile(`mtime:0x\w+￫0x\w+`).ReplaceAllString(problem.Error(), "time"))
		}
	}
	slices.Sort(problems)
	return strings.Join(problems, "\n")
}

// wantNothingStaged looks for staging directories in the store.
func (b *bench) wantNothingStaged(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(b.StorageRoot(), driverOverlay, "staging"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, l := range left {
		t.Errorf("%s is left staged", l.Name())
	}
}

// kinds are entries of every kind that a layer can have.
func kinds() []tar.Header {
	long := strings.Repeat("a-long-name/", 30)
	return []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 7, Gid: 8}, // which does not count
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1, Gid: 2},
		{Name: "etc/file", Uid: 1000, Gid: 65534, Mode: 0o640, PAXRecords: has("content")},
		{Name: "etc/empty", Mode: 0o600},
		{Name: "etc/large", Mode: 0o644, PAXRecords: has(strings.Repeat("0123456789abcdef", 100_000))},
		{Name: "etc/hard", Typeflag: tar.TypeLink, Linkname: "etc/file", Uid: 1000, Gid: 65534, Mode: 0o640},
		{Name: "etc/soft", Typeflag: tar.TypeSymlink, Linkname: "../etc/file", Uid: 3, Mode: 0o777},
		{Name: "etc/absolute", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow", Mode: 0o777},
		{Name: "bin/setuid", Mode: 0o4755, PAXRecords: has("#!")},
		{Name: "bin/setgid", Mode: 0o2755, Gid: 50, PAXRecords: has("#!")},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "bin/capable", Mode: 0o755, PAXRecords: map[string]string{
			"content": "#!", "SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "SCHILY.xattr.user.note": "x",
		}},
		{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666},
		{Name: "dev/loop", Typeflag: tar.TypeBlock, Devmajor: 7, Devminor: 3, Mode: 0o660, Gid: 6},
		{Name: "run/pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
		{Name: long + "file", PAXRecords: has("long")},
		{Name: "utf8/größe-日本", PAXRecords: has("names")},
		{Name: "latin1/gr\xf6\xdfe", Format: tar.FormatGNU, PAXRecords: nil},
		{Name: "owners/large", Uid: 3_000_000, Gid: 3_000_001, PAXRecords: has("ids")},
		{Name: "times/fraction", ModTime: time.Unix(1_700_000_000, 123_456_789), Format: tar.FormatPAX, PAXRecords: has("t")},
		{Name: "goes", PAXRecords: has("in the layer above")},
		{Name: "no/parent/named/file", PAXRecords: has("deep")},
	}
}

func upper() []tar.Header {
	return []tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o750},
		{Name: "etc/.wh.file"},
		{Name: ".wh.goes"},
		{Name: "tmp/.wh..wh..opq"},
		{Name: "tmp/new", PAXRecords: has("new")},
		{Name: "etc/.wh..wh.plnk/", Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o711, Uid: 9},
	}
}

// TestStagedAsCopied compares what both ways make of images.
func TestStagedAsCopied(t *testing.T) {
	h := newHub(t)
	ours, stock := openPair(t)
	image := func(tag string, layers ...packed) {
		t.Helper()
		h.addLayers(t, tag, layers...)
		for who, b := range map[string]*bench{"ours": ours, "stock": stock} {
			if err := b.pullTag(t, h, tag); err != nil {
				t.Errorf("%s, %s: %v", tag, who, err)
			}
		}
	}
	// Each archive is another one, so that none is there when it is to be made.
	n := 0
	make := func(entries ...tar.Header) []byte {
		n++
		return tarOf(t, append(slices.Clone(entries), tar.Header{Name: "number", PAXRecords: has(fmt.Sprint(n))})...)
	}
	base := func() []byte { return make(kinds()...) }
	top := func() []byte { return make(upper()...) }
	plain := func() []byte { return make(tar.Header{Name: "b", Uid: 42, PAXRecords: has("b")}) }
	as := func(mime string, pack func([]byte) []byte, archive []byte) packed {
		return packed{mime, pack(archive), archive}
	}
	zstd := func(data []byte) []byte { return zstandard(t, data) }
	once := func(data []byte) []byte { return gzipped(data) }
	root := func(name string, mode int64) packed {
		return gzipLayer(make(tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: mode, Uid: 5, Gid: 6}))
	}

	image("gzip", gzipLayer(base()), gzipLayer(top()))
	image("docker", as(manifest.DockerV2Schema2LayerMediaType, once, base()), as(manifest.DockerV2Schema2LayerMediaType, once, top()))
	image("zstd", as(imgspecv1.MediaTypeImageLayerZstd, zstd, base()), as(imgspecv1.MediaTypeImageLayerZstd, zstd, top()))
	image("plain", as(imgspecv1.MediaTypeImageLayer, slices.Clone, base()), as(imgspecv1.MediaTypeImageLayer, slices.Clone, top()))
	image("docker-plain", as(manifest.DockerV2SchemaLayerMediaTypeUncompressed, slices.Clone, base()))
	image("other-types", as(imgspecv1.MediaTypeImageLayerGzip, slices.Clone, base()), as(imgspecv1.MediaTypeImageLayer, once, top()))
	image("gzip-of-parts", as(imgspecv1.MediaTypeImageLayerGzip, func(a []byte) []byte { return gzipped(a[:5000], a[5000:]) }, base()))
	image("root-with-owner", root("/", 0o1751), gzipLayer(plain()), gzipLayer(base()))
	image("root-all-write", root("/", 0o7777), gzipLayer(plain()))
	image("root-changed", gzipLayer(base()), root("/", 0o700), gzipLayer(plain()))
	image("root-named-oddly", root("/..", 0o710), gzipLayer(plain()))
	image("opaque-root", gzipLayer(base()), gzipLayer(make(tar.Header{Name: ".wh..wh..opq"})))
	image("padding", gzipLayer(append(plain(), bytes.Repeat([]byte{0}, 3<<20+17)...)))
	image("no-end", gzipLayer(plain()[:1024]))
	image("nothing", gzipLayer(nil), packed{imgspecv1.MediaTypeImageLayer, []byte{}, nil})
	image("empty", gzipLayer(tarOf(t)), gzipLayer(plain()))
	again, above := gzipLayer(plain()), gzipLayer(top())
	image("twice", again, above, again, again)
	var many []packed
	for range 20 {
		many = append(many, gzipLayer(top()))
	}
	image("many", many...)
	image("none")

	ours.wantStaged(t, true)
	stock.wantStaged(t, false)
	ours.wantNothingStaged(t)
	wantSame(t, ours.inventory(t), stock.inventory(t))
	if got, want := ours.checkStore(t), stock.checkStore(t); got != want {
		t.Errorf("the check of the store: %s, want %s", got, want)
	}
}

// hostile are layers that are not what they should be, with what an archive of them may
// not make: ESCAPE stands for a name that is nowhere outside.
func hostile(t *testing.T, escape string) map[string][]packed {
	t.Helper()
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
	}
	hard := func(name, target string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
	}
	file := func(name string) tar.Header { return tar.Header{Name: name, PAXRecords: has("escaped")} }
	dir := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755} }
	attribute := func(name, value string) tar.Header {
		h := dir("d/")
		h.PAXRecords = map[string]string{"SCHILY.xattr." + name: value}
		return h
	}
	up := strings.Repeat("../", 20)
	all := map[string][]packed{}
	for name, entries := range map[string][]tar.Header{
		"a path that goes up":                      {file(up + escape)},
		"a path that goes up later":                {dir("a/"), file("a/" + up + escape)},
		"an absolute path":                         {file("/" + escape)},
		"a file through an absolute link":          {link("l", "/"), file("l/" + escape)},
		"a file through a relative link":           {link("l", up), file("l/" + escape)},
		"a file through two links":                 {link("l", up), link("m", "l/tmp"), file("m/" + escape)},
		"a directory through a link":               {link("l", "/tmp"), dir("l/" + escape)},
		"a link in place of a directory":           {dir("d/"), link("d", "/tmp"), file("d/" + escape)},
		"a hard link that goes up":                 {hard(escape, up+"etc/passwd")},
		"a hard link to an absolute path":          {hard(escape, "/etc/passwd")},
		"a hard link through a link":               {link("l", "/etc"), hard(escape, "l/passwd")},
		"a hard link to a link, written to":        {link("l", "/tmp/"+escape), hard("h", "l"), file("h")},
		"a file over a link":                       {link("l", "/tmp/"+escape), file("l")},
		"the root as a link":                       {link(".", "/tmp"), file(escape)},
		"the root as an absolute link":             {link("/", "/tmp"), file(escape)},
		"the root as a file":                       {file("/.")},
		"a device":                                 {{Name: "disk", Typeflag: tar.TypeBlock, Devmajor: 8, Mode: 0o666}},
		"a device that is a whiteout":              {{Name: "gone", Typeflag: tar.TypeChar, Mode: 0o666}},
		"a whiteout that goes up":                  {file("../.wh." + escape)},
		"a whiteout of what is above":              {file("a/.wh...")},
		"a whiteout of itself":                     {file("a/.wh..")},
		"a whiteout of nothing":                    {file("a/.wh.")},
		"a whiteout through a link":                {link("l", "/tmp"), file("l/.wh." + escape)},
		"a whiteout that is a directory":           {dir(".wh.d/"), file(".wh.d/" + escape)},
		"an opaque directory through a link":       {link("l", "/tmp"), file("l/.wh..wh..opq")},
		"an attribute of the overlay: redirect":    {attribute("trusted.overlay.redirect", "/etc"), file("d/x")},
		"an attribute of the overlay: opaque":      {attribute("trusted.overlay.opaque", "y"), file("d/x")},
		"an attribute of the overlay, of users":    {attribute("user.overlay.redirect", "/etc"), file("d/x")},
		"an attribute of containers/storage":       {attribute("user.containers.override_stat", "0:0:0755"), file("d/x")},
		"an attribute that is none":                {attribute("nonsense", "x")},
		"a file that is there twice":               {file("a"), file("b"), file("a")},
		"a file in place of a directory":           {dir("d/"), file("d/a"), file("d")},
		"a name with a line break":                 {file("a\nb")},
		"names of no length":                       {file("."), file("//.")},
		"a directory and its entries as one file":  {file("a"), file("a/b")},
		"a link to itself, and a file through it":  {link("l", "l"), file("l/x")},
		"an owner that is negative when cut short": {{Name: "a", Uid: 1<<32 - 1, PAXRecords: has("x")}},
	} {
		// Each archive is another one, so that none is there when it is to be made.
		archive := func(number string, entries ...tar.Header) packed {
			return gzipLayer(tarOf(t, append([]tar.Header{{Name: "number", PAXRecords: has(name + number)}}, entries...)...))
		}
		all[name] = []packed{archive("1", entries...)}
		// The same, on a layer that has what the upper one goes through.
		all[name+", of two layers"] = []packed{archive("2", entries[:len(entries)-1]...), archive("3", entries[len(entries)-1])}
	}
	many := make([]tar.Header, 5_000)
	for i := range many {
		many[i] = tar.Header{Name: fmt.Sprintf("d%d/f%d", i%100, i)}
	}
	whole := tarOf(t, kinds()...)
	broken := slices.Clone(whole)
	copy(broken[512*4:], "\xff\xff\xff\xff")
	large := tarOf(t, file("large"))
	copy(large[124:136], "77777777777\x00") // 8 GiB
	fixChecksum(large[:512])
	unknown := tarOf(t, file("unknown"))
	unknown[156] = 'Z'
	fixChecksum(unknown[:512])
	cut := gzipped(whole)
	wrongSum := gzipped(whole)
	wrongSum[len(wrongSum)-8] ^= 1
	for name, l := range map[string]packed{
		"many entries":               gzipLayer(tarOf(t, many...)),
		"a type that nobody knows":   gzipLayer(unknown),
		"a broken header":            gzipLayer(broken),
		"a size that is not there":   gzipLayer(large),
		"an archive that is cut":     gzipLayer(whole[:len(whole)/2]),
		"no archive":                 gzipLayer(bytes.Repeat([]byte("nonsense"), 1000)),
		"an archive behind its end":  gzipLayer(append(slices.Clone(whole), tarOf(t, file(escape))...)),
		"gzip that is cut":           {imgspecv1.MediaTypeImageLayerGzip, cut[:len(cut)/2], whole},
		"gzip with a wrong checksum": {imgspecv1.MediaTypeImageLayerGzip, wrongSum, whole},
		"gzip with zeros behind it":  {imgspecv1.MediaTypeImageLayerGzip, append(gzipped(whole), make([]byte, 600)...), whole},
		"gzip with more behind it":   {imgspecv1.MediaTypeImageLayerGzip, append(gzipped(whole), "more"...), whole},
		"gzip that begins only":      {imgspecv1.MediaTypeImageLayerGzip, gzipped(whole)[:5], whole},
		"zstd that is cut":           {imgspecv1.MediaTypeImageLayerZstd, zstandard(t, whole)[:100], whole},
		"another archive":            {imgspecv1.MediaTypeImageLayerGzip, gzipped(whole), tarOf(t, file("another"))},
	} {
		all[name] = []packed{l}
		all[name+", above"] = []packed{gzipLayer(tarOf(t, dir("d/"))), l, gzipLayer(tarOf(t, file("top")))}
	}
	return all
}

// fixChecksum makes the checksum of a header right.
func fixChecksum(header []byte) {
	copy(header[148:156], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// TestHostileLayers are refused or confined as containers/image refuses and confines them.
func TestHostileLayers(t *testing.T) {
	const escape = "strata-escaped"
	before := listing(t, "/etc")
	refused, confined := 0, 0
	h := newHub(t)
	ours, stock := openPair(t)
	n := 0
	for name, layers := range hostile(t, escape) {
		t.Run(name, func(t *testing.T) {
			n++
			tag := fmt.Sprint(n)
			h.addLayers(t, tag, layers...)
			errs := [2]error{ours.pullTag(t, h, tag), stock.pullTag(t, h, tag)}
			for _, dir := range []string{"/", "/tmp", "/etc", ours.StorageRoot(), filepath.Join(ours.StorageRoot(), driverOverlay), filepath.Dir(ours.StorageRoot())} {
				path := filepath.Join(dir, escape)
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					_ = os.RemoveAll(path)
					t.Errorf("%s was made (%v)", path, err)
				}
			}
			if (errs[0] == nil) != (errs[1] == nil) {
				t.Fatalf("pulling: %v; stock: %v", errs[0], errs[1])
			}
			if errs[0] == nil {
				confined++
				return
			}
			refused++
			got, want := mustFail(t, errs[0]), mustFail(t, errs[1])
			if got.Class != want.Class || got.Reason != want.Reason || got.Status != want.Status {
				t.Errorf("%s %s %d, want %s %s %d\n%s\n%s", got.Class, got.Reason, got.Status, want.Class, want.Reason, want.Status, got.Message, want.Message)
			}
		})
	}
	t.Logf("%d were refused, %d confined", refused, confined)
	if refused < 20 || confined < 20 {
		t.Errorf("%d were refused, %d confined: the inputs are not what they are to be", refused, confined)
	}
	ours.wantStaged(t, true)
	ours.stager.Close()
	ours.wantNothingStaged(t)
	wantSame(t, ours.inventory(t), stock.inventory(t))
	wantSame(t, listing(t, "/etc"), before)
}

// putStore counts the layers that a store is left to make.
type putStore struct {
	storage.Store
	n int
}

func (s *putStore) PutLayer(id, parent string, names []string, mountLabel string, writeable bool, options *storage.LayerOptions, diff io.Reader) (*storage.Layer, int64, error) {
	s.n++
	return s.Store.PutLayer(id, parent, names, mountLabel, writeable, options, diff)
}

// TestLayersOfStepsAsCopied compares what both ways make of the layers of steps, as the
// commit of a step puts them.
func TestLayersOfStepsAsCopied(t *testing.T) {
	ours, stock := openPair(t)
	left := &putStore{Store: ours.store.(*recordedStore).Store}
	ours.store.(*recordedStore).Store = left
	put := func(b *bench, id, parent string, options storage.LayerOptions, archive []byte) (*storage.Layer, int64, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "diff")
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		diff, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer diff.Close()
		return b.store.PutLayer(id, parent, nil, "", false, &options, diff)
	}
	plain := func(archive []byte) storage.LayerOptions {
		d := digest.FromBytes(archive)
		return storage.LayerOptions{OriginalDigest: d, UncompressedDigest: d}
	}
	root := tar.Header{Name: "/", Typeflag: tar.TypeDir, Mode: 0o1751, Uid: 5, Gid: 6}
	lower, upper, rooted := tarOf(t, kinds()...), tarOf(t, upper()...), tarOf(t, root, tar.Header{Name: "a", PAXRecords: has("a")})
	zipped := gzipped(lower)
	climbing := tarOf(t, tar.Header{Name: "../../climbs", PAXRecords: has("x")})
	for _, l := range []struct {
		id, parent string
		options    storage.LayerOptions
		archive    []byte
		left       int // how many are left to the store
		failure    bool
	}{
		{id: "a", options: plain(lower), archive: lower},
		{id: "b", parent: "a", options: plain(upper), archive: upper},
		{id: "c", parent: "b", options: plain(rooted), archive: rooted},
		{id: "d", parent: "c", options: plain(upper), archive: upper},
		{id: "a", options: plain(lower), archive: lower, failure: true}, // it is there
		{id: "e", options: storage.LayerOptions{OriginalDigest: digest.FromBytes(zipped), UncompressedDigest: digest.FromBytes(lower)}, archive: zipped, left: 1},
		{id: "f", options: storage.LayerOptions{}, archive: upper, left: 1},
		{id: "0", parent: "9", options: plain(upper), archive: upper, left: 1, failure: true}, // there is none
		{id: "1", options: plain(climbing), archive: climbing},
		{id: "2", options: plain(lower), archive: lower[:len(lower)/2], left: 1, failure: true},
	} {
		for _, id := range []*string{&l.id, &l.parent} {
			*id = strings.Repeat(*id, 64)
		}
		left.n = 0
		layer, _, err := put(ours, l.id, l.parent, l.options, l.archive)
		if left.n != l.left {
			t.Errorf("%.1s: %d layers were left to the store, want %d", l.id, left.n, l.left)
		}
		want, _, wantErr := put(stock, l.id, l.parent, l.options, l.archive)
		if (err == nil) == l.failure || fmt.Sprint(err) != strings.ReplaceAll(fmt.Sprint(wantErr), stock.StorageRoot(), ours.StorageRoot()) || errors.Is(err, storage.ErrDuplicateID) != errors.Is(wantErr, storage.ErrDuplicateID) {
			t.Errorf("%.1s: %v, want %v", l.id, err, wantErr)
		}
		if (layer == nil) != (want == nil) || layer != nil && (layer.ID != want.ID || layer.UncompressedDigest != want.UncompressedDigest || layer.UncompressedSize != want.UncompressedSize) {
			t.Errorf("%.1s: %+v, want %+v", l.id, layer, want)
		}
	}
	ours.wantNothingStaged(t)
	wantSame(t, ours.inventory(t), stock.inventory(t))
}

// listing is the names below a directory, with when they were changed.
func listing(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil // in a user namespace
		} else if err != nil {
			return err
		}
		info, err := e.Info()
		if err == nil {
			all[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestStagedInAUserNamespace makes the same comparisons where a build has a user namespace
// of its own: devices are not made, and attributes have other names.
func TestStagedInAUserNamespace(t *testing.T) {
	if os.Getenv(unshare.UsernsEnvName) != "" {
		return // it is this test that runs there
	}
	const first, ids = 500_000, 4_000_000
	dir := t.TempDir()
	if err := os.Chown(dir, first, first); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if info, err := os.Stat(d); err != nil {
			t.Fatal(err)
		} else if err := os.Chmod(d, info.Mode()|0o111); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "test")
	if data, err := os.ReadFile("/proc/self/exe"); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	all := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: ids}}
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run", "^(TestStagedAsCopied|TestHostileLayers|TestLayersInTheStoreAreUsed|TestInterruptedPull)$")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: all, GidMappings: all,
		Credential: &syscall.Credential{Uid: 0, Gid: 0},
	}
	cmd.Env = append(without(os.Environ(), "HOME"), "HOME="+dir, "TMPDIR="+dir, unshare.UsernsEnvName+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Count("\n"+string(out), "\n--- PASS: Test") != 4 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNoSpaceForALayer is told as one, and what was staged is gone.
func TestNoSpaceForALayer(t *testing.T) {
	h := newHub(t)
	zeros := tarOf(t, tar.Header{Name: "zeros", PAXRecords: has(strings.Repeat("\x00", 100<<20))})
	h.addLayers(t, "1", gzipLayer(tarOf(t, kinds()...)), gzipLayer(zeros))
	disk := t.TempDir()
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=40m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	b := open(t, insecure, func(c *Config) { c.StorageDriver, c.StorageRoot = driverOverlay, disk+"/store" })
	e := mustFail(t, b.pullTag(t, h, "1"))
	b.wantStaged(t, true)
	if e.Reason != result.ReasonNoSpace || e.Class != result.ClassResource || !strings.Contains(e.Message, "of 40 MiB used") || !strings.Contains(e.Message, "("+disk) {
		t.Errorf("%s: %s", e.Reason, e.Message)
	}
	b.wantNothingStaged(t)
}

// TestLayersThatWereReadAreKept: an attempt that fails for one layer leaves the others to
// the next.
func TestLayersThatWereReadAreKept(t *testing.T) {
	h := newHub(t)
	var all []packed
	for i := range 5 {
		all = append(all, gzipLayer(tarOf(t, tar.Header{Name: fmt.Sprintf("f%d", i), PAXRecords: has(strings.Repeat("x", 100_000))})))
	}
	m := h.addLayers(t, "1", all...)
	var mu sync.Mutex
	asked := map[string]int{}
	bad := answer(503, "text/plain", "later")
	h.failing(http.MethodGet, "/blobs/", func(w http.ResponseWriter, r *http.Request) {
		d := digest.Digest(filepath.Base(r.URL.Path))
		mu.Lock()
		asked[d.String()]++
		n := asked[d.String()]
		mu.Unlock()
		if d == m.Layers[1].Digest && n == 1 {
			// Until those that are read at the same time are staged.
			for range 100 {
				mu.Lock()
				others := asked[m.Layers[0].Digest.String()] + asked[m.Layers[2].Digest.String()]
				mu.Unlock()
				if others == 2 || runtime.GOMAXPROCS(0) < 2 {
					break
				}
				time.Sleep(20 * time.Millisecond)
			}
			bad(w, r)
			return
		}
		h.mu.Lock()
		blob := h.blobs[d]
		h.mu.Unlock()
		h.serve(w, r, blob)
	})
	b, stock := openPair(t)
	e := mustFail(t, b.pullTag(t, h, "1"))
	wantMeaning(t, e, result.ClassTransient, result.ReasonRegistryUnavailable, 503, h.host)
	before := maps.Clone(asked)
	bytes, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1", Line: 1}, "")
	if err != nil {
		t.Fatal(err)
	}
	b.wantStaged(t, true)
	b.wantNothingStaged(t)
	var fetched int64
	for i, l := range m.Layers {
		switch n := asked[l.Digest.String()]; {
		case i == 1 && n != 2, i != 1 && n != 1:
			t.Errorf("layer %d was read %d times", i, n)
		}
		if asked[l.Digest.String()] > before[l.Digest.String()] {
			fetched += l.Size
		}
	}
	if want := fetched + m.Config.Size; bytes != want {
		t.Errorf("%d bytes, want %d", bytes, want)
	}
	h.failing("", "nothing", nil)
	if err := stock.pullTag(t, h, "1"); err != nil {
		t.Fatal(err)
	}
	wantSame(t, b.inventory(t), stock.inventory(t))
}

// TestLayersInTheStoreAreUsed: those of another image, below and on others.
func TestLayersInTheStoreAreUsed(t *testing.T) {
	h := newHub(t)
	a, b, c := gzipLayer(tarOf(t, kinds()...)), gzipLayer(tarOf(t, upper()...)), gzipLayer(tarOf(t, tar.Header{Name: "c", PAXRecords: has("c")}))
	h.addLayers(t, "1", a, b)
	h.addLayers(t, "2", a, c, b) // one below that is there, and one that is there elsewhere
	h.addLayers(t, "3", b, packed{imgspecv1.MediaTypeImageLayer, c.archive, c.archive})
	ours, stock := openPair(t)
	for _, e := range []*bench{ours, stock} {
		if err := e.pullTag(t, h, "1"); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	asked := map[string]int{}
	h.failing(http.MethodGet, "/blobs/", func(w http.ResponseWriter, r *http.Request) {
		d := filepath.Base(r.URL.Path)
		mu.Lock()
		asked[d]++
		mu.Unlock()
		h.mu.Lock()
		blob := h.blobs[digest.Digest(d)]
		h.mu.Unlock()
		h.serve(w, r, blob)
	})
	for _, tag := range []string{"2", "3"} {
		clear(asked)
		if err := ours.pullTag(t, h, tag); err != nil {
			t.Fatal(err)
		}
		own := maps.Clone(asked)
		clear(asked)
		if err := stock.pullTag(t, h, tag); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(own, asked) {
			t.Errorf("%s: what was read: %v, want %v", tag, own, asked)
		}
	}
	ours.wantStaged(t, true)
	wantSame(t, ours.inventory(t), stock.inventory(t))
}

// TestInterruptedPull ends in time, and what it staged goes with the engine.
func TestInterruptedPull(t *testing.T) {
	h := newHub(t)
	whole := gzipLayer(tarOf(t, tar.Header{Name: "f", PAXRecords: has(strings.Repeat("0123456789", 1_000_000))}))
	m := h.addLayers(t, "1", gzipLayer(tarOf(t, kinds()...)), whole)
	reading := make(chan struct{})
	var once sync.Once
	h.failing(http.MethodGet, m.Layers[1].Digest.Encoded(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(whole.blob)))
		_, _ = w.Write(whole.blob[:len(whole.blob)/2])
		w.(http.Flusher).Flush()
		once.Do(func() { close(reading) })
		<-r.Context().Done()
	})
	b, _ := openPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	var stopped time.Time
	go func() {
		<-reading
		stopped = time.Now()
		cancel()
	}()
	_, err := b.Pull(ctx, "Containerfile", Base{Name: h.host + "/base:1", Line: 1}, "")
	if e := mustFail(t, err); e.Class != result.ClassInterrupted || e.Reason != result.ReasonInterrupted {
		t.Errorf("%s %s: %s", e.Class, e.Reason, e.Message)
	}
	if took := time.Since(stopped); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	b.stager.Close()
	b.wantNothingStaged(t)
}

// TestStalledLayer is given up as a stalled transfer is.
func TestStalledLayer(t *testing.T) {
	h := newHub(t)
	m := h.addLayers(t, "1", gzipLayer(tarOf(t, kinds()...)))
	h.failing(http.MethodGet, m.Layers[0].Digest.Encoded(), func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write([]byte{0x1f, 0x8b, 8})
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	b, _ := openPair(t, func(c *Config) { c.Stall = 500 * time.Millisecond })
	e := mustFail(t, b.pullTag(t, h, "1"))
	if e.Class != result.ClassTransient || e.Reason != result.ReasonRegistryUnavailable || !strings.Contains(e.Message, "500ms") {
		t.Errorf("%s %s: %s", e.Class, e.Reason, e.Message)
	}
}

// TestWhatIsNotStaged is left to containers/image, and the log says so once.
func TestWhatIsNotStaged(t *testing.T) {
	layer := gzipLayer(tarOf(t, kinds()...))
	foreign := layer
	foreign.mime = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
	h := newHub(t)
	h.addLayers(t, "1", layer)
	h.addLayers(t, "2", layer, layer)
	h.addLayers(t, "foreign", foreign)
	for name, tt := range map[string]struct{ driver, tag, why string }{
		"another driver": {driverVFS, "1", "the driver vfs of the store"},
		"foreign layers": {driverOverlay, "foreign", foreign.mime},
	} {
		t.Run(name, func(t *testing.T) {
			b := open(t, insecure, func(c *Config) { c.StorageDriver = tt.driver })
			for _, tag := range []string{tt.tag, tt.tag, "2"} {
				if err := b.pullTag(t, h, tag); err != nil {
					t.Fatal(err)
				}
			}
			if log := b.log.String(); strings.Count(log, "one layer after the other: ") != 1 || !strings.Contains(log, tt.why) {
				t.Errorf("the log does not say once why: %s", log)
			}
		})
	}
}

// TestRejectedImageIsNotFetched where the signature policy rejects it.
func TestRejectedImageIsNotFetched(t *testing.T) {
	h := newHub(t)
	h.addLayers(t, "1", gzipLayer(tarOf(t, kinds()...)))
	fetched := false
	h.failing(http.MethodGet, "/blobs/", func(http.ResponseWriter, *http.Request) { fetched = true })
	for name, policy := range map[string]string{
		"as all are":        `{"default":[{"type":"reject"}]}`,
		"as one not signed": `{"default":[{"type":"signedBy","keyType":"GPGKeys","keyData":""}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			policy := write(t, t.TempDir()+"/policy.json", policy)
			b := open(t, insecure, func(c *Config) { c.StorageDriver, c.SignaturePolicy = driverOverlay, policy })
			if e := mustFail(t, b.pullTag(t, h, "1")); e.Reason != result.ReasonSignatureRejected {
				t.Errorf("%s: %s", e.Reason, e.Message)
			}
			if fetched {
				t.Error("a blob was fetched")
			}
		})
	}
}
