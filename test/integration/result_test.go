package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/registry"
)

func TestR01ResultThatCannotBeWritten(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY missing /")
	for name, path := range map[string]string{"missing": filepath.Join(l.dir, "no/such/result.json"), "read-only": "/proc/version"} {
		t.Run(name, func(t *testing.T) {
			o := l.build("--result", path)
			if o.code != int(result.ExitFailed) {
				t.Errorf("exit code %d, want that of the failure", o.code)
			}
			r := l.checkResult([]byte(o.stdout))
			if r.Reason != result.ReasonContextFileMissing {
				t.Errorf("reason %s", r.Reason)
			}
			if n := strings.Count(o.stderr, "the result cannot be written"); n != 1 {
				t.Errorf("%d warnings, want one", n)
			}
		})
	}
}

func TestResultOnStandardOutput(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	o := l.build("--result", "-")
	r := l.checkResult([]byte(o.stdout))
	if r.Outcome != result.Succeeded || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("standard output is %q", o.stdout)
	}
}

func TestR03SmallBudget(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN "+strings.Repeat("echo häßlich ", 300)+" >&2; exit 7")
	path := filepath.Join(l.dir, "small.json")
	o := l.build("--result", path, "--result-max", "1024")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 1024 {
		t.Errorf("the result has %d bytes", len(data))
	}
	r := l.checkResult(data)
	if r.Reason != result.ReasonStepFailed || r.RunExitCode != 7 || o.code != 1 {
		t.Errorf("reason %s, runExitCode %d, exit %d", r.Reason, r.RunExitCode, o.code)
	}
	if n := len(r.Attempts); n != 1 || r.Attempts[0].Class != result.ClassInput {
		t.Errorf("the last attempt is not there: %+v", r.Attempts)
	}

	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	l.build("--result", path, "--result-max", "1024", "--tag", l.image("os/"+strings.Repeat("long/", 30)+"name:1"), "--push")
	if data, err = os.ReadFile(path); err != nil || len(data) > 1024 {
		t.Fatalf("%d bytes (%v)", len(data), err)
	}
	if r := l.checkResult(data); r.Digest == "" || r.Reason != result.ReasonSucceeded {
		t.Errorf("reason %s, digest %q", r.Reason, r.Digest)
	}
}

// TestR05ResultIsWrittenOnASignal also watches the file as often as it can: what
// is there is never half a result.
func TestR05ResultIsWrittenOnASignal(t *testing.T) {
	for _, tt := range []struct {
		phase result.Phase
		sig   syscall.Signal
		fault *registry.Rule
		begun func(*lab) bool
	}{
		{phase: result.Build, sig: syscall.SIGTERM, begun: func(l *lab) bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 }},
		{phase: result.Build, sig: syscall.SIGINT, begun: func(l *lab) bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 }},
		{
			phase: result.Pull, sig: syscall.SIGTERM, fault: &registry.Rule{Path: "base/busy/blobs/", Do: registry.Stall{}},
			begun: func(l *lab) bool { return l.registry.Count("GET", "base/busy/blobs/") > 0 },
		},
		{
			// Layers are sent before that, too.
			phase: result.Push, sig: syscall.SIGTERM, fault: &registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Stall{}},
			begun: func(l *lab) bool { return l.registry.Count("PUT", "/manifests/") > 0 },
		},
	} {
		t.Run(string(tt.phase)+" "+tt.sig.String(), func(t *testing.T) {
			l := newLab(t).withBusy()
			l.mkdir("counter")
			step := "RUN echo x > /counter/runs; (sleep 61 &) ; sleep 61"
			if tt.phase != result.Build {
				step = "RUN true"
			}
			l.containerfile("FROM HOST/base/busy:1", step)
			if tt.fault != nil {
				l.registry.Fault(*tt.fault)
			}
			stop := watchResult(t, filepath.Join(l.dir, "result.json"))
			cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter", "--tag", l.image("os/stopped:1"), "--push")
			waitFor(t, func() bool { return tt.begun(l) })
			if err := cmd.Process.Signal(tt.sig); err != nil {
				t.Fatal(err)
			}
			signalled := time.Now()
			o := done(cmd.Wait())
			stop()
			if took := time.Since(signalled); took > 5*time.Second {
				t.Errorf("it took %v to stop", took)
			}
			if o.code != 143 || o.result == nil || o.result.Reason != result.ReasonInterrupted || o.result.Outcome != result.Interrupted || o.result.Phase != tt.phase {
				t.Fatalf("exit %d, result %+v", o.code, o.result)
			}
			if l.registry.Has(t, "os/stopped", "1") {
				t.Error("something is under the tag")
			}
			if left := processesWith(t, l.dir, "sleep\x0061"); len(left) != 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

// watchResult reads the file all the time until it is told to stop, and fails the
// test when it sees something else than a whole result.
func watchResult(t *testing.T, path string) (stop func()) {
	t.Helper()
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Millisecond):
			}
			if data, err := os.ReadFile(path); err == nil {
				if _, err := result.Parse(data); err != nil {
					t.Errorf("half a result was seen: %q", data)
					return
				}
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatal("what was waited for did not happen within 30 s")
		}
		<-time.After(10 * time.Millisecond)
	}
}

