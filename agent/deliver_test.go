package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

func TestDeliver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "result.json")
	tests := []struct {
		name, path             string
		stdout, stderr, inFile bool
	}{
		{name: "to a file", path: file, inFile: true},
		{name: "to standard output", path: "-", stdout: true},
		{name: "to where nothing can be written", path: filepath.Join(file, "below"), stdout: true, stderr: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := parsed(t, "--result="+tt.path, "--result-max=1024")
			var out bytes.Buffer
			stderr, read := errorsFile(t)
			r := newResult(s)
			r.Conclude(result.ReasonStepFailed)
			r.Message = strings.Repeat("long ", 1000)
			deliver(s, r, Streams{Out: &out, Err: stderr})

			data := out.Bytes()
			if tt.inFile {
				var err error
				if data, err = os.ReadFile(tt.path); err != nil {
					t.Fatal(err)
				}
			}
			got, err := result.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if got.Reason != result.ReasonStepFailed || len(data) > 1024 || len(data) < 1000 {
				t.Errorf("%d bytes: %s", len(data), data)
			}
			if wrote := out.Len() > 0; wrote != tt.stdout {
				t.Errorf("standard output %q", &out)
			}
			if warned := strings.HasPrefix(read(), "Warning: the result cannot be written to "+tt.path); warned != tt.stderr {
				t.Errorf("standard error %q", read())
			}
		})
	}
}

func TestRefuse(t *testing.T) {
	s := parsed(t, "--result=-", "--tag=r.example/a")
	var out bytes.Buffer
	stderr, read := errorsFile(t)
	code := Refuse(s, Problems{errors.New("--tag is\nwrong"), errors.New("--push is too")}, Streams{Out: &out, Err: stderr})
	if code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	if got, want := read(), "Error: --tag is wrong\nError: --push is too\n"; got != want {
		t.Errorf("standard error %q, want %q", got, want)
	}
	r, err := result.Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if r.Reason != result.ReasonSettingsInvalid || r.ExitCode != 2 || r.Outcome != result.Failed || r.Phase != result.Prepare || r.Image != "r.example/a" {
		t.Errorf("the Result is %+v", r)
	}
	if want := "--tag is wrong; --push is too"; r.Message != want {
		t.Errorf("message %q, want %q", r.Message, want)
	}
	if len(r.Attempts) != 1 || r.Attempts[0].Class != result.ClassSandbox || r.StartedAt.IsZero() || r.FinishedAt.IsZero() {
		t.Errorf("attempts %+v from %v to %v", r.Attempts, r.StartedAt, r.FinishedAt)
	}
}

func TestRefuseAnErrorOfTheFlags(t *testing.T) {
	s := parsed(t, "--result=-")
	var out bytes.Buffer
	stderr, read := errorsFile(t)
	if code := Refuse(s, errors.New("unknown flag: --pull"), Streams{Out: &out, Err: stderr}); code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
	if got, want := read(), "Error: unknown flag: --pull\n"; got != want {
		t.Errorf("standard error %q, want %q", got, want)
	}
	if r, err := result.Parse(out.Bytes()); err != nil || r.Message != "unknown flag: --pull" {
		t.Errorf("result %+v, %v", r, err)
	}
}

func TestWhyABuildFailed(t *testing.T) {
	const secret = "correct-horse"
	output := make([]string, 15)
	for i := range output {
		output[i] = fmt.Sprintf("line %d %s", i+1, secret)
	}
	r := &result.Result{Phase: result.Build, Message: "step 2/3: exited 1: " + secret}
	r.Conclude(result.ReasonStepFailed)
	remedy := r.Reason.Entry().Remedy

	t.Run("text", func(t *testing.T) {
		c, out := testConsole(t, []string{secret})
		explainFailure(c, r, strings.Join(output, "\n"))
		want := []string{"", "The build failed in phase Build: StepFailed", "  step 2/3: exited 1: [redacted]", "  | …"}
		for i := 6; i <= 15; i++ {
			want = append(want, fmt.Sprintf("  | line %d [redacted]", i))
		}
		want = append(want, "  What to do: "+remedy, "  More: docs/troubleshooting.md#stepfailed")
		if got := out.String(); got != strings.Join(want, "\n")+"\n" {
			t.Errorf("%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
	})
	t.Run("short output", func(t *testing.T) {
		c, out := testConsole(t, []string{secret})
		explainFailure(c, r, "one\ntwo")
		if got := out.String(); !strings.Contains(got, "  | one\n  | two\n") || strings.Contains(got, "…") {
			t.Errorf("%s", got)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		c, out := testConsole(t, nil)
		stopped := &result.Result{Phase: result.Pull, Message: "stopped by a signal"}
		stopped.Conclude(result.ReasonInterrupted)
		explainFailure(c, stopped, "")
		if got := out.String(); !strings.HasPrefix(got, "\nThe build was stopped in phase Pull: Interrupted\n  stopped by a signal\n  What to do: ") {
			t.Errorf("%s", got)
		}
	})
	t.Run("JSON", func(t *testing.T) {
		c, out := testConsole(t, []string{secret}, "--log-format=json")
		explainFailure(c, r, "one\ntwo")
		wantNoSecret(t, out.String(), secret)
		var record map[string]string
		if err := json.Unmarshal(out.Bytes(), &record); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if record["level"] != "ERROR" || record["reason"] != "StepFailed" || record["phase"] != "Build" || record["remedy"] != remedy || record["message"] != "step 2/3: exited 1: [redacted]" {
			t.Errorf("%s", out)
		}
	})
}
