package integration

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/strata-build/strata/test/bases"
)

// peers are the agent and buildah's own command line, each with a store of its own.
type peers struct {
	l       *lab
	buildah string
	conf    string
}

// input is what both build.
type input struct {
	file, context string
	args          []string
	env           []string
	// fails is set where neither may build it.
	fails bool
}

// newPeers starts a registry for both. It has base/busy:1 and, in place of the
// registries in the Internet, what the inputs of buildah's tests are based on.
func newPeers(t *testing.T) *peers {
	t.Helper()
	p := &peers{l: newLab(t), buildah: os.Getenv("BUILDAH_BINARY")}
	if _, err := os.Stat(p.buildah); err != nil {
		t.Fatalf("BUILDAH_BINARY does not name buildah's command line, which `make peer` builds: %v", err)
	}
	p.l.addBase("base/busy:1", bases.Busy(t))
	for _, name := range []string{"busybox", "alpine", "libpod/centos"} {
		tag := map[string]string{"libpod/centos": ":7"}[name]
		p.l.addBase(name+cmp.Or(tag, ":latest"), bases.Append(t, bases.Busy(t), bases.Dir("/usr", 0o755), bases.Dir("/usr/bin", 0o755), bases.Dir("/var", 0o755), bases.Dir("/home", 0o755),
			bases.Regular("/usr/bin/script", 0o755, nil), bases.Regular("/etc/os-release", 0o644, []byte("ID="+name+"\n")), bases.Regular("/etc/nsswitch.conf", 0o644, []byte("passwd: files\n")),
			bases.Regular("/etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1::/:/bin/false\nlp:x:4:7::/:/bin/false\nbin:x:2:2::/:/bin/false\n")),
			bases.Regular("/etc/group", 0o644, []byte("root:x:0:\ndaemon:x:1:\nbin:x:2:\nadm:x:4:\nmail:x:12:\n"))))
	}
	var conf strings.Builder
	for _, prefix := range []string{"mirror.gcr.io", "quay.io"} {
		fmt.Fprintf(&conf, "[[registry]]\nprefix = %q\nlocation = %q\ninsecure = true\n", prefix, p.l.registry.Host())
	}
	p.conf = p.l.file("registries.conf", conf.String())
	p.l.bare = true
	p.l.env = append(p.l.env, "TMPDIR="+p.l.mkdir("tmp"))
	return p
}

// compare builds an input with both and fails the test unless both make the same image
// of it, or none.
func (p *peers) compare(t *testing.T, name string, in input) v1.Image {
	t.Helper()
	p.l.t = t
	name = strings.ToLower(name)
	ours, theirs := p.l.image("ours/"+name+":1"), p.l.image("theirs/"+name+":1")
	args := append([]string{"--file", in.file, "--tls-verify=false"}, in.args...)

	env := p.l.env
	p.l.env = append(slices.Clone(env), in.env...)
	defer func() { p.l.env = env }()
	// When a build fails, what it mounted stays.
	command := append(append([]string{
		"-m", p.buildah, "--root", filepath.Join(p.l.dir, "their-store"), "--runroot", filepath.Join(p.l.dir, "their-run"), "--registries-conf", p.conf,
		"build", "--isolation", "chroot", "--layers", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--tag", "docker://" + theirs,
	}, args...), in.context)
	var out []byte
	var err error
	// A step that did not begin, because the kernel held a page of the copied program, says
	// nothing of the input.
	for range 3 {
		cmd := exec.Command("unshare", command...)
		cmd.Env, cmd.Dir = p.l.env, p.l.dir
		if out, err = cmd.CombinedOutput(); !strings.Contains(string(out), "sealing memfd copy: ") {
			break
		}
	}
	if (err != nil) != in.fails {
		t.Errorf("buildah: %v\n%s", err, out)
	}

	o := p.l.build(append(append([]string{
		"--storage-root", p.l.store, "--result", filepath.Join(p.l.dir, "result.json"), "--retry-delay", "50ms", "--retry-on", "transient",
		"--registries-conf", p.conf, "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--tag", ours, "--push",
	}, args...), in.context)...)
	if in.fails {
		if o.code == 0 {
			t.Error("the agent builds what buildah does not")
		}
		return nil
	}
	o.wantSuccess(t)
	if err != nil {
		return nil
	}
	image := p.pull("ours/" + name + ":1")
	wantSameImage(t, image, p.pull("theirs/"+name+":1"))
	return image
}

func (p *peers) pull(name string) v1.Image {
	return bases.Pull(p.l.t, p.l.registry.Host(), name, remote.WithTransport(p.l.registry.Inside()))
}

// unsteady is what buildah notes of the content of a mount and of a clone of a
// repository: both have times in them.
var unsteady = regexp.MustCompile(`:sha256:[0-9a-f]{64}$|[0-9a-f]{64} in /git\S*`)

// wantSameImage compares images apart from times: files, config, history, layers and
// annotations.
func wantSameImage(t *testing.T, got, want v1.Image) {
	t.Helper()
	wantSameFiles(t, bases.Flatten(t, got), bases.Flatten(t, want))
	ours, theirs := bases.Config(t, got).DeepCopy(), bases.Config(t, want).DeepCopy()
	for _, c := range []*v1.ConfigFile{ours, theirs} {
		c.Config.Hostname = "" // the id of a container
		for i, h := range c.History {
			c.History[i].CreatedBy = unsteady.ReplaceAllString(h.CreatedBy, "")
		}
	}
	wantSameConfig(t, ours, theirs)
	history := func(c *v1.ConfigFile) (entries []v1.History) {
		for _, h := range c.History {
			h.Created = v1.Time{}
			entries = append(entries, h)
		}
		return entries
	}
	if a, b := history(ours), history(theirs); !reflect.DeepEqual(a, b) {
		t.Errorf("history\n%+v\nwant\n%+v", a, b)
	}
	if a, b := len(ours.RootFS.DiffIDs), len(theirs.RootFS.DiffIDs); a != b {
		t.Errorf("%d layers, want %d", a, b)
	}
	annotations := func(img v1.Image) map[string]string {
		found := maps.Clone(bases.Manifest(t, img).Annotations)
		delete(found, "org.opencontainers.image.created")
		return found
	}
	if a, b := annotations(got), annotations(want); !maps.Equal(a, b) {
		t.Errorf("annotations %v, want %v", a, b)
	}
}