// processesWith lists the processes whose command line has a directory in it, or begins
// with a command, unless that is empty.
func processesWith(t *testing.T, dir, command string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err != nil {
			continue
		}
		if strings.Contains(string(line), dir) || command != "" && strings.HasPrefix(string(line), command) {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func TestDeadline(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN sleep 62")
	o := l.build("--deadline", "2s")
	if o.code != 143 || o.result.Reason != result.ReasonDeadlineExceeded || o.took > 8*time.Second {
		t.Errorf("exit %d, reason %s after %v", o.code, o.result.Reason, o.took)
	}
	if left := processesWith(t, l.dir, "sleep\x0062"); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
}

func TestR05ResultOfAWorkerThatWasKilled(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	l.containerfile("FROM HOST/base/busy:1", "RUN --mount=type=secret,id=a cat /run/secrets/a > /dev/null; echo x > /counter/runs; sleep 63")
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("the-build-secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter", "--secret", "id=a,src="+secret)
	waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 })
	killChild(t, cmd.Process.Pid)
	o := done(cmd.Wait())
	if o.code != 143 || o.result == nil || o.result.Reason != result.ReasonInterrupted || o.result.Phase != result.Build || !strings.Contains(o.result.Message, "killed") {
		t.Errorf("exit %d, result %+v", o.code, o.result)
	}
	if left := l.grep("the-build-secret"); len(left) != 0 {
		t.Errorf("the secret is left in %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(l.dir, "store/tmp/*")); len(left) != 0 {
		t.Errorf("temporary files are left: %v", left)
	}
	if left := processesWith(t, l.dir, "sleep\x0063"); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	l.build().wantSuccess(t) // the store is as good as before
}

// grep lists the files below the lab's directory that hold the text.
func (l *lab) grep(text string) (found []string) {
	l.t.Helper()
	err := filepath.WalkDir(l.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // what went away meanwhile holds nothing
		}
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), text) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return found
}

// killChild kills the child of pid that is the worker.
func killChild(t *testing.T, pid int) {
	t.Helper()
	found := children(t, pid)
	if len(found) == 0 {
		t.Fatal("the agent has no child")
	}
	if err := syscall.Kill(found[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestStopDuringAWait: what failed before is in the ledger, but the end is a stop.
func TestStopDuringAWait(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN exit 3")
	cmd, done := l.start("--retry-delay", "60s", "--log-format", "json")
	began := time.Now()
	waitFor(t, func() bool { return time.Since(began) > 3*time.Second })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	o := done(cmd.Wait())
	if o.code != 143 || o.result.Reason != result.ReasonInterrupted || len(o.result.Attempts) != 1 || o.result.Attempts[0].Class != result.ClassInput {
		t.Errorf("exit %d, %+v", o.code, o.result)
	}
	o = l.build("--retry-delay", "60s", "--deadline", "3s")
	if o.code != 143 || o.result.Reason != result.ReasonDeadlineExceeded {
		t.Errorf("exit %d, %+v", o.code, o.result)
	}
}

func TestResultWhenNobodyReadsTheOutput(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN seq 1 10000; seq 1 10000 | head -1")
	l.wrap = []string{"bash", "-c", `"$@" 2> >(exec head -1 >/dev/null); exit $?`, "bash"}
	o := l.build()
	if o.result == nil {
		t.Fatalf("there is no result, exit %d", o.code)
	}
	o.wantSuccess(t)
}

func TestResultAtADescriptorKeepsWhatIsThere(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	log := l.file("log", "prior\n")
	l.wrap = []string{"sh", "-c", `"$@" 2>>` + log, "sh"}
	l.build("--result", "/dev/stderr")
	data, err := os.ReadFile(log)
	if err != nil || !strings.HasPrefix(string(data), "prior\n") || !strings.Contains(string(data), "STEP 1/2") || !strings.Contains(string(data), `"schema":"strata.build/v1"`) {
		t.Errorf("the log holds %q (%v)", data, err)
	}
}

func TestResultBehindABadFlag(t *testing.T) {
	l := newLab(t)
	l.bare = true
	o := l.build("--bogus", "--result", filepath.Join(l.dir, "result.json"), ".")
	o.wantFailure(t, result.ReasonSettingsInvalid, "--bogus")
}

func TestQuitIsAStop(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x > /counter/runs; sleep 64")
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter")
	waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 })
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	o := done(cmd.Wait())
	if o.code != 143 || o.result.Reason != result.ReasonInterrupted || strings.Contains(o.stderr, "goroutine") {
		t.Errorf("exit %d, %+v", o.code, o.result)
	}
	if left := processesWith(t, l.dir, "sleep\x0064"); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
}
