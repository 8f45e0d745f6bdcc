package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// TestBadInput: each is one sentence, exit 2, a result that says the same, and
// nothing is written.
func TestBadInput(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		env  string
		want string
	}{
		"unknown flag":              {args: []string{"--nope"}, want: "--nope"},
		"unknown variable":          {env: "STRATA_NOPE=1", want: "STRATA_NOPE"},
		"bad variable":              {env: "STRATA_JOBS=many", want: "STRATA_JOBS"},
		"bad MAX_RETRIES":           {env: "MAX_RETRIES=0", want: "MAX_RETRIES 0"},
		"two contexts":              {args: []string{"."}, want: "one build context"},
		"missing Containerfile":     {args: []string{"-f", "no/such"}, want: "no/such"},
		"Containerfile directory":   {args: []string{"-f", "."}, want: "is a directory"},
		"tag is no reference":       {args: []string{"-t", "Not A Name"}, want: `"Not A Name"`},
		"tag has a digest":          {args: []string{"-t", "localhost/x@sha256:" + strings.Repeat("0", 64)}, want: "digest"},
		"push without tag":          {args: []string{"--push"}, want: "--tag"},
		"push without a registry":   {args: []string{"--push", "-t", "team/x"}, want: "registry"},
		"output that exists":        {args: []string{"-o", "oci:."}, want: "exists"},
		"output without a parent":   {args: []string{"-o", "oci:no/such/out"}, want: "no/such"},
		"output of no transport":    {args: []string{"-o", "tar:x"}, want: "tar:x"},
		"push and output":           {args: []string{"--push", "-t", "localhost/x", "-o", "oci:x"}, want: "two destinations"},
		"digestfile alone":          {args: []string{"--digestfile", "d"}, want: "--digestfile"},
		"missing authfile":          {args: []string{"--authfile", "no/such"}, want: "--authfile"},
		"missing registries.conf":   {args: []string{"--registries-conf", "no/such"}, want: "--registries-conf"},
		"missing cert-dir":          {args: []string{"--cert-dir", "no/such"}, want: "--cert-dir"},
		"retry-on":                  {args: []string{"--retry-on", "never"}, want: "never"},
		"isolation":                 {args: []string{"--isolation", "vm"}, want: "vm"},
		"storage driver":            {args: []string{"--storage-driver", "floppy"}, want: "floppy"},
		"security option":           {args: []string{"--security-opt", "apparmor=x"}, want: "apparmor=x"},
		"seccomp profile":           {args: []string{"--security-opt", "seccomp=no/such"}, want: "no/such"},
		"several platforms":         {args: []string{"--platform", "linux/amd64,linux/arm64"}, want: "several platforms"},
		"platform":                  {args: []string{"--platform", "a/b/c/d"}, want: "--platform"},
		"format":                    {args: []string{"--format", "zip"}, want: "--format"},
		"compression format":        {args: []string{"--compression-format", "rar"}, want: "rar"},
		"build context":             {args: []string{"--build-context", "x"}, want: "--build-context"},
		"secret":                    {args: []string{"--secret", "nothing"}, want: "--secret"},
		"ulimit":                    {args: []string{"--ulimit", "nofile=x"}, want: "--ulimit"},
		"volume":                    {args: []string{"--volume", "relative"}, want: "--volume"},
		"source date":               {args: []string{"--source-date-epoch", "today"}, want: "today"},
		"result-max":                {args: []string{"--result-max", "10"}, want: "--result-max"},
		"negative deadline":         {args: []string{"--deadline", "-1s"}, want: "--deadline"},
		"malformed registries":      {args: []string{"--registries-conf", "broken.conf"}, want: "broken.conf"},
		"directory as its authfile": {args: []string{"--pull-authfile", "."}, want: "--pull-authfile"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.containerfile("FROM scratch", "COPY Containerfile /")
			l.file("broken.conf", "not = [toml")
			if tt.env != "" {
				l.env = append(l.env, tt.env)
			}
			o := l.build(tt.args...)
			if o.code != 2 && name != "storage driver" {
				t.Errorf("exit code %d, want 2", o.code)
			}
			if !strings.Contains(o.stderr, tt.want) {
				t.Errorf("standard error does not name %q: %q", tt.want, o.stderr)
			}
			if o.result == nil {
				t.Fatal("there is no result")
			}
			if name != "storage driver" && (o.result.Reason != result.ReasonSettingsInvalid || o.result.Outcome != result.Failed) {
				t.Errorf("reason %s", o.result.Reason)
			}
			if !strings.Contains(o.result.Message, tt.want) {
				t.Errorf("the message does not name %q: %q", tt.want, o.result.Message)
			}
			if o.stdout != "" {
				t.Errorf("standard output holds %q", o.stdout)
			}
			for _, path := range []string{"d", "x", "out"} {
				if _, err := os.Lstat(filepath.Join(l.dir, path)); err == nil {
					t.Errorf("%s was written", path)
				}
			}
		})
	}
}

