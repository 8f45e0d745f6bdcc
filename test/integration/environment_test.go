package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

func TestE05TemporaryDirectory(t *testing.T) {
	build := func(t *testing.T, env ...string) (*lab, outcome) {
		l := newLab(t).withBusy()
		l.containerfile("FROM HOST/base/busy:1", "COPY a /a", "RUN cat /a")
		l.file("context/a", "a\n")
		for i := range env {
			env[i] = strings.ReplaceAll(env[i], "LAB", l.dir)
		}
		l.env = append(l.env, env...)
		return l, l.build()
	}
	t.Run("TMPDIR is made", func(t *testing.T) {
		l, o := build(t, "TMPDIR=LAB/no/such")
		o.wantSuccess(t)
		if left, _ := os.ReadDir(filepath.Join(l.dir, "no/such")); len(left) != 0 {
			t.Errorf("temporary files are left behind: %v", left)
		}
	})
	t.Run("TMPDIR cannot be made", func(t *testing.T) {
		l, o := build(t, "TMPDIR=/proc/no/such")
		o.wantFailure(t, result.ReasonStorageUnavailable, "TMPDIR", "/proc/no")
		if n := len(l.registry.Requests()); n != 0 {
			t.Errorf("%d requests reached the registry first", n)
		}
	})
	t.Run("no /var/tmp", func(t *testing.T) {
		l := newLab(t).withBusy()
		l.containerfile("FROM HOST/base/busy:1", "COPY a /a", "RUN cat /a")
		l.file("context/a", "a\n")
		l.wrap = []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs tmpfs /var && exec "$@"`, "sh"}
		l.build().wantSuccess(t)
		if left, err := os.ReadDir(filepath.Join(l.dir, "store/tmp")); err != nil || len(left) != 0 {
			t.Errorf("temporary files are left behind: %v (%v)", left, err)
		}
	})
}

func TestE07HardLimitOfOpenFiles(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN ulimit -n; test $(ulimit -Hn) = 4096 && test $(ulimit -n) = 4096")
	l.env = append(l.env, "CONTAINERS_CONF="+l.file("containers.conf", "[containers]\ndefault_ulimits = [\"nofile=1048576:1048576\"]\n"))
	l.wrap = []string{"setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit", "--nofile=4096:4096"}
	o := l.build()
	o.wantSuccess(t)
	o.wantLine(t, "Warning: RUN steps get lower limits")
	if !strings.Contains(o.stderr, "nofile=4096 instead of 1048576") {
		t.Error("the warning does not name the limits")
	}
	o = l.build("--ulimit", "nofile=1024:2048", "--no-cache")
	if o.code == 0 {
		t.Error("--ulimit did not reach the step: its limits are those of containers.conf")
	}
	if strings.Contains(o.stderr, "nofile=4096 instead") {
		t.Error("a warning speaks of a limit that was overridden")
	}
}

// TestImageFromScratch builds the product's own image with the product, and runs
// a build in it: nothing but the image, /proc, /dev and /sys is there, as in any container.
func TestImageFromScratch(t *testing.T) {
	l := newLab(t).withBusy()
	binary, err := os.ReadFile(agentBinary)
	if err != nil {
		t.Fatal(err)
	}
	containerfile, err := os.ReadFile("../../Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	l.file("context/Containerfile", string(containerfile))
	for _, name := range []string{"agent", "controller"} { // the latter is not run here
		if err := os.WriteFile(filepath.Join(l.context, name), binary, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l.file("context/ca-certificates.crt", "")
	l.build("--output", "oci:"+filepath.Join(l.dir, "image")).wantSuccess(t)

	root := l.mkdir("root")
	extract(t, bases.Layout(t, filepath.Join(l.dir, "image"), ""), root)
	for _, dir := range []string{"proc", "dev", "sys", "context"} {
		l.mkdir("root/" + dir)
	}
	l.file("root/context/Containerfile", strings.ReplaceAll("FROM HOST/base/busy:1 AS one\nRUN echo made > /made && chown 12:34 /made\nFROM scratch\nCOPY --from=one /made /made\n", "HOST", l.registry.Host()))
	out, err := inContainer(t, root, "/agent", "build", "--tag", l.image("os/scratch:1"), "--push", "--tls-verify=false",
		"--retry-delay", "50ms", "--result", "/result.json", "/context")
	if err != nil {
		t.Fatalf("the build in the image failed: %v\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(root, "result.json"))
	if err != nil {
		t.Fatal(err)
	}
	r := l.checkResult(data)
	if want := l.registry.Digest(t, "os/scratch", "1"); r.Digest != want {
		t.Errorf("digest %s, want %s", r.Digest, want)
	}
	file, header := bases.File(t, bases.Pull(t, l.registry.Host(), "os/scratch:1"), "/made")
	if string(file) != "made\n" || header.Uid != 12 || header.Gid != 34 {
		t.Errorf("/made holds %q and belongs to %d:%d", file, header.Uid, header.Gid)
	}
}

// TestNothingElseIsNeeded hides every other program from the agent.
func TestNothingElseIsNeeded(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN id")
	l.env = []string{"PATH=/nonexistent"}
	l.build("--tag", l.image("os/alone:1"), "--push").wantSuccess(t)
}

// TestConfigurationThatCannotBeRead is named, and no flag that nobody gave.
func TestConfigurationThatCannotBeRead(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	path := l.file("broken.conf", "x = [")
	for variable, text := range map[string]string{"CONTAINERS_CONF": "x = [", "CONTAINERS_STORAGE_CONF": "x = [", "CONTAINERS_REGISTRIES_CONF": "x = [", "CONTAINERS_CONF_OVERRIDE": "[containers]\ndefault_ulimits = [\"nofile=x\"]\n"} {
		l.file("broken.conf", text)
		env := l.env
		l.env = append(env[:len(env):len(env)], variable+"="+path)
		o := l.build()
		l.env = env
		want := path
		if text != "x = [" {
			want = "unrecognized ulimit nofile=x"
		}
		o.wantFailure(t, result.ReasonSettingsInvalid, want)
		if strings.Contains(o.result.Message, "--") {
			t.Errorf("the message names a flag: %s", o.result.Message)
		}
	}
}
