package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

func TestL09NoPolicyAnywhere(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	// Nothing of this machine's configuration can be seen.
	l.wrap = []string{"unshare", "-m", "sh", "-c", `for d in /etc/containers /usr/share/containers; do test -d $d && mount -t tmpfs tmpfs $d; done; exec "$@"`, "sh"}
	o := l.build()
	o.wantSuccess(t)
	o.wantLine(t, "No signature policy is configured: the built-in one accepts any image")

	o = l.build("--signature-policy", "/no/such")
	o.wantFailure(t, result.ReasonSettingsInvalid, "/no/such")
	if n := len(o.result.Phases); n != 0 {
		t.Errorf("%d phases ran", n)
	}
}

func TestPolicyThatIsMountedIsObeyed(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	o := l.build("--retry-on", "transient", "--signature-policy", l.file("policy.json", `{"default":[{"type":"reject"}]}`))
	o.wantFailure(t, result.ReasonSignatureRejected, l.image("base/busy:1"))
	o.wantAttempts(t, result.Pull, 1)

	o = l.build("--signature-policy", l.file("policy.json", `{"default":`))
	o.wantFailure(t, result.ReasonSettingsInvalid, filepath.Join(l.dir, "policy.json"))
}

func TestL11ShortName(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM shortname/none")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonBaseImageNotFound, "line 1", "fully qualified", "shortname/none")
	if n := len(l.registry.Requests()); n != 0 {
		t.Errorf("%d requests reached the registry", n)
	}
}

// TestTagAndDigest name one image, but not behind docker://.
func TestTagAndDigest(t *testing.T) {
	l := newLab(t)
	digest := bases.Push(t, l.registry.Host(), "base/busy:1", bases.Busy(t))
	l.containerfile("FROM HOST/base/busy:other@"+digest, "RUN true")
	l.build("--retry-on", "transient").wantSuccess(t)
	l.registry.Reset()
	l.containerfile("FROM docker://HOST/base/busy:1@"+digest, "RUN true")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonBaseImageNotFound, "line 1", "a tag and a digest")
	if n := len(l.registry.Requests()); n != 0 {
		t.Errorf("%d requests reached the registry", n)
	}
}

func TestL13UnknownTag(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:none")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonBaseImageNotFound, l.image("base/busy:none"), "manifest unknown", "line 1")
	o.wantAttempts(t, result.Pull, 1)
	if n := l.registry.Count(http.MethodGet, "/manifests/none"); n != 1 {
		t.Errorf("the manifest was asked for %d times", n)
	}
}

func TestL13bBaseThatAppears(t *testing.T) {
	for retryOn, succeeds := range map[string]bool{"transient": false, "any": true} {
		t.Run(retryOn, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.containerfile("FROM HOST/base/busy:late", "RUN true")
			busy := bases.Busy(t)
			timer := time.AfterFunc(3*time.Second, func() { bases.Push(t, l.registry.Host(), "base/busy:late", busy) })
			defer timer.Stop()
			o := l.build("--retry-on", retryOn, "--retry-delay", "3500ms")
			if succeeds {
				o.wantSuccess(t)
				o.wantAttempts(t, result.Pull, 2)
				return
			}
			o.wantFailure(t, result.ReasonBaseImageNotFound, "manifest unknown")
			o.wantAttempts(t, result.Pull, 1)
			if o.took > 3*time.Second {
				t.Errorf("it took %v", o.took)
			}
		})
	}
}

func TestWrongArchitecture(t *testing.T) {
	l := newLab(t)
	l.addBase("base/arm:1", bases.Arm(t))
	l.containerfile("FROM HOST/base/arm:1", "RUN true")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonWrongArchitecture, "line 1", "arm64", "amd64", l.image("base/arm:1"))

	l.addBase("base/multi:1", bases.Multi(t))
	l.containerfile("FROM HOST/base/multi:1", "RUN true")
	l.build().wantSuccess(t)
	o = l.build("--platform", "linux/s390x", "--retry-on", "transient")
	o.wantFailure(t, result.ReasonWrongArchitecture, "s390x")
}

