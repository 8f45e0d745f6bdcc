package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

func TestP05RateLimitedWithRetryAfter(t *testing.T) {
	for name, value := range map[string]func() string{
		"seconds": func() string { return "4" },
		"date":    func() string { return time.Now().Add(20 * time.Second).UTC().Format(http.TimeFormat) },
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := pushLab(t)
			l.registry.Fault(registry.Rule{Method: "PUT", Path: "/manifests/", From: 1, To: 1, Do: registry.Reply{
				Status: 429, Header: http.Header{"Retry-After": {value()}},
			}})
			o := l.push()
			o.wantSuccess(t)
			o.wantAttempts(t, result.Push, 2)
			var puts []time.Time
			for _, r := range l.registry.Requests() {
				if r.Method == "PUT" && strings.Contains(r.Path, "/manifests/") {
					puts = append(puts, r.Time)
				}
			}
			least := 4 * time.Second
			if name == "date" {
				least = 2 * time.Second // whole seconds, from when the test wrote the date
			}
			if len(puts) != 2 || puts[1].Sub(puts[0]) < least || puts[1].Sub(puts[0]) > 25*time.Second {
				t.Errorf("the manifest was put at %v", puts)
			}
			for _, want := range []string{"rate limited", l.registry.Host(), "wait="} {
				if !strings.Contains(o.stderr, want) {
					t.Errorf("the log does not hold %q", want)
				}
			}
		})
	}
}

// TestPullWithRetryAfter: a pull waits as long as a registry, or its token server,
// asks for, and says so; not for a day.
func TestPullWithRetryAfter(t *testing.T) {
	for name, tt := range map[string]struct {
		path   string
		status int
	}{
		"429 to the manifest": {"base/busy/manifests/", 429},
		"503 to the manifest": {"base/busy/manifests/", 503},
		"429 to a blob":       {"base/busy/blobs/", 429},
		"503 to a blob":       {"base/busy/blobs/", 503},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.containerfile("FROM HOST/base/busy:1", "RUN true")
			reply := registry.Reply{Status: tt.status, Header: http.Header{"Retry-After": {"4"}}}
			f := l.registry.Fault(registry.Rule{Method: "GET", Path: tt.path, From: 1, To: 1, Do: reply})
			o := l.build("--retry-on", "transient", "--retry-delay", "10ms")
			o.wantSuccess(t)
			o.wantAttempts(t, result.Pull, 2)
			if waited, err := time.ParseDuration(o.result.Attempts[0].Waited); err != nil || waited < 4*time.Second || waited > 10*time.Second {
				t.Errorf("it waited %s, want what was asked for", o.result.Attempts[0].Waited)
			}
			f.Remove()
			reply.Header.Set("Retry-After", "86400")
			l.registry.Fault(registry.Rule{Method: "GET", Path: tt.path, Do: reply})
			l.newStore()
			o = l.build("--retry-on", "transient")
			o.wantFailure(t, map[int]result.Reason{429: result.ReasonRateLimited, 503: result.ReasonRegistryUnavailable}[tt.status], "24h0m0s", l.registry.Host())
			if o.took > time.Minute {
				t.Errorf("it took %v", o.took)
			}
		})
	}
}

func TestP07RetryAfterADay(t *testing.T) {
	l, _ := pushLab(t)
	l.registry.Fault(registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{
		Status: 429, Header: http.Header{"Retry-After": {"86400"}},
	}})
	for _, args := range [][]string{{"--deadline", "5m"}, nil} {
		o := l.push(args...)
		o.wantFailure(t, result.ReasonRateLimited, "24h0m0s", l.registry.Host())
		if o.took > time.Minute {
			t.Errorf("it took %v", o.took)
		}
	}
}

