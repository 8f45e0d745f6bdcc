package integration

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
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
