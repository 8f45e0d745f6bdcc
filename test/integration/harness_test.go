package integration

import (
	"archive/tar"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// agentBinary is the program under test.
var agentBinary string

func TestMain(m *testing.M) {
	if root := os.Getenv(enterVariable); root != "" {
		fmt.Fprintln(os.Stderr, enterContainer(root, os.Args[1:]))
		os.Exit(1)
	}
	if os.Getenv(refuseVariable) != "" {
		os.Unsetenv(refuseVariable)
		fmt.Fprintln(os.Stderr, refuseUnshare(os.Args[1:]))
		os.Exit(1)
	}
	if ids := os.Getenv(mapVariable); ids != "" {
		os.Unsetenv(mapVariable)
		code, err := runMapped(ids, os.Args[1:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "the integration tests mount filesystems: run them as root")
			return 1
		}
		agentBinary = os.Getenv("AGENT_BINARY")
		if agentBinary == "" {
			root, err := filepath.Abs("../..")
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			if out, err := exec.Command("make", "-C", root, "build").CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "building the agent: %v\n%s", err, out)
				return 1
			}
			agentBinary = filepath.Join(root, "bin", "agent")
		}
		return m.Run()
	}())
}

// lab is what a test builds with: a context, a store, a registry.
type lab struct {
	t        *testing.T
	dir      string // everything below is here
	context  string
	store    string
	registry *registry.Registry
	env      []string
	// secrets must not be found in anything that comes out.
	secrets []string
	// wrap is a command in front of the agent.
	wrap []string
	// stdin is what the agent finds on its standard input.
	stdin *os.File
	// bare leaves out the flags that every other run gets.
	bare bool
	// stderr is the file to which the last run writes its standard error.
	stderr string
}

// newLab starts a registry that holds base/busy:1.
func newLab(t *testing.T, opts ...registry.Option) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir(), registry: registry.Start(t, opts...)}
	l.context, l.store = filepath.Join(l.dir, "context"), filepath.Join(l.dir, "store")
	l.mkdir("context")
	l.mkdir("home")
	l.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(l.dir, "home")}
	return l
}

// beside returns a lab that builds another context into the same store.
func (l *lab) beside(name string) *lab {
	l.t.Helper()
	other := *l
	other.dir = l.mkdir(name)
	other.context = other.mkdir("context")
	return &other
}

// withBusy puts base/busy:1 into the registry and forgets the requests for it.
func (l *lab) withBusy() *lab {
	l.t.Helper()
	l.addBase("base/busy:1", bases.Busy(l.t))
	return l
}

func (l *lab) mkdir(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// tmpfs mounts a filesystem in memory at a directory below the lab's, with options of
// tmpfs(5), until the test ends.
func (l *lab) tmpfs(name, options string) string {
	l.t.Helper()
	path := l.mkdir(name)
	if err := syscall.Mount("tmpfs", path, "tmpfs", 0, options); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			l.t.Error(err)
		}
	})
	return path
}

// file writes a file below the lab's directory and returns its path.
func (l *lab) file(name, text string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	l.mkdir(filepath.Dir(name))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// containerfile writes the Containerfile; HOST stands for the registry.
func (l *lab) containerfile(lines ...string) {
	l.t.Helper()
	text := strings.Join(lines, "\n") + "\n"
	l.file("context/Containerfile", strings.ReplaceAll(text, "HOST", l.registry.Host()))
}

// image is the full name of an image in the registry.
func (l *lab) image(name string) string { return l.registry.Host() + "/" + name }

// newStore empties the store.
func (l *lab) newStore() {
	l.t.Helper()
	if err := os.RemoveAll(filepath.Join(l.dir, "store")); err != nil {
		l.t.Fatal(err)
	}
}

// authFile writes an auth file for the registry and makes its password a secret.
func (l *lab) authFile(name, user, password string) string {
	l.t.Helper()
	entry := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	l.secrets = append(l.secrets, password, entry, base64.StdEncoding.EncodeToString([]byte(password)))
	return l.file(name, fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, l.registry.Host(), entry))
}

