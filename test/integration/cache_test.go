package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/registry"
)

func TestCacheInARegistry(t *testing.T) {
	l := newLab(t).withBusy()
	counter := filepath.Join(l.mkdir("counter"), "runs")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x >> /counter/runs")
	args := []string{"--volume", filepath.Dir(counter) + ":/counter", "--cache-to", l.image("cache"), "--cache-from", l.image("cache")}
	l.build(args...).wantSuccess(t)
	if err := os.RemoveAll(filepath.Join(l.dir, "store")); err != nil {
		t.Fatal(err)
	}
	l.build(args...).wantSuccess(t)
	if runs := l.lines(counter); len(runs) != 1 {
		t.Errorf("the step ran %d times, a new store has it from the registry", len(runs))
	}
}

func TestCacheWithThePushCredential(t *testing.T) {
	l := newPasswordLab(t, "pw2", "pw2")
	l.pushInside("base/busy:1")
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	pull := l.file("pull.json", "{\"auths\":{\"elsewhere.example\":{\"auth\":\"YTpi\"}}}")
	l.build("--pull-authfile", l.pullAuth()).wantSuccess(t)
	l.build("--no-cache", "--pull-authfile", pull, "--push-authfile", l.auth, "--cache-to", l.image("os/cache")).wantSuccess(t)
	if len(l.registry.Tags(t, "os/cache")) == 0 {
		t.Error("nothing was cached")
	}
}

// cacheLab is a build of two steps that run, and a registry for their cache alone.
func cacheLab(t *testing.T, opts ...registry.Option) (l *lab, cache *registry.Registry, counter string) {
	t.Helper()
	l = newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo one >> /counter/runs", "RUN echo two >> /counter/runs")
	return l, registry.Start(t, opts...), filepath.Join(l.mkdir("counter"), "runs")
}

func (l *lab) buildWithCache(flag, cache string, args ...string) outcome {
	l.t.Helper()
	return l.build(append([]string{"--volume", filepath.Join(l.dir, "counter") + ":/counter", flag, cache}, args...)...)
}

// wantWithoutCache fails the test unless the build succeeded, with its steps run once,
// and one warning about a cache that has all the texts.
func (o outcome) wantWithoutCache(t *testing.T, l *lab, counter string, texts ...string) {
	t.Helper()
	o.wantSuccess(t)
	o.wantAttempts(t, result.Build, 1)
	if len(o.result.Attempts) != 0 || strings.Contains(o.stderr, "Retry ") {
		t.Errorf("a cache counts as a failed attempt: %+v", o.result.Attempts)
	}
	if runs := l.lines(counter); len(runs) != 2 {
		t.Errorf("the steps ran %d times in all, want each once", len(runs))
	}
	var warnings []string
	for line := range strings.Lines(o.stderr) {
		if strings.HasPrefix(line, "Warning: ") && !strings.Contains(line, "lower limits") {
			warnings = append(warnings, line)
		}
	}
	if len(warnings) != 1 {
		t.Fatalf("%d warnings, want one: %q", len(warnings), warnings)
	}
	for _, text := range texts {
		if !strings.Contains(warnings[0], text) {
			t.Errorf("the warning %q does not hold %q", warnings[0], text)
		}
	}
}

