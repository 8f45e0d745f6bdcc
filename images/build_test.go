package images

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/manifest"
	istorage "go.podman.io/image/v5/storage"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/archive"

	"github.com/strata-build/strata/agent/result"
)

// site is an engine with a build context, and a place for Containerfiles.
type site struct {
	*bench
	context, work string
}

// newSite makes a context with the files a and dir/b, a shell in bin, and
// secret.txt, which the ignore file excludes.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{context: t.TempDir(), work: t.TempDir()}
	s.bench = open(t, insecure)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("the tests need a static busybox: %v", err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	shell := write(t, s.context+"/bin/sh", string(data))
	if err := os.Chmod(shell, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, s.context+"/a", "content of a\n")
	write(t, s.context+"/dir/b", "content of b\n")
	write(t, s.context+"/secret.txt", "secret\n")
	write(t, s.context+"/.containerignore", "secret*\n")
	return s
}

func (s *site) containerfile(t *testing.T, text string) string {
	t.Helper()
	dir, err := os.MkdirTemp(s.work, "")
	if err != nil {
		t.Fatal(err)
	}
	return write(t, dir+"/Containerfile", text)
}

// build parses and builds a Containerfile, whose path it returns.
func (s *site) build(t *testing.T, text string, change ...func(*BuildSpec)) (id, path string, err error) {
	t.Helper()
	spec := BuildSpec{Containerfile: s.containerfile(t, text), Context: s.context, Format: "oci", Layers: true, Jobs: 1}
	for _, c := range change {
		c(&spec)
	}
	file, err := s.Parse(spec)
	if err != nil {
		t.Fatalf("parsing: %v", err)
	}
	id, err = s.Build(t.Context(), spec, file)
	return id, spec.Containerfile, err
}

// files returns the files of an image.
func (s *site) files(t *testing.T, id string) map[string]string {
	t.Helper()
	image, err := s.store.Image(id)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for layer := image.TopLayer; layer != ""; {
		plain := archive.Uncompressed
		diff, err := s.store.Diff("", layer, &storage.DiffOptions{Compression: &plain})
		if err != nil {
			t.Fatal(err)
		}
		for r := tar.NewReader(diff); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if header.Typeflag == tar.TypeReg && files[header.Name] == "" {
				files[header.Name] = string(content)
			}
		}
		diff.Close()
		info, err := s.store.Layer(layer)
		if err != nil {
			t.Fatal(err)
		}
		layer = info.Parent
	}
	return files
}

// image returns the manifest and the config of an image.
func (s *site) image(t *testing.T, id string) (*manifest.OCI1, *imgspecv1.Image) {
	t.Helper()
	ref, err := istorage.Transport.NewStoreReference(s.store, nil, id)
	if err != nil {
		t.Fatal(err)
	}
	img, err := ref.NewImage(t.Context(), &s.sys)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	data, _, err := img.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	man, err := manifest.OCI1FromManifest(data)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.OCIConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return man, config
}