// outcome is what a run of the agent left.
type outcome struct {
	code           int
	stdout, stderr string
	took           time.Duration
	// result is nil when the run was told to put none at result.json.
	result *result.Result
}

// build runs `agent build` on the context of the lab, with the store, the result
// and the registry's lack of TLS as flags, and checks what must hold of every run.
func (l *lab) build(args ...string) outcome {
	l.t.Helper()
	cmd, done := l.start(args...)
	err := cmd.Wait()
	return done(err)
}

// start starts `agent build`; done is called with what Wait returns.
func (l *lab) start(args ...string) (cmd *exec.Cmd, done func(error) outcome) {
	l.t.Helper()
	resultPath := filepath.Join(l.dir, "result.json")
	_ = os.Remove(resultPath)
	line := append(l.wrap[:len(l.wrap):len(l.wrap)], agentBinary, "build")
	if !l.bare {
		line = append(line, "--storage-root", l.store, "--result", resultPath,
			"--tls-verify=false", "--retry-delay", "50ms")
	}
	line = append(line, args...)
	if !l.bare {
		line = append(line, l.context)
	}
	cmd = exec.Command(line[0], line[1:]...)
	cmd.Env, cmd.Dir = l.env, l.dir
	// Files, and not pipes, which are read until the last process that has one ends.
	stdout, stderr := l.outputFile("stdout"), l.outputFile("stderr")
	defer stdout.Close()
	defer stderr.Close()
	l.stderr = stderr.Name()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if l.stdin != nil {
		cmd.Stdin = l.stdin
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	return cmd, func(err error) outcome {
		l.t.Helper()
		o := outcome{stdout: readText(l.t, stdout.Name()), stderr: readText(l.t, stderr.Name()), took: time.Since(began)}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			o.code = exit.ExitCode()
		} else if err != nil {
			l.t.Fatal(err)
		}
		if data, err := os.ReadFile(resultPath); err == nil {
			o.result = l.checkResult(data)
			if o.result.ExitCode != o.code {
				l.t.Errorf("the result says exit code %d, the process exited %d", o.result.ExitCode, o.code)
			}
		}
		l.checkSecrets("standard output", o.stdout)
		l.checkSecrets("standard error", o.stderr)
		if l.t.Failed() {
			l.t.Logf("standard error:\n%s", o.stderr)
		}
		l.t.Cleanup(func() {
			if l.t.Failed() {
				l.t.Logf("exit %d after %v\nstandard output:\n%s\nstandard error:\n%s\nresult: %+v", o.code, o.took, o.stdout, o.stderr, o.result)
			}
		})
		return o
	}
}

func (l *lab) outputFile(name string) *os.File {
	l.t.Helper()
	file, err := os.CreateTemp(l.t.TempDir(), name)
	if err != nil {
		l.t.Fatal(err)
	}
	return file
}