// TestCacheThatCannotBePushedTo costs a warning, not the build, whatever it answers to
// whichever request.
func TestCacheThatCannotBePushedTo(t *testing.T) {
	for name, tt := range map[string]struct {
		rule registry.Rule
		want []string
	}{
		"403 to POST":         {registry.Rule{Method: "POST", Do: registry.Reply{Status: 403}}, []string{"status=403", "PushDenied"}},
		"401 without a word":  {registry.Rule{Method: "POST", Do: registry.Reply{Status: 401}}, []string{"status=401", "PushUnauthorized"}},
		"500 to POST":         {registry.Rule{Method: "POST", Do: registry.Reply{Status: 500}}, []string{"status=500", "RegistryUnavailable"}},
		"503 to everything":   {registry.Rule{Do: registry.Reply{Status: 503}}, []string{"status=503", "RegistryUnavailable"}},
		"413 to PATCH":        {registry.Rule{Method: "PATCH", Do: registry.Reply{Status: 413}}, []string{"status=413", "PushRejected", "MiB"}},
		"429 to HEAD":         {registry.Rule{Method: "HEAD", Do: registry.Reply{Status: 429, Header: http.Header{"Retry-After": {"60"}}}}, []string{"status=429", "RateLimited", "1m0s"}},
		"429 to PATCH":        {registry.Rule{Method: "PATCH", Do: registry.Reply{Status: 429}}, []string{"status=429", "RateLimited"}},
		"closed after PATCH":  {registry.Rule{Method: "PATCH", Do: registry.Close{}}, []string{"RegistryUnavailable"}},
		"closed in the PUT":   {registry.Rule{Method: "PUT", Path: "/uploads/", Do: registry.Close{}}, []string{"RegistryUnavailable"}},
		"400 to the manifest": {registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{Status: 400, Body: `{"errors":[{"code":"MANIFEST_INVALID"}]}`}}, []string{"status=400", "PushRejected"}},
		"415 to the manifest": {registry.Rule{Method: "PUT", Path: "/manifests/", Do: registry.Reply{Status: 415}}, []string{"status=415", "PushRejected"}},
		"stalls":              {registry.Rule{Method: "PATCH", Do: registry.Stall{}}, []string{"no progress", "RegistryUnavailable"}},
	} {
		t.Run(name, func(t *testing.T) {
			l, cache, counter := cacheLab(t)
			cache.Fault(tt.rule)
			o := l.buildWithCache("--cache-to", cache.Host()+"/cache", "--stall-timeout", "1s", "--no-cache")
			o.wantWithoutCache(t, l, counter, append(tt.want, "cache="+cache.Host()+"/cache", "host="+cache.Host(), "--cache-to")...)
			if o.took > 20*time.Second {
				t.Errorf("it took %v", o.took)
			}
		})
	}
}

// TestCacheThatCannotBePulledFrom costs a warning and no wait.
func TestCacheThatCannotBePulledFrom(t *testing.T) {
	l, cache, counter := cacheLab(t)
	l.buildWithCache("--cache-to", cache.Host()+"/cache").wantSuccess(t)
	for name, tt := range map[string]struct {
		rule registry.Rule
		want []string
	}{
		"403":                 {registry.Rule{Path: "/manifests/", Do: registry.Reply{Status: 403}}, []string{"status=403", "BaseImageUnauthorized"}},
		"401 without a word":  {registry.Rule{Path: "/manifests/", Do: registry.Reply{Status: 401}}, []string{"status=401", "BaseImageUnauthorized"}},
		"429 for an hour":     {registry.Rule{Path: "/manifests/", Do: registry.Reply{Status: 429, Header: http.Header{"Retry-After": {"3600"}}}}, []string{"status=429", "RateLimited"}},
		"429 without a word":  {registry.Rule{Path: "/manifests/", Do: registry.Reply{Status: 429}}, []string{"status=429", "RateLimited"}},
		"429 to the ping":     {registry.Rule{Path: "/v2/$", Do: registry.Reply{Status: 429}}, []string{"status=429", "RateLimited"}},
		"502":                 {registry.Rule{Path: "/manifests/", Do: registry.Reply{Status: 502}}, []string{"status=502", "RegistryUnavailable"}},
		"closed":              {registry.Rule{Path: "/manifests/", Do: registry.Close{}}, []string{"RegistryUnavailable"}},
		"stalls":              {registry.Rule{Path: "/manifests/", Do: registry.Stall{}}, []string{"no progress", "RegistryUnavailable"}},
		"429 to a blob":       {registry.Rule{Path: "/blobs/", Do: registry.Reply{Status: 429}}, []string{"status=429", "RateLimited"}},
		"500 to a blob":       {registry.Rule{Path: "/blobs/", Do: registry.Reply{Status: 500}}, []string{"status=500", "RegistryUnavailable"}},
		"a blob that stalls":  {registry.Rule{Path: "/blobs/", Do: registry.StallResponse(10)}, []string{"no progress", "RegistryUnavailable"}},
		"a blob of no digest": {registry.Rule{Method: "GET", Path: "/blobs/", Do: registry.Corrupt(20)}, []string{"DigestMismatch"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{filepath.Join(l.dir, "store"), counter} {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			defer cache.Fault(tt.rule).Remove()
			o := l.buildWithCache("--cache-from", cache.Host()+"/cache", "--stall-timeout", "1s")
			o.wantWithoutCache(t, l, counter, append(tt.want, "cache="+cache.Host()+"/cache", "host="+cache.Host())...)
			if o.took > 20*time.Second {
				t.Errorf("it took %v", o.took)
			}
		})
	}
}

// TestCacheThatIsNowhere is of a registry that nobody is at: one warning, also where
// both directions name it.
func TestCacheThatIsNowhere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := listener.Addr().String()
	_ = listener.Close()
	for host, want := range map[string]string{refused: "connection refused", "registry.invalid": "no such host"} {
		l, _, counter := cacheLab(t)
		o := l.buildWithCache("--cache-from", host+"/cache", "--cache-to", host+"/cache")
		o.wantWithoutCache(t, l, counter, want, "cache="+host+"/cache", "host="+host, "RegistryUnavailable")
		if strings.Contains(o.stderr, "Pushing cache") {
			t.Error("the log says that the cache is pushed to")
		}
	}
}

