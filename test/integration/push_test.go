package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// pushLab builds base/busy:1 with one file on top; the RUN step counts its runs.
func pushLab(t *testing.T, opts ...registry.Option) (l *lab, counter string) {
	t.Helper()
	l = newLab(t, opts...).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x >> /counter/runs", "COPY a /a")
	l.file("context/a", "the right bytes\n")
	return l, filepath.Join(l.mkdir("counter"), "runs")
}

// sendsNothingEarly keeps the preflight from finding out whether a push is let in: then
// nothing is sent before the push, which meets every fault itself.
func (l *lab) sendsNothingEarly() {
	l.t.Helper()
	l.registry.Fault(registry.Rule{Method: http.MethodPost, Path: "/uploads/", From: 1, To: 1, Do: registry.Reply{Status: 404}})
}

func (l *lab) push(args ...string) outcome {
	l.t.Helper()
	return l.build(append([]string{"--volume", filepath.Join(l.dir, "counter") + ":/counter", "--tag", l.image("os/layered:1"), "--push"}, args...)...)
}

func TestP01PlainPush(t *testing.T) {
	l, _ := pushLab(t)
	o := l.push("--digestfile", filepath.Join(l.dir, "digest"), "--iidfile", filepath.Join(l.dir, "iid"))
	o.wantSuccess(t)
	for _, phase := range []result.Phase{result.Pull, result.Build, result.Push, result.Verify} {
		o.wantAttempts(t, phase, 1)
	}
	if len(o.result.Attempts) != 0 {
		t.Errorf("attempts that failed are on record: %+v", o.result.Attempts)
	}
	if want := l.registry.Digest(t, "os/layered", "1"); o.result.Digest != want {
		t.Errorf("digest %s, the registry has %s", o.result.Digest, want)
	}
	img := bases.Pull(t, l.registry.Host(), "os/layered:1")
	if data, _ := bases.File(t, img, "/a"); string(data) != "the right bytes\n" {
		t.Errorf("/a holds %q", data)
	}
	if data, err := os.ReadFile(filepath.Join(l.dir, "digest")); err != nil || string(data) != o.result.Digest {
		t.Errorf("the digest file holds %q (%v)", data, err)
	}
	id := strings.TrimSpace(o.stdout)
	if data, err := os.ReadFile(filepath.Join(l.dir, "iid")); err != nil || string(data) != "sha256:"+id || len(id) != 64 {
		t.Errorf("the iid file holds %q (%v), standard output ends with %q", data, err, id)
	}
	if got, want := *o.result.Phases[result.Push].Bytes, l.sentBytes(); got != want {
		t.Errorf("the result says that %d bytes were pushed, the registry received %d", got, want)
	}
}

// sentBytes is the size of the blobs that the registry received.
func (l *lab) sentBytes() (n int64) {
	for _, r := range l.registry.Requests() {
		if r.Method == http.MethodPatch && r.Status < 300 {
			n += r.Received
		}
	}
	return n
}

func TestP02ServerErrorOnManifestPut(t *testing.T) {
	l, counter := pushLab(t)
	l.registry.Fault(registry.Rule{Method: http.MethodPut, Path: "/manifests/", From: 1, To: 1, Do: registry.Reply{Status: 500}})
	o := l.push()
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 2)
	if got, want := l.registry.Count(http.MethodPost, "/blobs/uploads/"), uploadsOfAPlainPush(t); got != want {
		t.Errorf("%d uploads began, want the %d of a plain push", got, want)
	}
	if runs := l.lines(counter); len(runs) != 1 {
		t.Errorf("the RUN step ran %d times", len(runs))
	}
	o.wantLine(t, "Retry 1/3 exited 1, retrying...")
	wantLedger(t, o, []result.Attempt{{Phase: result.Push, N: 1, Of: 3, Class: result.ClassTransient, Host: l.registry.Host(), Status: 500}})
}

func uploadsOfAPlainPush(t *testing.T) int {
	t.Helper()
	l, _ := pushLab(t)
	l.push().wantSuccess(t)
	return l.registry.Count(http.MethodPost, "/blobs/uploads/")
}

// wantLedger compares the failed attempts, apart from their texts and waits.
func wantLedger(t *testing.T, o outcome, want []result.Attempt) {
	t.Helper()
	if len(o.result.Attempts) != len(want) {
		t.Fatalf("%d failed attempts are on record, want %d: %+v", len(o.result.Attempts), len(want), o.result.Attempts)
	}
	for i, a := range o.result.Attempts {
		if a.Error == "" || (a.Waited == "") != (i == len(want)-1 && o.code != 0) {
			t.Errorf("attempt %d has the error %q and waited %q", i+1, a.Error, a.Waited)
		}
		a.Error, a.Waited = "", ""
		if a != want[i] {
			t.Errorf("attempt %d is %+v, want %+v", i+1, a, want[i])
		}
	}
}