func TestBaseIsPulledOnce(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1 AS one", "RUN true", "FROM HOST/base/busy:1 AS unused", "RUN false",
		"FROM HOST/base/busy:1", "COPY --from=one /bin/busybox /again", "COPY --from=HOST/base/busy:1 /bin/busybox /third")
	o := l.build("--log-level", "debug")
	o.wantSuccess(t)
	if n := l.registry.Count(http.MethodGet, "/v2/base/busy/blobs/"); n != 2 {
		t.Errorf("%d blobs were fetched, want the config and the layer, once each", n)
	}
	if strings.Contains(o.stderr, "RUN false") {
		t.Error("a stage was built that nothing needs")
	}
	o = l.build()
	o.wantSuccess(t)
	if got := *o.result.Phases[result.Pull].Bytes; got != 0 {
		t.Errorf("the second build pulled %d bytes", got)
	}
}

// TestBuildAsksNoRegistry of what Pull brought, also where a platform is named.
func TestBuildAsksNoRegistry(t *testing.T) {
	for name, from := range map[string]string{"": "FROM HOST/base/multi:1", "FROM": "FROM --platform=linux/amd64 HOST/base/multi:1", "flag": "FROM HOST/base/multi:1"} {
		l := newLab(t)
		l.addBase("base/multi:1", bases.Multi(t))
		l.containerfile(from, "COPY --from=HOST/base/multi:1 /bin/busybox /x", "RUN true")
		var args []string
		if name == "flag" {
			args = []string{"--platform", "linux/amd64"}
		}
		l.build(args...).wantSuccess(t)
		if pulled := l.registry.Count(http.MethodGet, "/manifests/1"); pulled != 1 {
			t.Errorf("%q: the manifest was asked for %d times", name, pulled)
		}
	}
}

// TestRateLimitOfAnImageThatTheBuildPulls: a name in the store has one image, so that
// the build itself asks for that of the other platform.
func TestRateLimitOfAnImageThatTheBuildPulls(t *testing.T) {
	l := newLab(t)
	l.addBase("base/multi:1", bases.Multi(t))
	l.containerfile("FROM --platform=linux/arm64 HOST/base/multi:1 AS arm", "COPY Containerfile /",
		"FROM --platform=linux/amd64 HOST/base/multi:1", "COPY --from=arm /Containerfile /b", "RUN true")
	l.build().wantSuccess(t)
	if err := os.RemoveAll(filepath.Join(l.dir, "store")); err != nil {
		t.Fatal(err)
	}
	limit := l.registry.Fault(registry.Rule{Method: http.MethodGet, Path: "/manifests/", From: 5, Do: registry.Reply{Status: 429, Header: http.Header{"Retry-After": {"2"}}}})
	o := l.build("--max-retries", "2")
	o.wantFailure(t, result.ReasonRateLimited, l.registry.Host())
	o.wantAttempts(t, result.Build, 2)
	if waited, err := time.ParseDuration(o.result.Attempts[0].Waited); err != nil || waited < 2*time.Second || limit.Fired() > 2 {
		t.Errorf("waited %q, %d requests", o.result.Attempts[0].Waited, limit.Fired())
	}
}

// TestMountOfAnImageByAVariable is one that buildah alone does not survive.
func TestMountOfAnImageByAVariable(t *testing.T) {
	l := newLab(t).withBusy()
	l.addBase("base/other:1", bases.Big(t))
	for _, args := range [][]string{nil, {"--build-context", "HOST/base/other:1=" + l.context}} {
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "HOST", l.registry.Host())
		}
		l.containerfile("FROM HOST/base/busy:1", "ARG X=HOST/base/other:1", "RUN --mount=type=bind,from=$X,target=/x ls /x > /seen")
		o := l.build(args...)
		o.wantSuccess(t)
		o.wantAttempts(t, result.Build, 1)
	}
}

// TestNamesThatAreNone says what is wrong with them, before any request.
func TestNamesThatAreNone(t *testing.T) {
	l := newLab(t)
	for name, want := range map[string]string{
		"[::1]:5000/x":         "IPv6 address",
		"https://r.example/x":  "it is a URL, write r.example/x",
		"r.example/Upper:1":    "must be lowercase",
		"docker://[fd00::1]/x": "IPv6 address",
	} {
		l.containerfile("FROM scratch", "COPY --from="+name+" / /")
		o := l.build("--retry-on", "transient")
		o.wantFailure(t, result.ReasonBaseImageNotFound, "line 2", strings.TrimPrefix(name, "docker://"), want)
		l.containerfile("FROM scratch", "COPY Containerfile /")
		o = l.build("--tag", name, "--push")
		o.wantFailure(t, result.ReasonSettingsInvalid, "--tag", strings.TrimPrefix(name, "docker://"), want)
	}
}