func TestMissingContext(t *testing.T) {
	l := newLab(t)
	l.bare = true
	o := l.build("--result", "result.json", "no/such")
	if o.code != 2 || !strings.Contains(o.stderr, "no/such") || o.result.Reason != result.ReasonSettingsInvalid {
		t.Errorf("exit %d: %s", o.code, o.stderr)
	}
	o = l.build("--result", "result.json", l.file("file", ""))
	if o.code != 2 || !strings.Contains(o.stderr, "is not a directory") {
		t.Errorf("exit %d: %s", o.code, o.stderr)
	}
}

func TestSeveralProblemsAreReportedTogether(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	o := l.build("--jobs", "-1", "--tag", "Not A Name", "--retry-on", "never")
	for _, want := range []string{"--jobs", "Not A Name", "never"} {
		if !strings.Contains(o.stderr, want) || !strings.Contains(o.result.Message, want) {
			t.Errorf("%q is not reported", want)
		}
	}
	if n := strings.Count(o.stderr, "\n"); n != 3 {
		t.Errorf("three problems take %d lines", n)
	}
}

func TestEnvironmentAndFlags(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY missing /")
	l.env = append(l.env, "MAX_RETRIES=2")
	l.build().wantAttempts(t, result.Build, 2)
	l.env = append(l.env, "STRATA_MAX_RETRIES=4")
	l.build().wantAttempts(t, result.Build, 4)
	l.build("--max-retries", "1").wantAttempts(t, result.Build, 1)

	l.containerfile("FROM scratch", "ARG A", "ARG B", "LABEL a=$A b=$B")
	l.env = append(l.env, "STRATA_BUILD_ARG=A=one\nB=two", "STRATA_RESULT="+filepath.Join(l.dir, "elsewhere.json"))
	l.build("--iidfile", filepath.Join(l.dir, "iid")).wantSuccess(t)
	if _, err := os.Stat(filepath.Join(l.dir, "elsewhere.json")); err == nil {
		t.Error("the environment won over --result")
	}
}

func TestOtherCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"version":               {[]string{"version"}, 0, []string{"\n"}},
		"explain all":           {[]string{"explain"}, 0, []string{"StepFailed", "NoSpace", "InternalError"}},
		"explain one":           {[]string{"explain", "pushdenied"}, 0, []string{"PushDenied", "Class:      Auth", "Exit code:  1", "What to do: "}},
		"explain nothing known": {[]string{"explain", "Nope"}, 2, []string{`"Nope"`}},
		"help":                  {[]string{"build", "--help"}, 0, []string{"--retry-on", "--containerfile", "STRATA_FLAG"}},
		"bash completion":       {[]string{"completion", "bash"}, 0, []string{"__start_agent"}},
		"zsh completion":        {[]string{"completion", "zsh"}, 0, []string{"#compdef agent"}},
		"fish completion":       {[]string{"completion", "fish"}, 0, []string{"complete -c agent"}},
		"completes reasons":     {[]string{"__complete", "explain", "Push"}, 0, []string{"PushDenied"}},
		"unknown command":       {[]string{"nope"}, 2, []string{`"nope"`}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(agentBinary, tt.args...)
			cmd.Env = []string{"HOME=" + t.TempDir()}
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("it does not print %q: %s", want, out)
				}
			}
		})
	}
}