func readText(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkResult checks what must hold of every Result.
func (l *lab) checkResult(data []byte) *result.Result {
	l.t.Helper()
	if len(data) > result.MaxBytes {
		l.t.Errorf("the result has %d bytes, more than %d", len(data), result.MaxBytes)
	}
	if !utf8.Valid(data) {
		l.t.Error("the result is not UTF-8")
	}
	l.checkSecrets("the result", string(data))
	r, err := result.Parse(data)
	if err != nil {
		l.t.Fatalf("%v: %s", err, data)
	}
	if !r.Reason.Known() {
		l.t.Errorf("the reason %q is not in the table", r.Reason)
	}
	if r.Outcome != result.Succeeded && r.Digest != "" {
		l.t.Errorf("a build that did not succeed has the digest %s", r.Digest)
	}
	return r
}

func (l *lab) checkSecrets(where, text string) {
	l.t.Helper()
	for _, secret := range l.secrets {
		if strings.Contains(text, secret) {
			l.t.Errorf("the secret %q is in %s", secret, where)
		}
	}
}

// wantSuccess fails the test unless the build succeeded.
func (o outcome) wantSuccess(t *testing.T) {
	t.Helper()
	if o.code != 0 || o.result == nil || o.result.Reason != result.ReasonSucceeded || o.result.Outcome != result.Succeeded {
		t.Fatalf("the build did not succeed: exit %d, %+v", o.code, o.result)
	}
}

// wantFailure fails the test unless the build failed for the reason, with the
// exit code and class of that reason, and a message that holds the texts.
func (o outcome) wantFailure(t *testing.T, reason result.Reason, texts ...string) {
	t.Helper()
	if o.result == nil {
		t.Fatalf("there is no result, exit %d", o.code)
	}
	if o.result.Reason != reason {
		t.Errorf("reason %s, want %s", o.result.Reason, reason)
	}
	if want := int(reason.Entry().Exit); o.code != want {
		t.Errorf("exit code %d, want %d", o.code, want)
	}
	for _, text := range texts {
		if !strings.Contains(o.result.Message, text) {
			t.Errorf("the message %q does not hold %q", o.result.Message, text)
		}
	}
	last := o.result.Attempts
	if len(last) == 0 {
		t.Fatal("no attempt is on record")
	}
	if class := last[len(last)-1].Class; class != reason.Entry().Class {
		t.Errorf("class %s, want %s", class, reason.Entry().Class)
	}
}

// attempts is how many attempts the phase made, as the Result has it.
func (o outcome) attempts(phase result.Phase) int { return o.result.Phases[phase].Attempts }

func (o outcome) wantAttempts(t *testing.T, phase result.Phase, want int) {
	t.Helper()
	if got := o.attempts(phase); got != want {
		t.Errorf("%s made %d attempts, want %d", phase, got, want)
	}
}

// wantLine fails the test unless standard error has a line that begins so.
func (o outcome) wantLine(t *testing.T, beginning string) {
	t.Helper()
	for line := range strings.Lines(o.stderr) {
		if strings.HasPrefix(line, beginning) {
			return
		}
	}
	t.Errorf("no line of standard error begins with %q", beginning)
}

// jsonLines parses standard error as JSON objects, one a line.
func (o outcome) jsonLines(t *testing.T) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range strings.Lines(o.stderr) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("standard error has a line that is no JSON object: %q", line)
			continue
		}
		all = append(all, record)
	}
	return all
}

// lines reads a file that RUN steps appended lines to; none is no line.
func (l *lab) lines(path string) []string {
	l.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	return strings.Fields(string(data))
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// addBase puts an image into the registry and forgets the requests for it.
func (l *lab) addBase(name string, img remote.Taggable) {
	l.t.Helper()
	bases.Push(l.t, l.registry.Host(), name, img, remote.WithTransport(l.registry.Inside()))
	l.registry.Reset()
}

// extract writes the filesystem of an image below dir: directories and regular
// files, which is all that the product's own image has.
func extract(t *testing.T, img v1.Image, dir string) {
	t.Helper()
	tree := bases.Flatten(t, img)
	for _, path := range tree.Paths() {
		entry := tree[path]
		target := filepath.Join(dir, path)
		var err error
		switch entry.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(target, entry.FileInfo().Mode().Perm())
		case tar.TypeReg:
			if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
				err = os.WriteFile(target, entry.Body, entry.FileInfo().Mode().Perm())
			}
		default:
			t.Fatalf("%s is neither a directory nor a file", path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// pushInside puts base/busy:1 into the registry past its authentication.
func (l *lab) pushInside(name string) {
	l.t.Helper()
	bases.Push(l.t, l.registry.Host(), name, bases.Busy(l.t), remote.WithTransport(l.registry.Inside()))
	l.registry.Reset()
}

func chown(t *testing.T, path string, uid int, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.Chown(path, uid, uid), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func owner(t *testing.T, path string) (uid uint32, mode os.FileMode) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%s has no owner", path)
	}
	return stat.Uid, info.Mode().Perm()
}