// TestTransientFaultsOfAPush: each happens once; a second attempt mends it.
func TestTransientFaultsOfAPush(t *testing.T) {
	for name, rule := range map[string]registry.Rule{
		"P08 closed before the reply to PATCH":  {Method: "PATCH", Path: "/uploads/", Do: registry.Close{}},
		"cut in the middle of PATCH":            {Method: "PATCH", Path: "/uploads/", Do: registry.CutRequest(100)},
		"closed before the reply to POST":       {Method: "POST", Path: "/uploads/", From: 2, To: 2, Do: registry.Close{}},
		"closed before the reply to PUT":        {Method: "PUT", Path: "/uploads/", Do: registry.Close{}},
		"closed before the reply to a manifest": {Method: "PUT", Path: "/manifests/", Do: registry.Close{}},
		"502 to PATCH":                          {Method: "PATCH", Path: "/uploads/", Do: registry.Reply{Status: 502, Body: "<html>bad gateway</html>"}},
		"504 to PUT":                            {Method: "PUT", Path: "/uploads/", Do: registry.Reply{Status: 504}},
		"408 to PATCH":                          {Method: "PATCH", Path: "/uploads/", Do: registry.Reply{Status: 408}},
		"upload session lost":                   {Method: "PUT", Path: "/uploads/", Do: registry.Reply{Status: 404, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"errors":[{"code":"BLOB_UPLOAD_UNKNOWN","message":"blob upload unknown to registry"}]}`}},
	} {
		t.Run(name, func(t *testing.T) {
			l, counter := pushLab(t)
			l.sendsNothingEarly()
			if rule.From == 0 {
				rule.From, rule.To = 1, 1
			}
			l.registry.Fault(rule)
			o := l.push("--retry-on", "transient")
			o.wantSuccess(t)
			o.wantAttempts(t, result.Push, 2)
			if class := o.result.Attempts[0].Class; class != result.ClassTransient {
				t.Errorf("class %s", class)
			}
			if n := len(l.lines(counter)); n != 1 {
				t.Errorf("the RUN step ran %d times", n)
			}
		})
	}
}

// TestRefusalsOfAPush: none of these can heal; one attempt with transient.
func TestRefusalsOfAPush(t *testing.T) {
	for name, tt := range map[string]struct {
		rule registry.Rule
		want []string
	}{
		"P23 413 with a page":  {registry.Rule{Method: "PATCH", Do: registry.Reply{Status: 413, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<html><h1>413</h1></html>"}}, []string{"413", "MiB"}},
		"P25 507":              {registry.Rule{Method: "PUT", Path: "/uploads/", Do: registry.Reply{Status: 507}}, []string{"507"}},
		"P25 501":              {registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{Status: 501}}, []string{"501"}},
		"409 tag is immutable": {registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{Status: 409, Body: `{"errors":[{"code":"CONFLICT","message":"tag is immutable"}]}`}}, []string{"409", "immutable"}},
		"415":                  {registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{Status: 415}}, []string{"415"}},
		"405":                  {registry.Rule{Method: "PATCH", Do: registry.Reply{Status: 405}}, []string{"405"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := pushLab(t)
			l.registry.Fault(tt.rule)
			o := l.push("--retry-on", "transient")
			o.wantFailure(t, result.ReasonPushRejected, append(tt.want, l.registry.Host())...)
			o.wantAttempts(t, result.Push, 1)
			if strings.Contains(o.result.Message, "<") {
				t.Errorf("the message holds a page: %s", o.result.Message)
			}
		})
	}
}

func TestP11RegistryComesBack(t *testing.T) {
	l, _ := pushLab(t)
	l.build("--volume", filepath.Join(l.dir, "counter")+":/counter").wantSuccess(t) // the store has it all
	l.registry.Stop()
	back := time.AfterFunc(6*time.Second, l.registry.Listen)
	defer back.Stop()
	o := l.push("--retry-delay", "4s")
	o.wantSuccess(t)
	if o.attempts(result.Push) < 2 || !strings.Contains(o.result.Attempts[0].Error, "connection refused") {
		t.Errorf("attempts %+v", o.result.Attempts)
	}
}

func TestP20PreflightBreaksNoGoodBuild(t *testing.T) {
	for name, do := range map[string]registry.Action{"closed": registry.Close{}, "500": registry.Reply{Status: 500}, "404": registry.Reply{Status: 404}} {
		t.Run(name, func(t *testing.T) {
			l, _ := pushLab(t)
			l.registry.Fault(registry.Rule{Method: "POST", Path: "/uploads/", From: 1, To: 1, Do: do})
			o := l.push("--retry-on", "transient")
			o.wantSuccess(t)
			o.wantAttempts(t, result.Push, 1)
			o.wantLine(t, "Warning: It could not be found out whether the image may be pushed")
		})
	}
}

func TestPreflightLeavesNothing(t *testing.T) {
	l, _ := pushLab(t)
	l.push().wantSuccess(t)
	begun, ended := l.registry.Count("POST", "/uploads/"), l.registry.Count("PUT", "/uploads/")+l.registry.Count("DELETE", "/uploads/")
	mounted := 0
	for _, r := range l.registry.Requests() {
		if r.Method == "POST" && strings.Contains(r.Query, "mount=") && r.Status == 201 {
			mounted++
		}
	}
	if begun != ended+mounted {
		t.Errorf("%d uploads were begun, %d ended, %d mounted", begun, ended, mounted)
	}
}

func TestStalledTransfersAreGivenUp(t *testing.T) {
	for name, tt := range map[string]struct {
		rule  registry.Rule
		phase result.Phase
	}{
		"upload":   {registry.Rule{Method: "PATCH", From: 1, To: 1, Do: registry.Stall{}}, result.Push},
		"manifest": {registry.Rule{Method: "PUT", Path: "/manifests/", From: 1, To: 1, Do: registry.Stall{}}, result.Push},
		"download": {registry.Rule{Method: "GET", Path: "/blobs/", From: 1, To: 1, Do: registry.StallResponse(10)}, result.Pull},
		"base":     {registry.Rule{Method: "GET", Path: "base/busy/manifests/", From: 1, To: 1, Do: registry.Stall{}}, result.Pull},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := pushLab(t)
			l.sendsNothingEarly()
			l.registry.Fault(tt.rule)
			o := l.push("--stall-timeout", "2s", "--retry-on", "transient")
			o.wantSuccess(t)
			o.wantAttempts(t, tt.phase, 2)
			if !strings.Contains(o.result.Attempts[0].Error, "no progress") {
				t.Errorf("error %q", o.result.Attempts[0].Error)
			}
			if o.took > 30*time.Second {
				t.Errorf("it took %v", o.took)
			}
		})
	}
}

func TestDigestMismatchAtTheRegistry(t *testing.T) {
	l, _ := pushLab(t)
	other := "sha256:" + strings.Repeat("0", 64)
	l.registry.Fault(registry.Rule{Method: "HEAD", Path: "/manifests/", Do: registry.Reply{Status: 200, Header: http.Header{
		"Docker-Content-Digest": {other}, "Content-Type": {"application/vnd.oci.image.manifest.v1+json"},
	}}})
	o := l.push("--retry-on", "transient")
	o.wantFailure(t, result.ReasonDigestMismatch, other, l.registry.Host())
	o.wantAttempts(t, result.Verify, 3)
}

func TestL01BaseBlobThatIsCut(t *testing.T) {
	l := newLab(t)
	l.addBase("base/big:1", bases.Big(t))
	l.containerfile("FROM HOST/base/big:1", "RUN true")
	l.registry.Fault(registry.Rule{
		Method: "GET", Path: "/blobs/", From: 1, To: 1, Do: registry.CutResponse(5 << 20),
		When: func(r *http.Request) bool {
			return r.Header.Get("Range") == "" && strings.Contains(r.URL.Path, l.bigLayer())
		},
	})
	o := l.build("--retry-on", "transient")
	o.wantSuccess(t)
	o.wantAttempts(t, result.Pull, 1)
	resumed := 0
	for _, r := range l.registry.Requests() {
		if rng := r.Header.Get("Range"); rng != "" {
			resumed++
			if !regexp.MustCompile(`^bytes=5\d{6}-`).MatchString(rng) {
				t.Errorf("it went on at %q", rng)
			}
		}
	}
	if resumed != 1 {
		t.Errorf("%d requests with a Range", resumed)
	}
}

// bigLayer is the digest of the largest layer of base/big:1.
func (l *lab) bigLayer() string {
	digests := bases.LayerDigests(l.t, bases.Big(l.t))
	return digests[len(digests)-1]
}

func TestL05MirrorThatFails(t *testing.T) {
	l := newLab(t).withBusy()
	mirror := registry.Start(t)
	mirror.Fault(registry.Rule{Do: registry.Reply{Status: 503}})
	conf := l.file("registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", l.registry.Host(), mirror.Host()))
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	o := l.build("--registries-conf", conf)
	o.wantSuccess(t)
	o.wantAttempts(t, result.Pull, 1)
	if mirror.Count("", "") == 0 {
		t.Error("the mirror was not asked")
	}
	if !strings.Contains(o.stderr, mirror.Host()) {
		t.Error("no warning names the mirror")
	}
}

func TestL08PushGoesPastMirrors(t *testing.T) {
	l := newLab(t).withBusy()
	mirror := registry.Start(t)
	conf := l.file("registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", l.registry.Host(), mirror.Host()))
	l.containerfile("FROM scratch", "COPY Containerfile /")
	args := []string{"--registries-conf", conf, "--tag", l.image("os/x:1"), "--push"}
	l.build(args...).wantSuccess(t)
	if n := mirror.Count("", ""); n != 0 {
		t.Errorf("%d requests went to the mirror", n)
	}
	l.registry.Fault(registry.Rule{Method: "POST", Do: registry.Reply{Status: 403}})
	o := l.build(append(args, "--no-cache", "--label", "a=b")...)
	o.wantFailure(t, result.ReasonPushDenied, "mirrors do not apply to push")
}

func TestP28AuthorityInOnePlaceOnly(t *testing.T) {
	l := newLab(t, registry.WithTLS())
	l.containerfile("FROM scratch", "COPY Containerfile /")
	push := func(args ...string) outcome {
		l.bare = true
		return l.build(append(args, "--storage-root", filepath.Join(l.dir, "store"), "--result", filepath.Join(l.dir, "result.json"), "--retry-delay", "50ms",
			"--retry-on", "transient", "--tag", l.image("os/tls:1"), "--push", l.context)...)
	}
	certs := l.mkdir("certs")
	ca := l.registry.CA()
	o := push()
	o.wantFailure(t, result.ReasonCertificateUntrusted, "unknown authority", registry.CAName, "certs.d")
	o.wantAttempts(t, result.Push, 1)

	ca.WriteFile(t, filepath.Join(certs, "ca.crt"))
	push("--cert-dir", certs).wantSuccess(t)

	l.env = append(l.env, "SSL_CERT_DIR="+certs)
	push().wantSuccess(t)
	l.env = l.env[:len(l.env)-1]

	l.mkdir("home/.config/containers/certs.d/" + l.registry.Host())
	ca.WriteFile(t, filepath.Join(l.dir, "home/.config/containers/certs.d", l.registry.Host(), "ca.crt"))
	push().wantSuccess(t)
}

// TestTokenServerWithItsOwnAuthority: each server has its certificates where it is
// looked for, and one transfer talks to both.
func TestTokenServerWithItsOwnAuthority(t *testing.T) {
	passwords, theirs := filepath.Join(t.TempDir(), "passwords"), registry.NewCA(t)
	if err := os.WriteFile(passwords, []byte("robot:word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, registry.WithTLS(), registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwords, CA: theirs}))
	auth := l.authFile("auth.json", "robot", "word")
	certs := "home/.config/containers/certs.d/"
	l.registry.CA().WriteFile(t, filepath.Join(l.mkdir(certs+l.registry.Host()), "ca.crt"))
	l.bare = true
	build := func(from string) outcome {
		l.newStore()
		l.containerfile("FROM "+from, "COPY Containerfile /")
		return l.build("--storage-root", filepath.Join(l.dir, "store"), "--result", filepath.Join(l.dir, "result.json"), "--retry-on", "transient",
			"--authfile", auth, "--tag", l.image("os/tls:1"), "--push", l.context)
	}
	o := build("scratch")
	o.wantFailure(t, result.ReasonCertificateUntrusted, "unknown authority")

	tokens := strings.Replace(l.registry.Tokens().Host(), "127.0.0.1", "localhost", 1)
	theirs.WriteFile(t, filepath.Join(l.mkdir(certs+tokens), "ca.crt"))
	build("scratch").wantSuccess(t)
	build("HOST/os/tls:1").wantSuccess(t)
}

func TestRegistryThatIsNowhere(t *testing.T) {
	l := newLab(t)
	l.containerfile("FROM scratch", "COPY Containerfile /")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := listener.Addr().String()
	_ = listener.Close()
	for host, want := range map[string]string{refused: "connection refused", "registry.invalid": "no such host"} {
		o := l.build("--tag", host+"/os/x:1", "--push", "--max-retries", "2")
		o.wantFailure(t, result.ReasonRegistryUnavailable, want, host)
		o.wantAttempts(t, result.Push, 2)
	}
}

// TestRateLimitOfAPull: the library would ask five times for each attempt.
func TestRateLimitOfAPull(t *testing.T) {
	for name, path := range map[string]string{"manifest": "base/busy/manifests/", "blob": "base/busy/blobs/"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.containerfile("FROM HOST/base/busy:1", "RUN true")
			limit := l.registry.Fault(registry.Rule{Method: "GET", Path: path, Do: registry.Reply{Status: 429, Header: http.Header{"Retry-After": {"3"}}}})
			o := l.build("--max-retries", "2")
			o.wantFailure(t, result.ReasonRateLimited, l.registry.Host(), "3s")
			o.wantAttempts(t, result.Pull, 2)
			if n := limit.Fired(); n < 2 || n > 4 {
				t.Errorf("%d requests in 2 attempts", n)
			}
			if waited, err := time.ParseDuration(o.result.Attempts[0].Waited); err != nil || waited < 3*time.Second {
				t.Errorf("waited %q", o.result.Attempts[0].Waited)
			}
			limit.Remove()
			l.registry.Fault(registry.Rule{Method: "GET", Path: path, From: 1, To: 1, Do: registry.Reply{Status: 429}})
			l.build("--retry-on", "transient").wantSuccess(t)
		})
	}
}

func TestAddressesOfOthersStayOut(t *testing.T) {
	l := newLab(t).withBusy()
	l.secrets = append(l.secrets, "topsecretsig", "hunter22")
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	l.registry.Fault(registry.Rule{Method: "GET", Path: "/blobs/", Do: registry.Reply{Status: 307, Header: http.Header{
		"Location": {"http://127.0.0.1:1/bucket/x?X-Amz-Signature=topsecretsig"},
	}}})
	o := l.build("--retry-on", "transient", "--max-retries", "1")
	o.wantFailure(t, result.ReasonRegistryUnavailable, "127.0.0.1:1/bucket/x")

	l.registry.ClearFaults()
	l.containerfile("FROM HOST/base/busy:1", "ADD http://user:hunter22@127.0.0.1:1/file?token=topsecretsig /x")
	l.secrets = nil // the instruction itself is printed as it stands in the file
	o = l.build("--retry-on", "transient", "--max-retries", "1")
	if o.result.Reason != result.ReasonRegistryUnavailable || strings.Contains(o.result.Message, "hunter22") {
		t.Errorf("reason %s, message %q", o.result.Reason, o.result.Message)
	}
}

// TestRegistryThatFailsToMount gets the blobs that it could have mounted.
func TestRegistryThatFailsToMount(t *testing.T) {
	for _, status := range []int{500, 503} {
		l, _ := pushLab(t)
		l.registry.Fault(registry.Rule{
			Method: http.MethodPost, When: func(r *http.Request) bool { return r.URL.Query().Has("mount") }, Do: registry.Reply{Status: status},
		})
		o := l.push()
		o.wantSuccess(t)
		o.wantAttempts(t, result.Push, 1)
	}
}

// TestStallBeforeTheFirstWord is of a registry that takes connections and says
// nothing: to the preflight, to the push and to the check after it.
func TestStallBeforeTheFirstWord(t *testing.T) {
	l, _ := pushLab(t)
	// The first question is of the pull, the next of the preflight.
	for first := 2; first <= 4; first++ {
		t.Run(fmt.Sprint("question ", first), func(t *testing.T) {
			l.registry.Fault(registry.Rule{Method: http.MethodGet, Path: "/v2/$", From: first, To: first, Do: registry.Stall{}})
			o := l.push("--stall-timeout", "1s", "--no-cache", "--deadline", "2m")
			o.wantSuccess(t)
		})
	}
}

// TestPushThatTheConfigurationBlocks ends before anything is built.
func TestPushThatTheConfigurationBlocks(t *testing.T) {
	l, counter := pushLab(t)
	conf := l.file("blocked.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n[[registry]]\nprefix = %q\nlocation = %q\nblocked = true\n",
		l.registry.Host(), l.registry.Host()+"/os", l.registry.Host()+"/os"))
	o := l.push("--registries-conf", conf)
	o.wantFailure(t, result.ReasonSettingsInvalid, "blocks")
	if o.code != 2 {
		t.Errorf("exit code %d, want 2", o.code)
	}
	if runs := l.lines(counter); len(runs) != 0 {
		t.Errorf("the RUN step ran %d times", len(runs))
	}
}