func TestBuildFromScratch(t *testing.T) {
	s := newSite(t)
	id, _, err := s.build(t, "FROM scratch\nCOPY a dir /to/\n", func(spec *BuildSpec) {
		spec.Tag, spec.Labels, spec.Annotations, spec.BuildID = "r.example/os:1", []string{"l=v"}, []string{"n=v"}, "build-1"
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.files(t, id), map[string]string{"to/a": "content of a\n", "to/b": "content of b\n"}; !maps.Equal(got, want) {
		t.Errorf("the image has %q, want %q", got, want)
	}
	man, config := s.image(t, id)
	if man.Annotations[BuildIDAnnotation] != "build-1" || man.Annotations["n"] != "v" || config.Config.Labels["l"] != "v" {
		t.Errorf("annotations %q, labels %q", man.Annotations, config.Config.Labels)
	}
	if image, err := s.store.Image("r.example/os:1"); err != nil || image.ID != id {
		t.Errorf("the tag names %v (%v), want the image that was built", image, err)
	}
	for _, line := range []string{"STEP 1/2: FROM scratch\n", "STEP 2/2: COPY a dir /to/\n", "STEP 3/3: LABEL \"l\"=\"v\"\n", "COMMIT r.example/os:1\n"} {
		if !strings.Contains(s.lines.String(), line) {
			t.Errorf("the lines do not have %q:\n%s", line, s.lines)
		}
	}
}

func TestBuildWithHeredocs(t *testing.T) {
	s := newSite(t)
	text := "FROM scratch\nCOPY bin /bin/\n" + strings.TrimPrefix(heredocs, "FROM r.example/busy:1\n")
	id, _, err := s.build(t, text)
	if err != nil {
		t.Fatal(err)
	}
	got := s.files(t, id)
	for name, want := range map[string]string{
		"one":     "one\n",
		"f":       "$X and * and # and\n\nFROM not-a-stage\n",
		"a":       "expanded *\n# no comment\n",
		"b":       "tabs go\n",
		"dir/ONE": "first\n",
		"dir/TWO": "second\n",
	} {
		if got[name] != want {
			t.Errorf("/%s has %q, want %q", name, got[name], want)
		}
	}
}

func TestBuildOnAStageByNumber(t *testing.T) {
	s := newSite(t)
	id, _, err := s.build(t, "FROM scratch AS a\nCOPY a /a\nFROM 0\nCOPY dir /\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(s.files(t, id))); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the image has %q, want the files of both stages", got)
	}
}

// A build that is tried again goes on behind the last step that succeeded.
func TestBuildThatIsTriedAgainResumes(t *testing.T) {
	s := newSite(t)
	runs := t.TempDir()
	text := "FROM scratch\nCOPY bin /bin/\nRUN echo first >> /runs/first\nRUN echo second >> /runs/second; [ -e /runs/heal ]\n"
	volume := func(spec *BuildSpec) { spec.Volumes = []string{runs + ":/runs"} }
	if _, _, err := s.build(t, text, volume); err == nil {
		t.Fatal("the first attempt succeeded")
	}
	write(t, runs+"/heal", "")
	if _, _, err := s.build(t, text, volume); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"first": 1, "second": 2} {
		data, err := os.ReadFile(filepath.Join(runs, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(data), "\n"); got != want {
			t.Errorf("the step %q ran %d times, want %d", name, got, want)
		}
	}
}

// wantFailure checks what the error of a build means, and what its message says.
func wantFailure(t *testing.T, err error, class result.Class, reason result.Reason, texts ...string) *Error {
	t.Helper()
	e := mustFail(t, err)
	if e.Class != class || e.Reason != reason {
		t.Errorf("%s, %s; want %s, %s\nmessage: %s\ncause: %v", e.Class, e.Reason, class, reason, e.Message, e.Err)
	}
	for _, text := range texts {
		if !strings.Contains(e.Message, text) {
			t.Errorf("the message does not have %q: %s", text, e.Message)
		}
	}
	if strings.ContainsAny(e.Message, "\n\r") {
		t.Errorf("the message has more than one line: %q", e.Message)
	}
	return e
}

func TestStepThatExits(t *testing.T) {
	s := newSite(t)
	_, path, err := s.build(t, "FROM scratch\nCOPY bin /bin/\n\nRUN echo one; printf 'disk on fire' >&2; exit 42\n")
	e := wantFailure(t, err, result.ClassInput, result.ReasonStepFailed, "step 3/3 of stage 0", path+", line 4", "exited 42: disk on fire")
	if e.RunExitCode != 42 || e.ExitCode() != 42 || !strings.HasSuffix(e.Output, "disk on fire") || !strings.Contains(e.Output, "one") {
		t.Errorf("exit code %d, output %q; want 42 and both lines", e.RunExitCode, e.Output)
	}
	want := result.Step{Stage: "0", Number: 3, Of: 3, Line: 4, Instruction: "RUN echo one; printf 'disk on fire' >&2; exit 42"}
	if e.Step == nil || *e.Step != want {
		t.Errorf("step %+v, want %+v", e.Step, want)
	}
	if !strings.Contains(s.lines.String(), "\ndisk on fire\n") || strings.Contains(s.lines.String(), "subprocess exited") {
		t.Errorf("the output of the step is not passed on as it is:\n%s", s.lines)
	}
}

func TestStepWhoseLastLineIsRewritten(t *testing.T) {
	s := newSite(t)
	_, _, err := s.build(t, "FROM scratch\nCOPY bin /bin/\nRUN printf 'at 10%%\\rat 100%%\\n'; exit 1\n")
	wantFailure(t, err, result.ClassInput, result.ReasonStepFailed, "at 100%")
}

func TestStepThatCannotBegin(t *testing.T) {
	s := newSite(t)
	write(t, s.context+"/foreign", "\x7fELF\x02\x01\x01")
	if err := os.Chmod(s.context+"/foreign", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Run("no shell", func(t *testing.T) {
		_, _, err := s.build(t, "FROM scratch\nRUN true\n")
		wantFailure(t, err, result.ClassInput, result.ReasonStepFailed, "/bin/sh: no such file or directory")
	})
	t.Run("a program of another architecture", func(t *testing.T) {
		_, _, err := s.build(t, "FROM scratch\nCOPY foreign /\nRUN [\"/foreign\"]\n")
		wantFailure(t, err, result.ClassInput, result.ReasonWrongArchitecture, "another architecture")
	})
	t.Run("an unfinished variable", func(t *testing.T) {
		_, path, err := s.build(t, "FROM scratch\nCOPY a /\nENV A=${B\n")
		wantFailure(t, err, result.ClassInput, result.ReasonContainerfileInvalid, path+", line 3")
	})
	t.Run("an unknown user", func(t *testing.T) {
		_, path, err := s.build(t, "FROM scratch\nCOPY bin /bin/\nUSER nobody\nRUN true\n")
		wantFailure(t, err, result.ClassInput, result.ReasonStepFailed, path+", line 4", "nobody")
	})
}

func TestFileThatIsMissing(t *testing.T) {
	s := newSite(t)
	inContext := "in the build context " + s.context
	for _, c := range []struct {
		name, text string
		line       int
		texts      []string
	}{
		{"COPY", "FROM scratch\nCOPY none.txt /\n", 2, []string{`"none.txt"`, inContext}},
		{"COPY without layers", "FROM scratch\nCOPY none.txt /\n", 2, []string{`"none.txt"`, inContext}},
		{"ADD", "FROM scratch\nCOPY a /\nADD none.tar /\n", 3, []string{`"none.tar"`, inContext}},
		{"the second of two", "FROM scratch\nCOPY a dir/none /to/\n", 2, []string{`"dir/none"`, inContext}},
		{"JSON form", "FROM scratch\nCOPY [\"none of these.txt\", \"/\"]\n", 2, []string{`"none of these.txt"`, inContext}},
		{"a pattern", "FROM scratch\nCOPY none*.txt /\n", 2, []string{`"none*.txt"`, inContext}},
		{"excluded", "FROM scratch\nCOPY secret.txt /\n", 2, []string{`"secret.txt"`, inContext, "ignore file"}},
		{"excluded, by a pattern", "FROM scratch\nCOPY secret*.txt /\n", 2, []string{`"secret*.txt"`, inContext, "ignore file"}},
		{"outside", "FROM scratch\nCOPY ../none.txt /\n", 2, []string{`"none.txt"`, inContext}},
		{"in a stage", "FROM scratch AS first\nCOPY a /\nFROM scratch\nCOPY --from=first /none /\n", 4, []string{`"none"`, "first"}},
		{"a mount", "FROM scratch\nCOPY bin /bin/\nRUN --mount=type=bind,source=none,target=/x true\n", 3, []string{`"none"`, inContext}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, path, err := s.build(t, c.text, func(spec *BuildSpec) { spec.Layers = c.name != "COPY without layers" })
			e := wantFailure(t, err, result.ClassInput, result.ReasonContextFileMissing, append(c.texts, fmt.Sprintf("%s, line %d", path, c.line))...)
			if e.Step == nil || e.Step.Line != c.line {
				t.Errorf("step %+v, want that of line %d", e.Step, c.line)
			}
			if strings.Contains(e.Message, s.TempDir()) {
				t.Errorf("the message tells of the directory of temporary files: %s", e.Message)
			}
		})
	}
}

// The texts are those of buildah.
func TestMissingSource(t *testing.T) {
	const mounted = "/store/tmp/strata-3888432430/buildah-context-842579842/overlay/493172656/merge"
	for _, s := range []struct{ name, text, instruction, want string }{
		{
			"no such file", `checking on sources under "` + mounted + `": copier: stat: "/none.txt": no such file or directory`,
			"COPY none.txt /", `"none.txt" is not in the build context /srv/context`,
		},
		{
			"no such file in a directory", `checking on sources under "` + mounted + `": copier: stat: "/dir/none.txt": no such file or directory`,
			"COPY dir/none.txt /", `"dir/none.txt" is not in the build context /srv/context`,
		},
		{
			"excluded", `no items matching glob "` + mounted + `/secret.txt" copied (1 filtered out using ` + mounted + `/.containerignore): no such file or directory`,
			"COPY secret.txt /", `"secret.txt" is not in the build context /srv/context, or is excluded by its ignore file`,
		},
		{
			"excluded, by the flag", `no items matching glob "` + mounted + `/dir/secret.txt" copied (1 filtered out): no such file or directory`,
			"COPY --chown=1:1 dir/secret.txt /", `"dir/secret.txt" is not in the build context /srv/context, or is excluded by its ignore file`,
		},
		{
			"pattern", `checking on sources under "` + mounted + `": Rel: can't make  relative to ` + mounted + `; copier: stat: globs [/none*.txt] matched nothing`,
			"COPY none*.txt /", `"none*.txt" is not in the build context /srv/context`,
		},
		{
			"in a stage", `checking on sources under "/store/vfs/dir/d8f13ae7f515": copier: stat: "/none": no such file or directory`,
			"COPY --from=first /none /", `"none" is not in first`,
		},
		{"something else", `copying up to container: write /store/x: input/output error`, "COPY a /", ""},
	} {
		t.Run(s.name, func(t *testing.T) {
			missing := missingSource(s.text)
			if (missing == "") != (s.want == "") {
				t.Fatalf("the missing file is %q", missing)
			}
			if s.want == "" {
				return
			}
			if got := describeMissing(missing, s.text, s.instruction, "/srv/context"); got != s.want {
				t.Errorf("%q, want %q", got, s.want)
			}
		})
	}
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if got := describeMissing("/a", "", "COPY a /", "."); !strings.Contains(got, here) {
		t.Errorf("%q, want the context in full, %s", got, here)
	}
}

func TestAddFromTheNetwork(t *testing.T) {
	s := newSite(t)
	h := newHub(t)
	refused := unstartedHub()
	refused.start(t)
	refused.Close()
	for _, c := range []struct {
		name, host string
		answer     http.HandlerFunc
		class      result.Class
		reason     result.Reason
	}{
		{"refused", refused.host, nil, result.ClassTransient, result.ReasonRegistryUnavailable},
		{"unknown host", "x.invalid", nil, result.ClassTransient, result.ReasonRegistryUnavailable},
		{"cut", h.host, hangUp, result.ClassTransient, result.ReasonRegistryUnavailable},
		{"server error", h.host, answer(503, "text/html", htmlPage), result.ClassTransient, result.ReasonRegistryUnavailable},
		{"not there", h.host, answer(404, "text/html", htmlPage), result.ClassInput, result.ReasonStepFailed},
	} {
		t.Run(c.name, func(t *testing.T) {
			h.failing(http.MethodGet, "/file", c.answer)
			_, path, err := s.build(t, "FROM scratch\nADD http://"+c.host+"/file /\n")
			e := wantFailure(t, err, c.class, c.reason, path+", line 2", c.host)
			if e.Class == result.ClassTransient && e.Host != c.host {
				t.Errorf("host %q, want %q", e.Host, c.host)
			}
		})
	}
}

func TestBaseThatOnlyTheBuildFinds(t *testing.T) {
	s := newSite(t)
	h := newHub(t)
	_, path, err := s.build(t, "FROM "+h.host+"/base:none\n")
	wantFailure(t, err, result.ClassInput, result.ReasonBaseImageNotFound, path, h.host+"/base:none")
	h.failing(http.MethodGet, "/manifests/", answer(503, "text/plain", ""))
	_, path, err = s.build(t, "FROM "+h.host+"/base:none\n")
	wantFailure(t, err, result.ClassTransient, result.ReasonRegistryUnavailable, path, h.host)
}

func TestBuildThatWasStoppedBefore(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	spec := BuildSpec{Containerfile: s.containerfile(t, "FROM scratch\nCOPY none /\n"), Context: s.context, Format: "oci", Jobs: 1}
	file, err := s.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Build(ctx, spec, file)
	wantFailure(t, err, result.ClassInterrupted, result.ReasonInterrupted, "stopped at ")
}

func TestParse(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	_, err := s.Parse(BuildSpec{Containerfile: dir + "/none"})
	wantFailure(t, err, result.ClassSandbox, result.ReasonSettingsInvalid, dir+"/none")
	path := write(t, dir+"/Containerfile", "ARG TAG\nFROM base:$TAG\n")
	_, err = s.Parse(BuildSpec{Containerfile: path, BuildContexts: []string{"base"}})
	wantFailure(t, err, result.ClassSandbox, result.ReasonSettingsInvalid, "--build-context", `"base"`)

	t.Setenv("TAG", "3")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"TAG=2"}, "base:2"},
		{[]string{"TAG"}, "base:3"},
		{[]string{"TAG", "TAG=4"}, "base:4"},
		{[]string{"TAG=a=b"}, "base:a=b"},
	} {
		file, err := s.Parse(BuildSpec{Containerfile: path, BuildArgs: c.args})
		if err != nil {
			t.Fatal(err)
		}
		if got := file.Bases[0].Name; got != c.want {
			t.Errorf("with %q the base is %q, want %q", c.args, got, c.want)
		}
	}
	file, err := s.Parse(BuildSpec{Containerfile: write(t, dir+"/Other", "FROM base\nCOPY --from=data / /\n"), BuildContexts: []string{"base=docker://r.example/a:1", "data=" + dir}})
	if err != nil || len(file.Bases) != 1 || file.Bases[0].Name != "docker://r.example/a:1" && file.Bases[0].Name != "r.example/a:1" {
		t.Errorf("bases %+v (%v), want the image of --build-context alone", file, err)
	}
}

