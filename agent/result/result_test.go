package result_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	testDigest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	testImage  = "registry.example:5000/os/layered:worker-1"
)

// newResult makes a small Result for the reason; each change makes it the one a
// test needs.
func newResult(reason result.Reason, changes ...func(*result.Result)) *result.Result {
	r := &result.Result{
		Phase: result.Push, Message: "one sentence", Image: testImage, Digest: testDigest,
		StartedAt:  time.Date(2026, 3, 1, 10, 0, 0, 123456789, time.UTC),
		FinishedAt: time.Date(2026, 3, 1, 10, 0, 35, 987654321, time.UTC),
		Agent:      "v0.1.0",
	}
	r.Conclude(reason)
	for _, change := range changes {
		change(r)
	}
	return r
}

func message(s string) func(*result.Result) { return func(r *result.Result) { r.Message = s } }

// attempts adds n failed attempts of Push whose errors begin with their number.
func attempts(n int, text string) func(*result.Result) {
	return func(r *result.Result) {
		for i := 1; i <= n; i++ {
			r.Attempts = append(r.Attempts, result.Attempt{
				Phase: result.Push, N: i, Of: n, Class: result.ClassAuth,
				Host: "registry.example:5000", Status: 401, Error: text, Waited: "2s",
			})
		}
	}
}

func step(stage, instruction string) func(*result.Result) {
	return func(r *result.Result) {
		r.Step = &result.Step{Stage: stage, Number: 4, Of: 7, Line: 12, Instruction: instruction}
	}
}

func sandbox(r *result.Result) {
	r.Sandbox = &result.Sandbox{Storage: "overlay", Isolation: "chroot", UserNS: "pod"}
}

func timings(r *result.Result) {
	pulled, pushed := int64(31457280), int64(0)
	r.Phases = map[result.Phase]result.PhaseStats{
		result.Pull:  {Seconds: 4.1, Attempts: 1, Bytes: &pulled},
		result.Build: {Seconds: 20.5, Attempts: 1},
		result.Push:  {Seconds: 9, Attempts: 3, Bytes: &pushed},
	}
}

// complete has something in every field that a failure can fill.
func complete() *result.Result {
	return newResult(result.ReasonPushUnauthorized, attempts(3, "unauthorized: <authentication> required & missing"),
		step("final", "RUN rpm-ostree install tree"), sandbox, timings,
		message(`registry.example:5000 refused the push credentials (401): user "robot" from /tmp/final-image-push-creds/config.json, entry registry.example:5000`))
}

func TestGoldenResults(t *testing.T) {
	for name, r := range map[string]*result.Result{
		"complete": complete(),
		"success":  newResult(result.ReasonSucceeded),
	} {
		t.Run(name, func(t *testing.T) {
			got := r.Encode(result.MaxBytes)
			path := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(path, got, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the Result differs from %s (-update writes it anew):\ngot  %s\nwant %s", path, got, want)
			}
			parsed, err := result.Parse(want)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(parsed, r) {
				t.Errorf("the golden file is read as\n%+v\nwant\n%+v", parsed, r)
			}
		})
	}
}

func TestTheFrameIsAlwaysThere(t *testing.T) {
	var fields map[string]any
	if err := json.Unmarshal((&result.Result{}).Encode(result.MaxBytes), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"schema", "outcome", "reason", "phase", "message", "image", "digest", "exitCode", "runExitCode", "startedAt", "finishedAt", "agent"} {
		if _, ok := fields[name]; !ok {
			t.Errorf("an empty Result has no %q", name)
		}
		delete(fields, name)
	}
	if len(fields) > 0 {
		t.Errorf("an empty Result also has %v", fields)
	}
}

func TestParseRefusesWhatIsNotAResult(t *testing.T) {
	good := string(newResult(result.ReasonSucceeded).Encode(result.MaxBytes))
	for name, text := range map[string]string{
		"nothing":              "",
		"end of a log":         "STEP 4/7: RUN make\nmake: *** [all] Error 2\nError: exited 2\n",
		"log before a result":  "Pushed\n" + good,
		"half a result":        good[:len(good)/2],
		"two results":          good + good,
		"null":                 "null",
		"a list":               "[" + good + "]",
		"no schema":            `{"outcome":"Succeeded","reason":"Succeeded","exitCode":0}`,
		"a later schema":       strings.Replace(good, result.Schema, "strata.build/v2", 1),
		"the schema with case": strings.Replace(good, result.Schema, "Strata.build/v1", 1),
		"a field of a wrong type": strings.Replace(good,
			`"exitCode":0`, `"exitCode":"0"`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := result.Parse([]byte(text)); err == nil {
				t.Errorf("%q was taken for %+v", text, r)
			} else if r != nil {
				t.Errorf("a Result came with the error %v", err)
			}
		})
	}
}

func TestParseAcceptsFieldsItDoesNotKnow(t *testing.T) {
	good := string(newResult(result.ReasonSucceeded).Encode(result.MaxBytes))
	r, err := result.Parse([]byte("\n" + strings.Replace(good, "{", `{"added":{"later":true},`, 1) + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Digest != testDigest {
		t.Errorf("digest %q, want %q", r.Digest, testDigest)
	}
}
