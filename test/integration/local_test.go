package integration

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

func TestLocalBuildPrintsWhatBuildahUsersExpect(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo to stdout; echo to stderr >&2", "LABEL a=b")
	o := l.build("--tag", "localhost/x")
	o.wantSuccess(t)
	for _, beginning := range []string{
		"STEP 1/3: FROM " + l.image("base/busy:1"), "STEP 2/3: RUN echo to stdout", "to stdout", "to stderr",
		"STEP 3/3: LABEL a=b", "COMMIT localhost/x", "Copying blob sha256:",
	} {
		o.wantLine(t, beginning)
	}
	if !regexp.MustCompile(`^[0-9a-f]{64}\n$`).MatchString(o.stdout) {
		t.Errorf("standard output is %q, want the image's id alone", o.stdout)
	}
	if strings.Contains(o.stderr, "\x1b[") {
		t.Error("there are escape sequences where there is no terminal")
	}
	if o.result.Image != "localhost/x" || o.result.Digest != "" {
		t.Errorf("image %q, digest %q", o.result.Image, o.result.Digest)
	}
	second := l.build("--tag", "localhost/x")
	second.wantSuccess(t)
	second.wantLine(t, "--> Using cache ")
	if second.stdout != o.stdout {
		t.Error("the same build made another image")
	}
}

func TestJSONLogs(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN printf 'said \"this\"\\nunended'", "RUN exit 3")
	o := l.build("--log-format", "json", "--max-retries", "1")
	o.wantFailure(t, result.ReasonStepFailed)
	var messages []string
	for _, record := range o.jsonLines(t) {
		if record["time"] == nil || record["level"] == nil {
			t.Errorf("a record has no time or level: %v", record)
		}
		message, _ := record["msg"].(string)
		messages = append(messages, message)
	}
	all := "\n" + strings.Join(messages, "\n") + "\n"
	for _, want := range []string{"\nsaid \"this\"\n", "\nunended\n", "\nRetry 1/1 exited 3, no more retries left.\n", "\nBuild failed\n", "\nSTEP 3/3: RUN exit 3\n"} {
		if !strings.Contains(all, want) {
			t.Errorf("no record says %q", want)
		}
	}
}

// TestOutputs writes an image to each transport, without a registry.
func TestOutputs(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "COPY a /a", "CMD [\"/bin/cat\", \"/a\"]")
	l.file("context/a", "the right bytes\n")
	for _, transport := range []string{"oci", "oci-archive", "docker-archive", "dir"} {
		t.Run(transport, func(t *testing.T) {
			path := filepath.Join(l.dir, "out-"+transport)
			spec := transport + ":" + path
			if transport == "docker-archive" {
				spec += ":localhost/named:1"
			}
			o := l.build("--output", spec, "--digestfile", path+".digest")
			o.wantSuccess(t)
			if o.result.Digest == "" || o.result.Image != spec {
				t.Errorf("image %q, digest %q", o.result.Image, o.result.Digest)
			}
			if data, err := os.ReadFile(path + ".digest"); err != nil || string(data) != o.result.Digest {
				t.Errorf("the digest file holds %q (%v)", data, err)
			}
			if transport == "oci" {
				img := bases.Layout(t, path, "")
				if data, _ := bases.File(t, img, "/a"); string(data) != "the right bytes\n" {
					t.Errorf("/a holds %q", data)
				}
				if got := bases.Digest(t, img); got != o.result.Digest {
					t.Errorf("digest %s, the layout has %s", o.result.Digest, got)
				}
				bases.Check(t, img)
			} else if info, err := os.Stat(path); err != nil || info.IsDir() != (transport == "dir") {
				t.Errorf("what was written is not what the transport writes: %v", err)
			}
			o = l.build("--output", spec)
			if o.code != 2 || !strings.Contains(o.stderr, path+" exists") {
				t.Errorf("a path that exists: exit %d", o.code)
			}
			if left, _ := filepath.Glob(path + ".partial*"); len(left) != 0 {
				t.Errorf("partial output is left: %v", left)
			}
		})
	}
}

func TestOutputThatFailsLeavesNothing(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "COPY a /a")
	l.file("context/a", strings.Repeat("x", 1<<20))
	small := l.mkdir("small")
	// The output goes to a filesystem that is too small for it.
	l.wrap = []string{"unshare", "-m", "sh", "-c", `mount -t tmpfs -o size=64k tmpfs ` + small + ` && "$@"; code=$?; ls -A ` + small + `; exit $code`, "sh"}
	o := l.build("--output", "oci:"+filepath.Join(small, "image"), "--retry-on", "transient")
	o.wantFailure(t, result.ReasonNoSpace, "no space left")
	o.wantAttempts(t, result.Push, 1)
	if strings.TrimSpace(o.stdout) != "" {
		t.Errorf("something is left: %q", o.stdout)
	}
}

// TestProgressBars runs the agent on a terminal.
func TestProgressBars(t *testing.T) {
	l := newLab(t)
	l.addBase("base/big:1", bases.Big(t))
	l.containerfile("FROM HOST/base/big:1", "RUN echo in the step")
	// A bar shows a size only while there is more to come: half of the base comes late.
	ofBig := func(ranged bool) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return strings.Contains(r.URL.Path, l.bigLayer()) && (r.Header.Get("Range") != "") == ranged
		}
	}
	l.registry.Fault(registry.Rule{Method: "GET", To: 1, When: ofBig(false), Do: registry.CutResponse(16 << 20)})
	l.registry.Fault(registry.Rule{Method: "GET", To: 1, When: ofBig(true), Do: registry.Delay(2 * time.Second)})
	screen := l.onTerminal("--tag", l.image("os/big:1"), "--push")
	for _, want := range []string{"Copying blob", "MiB", "STEP 2/2: RUN echo in the step", "\x1b["} {
		if !strings.Contains(screen, want) {
			t.Errorf("the terminal does not show %q:\n%q", want, screen)
		}
	}
	if !l.registry.Has(t, "os/big", "1") {
		t.Error("the image is not there")
	}
	screen = l.onTerminal("--progress", "plain", "--no-cache")
	if strings.Contains(screen, "\x1b[") {
		t.Error("--progress plain draws on the terminal")
	}
}

