package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/registry"
)

// passwordLab has a registry that wants a password, and an auth file that is
// mounted as a cluster mounts it: a link to a link to a directory.
type passwordLab struct {
	*lab
	auth string
}

func newPasswordLab(t *testing.T, given, wanted string, opts ...registry.Option) *passwordLab {
	t.Helper()
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("robot:"+wanted+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if len(opts) == 0 {
		opts = []registry.Option{registry.WithBasicAuth(passwords)}
	}
	l := &passwordLab{lab: newLab(t, opts...)}
	l.mkdir("mount")
	l.rotate(given)
	l.auth = filepath.Join(l.dir, "mount/config.json")
	if err := os.Symlink("..data/config.json", l.auth); err != nil {
		t.Fatal(err)
	}
	l.secrets = append(l.secrets, wanted)
	return l
}

// rotate replaces the credential as a kubelet does: a new directory, and then the
// link to it in one step.
func (l *passwordLab) rotate(password string) {
	l.t.Helper()
	dir := "mount/..v" + itoa(int(time.Now().UnixNano()))
	l.authFile(dir+"/config.json", "robot", password)
	link := filepath.Join(l.dir, "mount/..data")
	if err := os.Symlink(filepath.Base(dir), link+"_tmp"); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(link+"_tmp", link); err != nil {
		l.t.Fatal(err)
	}
}

func (l *passwordLab) pushArgs(args ...string) []string {
	return append([]string{"--tag", l.image("os/layered:1"), "--push", "--push-authfile", l.auth}, args...)
}

func TestP13WrongPassword(t *testing.T) {
	l := newPasswordLab(t, "wrong-one", "right-one")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	o := l.build(l.pushArgs("--retry-on", "transient")...)
	o.wantFailure(t, result.ReasonPushUnauthorized, l.registry.Host(), l.auth, `user "robot"`, "entry "+l.registry.Host())
	o.wantAttempts(t, result.Push, 1)
	o.wantAttempts(t, result.Build, 0)
	if n := l.registry.Count("", "/uploads/"); n > 4 { // asked without, then with the credential
		t.Errorf("%d requests for uploads", n)
	}
	if o.took > 10*time.Second {
		t.Errorf("it took %v", o.took)
	}
	wantLedger(t, o, []result.Attempt{{Phase: result.Push, N: 1, Of: 3, Class: result.ClassAuth, Host: l.registry.Host(), Status: 401}})
}

func TestP14PasswordRotatedDuringTheBuild(t *testing.T) {
	l := newPasswordLab(t, "pw1", "pw2")
	l.bases()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x > /counter/runs; while test -e /counter/wait; do sleep 0.1; done")
	l.mkdir("counter")
	l.file("counter/wait", "")
	cmd, done := l.start(l.pushArgs("--volume", filepath.Join(l.dir, "counter")+":/counter", "--pull-authfile", l.pullAuth())...)
	waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 })
	l.rotate("pw2")
	if err := os.Remove(filepath.Join(l.dir, "counter/wait")); err != nil {
		t.Fatal(err)
	}
	o := done(cmd.Wait())
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 1)
	o.wantLine(t, "Warning: Push would fail now")
}

// bases puts base/busy:1 into a registry that wants a password.
func (l *passwordLab) bases() {
	l.t.Helper()
	l.pushInside("base/busy:1")
}

// pullAuth is an auth file whose credential is right from the beginning.
func (l *passwordLab) pullAuth() string { return l.authFile("pull.json", "robot", "pw2") }

func TestP15PasswordRotatedAfterTheFirstRefusal(t *testing.T) {
	l := newPasswordLab(t, "pw1", "pw2")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	cmd, done := l.start(l.pushArgs("--retry-delay", "60s")...)
	waitFor(t, func() bool { return l.registry.Count("HEAD", "/blobs/") > 1 }) // the push began
	<-time.After(2 * time.Second)
	l.rotate("pw2")
	o := done(cmd.Wait())
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 2)
	o.wantLine(t, "credentials changed on disk, trying again")
	if o.took > 20*time.Second {
		t.Errorf("it took %v: the wait did not end when the file changed", o.took)
	}
	if waited, err := time.ParseDuration(o.result.Attempts[0].Waited); err != nil || waited > 10*time.Second {
		t.Errorf("waited %q", o.result.Attempts[0].Waited)
	}
}

func TestAuthFileThatIsGoneForAMoment(t *testing.T) {
	l := newPasswordLab(t, "pw1", "pw2")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	cmd, done := l.start(l.pushArgs("--retry-delay", "60s")...)
	waitFor(t, func() bool { return l.registry.Count("HEAD", "/blobs/") > 1 }) // the push began
	if err := os.Remove(filepath.Join(l.dir, "mount/..data")); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Second)
	l.rotate("pw2")
	o := done(cmd.Wait())
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 2)
}