func TestP04UnavailableForEver(t *testing.T) {
	for _, retryOn := range []string{"any", "transient"} {
		t.Run(retryOn, func(t *testing.T) {
			l, counter := pushLab(t)
			uploads := l.registry.Fault(registry.Rule{Method: http.MethodPost, Path: "/uploads", Do: registry.Reply{Status: 503}})
			o := l.push("--retry-on", retryOn)
			o.wantFailure(t, result.ReasonRegistryUnavailable, "503", l.registry.Host())
			o.wantAttempts(t, result.Push, 3)
			o.wantLine(t, "Retry 1/3 exited 1, retrying...")
			o.wantLine(t, "Retry 2/3 exited 1, retrying...")
			o.wantLine(t, "Retry 3/3 exited 1, no more retries left.")
			if runs := l.lines(counter); len(runs) != 1 {
				t.Errorf("the RUN step ran %d times: a push that fails must not build again", len(runs))
			}
			down := result.Attempt{Phase: result.Push, Of: 3, Class: result.ClassTransient, Host: l.registry.Host(), Status: 503}
			want := []result.Attempt{down, down, down}
			for i := range want {
				want[i].N = i + 1
			}
			wantLedger(t, o, want)
			// The base has two blobs and the build adds layers; each attempt stops at
			// the first that is refused, having begun as many as are sent at once.
			if uploads.Fired() < 3 {
				t.Errorf("the registry saw %d uploads, fewer than attempts", uploads.Fired())
			}
			if o.result.Digest != "" || l.registry.Has(t, "os/layered", "1") {
				t.Error("something is under the tag")
			}
		})
	}
}

func TestP22Denied(t *testing.T) {
	for retryOn, attempts := range map[string]int{"transient": 1, "any": 3} {
		t.Run(retryOn, func(t *testing.T) {
			l, _ := pushLab(t)
			l.registry.Fault(registry.Rule{Method: http.MethodPost, Path: "/uploads", Do: registry.Refuse(errcode.ErrorCodeDenied, "requested access to the resource is denied")})
			o := l.push("--retry-on", retryOn)
			o.wantFailure(t, result.ReasonPushDenied, "denied", l.registry.Host(), "os/layered:1")
			o.wantAttempts(t, result.Push, attempts)
		})
	}
}

func TestInvalidPushCredential(t *testing.T) {
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("robot:right\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, registry.WithBasicAuth(passwords))
	l.containerfile("FROM scratch", "COPY a /a")
	l.file("context/a", "a\n")
	auth := l.authFile("auth.json", "robot", "wrong-password")
	o := l.build("--tag", l.image("os/layered:1"), "--push", "--push-authfile", auth)
	o.wantFailure(t, result.ReasonPushUnauthorized, l.registry.Host(), "401", auth, `"robot"`)
	o.wantLine(t, "Retry 3/3 exited 1, no more retries left.")
	o.wantAttempts(t, result.Push, 3)

	l.authFile("auth.json", "robot", "right")
	o = l.build("--tag", l.image("os/layered:1"), "--push", "--push-authfile", auth)
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 1)
}

func TestImageOfTheSameBuildIsNotBuiltAgain(t *testing.T) {
	l, counter := pushLab(t)
	l.push("--build-id", "one").wantSuccess(t)
	first := l.registry.Digest(t, "os/layered", "1")
	if err := os.RemoveAll(filepath.Join(l.dir, "store")); err != nil {
		t.Fatal(err)
	}
	o := l.push("--build-id", "one")
	o.wantSuccess(t)
	if o.result.Digest != first || !strings.Contains(o.stderr, "already pushed") {
		t.Errorf("digest %s, want %s and a line that says so", o.result.Digest, first)
	}
	o.wantAttempts(t, result.Build, 0)
	o.wantAttempts(t, result.Verify, 1)
	if runs := l.lines(counter); len(runs) != 1 {
		t.Errorf("the RUN step ran %d times", len(runs))
	}
	l.push("--build-id", "two", "--no-cache").wantSuccess(t)
	if runs := l.lines(counter); len(runs) != 2 {
		t.Errorf("the RUN step ran %d times, another id has to build", len(runs))
	}
}

// TestManifestThatIsLost is of something between that says yes in place of the registry.
func TestManifestThatIsLost(t *testing.T) {
	l, counter := pushLab(t)
	l.registry.Fault(registry.Rule{Method: http.MethodPut, Path: "/manifests/", From: 1, To: 1, Do: registry.Reply{Status: 201}})
	o := l.push("--retry-on", "transient")
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 1)
	o.wantAttempts(t, result.Verify, 2)
	if !l.registry.Has(t, "os/layered", "1") {
		t.Error("the image is not there")
	}
	if runs := l.lines(counter); len(runs) != 1 {
		t.Errorf("the RUN step ran %d times", len(runs))
	}
}

// TestTagThatSaysDocker is the same as one without docker://, also where nothing is pushed.
func TestTagThatSaysDocker(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	l.build("--tag", "docker://"+l.image("os/x:1")).wantSuccess(t)
	if n := len(l.registry.Requests()); n != 0 {
		t.Errorf("%d requests reached the registry, which was not to be pushed to", n)
	}
	o := l.build("--tag", "docker://"+l.image("os/x:1"), "--push", "--retry-on", "transient")
	o.wantSuccess(t)
	if want := l.registry.Digest(t, "os/x", "1"); o.result.Digest != want || o.result.Image != l.image("os/x:1") {
		t.Errorf("%s has the digest %s, the registry has %s", o.result.Image, o.result.Digest, want)
	}
}