func TestCacheThatIsNotTrusted(t *testing.T) {
	l, cache, counter := cacheLab(t, registry.WithTLS())
	conf := l.file("registries.conf", fmt.Sprintf("[[registry]]\nlocation = %q\ninsecure = true\n", l.registry.Host()))
	l.bare = true
	o := l.buildWithCache("--cache-from", cache.Host()+"/cache", "--cache-to", cache.Host()+"/cache", "--registries-conf", conf,
		"--storage-root", filepath.Join(l.dir, "store"), "--result", filepath.Join(l.dir, "result.json"), l.context)
	o.wantWithoutCache(t, l, counter, "unknown authority", registry.CAName, "CertificateUntrusted", cache.Host())
}

// TestStepsThatAreNotInTheCache are what a cache is there for: no fault.
func TestStepsThatAreNotInTheCache(t *testing.T) {
	l, cache, counter := cacheLab(t)
	o := l.buildWithCache("--cache-from", cache.Host()+"/cache")
	o.wantSuccess(t)
	if strings.Contains(o.stderr, "without the cache") || len(l.lines(counter)) != 2 {
		t.Errorf("%d steps ran", len(l.lines(counter)))
	}
}

// TestSignalWhileACacheIsWaitedFor ends the build as at any other time.
func TestSignalWhileACacheIsWaitedFor(t *testing.T) {
	for _, flag := range []string{"--cache-from", "--cache-to"} {
		l, cache, counter := cacheLab(t)
		stall := cache.Fault(registry.Rule{Do: registry.Stall{}})
		cmd, done := l.start("--volume", filepath.Dir(counter)+":/counter", flag, cache.Host()+"/cache")
		waitFor(t, func() bool { return stall.Seen() > 0 })
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		o := done(cmd.Wait())
		o.wantFailure(t, result.ReasonInterrupted)
		if o.took > 15*time.Second || strings.Contains(o.stderr, "without the cache") {
			t.Errorf("it took %v", o.took)
		}

		cache.ClearFaults()
		cache.Fault(registry.Rule{Do: registry.Stall{}})
		o = l.buildWithCache(flag, cache.Host()+"/cache", "--deadline", "3s")
		o.wantFailure(t, result.ReasonDeadlineExceeded)
	}
}
