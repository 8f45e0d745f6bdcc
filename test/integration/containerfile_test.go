package integration

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

func TestB01UnknownInstruction(t *testing.T) {
	for retryOn, attempts := range map[string]int{"transient": 1, "any": 3} {
		t.Run(retryOn, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.containerfile("FROM HOST/base/busy:1", "RUNN true")
			o := l.build("--retry-on", retryOn)
			o.wantFailure(t, result.ReasonContainerfileInvalid, "line 2", "RUNN")
			o.wantAttempts(t, result.Build, attempts)
			if n := len(l.registry.Requests()); n != 0 {
				t.Errorf("%d requests reached the registry", n)
			}
			if retryOn == "any" {
				o.wantLine(t, "Retry 3/3 exited 1, no more retries left.")
			}
			if st := o.result.Step; st == nil || st.Line != 2 || st.Instruction != "RUNN true" {
				t.Errorf("step %+v, want that of line 2", st)
			}
		})
	}
}

func TestSyntaxErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		want  []string
	}{
		"unterminated heredoc":  {[]string{"FROM scratch", "# comment", "COPY <<E /a", "x"}, []string{"line 3", "heredoc"}},
		"copy without a target": {[]string{"FROM scratch", "", "COPY a"}, []string{"line 3", "COPY"}},
		"no instruction":        {[]string{"# nothing"}, []string{"no instruction"}},
		"unknown flag":          {[]string{"FROM scratch", "COPY --nope a /a"}, []string{"line 2", "COPY"}},
		"no from":               {[]string{"RUN true"}, []string{"FROM"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.containerfile(tt.lines...)
			l.file("context/a", "a")
			o := l.build("--retry-on", "transient")
			o.wantFailure(t, result.ReasonContainerfileInvalid, append(tt.want, "Containerfile")...)
			o.wantAttempts(t, result.Build, 1)
		})
	}
}

func TestUnknownTarget(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch AS one", "COPY Containerfile /", "FROM scratch AS two", "COPY Containerfile /")
	l.build("--retry-on", "transient", "--target", "three").wantFailure(t, result.ReasonContainerfileInvalid, `"three"`, "one, two")
	l.build("--target", "one").wantSuccess(t)
}

func TestB02StepExits42(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo fine", "RUN printf 'disk on fire' >&2; exit 42")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonStepFailed, "printf 'disk on fire' >&2; exit 42", ": disk on fire", "line 3")
	o.wantAttempts(t, result.Build, 1)
	if o.result.RunExitCode != 42 {
		t.Errorf("runExitCode %d", o.result.RunExitCode)
	}
	want := result.Step{Stage: "0", Number: 3, Of: 3, Line: 3, Instruction: "RUN printf 'disk on fire' >&2; exit 42"}
	if o.result.Step == nil || *o.result.Step != want {
		t.Errorf("step %+v, want %+v", o.result.Step, want)
	}
	o.wantLine(t, "Retry 1/3 exited 42, no more retries left.")
	for _, text := range []string{"\n  | disk on fire\n", "What to do:", "StepFailed", "line 3"} {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("the last lines do not hold %q", text)
		}
	}
}

func TestSecondAttemptResumesAtTheFailedStep(t *testing.T) {
	l := newLab(t).withBusy()
	counter := filepath.Join(l.mkdir("counter"), "runs")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo one >> /counter/runs", "RUN echo two >> /counter/runs; test $(grep -c two /counter/runs) = 3")
	o := l.build("--volume", filepath.Dir(counter)+":/counter")
	o.wantSuccess(t)
	o.wantAttempts(t, result.Build, 3)
	if got := strings.Join(l.lines(counter), " "); got != "one two two two" {
		t.Errorf("the steps ran as %q", got)
	}
}

func TestB06CopyOfAMissingFile(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY here /", "COPY missing-file.txt /x")
	l.file("context/here", "here")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonContextFileMissing, "missing-file.txt", l.context, "line 3")
	o.wantAttempts(t, result.Build, 1)

	l.containerfile("FROM scratch", "COPY here /")
	l.file("context/.containerignore", "here\n")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonContextFileMissing, "here", "ignore")
}

