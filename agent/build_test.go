package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// testBuild is a build that has not begun, and what it logs.
func testBuild(t *testing.T, args ...string) (*build, func() []string) {
	t.Helper()
	c, out := testConsole(t, nil, args...)
	b := &build{settings: parsed(t, append([]string{"--retry-delay=0"}, args...)...), console: c}
	b.result.Phases = map[result.Phase]result.PhaseStats{}
	return b, func() []string { return writtenLines(t, out) }
}

func failure(reason result.Reason) *images.Error {
	return &images.Error{Reason: reason, Class: reason.Entry().Class, Message: "it is said why"}
}

func TestAPanicBecomesAnInternalError(t *testing.T) {
	b, _ := testBuild(t, "--pull-authfile=auth.json", "--tag=r.example/a")
	var log strings.Builder
	b.console = &console{ // no redactor: the first secret panics
		log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	r := b.run(t.Context(), "own")
	if r.Reason != result.ReasonInternalError || r.Outcome != result.Failed || r.ExitCode != 1 || r.Phase != result.Prepare {
		t.Errorf("reason %s, outcome %s, exit code %d in %s; want InternalError, Failed, 1 in Prepare", r.Reason, r.Outcome, r.ExitCode, r.Phase)
	}
	if !strings.HasPrefix(r.Message, "panic: ") || !strings.Contains(r.Message, "nil pointer") {
		t.Errorf("message %q, want the panic", r.Message)
	}
	if r.Image != "r.example/a" || r.Sandbox.UserNS != "own" || r.StartedAt.IsZero() || r.FinishedAt.Before(r.StartedAt) {
		t.Errorf("the Result is not complete: %+v", r)
	}
	if !strings.Contains(log.String(), "readSecrets") {
		t.Errorf("the log does not say where: %s", &log)
	}
}

func TestABuildThatIsStoppedBeforeItBegins(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	expired, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	for reason, ctx := range map[result.Reason]context.Context{
		result.ReasonInterrupted: canceled, result.ReasonDeadlineExceeded: expired,
	} {
		t.Run(string(reason), func(t *testing.T) {
			b, lines := testBuild(t)
			r := b.run(ctx, "none")
			if r.Reason != reason || r.Outcome != result.Interrupted || r.ExitCode != 143 {
				t.Errorf("reason %s, outcome %s, exit code %d; want %s, Interrupted, 143", r.Reason, r.Outcome, r.ExitCode, reason)
			}
			if r.Message == "" || len(lines()) != 0 {
				t.Errorf("message %q, lines %q; want a message and no line", r.Message, lines())
			}
		})
	}
}

func TestStepsAreStoppedAtTheDeadlineAlone(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	defer signal.Stop(signals)

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	defer stopStepsAtDeadline(canceled)()
	select {
	case <-signals:
		t.Error("a build that was stopped by others sends a signal")
	case <-time.After(50 * time.Millisecond):
	}

	expired, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	defer stopStepsAtDeadline(expired)()
	select {
	case <-signals:
	case <-time.After(10 * time.Second):
		t.Error("no signal reaches the steps")
	}
}

func TestEachFailedAttemptIsALine(t *testing.T) {
	step := failure(result.ReasonStepFailed)
	step.RunExitCode = 42
	tests := []struct {
		name string
		args []string
		errs []error // of the attempts; after them one succeeds
		want []string
	}{
		{"success", nil, nil, nil},
		{"second attempt succeeds", nil, []error{failure(result.ReasonPushFailed)}, []string{"Retry 1/3 exited 1, retrying..."}},
		{"all fail", nil, []error{failure(result.ReasonPushFailed), step, errors.New("unknown"), nil}, []string{
			"Retry 1/3 exited 1, retrying...", "Retry 2/3 exited 42, retrying...", "Retry 3/3 exited 1, no more retries left.",
		}},
		{"one attempt", []string{"--max-retries=1"}, []error{step, nil}, []string{"Retry 1/1 exited 42, no more retries left."}},
		{"hopeless", []string{"--retry-on=transient"}, []error{failure(result.ReasonPushDenied), nil}, []string{"Retry 1/3 exited 1, no more retries left."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, lines := testBuild(t, tt.args...)
			made := 0
			err := b.phase(t.Context(), result.Push, b.settings.MaxRetries, func(context.Context) error {
				if made++; made > len(tt.errs) {
					return nil
				}
				return tt.errs[made-1]
			})
			if wantErr := len(tt.errs) > len(tt.want); (err != nil) != wantErr {
				t.Errorf("error %v, want one: %v", err, wantErr)
			}
			got := lines()
			if len(got) != len(tt.want) {
				t.Fatalf("lines %q, want %q", got, tt.want)
			}
			for i, want := range tt.want {
				if got[i] != want && !strings.HasPrefix(got[i], want+" ") {
					t.Errorf("line %q, want it to begin with %q", got[i], want)
				}
				if !strings.Contains(got[i], "phase=Push") || !strings.Contains(got[i], "reason=") {
					t.Errorf("line %q does not say what failed", got[i])
				}
			}
		})
	}
}

func TestRetryLineInJSON(t *testing.T) {
	b, lines := testBuild(t, "--log-format=json")
	_ = b.phase(t.Context(), result.Pull, 1, func(context.Context) error { return failure(result.ReasonPullFailed) })
	got := lines()
	if len(got) != 1 || !strings.Contains(got[0], `"msg":"Retry 1/1 exited 1, no more retries left."`) || !strings.Contains(got[0], `"reason":"PullFailed"`) {
		t.Errorf("lines %q, want one with the Retry line as its message", got)
	}
}

func TestAttemptsAreKeptInTheResult(t *testing.T) {
	b, _ := testBuild(t)
	denied := failure(result.ReasonPushDenied)
	denied.Host, denied.Status = "r.example", 403
	if err := b.phase(t.Context(), result.Pull, 3, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	err := b.phase(t.Context(), result.Push, 2, func(context.Context) error {
		b.addBytes(3)
		b.addBytes(4)
		return denied
	})
	if !errors.Is(err, denied) {
		t.Errorf("error %v, want %v", err, denied)
	}
	if err := b.phase(t.Context(), result.Verify, 1, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	want := []result.Attempt{
		{Phase: result.Push, N: 1, Of: 2, Class: result.ClassAuth, Host: "r.example", Status: 403, Error: "it is said why", Waited: "0s"},
		{Phase: result.Push, N: 2, Of: 2, Class: result.ClassAuth, Host: "r.example", Status: 403, Error: "it is said why"},
	}
	for i := range b.result.Attempts {
		if a := &b.result.Attempts[i]; a.Waited != "" {
			if _, err := time.ParseDuration(a.Waited); err != nil {
				t.Error(err)
			}
			a.Waited = "0s"
		}
	}
	if !slices.Equal(b.result.Attempts, want) {
		t.Errorf("attempts\n%+v, want\n%+v", b.result.Attempts, want)
	}
	pull, push, verify := b.result.Phases[result.Pull], b.result.Phases[result.Push], b.result.Phases[result.Verify]
	if pull.Attempts != 1 || pull.Bytes != nil || push.Attempts != 2 || push.Bytes == nil || verify.Attempts != 1 || verify.Bytes != nil {
		t.Errorf("pull %+v, push %+v, verify %+v", pull, push, verify)
	}
	if b.result.Phase != result.Verify {
		t.Errorf("phase %s, want the last one that ran", b.result.Phase)
	}
}

func TestWhatIsTriedAgain(t *testing.T) {
	never := []result.Class{result.ClassInterrupted, result.ClassSandbox}
	always := []result.Class{result.ClassTransient, ""}
	for _, class := range []result.Class{
		result.ClassTransient, result.ClassAuth, result.ClassInput, result.ClassRejected,
		result.ClassSandbox, result.ClassResource, result.ClassInterrupted, "",
	} {
		for _, on := range []string{retryAny, retryTransient} {
			b, _ := testBuild(t, "--retry-on="+on)
			want := !slices.Contains(never, class) && (on == retryAny || slices.Contains(always, class))
			if got := b.retryable(t.Context(), &images.Error{Class: class, Message: "x"}); got != want {
				t.Errorf("--retry-on %s: an error of the class %q is tried again: %v, want %v", on, class, got, want)
			}
		}
	}
}

func TestFailTakesOverTheFacts(t *testing.T) {
	b, _ := testBuild(t)
	b.result.Digest = "sha256:1"
	e := failure(result.ReasonStepFailed)
	e.RunExitCode, e.Output = 7, "last words"
	e.Step = &result.Step{Stage: "final", Number: 2, Of: 3, Line: 4, Instruction: "RUN false"}
	b.fail(e)
	r := b.result
	if r.Reason != result.ReasonStepFailed || r.ExitCode != 1 || r.RunExitCode != 7 || r.Step != e.Step || r.Message != e.Message || r.Digest != "" || b.output != "last words" {
		t.Errorf("the Result is %+v, its output %q", r, b.output)
	}
}

func TestAnUnknownErrorIsAnInternalOne(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want result.Reason
	}{
		{io.ErrClosedPipe, result.ReasonInternalError},
		{context.Canceled, result.ReasonInterrupted},
	} {
		b, _ := testBuild(t)
		b.fail(tt.err)
		if b.result.Reason != tt.want || b.result.Message != tt.err.Error() {
			t.Errorf("%v: reason %s, message %q; want %s", tt.err, b.result.Reason, b.result.Message, tt.want)
		}
	}
}

func TestCredentialsThatChangeWhileTheyAreRefused(t *testing.T) {
	for _, phase := range []result.Phase{result.Pull, result.Build, result.Push, result.Verify} {
		t.Run(string(phase), func(t *testing.T) {
			t.Chdir(t.TempDir())
			writeFile(t, "auth.json", `{"auths":{}}`)
			b, lines := testBuild(t, "--retry-delay=1m")
			b.settings.PushAuthFile, b.settings.PullAuthFile = "auth.json", "auth.json"
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			attempts := 0
			err := b.phase(ctx, phase, 3, func(context.Context) error {
				b.readSecrets(t.Context())
				if attempts++; attempts > 1 {
					return nil
				}
				writeFile(t, "auth.json", `{"auths":{"r.example":{}}}`)
				return failure(result.ReasonPushUnauthorized)
			})
			if err != nil || attempts != 2 || !slices.ContainsFunc(lines(), func(l string) bool { return strings.HasPrefix(l, "credentials changed on disk") }) {
				t.Errorf("error %v after %d attempts, lines %q; want that the second is made at once", err, attempts, lines())
			}
		})
	}
}
