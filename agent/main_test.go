package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// helperVariable makes the test binary run one of the helpers instead of tests.
const helperVariable = "AGENT_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		os.Exit(helper(name))
	}
	os.Exit(m.Run())
}

func newSettings() *Settings {
	return NewSettings(pflag.NewFlagSet("build", pflag.ContinueOnError))
}

// parsed makes settings from flags.
func parsed(t *testing.T, args ...string) *Settings {
	t.Helper()
	s := newSettings()
	if err := s.flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return s
}

// inDirectory runs the test in a directory that holds a build context, an empty
// directory and a file.
func inDirectory(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, dir := range []string{"context", "empty", "odd/Containerfile"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, "context/Containerfile", "FROM scratch\n")
	writeFile(t, "file", "{}")
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// testConsole makes a console as the flags have it, and what it writes to.
func testConsole(t *testing.T, secrets []string, args ...string) (*console, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	r := &redactor{}
	r.add(secrets...)
	return newConsole(out, parsed(t, args...), r), out
}

// writtenLines splits what was written, which must end with its last line.
func writtenLines(t *testing.T, out *bytes.Buffer) []string {
	t.Helper()
	text := out.String()
	if text == "" {
		return nil
	}
	if !strings.HasSuffix(text, "\n") {
		t.Errorf("the last line does not end: %q", text)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// errorsFile is a file in the place of standard error, and a way to read it.
func errorsFile(t *testing.T) (*os.File, func() string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, func() string {
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
}