func TestB07Heredocs(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile(
		"FROM HOST/base/busy:1",
		"ENV X=expanded",
		"RUN <<E",
		"echo \"one * # $X\" > /run-heredoc",
		"",
		"FROM=not-a-stage; echo $FROM >> /run-heredoc",
		"E",
		"RUN cat > /f <<'E'",
		"body * # $X",
		"",
		"FROM not-a-stage",
		"E",
		"COPY <<E /a",
		"body * # $X",
		"",
		"FROM not-a-stage",
		"E",
		"COPY <<'E' /quoted",
		"body * # $X",
		"E",
		"COPY <<-E /tabs",
		"\tindented $X",
		"\t\ttwice",
		"\tE",
		"COPY <<one <<two /two/",
		"first",
		"one",
		"second $X",
		"two",
	)
	o := l.build("--tag", l.image("os/heredocs:1"), "--push")
	o.wantSuccess(t)
	img := bases.Pull(t, l.registry.Host(), "os/heredocs:1")
	for path, want := range map[string]string{
		"/run-heredoc": "one * # expanded\nnot-a-stage\n",
		"/f":           "body * # $X\n\nFROM not-a-stage\n",
		"/a":           "body * # expanded\n\nFROM not-a-stage\n",
		"/quoted":      "body * # $X\n",
		"/tabs":        "indented expanded\ntwice\n",
		"/two/one":     "first\n",
		"/two/two":     "second expanded\n",
	} {
		if got, _ := bases.File(t, img, path); string(got) != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
}

func TestB10StandardInputIsNotEaten(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN cat >/dev/null")
	path := l.file("stdin", "rest of script\n")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l.stdin = f
	l.build().wantSuccess(t)
	if rest, err := io.ReadAll(f); err != nil || string(rest) != "rest of script\n" {
		t.Errorf("the parent reads %q afterwards (%v)", rest, err)
	}
}

// TestOutputOfStepsIsTheirs: text that looks like buildah's, or the agent's own, is
// passed on, and decides nothing.
func TestOutputOfStepsIsTheirs(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1",
		"RUN echo 'keep me subprocess exited with status 3'; echo 'subprocess exited on SIGTERM'; echo 'STEP 9/9: RUN evil'; echo 'Retry 1/3 exited 1, retrying...'; echo end",
		"RUN echo 'exec format error'; exit 9")
	o := l.build("--max-retries", "1")
	o.wantFailure(t, result.ReasonStepFailed, "exited 9: exec format error", "step 3/3")
	for _, line := range []string{"keep me subprocess exited with status 3\n", "subprocess exited on SIGTERM\n", "end\n"} {
		o.wantLine(t, line)
	}

	l.containerfile("FROM HOST/base/busy:1", "RUN kill -9 $$")
	l.build("--max-retries", "1").wantFailure(t, result.ReasonStepFailed, "ended by a signal (killed)")
}

func TestFailureOfOneOfSeveralJobs(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1 AS a", "RUN sleep 1; echo real cause >&2; exit 42",
		"FROM HOST/base/busy:1 AS b", "RUN for i in 1 2 3 4 5 6 7 8 9; do echo noise $i; sleep 0.3; done",
		"FROM scratch", "COPY --from=a /bin/sh /a", "COPY --from=b /bin/sh /b")
	o := l.build("--max-retries", "1", "--jobs", "4")
	o.wantFailure(t, result.ReasonStepFailed, "stage a", "line 2", "exited 42")
	if strings.Contains(o.result.Message, "noise") {
		t.Errorf("the output of another stage is blamed: %s", o.result.Message)
	}
}

func TestCommandThatIsTooLong(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo "+strings.Repeat("a", 200000)+" >/dev/null")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonContainerfileInvalid, "line 2", "131071")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo "+strings.Repeat("a", 120000)+" >/dev/null")
	l.build().wantSuccess(t)
}

func TestNameThatIsEmpty(t *testing.T) {
	l := newLab(t)
	l.containerfile("ARG BASE", "FROM $BASE")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonContainerfileInvalid, "line 2", "empty")
	l.containerfile("FROM oci:/no/such/layout")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonBaseImageNotFound, "/no/such/layout")
}

// TestPreflightOfFiles: nothing is pulled for a build that cannot succeed.
func TestPreflightOfFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		line   string
		reason result.Reason
		want   string
	}{
		"file":   {"COPY here there /x/", result.ReasonContextFileMissing, `"there"`},
		"secret": {"RUN --mount=type=secret,id=token,required=true true", result.ReasonStepFailed, `"token"`},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.file("context/here", "here")
			l.containerfile("FROM HOST/base/busy:1", tt.line)
			o := l.build("--retry-on", "transient")
			o.wantFailure(t, tt.reason, tt.want, "line 2")
			o.wantAttempts(t, result.Build, 1)
			if n := len(l.registry.Requests()); n != 0 {
				t.Errorf("%d requests reached the registry", n)
			}
			o = l.build("--max-retries", "2")
			o.wantFailure(t, tt.reason, "line 2")
			o.wantLine(t, "Warning: Build would fail now")
			o.wantAttempts(t, result.Build, 2)
		})
	}
	l := newLab(t).withBusy()
	l.file("context/here", "here")
	l.containerfile("FROM HOST/base/busy:1", "COPY [\"here\", \"/x/\"]", "COPY ./here ../here /y/", "COPY h* /z/", "COPY --from=HOST/base/busy:1 /bin/busybox /b", "RUN --mount=type=secret,id=absent true")
	if o := l.build("--retry-on", "transient"); o.code != 0 {
		t.Errorf("a good build is refused: %+v", o.result)
	}
}

func TestTwoStagesOfOneName(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1 AS a", "FROM HOST/base/busy:1 AS a", "COPY --from=a /bin/sh /x")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonContainerfileInvalid, "stage \"a\"")
	o.wantAttempts(t, result.Build, 1)
}

// TestStepThatDidNotBegin says so in the words of the library, and is tried again also
// where nothing but faults that pass are.
func TestStepThatDidNotBegin(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo 'Close_Fd sealing memfd copy: Device or resource busy' >&2; exit 1")
	o := l.build("--retry-on", "transient")
	if o.result.Reason != result.ReasonStepFailed || !strings.Contains(o.result.Message, "exited 1: Close_Fd sealing memfd copy") {
		t.Errorf("%s: %s", o.result.Reason, o.result.Message)
	}
	for _, a := range o.result.Attempts {
		if a.Class != result.ClassTransient {
			t.Errorf("attempt %d is %s", a.N, a.Class)
		}
	}
	o.wantAttempts(t, result.Build, 3)
}