func TestCheckOfASpec(t *testing.T) {
	dir := t.TempDir()
	good := BuildSpec{
		Format: "oci", Volumes: []string{dir + ":/x:ro"}, Ulimits: []string{"nofile=10:20"},
		Secrets: []string{"id=s,src=" + write(t, dir+"/s", "")}, BuildContexts: []string{"a=" + dir}, Compression: Compression{Format: "zstd"},
		CacheFrom: []string{"r.example/cache"}, CacheTo: []string{"r.example/cache"},
	}
	if errs := good.Check(); len(errs) > 0 {
		t.Errorf("%v, want nothing", errs)
	}
	for _, s := range []struct {
		flag, value string
		change      func(*BuildSpec)
	}{
		{"--format", "floppy", func(s *BuildSpec) { s.Format = "floppy" }},
		{"--compression-format", "lha", func(s *BuildSpec) { s.Compression.Format = "lha" }},
		{"--build-context", "nothing", func(s *BuildSpec) { s.BuildContexts = []string{"nothing"} }},
		{"--build-context", "a=" + dir + "/none", func(s *BuildSpec) { s.BuildContexts = []string{"a=" + dir + "/none"} }},
		{"--volume", "relative", func(s *BuildSpec) { s.Volumes = []string{"relative:/x"} }},
		{"--secret", "", func(s *BuildSpec) { s.Secrets = []string{"src=" + dir + "/none"} }},
		{"--cache-from", "", func(s *BuildSpec) { s.CacheFrom = []string{"R.EXAMPLE/X"} }},
		{"--cache-to", "", func(s *BuildSpec) { s.CacheTo = []string{"R.EXAMPLE/X"} }},
		{"--ulimit", "files=1", func(s *BuildSpec) { s.Ulimits = []string{"files=1"} }},
	} {
		spec := good
		s.change(&spec)
		errs := spec.Check()
		if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), s.flag+": ") || !strings.Contains(errs[0].Error(), s.value) {
			t.Errorf("%s: %v, want one error that names the flag and %q", s.flag, errs, s.value)
		}
	}
	bad := BuildSpec{Format: "floppy", Ulimits: []string{"x"}, BuildContexts: []string{"x"}}
	if errs := bad.Check(); len(errs) != 3 {
		t.Errorf("%v, want every problem", errs)
	}
}