// onTerminal runs the agent with a pseudo-terminal and returns what it shows.
func (l *lab) onTerminal(args ...string) string {
	l.t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer ptmx.Close()
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		l.t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(ptmx.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 120}); err != nil {
		l.t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	line := append([]string{"build", "--storage-root", filepath.Join(l.dir, "store"), "--tls-verify=false"}, args...)
	cmd := exec.Command(agentBinary, append(line, l.context)...)
	cmd.Env, cmd.Dir = append(l.env, "TERM=xterm"), l.dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	_ = tty.Close()
	var screen strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := ptmx.Read(buf)
		screen.Write(buf[:n])
		if err != nil {
			break // EIO: the other side is closed
		}
	}
	if err := cmd.Wait(); err != nil {
		l.t.Errorf("on a terminal: %v\n%s", err, screen.String())
	}
	return screen.String()
}

func TestFlagsOfTheBuildReachIt(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile(
		"ARG WHO=nobody", "FROM HOST/base/busy:1 AS one", "ARG WHO", "RUN echo $WHO > /who",
		"FROM HOST/base/busy:1 AS two", "COPY --from=one /who /who", "COPY --from=extra file /extra",
		"RUN --mount=type=secret,id=token test \"$(cat /run/secrets/token)\" = hidden && cp /volume/file /volume-file && ulimit -n > /limit",
		"FROM two AS unused", "RUN false",
	)
	l.mkdir("volume")
	l.mkdir("extra")
	l.file("volume/file", "from the volume\n")
	l.file("extra/file", "from another context\n")
	o := l.build("--build-arg", "WHO=somebody", "--target", "two", "--label", "l=1", "--annotation", "a=2", "--volume", l.dir+"/volume:/volume:ro",
		"--secret", "id=token,src="+l.file("token", "hidden"), "--build-context", "extra="+l.dir+"/extra", "--ulimit", "nofile=512:512",
		"--jobs", "2", "--squash", "--compression-format", "zstd", "--compression-level", "3", "--source-date-epoch", "1000000000", "--rewrite-timestamp",
		"--tag", l.image("os/flags:1"), "--push")
	o.wantSuccess(t)
	img := bases.Pull(t, l.registry.Host(), "os/flags:1")
	for path, want := range map[string]string{"/who": "somebody\n", "/extra": "from another context\n", "/volume-file": "from the volume\n", "/limit": "512\n"} {
		data, header := bases.File(t, img, path)
		if string(data) != want {
			t.Errorf("%s holds %q, want %q", path, data, want)
		}
		if header.ModTime.Unix() > 1000000000 {
			t.Errorf("%s is younger than the source date: %v", path, header.ModTime)
		}
	}
	config, manifest := bases.Config(t, img), bases.Manifest(t, img)
	if config.Config.Labels["l"] != "1" || manifest.Annotations["a"] != "2" || config.Created.Unix() != 1000000000 {
		t.Errorf("labels %v, annotations %v, created %v", config.Config.Labels, manifest.Annotations, config.Created)
	}
	if last := manifest.Layers[len(manifest.Layers)-1].MediaType; !strings.Contains(string(last), "zstd") {
		t.Errorf("the new layer is %s", last)
	}

	l.build("--target", "one", "--format", "docker", "--tag", l.image("os/flags:2"), "--push").wantSuccess(t)
	if mime := bases.Manifest(t, bases.Pull(t, l.registry.Host(), "os/flags:2")).MediaType; !strings.Contains(string(mime), "docker") {
		t.Errorf("--format docker made %s", mime)
	}
}

// TestStoreIsSharedWithOtherTools builds into the store that the environment
// configures, as podman and buildah would.
func TestStoreIsSharedWithOtherTools(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	conf := l.file("storage.conf", "[storage]\ndriver = \"vfs\"\ngraphroot = \""+l.dir+"/shared\"\nrunroot = \""+l.dir+"/run\"\n")
	l.env = append(l.env, "CONTAINERS_STORAGE_CONF="+conf)
	l.bare = true
	o := l.build("--tag", "localhost/shared", "--result", filepath.Join(l.dir, "result.json"), l.context)
	o.wantSuccess(t)
	o.wantLine(t, "Warning: the store uses vfs")
	data, err := os.ReadFile(filepath.Join(l.dir, "shared/vfs-images/images.json"))
	if err != nil {
		t.Fatal(err)
	}
	var images []struct {
		ID    string   `json:"id"`
		Names []string `json:"names"`
	}
	if err := json.Unmarshal(data, &images); err != nil || len(images) != 1 || images[0].ID != strings.TrimSpace(o.stdout) ||
		len(images[0].Names) != 1 || images[0].Names[0] != "localhost/shared:latest" {
		t.Errorf("the store holds %s (%v)", data, err)
	}
	if o.result.Sandbox.Storage != "vfs" {
		t.Errorf("sandbox %+v", o.result.Sandbox)
	}
}
