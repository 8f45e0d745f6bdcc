package integration

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// diagnosis is what `agent doctor --json` prints.
type diagnosis struct {
	Schema     string
	WouldBuild bool
	Reason     result.Reason
	ExitCode   int
	Checks     []struct{ Check, Severity, Found, Hint, Reason string }
}

// doctor runs `agent doctor` as the lab builds, and returns its exit code and output.
func (l *lab) doctor(args ...string) (int, string) {
	l.t.Helper()
	line := append(l.wrap[:len(l.wrap):len(l.wrap)], agentBinary, "doctor", "--storage-root", filepath.Join(l.dir, "store"))
	cmd := exec.Command(line[0], append(line[1:], args...)...)
	cmd.Env = l.env
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		l.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func (l *lab) diagnosis() diagnosis {
	l.t.Helper()
	code, out := l.doctor("--json")
	var d diagnosis
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	if d.Schema != "strata.build/doctor/v1" || d.ExitCode != code || d.WouldBuild != (code == 0) {
		l.t.Errorf("exit code %d, %+v", code, d)
	}
	return d
}

// TestDoctorSaysWhatTheBuildSays compares what the doctor finds with what becomes of
// a build in the same place.
func TestDoctorSaysWhatTheBuildSays(t *testing.T) {
	_, uid := user(t, "700000-765535")
	for _, c := range []struct {
		name   string
		wrap   func(*lab) []string
		reason result.Reason
		failed string
	}{
		{"root", func(*lab) []string { return nil }, "", ""},
		{"user", func(l *lab) []string { return l.hand(uid) }, "", ""},
		{
			"no_new_privs", func(l *lab) []string { return append([]string{"setpriv", "--no-new-privs"}, l.hand(uid)...) },
			result.ReasonUserNamespaceUnavailable, "user namespace",
		},
		{
			"read-only store", func(l *lab) []string {
				return []string{"unshare", "-m", "sh", "-c", `mkdir -p "$0/store" && mount -t tmpfs -o ro tmpfs "$0/store" && exec "$@"`, l.dir}
			},
			result.ReasonStorageUnavailable, "store",
		},
		{
			"temporary files", func(l *lab) []string { return []string{"env", "TMPDIR=/proc/no"} },
			result.ReasonStorageUnavailable, "temporary files",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := sandboxLab(t)
			l.wrap = c.wrap(l)
			d := l.diagnosis()
			code, table := l.doctor()
			if d.Reason != c.reason || (code == 0) != (c.reason == "") || (code != 0 && code != 3) {
				t.Errorf("exit code %d, reason %q, want %q:\n%s", code, d.Reason, c.reason, table)
			}
			if n := len(l.registry.Requests()); n != 0 {
				t.Errorf("%d requests reached the registry", n)
			}
			l.wrap = append(l.wrap, "sh", "-c", `rmdir "$0/store" 2>/dev/null; exec "$@"`, l.dir)
			o := l.build()
			if c.reason == "" {
				o.wantSuccess(t)
				return
			}
			for _, check := range d.Checks {
				if check.Check != c.failed {
					continue
				}
				if check.Severity != "failure" || check.Hint == "" {
					t.Errorf("%+v", check)
				}
				o.wantFailure(t, c.reason, check.Found, check.Hint)
				if !strings.Contains(table, "FAIL  "+c.failed) || !strings.Contains(table, "-> "+check.Hint) {
					t.Errorf("the table does not show it:\n%s", table)
				}
				return
			}
			t.Errorf("there is no check %q: %+v", c.failed, d.Checks)
		})
	}
}

func TestDoctorTakesTheVariablesOfABuild(t *testing.T) {
	l := newLab(t)
	l.env = append(l.env, "STRATA_TAG=r.example/x", "STRATA_PUSH=true", "STRATA_STORAGE_DRIVER=vfs")
	for _, check := range l.diagnosis().Checks {
		if check.Check == "storage" && (check.Severity != "warning" || !strings.Contains(check.Found, "vfs")) {
			t.Errorf("%+v", check)
		}
	}
	l.env = append(l.env, "STRATA_STORAGE_DIVER=vfs")
	if code, _ := l.doctor(); code != 2 {
		t.Errorf("exit code %d for a variable that is none", code)
	}
}