func TestCheckBases(t *testing.T) {
	b := open(t)
	for _, name := range []string{"r.example/a:1", "docker://r.example/a:1", "r.example:5000/a", "localhost/a"} {
		if err := b.CheckBases("Containerfile", []Base{{Name: name, Line: 1}}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, s := range []struct{ name, text string }{
		{"shortname/none", "fully qualified"},
		{"none", "fully qualified"},
		{"r.example/A:1", "not the name of an image"},
		{"r.example/a:", "not the name of an image"},
	} {
		err := b.CheckBases("dir/Containerfile", []Base{{Name: "r.example/a:1", Line: 1}, {Name: s.name, Line: 7}})
		wantFailure(t, err, result.ClassInput, result.ReasonBaseImageNotFound, "dir/Containerfile, line 7", fmt.Sprintf("%q", s.name), s.text)
	}
	search := open(t, func(c *Config) {
		c.RegistriesConf = write(t, t.TempDir()+"/registries.conf", "unqualified-search-registries = [\"r.example\"]\n")
	})
	if err := search.CheckBases("Containerfile", []Base{{Name: "none", Line: 1}}); err != nil {
		t.Errorf("with a registry to search in: %v", err)
	}
}

func TestPullOfAnImageThatIsThere(t *testing.T) {
	c := newCourier(t, insecure)
	c.origin.failing("", "/", hangUp)
	n, err := c.Pull(t.Context(), "Containerfile", Base{Name: c.stored, From: true}, "")
	if err != nil || n != 0 {
		t.Errorf("%d bytes, %v; want nothing to be fetched", n, err)
	}
}

func TestPullCountsWhatItFetches(t *testing.T) {
	b := open(t, insecure)
	h := newHub(t)
	h.addFile(t, "1", "", random(100_000))
	want := int64(0)
	for _, blob := range h.blobs {
		want += int64(len(blob))
	}
	got, err := b.Pull(t.Context(), "Containerfile", Base{Name: h.host + "/base:1"}, "")
	if err != nil || got != want {
		t.Errorf("%d bytes (%v), want %d", got, err, want)
	}
}
