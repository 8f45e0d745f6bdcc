package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	"go.podman.io/storage/pkg/archive"
	"golang.org/x/sys/unix"
)

// The tests run in a worker, as a build does, so that what they mount ends with
// them, and see none of the configuration of the machine.
const (
	insideVariable  = "STRATA_TEST_INSIDE"
	processVariable = "STRATA_TEST_PROCESS"
)

// machineConfiguration are the directories that containers/image and
// containers/common read settings from.
var machineConfiguration = []string{"/etc/containers", "/usr/share/containers", "/etc/docker"}

func TestMain(m *testing.M) {
	if Reexec() {
		return
	}
	logrus.SetOutput(io.Discard)
	switch {
	case os.Getenv(processVariable) != "":
		report(processes[os.Getenv(processVariable)]())
	case os.Getenv(insideVariable) != "":
		for _, dir := range machineConfiguration {
			if err := hide(dir); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		if err := forgetPrograms(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	default:
		status, err := runInside()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(status)
	}
}

// runInside runs this program again in a worker and returns its exit status.
func runInside() (int, error) {
	home, err := os.MkdirTemp("", "strata-test-home-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(home)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	worker, err := NewWorker(Needs{}, os.Args...)
	if err != nil {
		return 1, err
	}
	if worker.Cmd.Env == nil {
		worker.Cmd.Env = os.Environ()
	}
	for _, name := range []string{
		"CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "CONTAINERS_STORAGE_CONF", "CONTAINERS_REGISTRIES_CONF",
		"REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
		"STORAGE_DRIVER", "STORAGE_OPTS", "BUILDAH_ISOLATION",
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
	} {
		worker.Cmd.Env = without(worker.Cmd.Env, name)
	}
	worker.Cmd.Env = append(without(worker.Cmd.Env, "HOME"), "HOME="+home, insideVariable+"=1")
	worker.Cmd.Stdout, worker.Cmd.Stderr = os.Stdout, os.Stderr
	if err := worker.Start(); err != nil {
		return 1, err
	}
	err = worker.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

func without(env []string, name string) []string {
	kept := env[:0:0]
	for _, v := range env {
		if !strings.HasPrefix(v, name+"=") {
			kept = append(kept, v)
		}
	}
	return kept
}

// forgetPrograms lets containers/storage unpack layers itself, also where the machine has
// programs that do it: it looks once.
func forgetPrograms() error {
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", ""); err != nil {
		return err
	}
	for _, beginning := range []string{"\x1f\x8b\x08", "\x28\xb5\x2f\xfd"} { // of gzip and of zstd
		if r, err := archive.DecompressStream(strings.NewReader(beginning)); err == nil {
			_ = r.Close()
		}
	}
	return os.Setenv("PATH", path)
}

// hide mounts an empty directory over one that exists.
func hide(dir string) error {
	if err := PrivateMounts(); err != nil {
		return fmt.Errorf("keeping mounts private: %w", err)
	}
	err := unix.Mount("none", dir, "tmpfs", 0, "")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hiding %s: %w", dir, err)
	}
	return nil
}

// processes are what a test runs in a process of its own: what changes limits or
// capabilities for good, or reads what the libraries read once.
var processes = map[string]func() any{}

func report(answer any) {
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// inProcess runs one of processes in a process of its own, with variables added
// to its environment, and fills answer with what it returned.
func inProcess(t *testing.T, name string, attr *syscall.SysProcAttr, answer any, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), append(env, processVariable+"="+name)...)
	cmd.SysProcAttr = attr
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the process %q: %v: %s", name, err, stderr.String())
	}
	if err := json.Unmarshal(out, answer); err != nil {
		t.Fatalf("the process %q wrote %q: %v", name, out, err)
	}
}

// record keeps what is written to it, by more than one goroutine.
type record struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(p)
}

func (r *record) Close() error { return nil }

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// silent is an Output that nobody reads.
func silent() Output {
	return Output{Log: slog.New(slog.DiscardHandler), Lines: func() io.WriteCloser { return &record{} }}
}

// bench is an engine with a store of its own, and what it said.
type bench struct {
	*Engine
	log, lines *record
}

// configured returns a Config whose store is a temporary directory, and where
// the engine will say what it does.
func configured(t *testing.T, change ...func(*Config)) (Config, *bench) {
	t.Helper()
	b := &bench{log: &record{}, lines: &record{}}
	config := Config{
		StorageRoot: filepath.Join(t.TempDir(), "store"), StorageDriver: "vfs", UserAgent: "test",
		Output: Output{Log: slog.New(slog.NewTextHandler(b.log, nil)), Lines: func() io.WriteCloser { return b.lines }},
	}
	for _, c := range change {
		c(&config)
	}
	return config, b
}

// open opens an engine that is closed when the test ends.
func open(t *testing.T, change ...func(*Config)) *bench {
	t.Helper()
	config, b := configured(t, change...)
	t.Setenv("TMPDIR", "")
	e, err := Open(config)
	if err != nil {
		t.Fatalf("opening an engine: %v", err)
	}
	t.Cleanup(e.Close)
	// The cache of the machine says what other builds found in which registry.
	e.sys.BlobInfoCacheDir = t.TempDir()
	b.Engine = e
	return b
}

// insecure lets an engine talk to registries without TLS.
func insecure(c *Config) { c.TLSVerify = new(bool) }

// write makes a file, and the directories above it, and returns its path.
func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