// TestAuthFileThatIsBeingWritten is waited for before it is used: no attempt fails.
func TestAuthFileThatIsBeingWritten(t *testing.T) {
	for _, between := range []string{"", "{\"auths\":"} {
		l := newPasswordLab(t, "pw2", "pw2")
		l.bases()
		l.containerfile("FROM HOST/base/busy:1", "RUN echo x > /counter/runs; while test -e /counter/wait; do sleep 0.1; done")
		l.mkdir("counter")
		l.file("counter/wait", "")
		path := l.authFile("push.json", "robot", "pw2")
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		cmd, done := l.start("--tag", l.image("os/layered:1"), "--push", "--push-authfile", path, "--retry-on", "transient",
			"--volume", filepath.Join(l.dir, "counter")+":/counter", "--pull-authfile", l.pullAuth())
		waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 })
		l.file("push.json", between)
		if err := os.Remove(filepath.Join(l.dir, "counter/wait")); err != nil {
			t.Fatal(err)
		}
		<-time.After(700 * time.Millisecond)
		l.file("push.json", string(whole))
		o := done(cmd.Wait())
		o.wantSuccess(t)
		o.wantAttempts(t, result.Push, 1)
	}
}

// TestAuthFileThatCannotBeUsed is found before anything else.
func TestAuthFileThatCannotBeUsed(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	for path, want := range map[string]string{
		l.mkdir("directory"):                        "is a directory",
		l.file("empty.json", ""):                    "it is empty",
		l.file("blank.json", " \n"):                 "it is empty",
		l.file("half.json", `{"auths":{`):           "unexpected end",
		l.file("list.json", `[]`):                   "is not an auth file",
		l.file("strings.json", `{"auths":{"a":1}}`): "its entry a",
		filepath.Join(l.dir, "none.json"):           "no such file",
	} {
		o := l.build("--push-authfile", path)
		o.wantFailure(t, result.ReasonSettingsInvalid, path, want, "--push-authfile")
	}
}

func TestP19TokenServerGrantsPullOnly(t *testing.T) {
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("robot:tok-pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, challenge := range []bool{false, true} {
		l := newPasswordLab(t, "tok-pass", "tok-pass", registry.WithTokenAuth(registry.TokenAuth{
			PasswordFile: passwords, Lifetime: time.Minute, Grant: []string{"pull"}, Challenge: challenge,
		}))
		l.pushInside("base/busy:1")
		l.containerfile("FROM HOST/base/busy:1", "RUN echo x >> /counter/runs")
		counter := filepath.Join(l.mkdir("counter"), "runs")
		o := l.build(l.pushArgs("--retry-on", "transient", "--pull-authfile", l.auth, "--volume", filepath.Dir(counter)+":/counter")...)
		o.wantFailure(t, result.ReasonPushDenied, "push", "os/layered")
		if n := len(l.lines(counter)); n != 0 {
			t.Errorf("the RUN step ran %d times", n)
		}
	}
}

func TestTokensAreRenewed(t *testing.T) {
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("robot:tok-pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newPasswordLab(t, "tok-pass", "tok-pass", registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwords, Lifetime: time.Minute}))
	l.pushInside("base/busy:1")
	l.containerfile("FROM HOST/base/busy:1", "RUN head -c 3000000 /dev/urandom > /random")
	// All tokens are forgotten when the first blob has arrived.
	l.registry.Fault(registry.Rule{Method: "PUT", Path: "/uploads/", From: 1, To: 1, Do: registry.Call(func() { l.registry.Tokens().Revoke() })})
	o := l.build(l.pushArgs("--pull-authfile", l.auth)...)
	o.wantSuccess(t)
	o.wantAttempts(t, result.Push, 1)
}

func TestSecretsOfAHostileRegistry(t *testing.T) {
	l := newPasswordLab(t, "echo-me-not", "echo-me-not")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	entry := l.secrets[1]
	l.registry.Fault(registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{Status: 400, Body: "you sent Basic " + entry + " which is echo-me-not"}})
	o := l.build(l.pushArgs("--retry-on", "transient", "--log-level", "debug")...)
	o.wantFailure(t, result.ReasonPushRejected, "400", "[redacted]")
	o = l.build(l.pushArgs("--retry-on", "transient", "--log-level", "debug", "--log-format", "json")...)
	if strings.Contains(o.stderr, entry) {
		t.Error("the entry is in the log")
	}
}

func TestATokenThatARegistryEchoes(t *testing.T) {
	const token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyb2JvdCJ9.c2lnbmF0dXJl"
	for phase, rule := range map[result.Phase]registry.Rule{
		result.Pull: {Method: "GET", Path: "base/busy/manifests/"},
		result.Push: {Method: "PUT", Path: "/manifests/"},
	} {
		for _, format := range []string{"text", "json"} {
			t.Run(string(phase)+"/"+format, func(t *testing.T) {
				l, _ := pushLab(t)
				l.secrets = append(l.secrets, token)
				rule.Do = registry.Refuse(errcode.ErrorCodeManifestInvalid, "bad header Authorization: Bearer "+token)
				l.registry.Fault(rule)
				o := l.push("--max-retries", "1", "--log-level", "debug", "--log-format", format)
				if o.code == 0 || !strings.Contains(o.result.Message, "Authorization: Bearer [redacted]") {
					t.Errorf("exit %d, message %q", o.code, o.result.Message)
				}
			})
		}
	}
}
