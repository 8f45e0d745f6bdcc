package integration

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// TestPodGoesOnWhereAnotherOneEnded: a pod that comes in place of another one has an
// empty store, and runs no step that is in the cache. A third one runs none at all.
func TestPodGoesOnWhereAnotherOneEnded(t *testing.T) {
	l := newPod(t).withBusy()
	counter := l.mkdir("counter")
	l.env = append(l.env, "STRATA_CACHE_FROM="+l.image("os/cache"), "STRATA_CACHE_TO="+l.image("os/cache"), "STRATA_VOLUME="+counter+":/counter")
	l.pod("FROM HOST/base/busy:1 AS first", "RUN echo one >> /counter/runs && echo 1 > /one", "COPY Containerfile /in/",
		"FROM HOST/base/busy:1", "COPY --from=first /one /", "RUN echo two >> /counter/runs", "RUN test -e /counter/go && echo three >> /counter/runs")
	runs := func() []string { return l.lines(filepath.Join(counter, "runs")) }

	l.build().wantFailure(t, result.ReasonStepFailed)
	if got, want := runs(), []string{"one", "two"}; !slices.Equal(got, want) {
		t.Fatalf("the first pod ran %v, want %v", got, want)
	}
	l.file("counter/go", "")
	for _, want := range [][]string{{"one", "two", "three"}, {"one", "two", "three"}} {
		l.newStore()
		l.build().wantSuccess(t)
		if got := runs(); !slices.Equal(got, want) {
			t.Errorf("the pods ran %v, want %v", got, want)
		}
	}
	if got := l.files("os/layered:1")["one"]; got != "1\n" {
		t.Errorf("the file of a step from the cache has %q", got)
	}
}

// TestCompressionOfNewLayers: what is pushed has the media type of its compression,
// and can be pulled by another implementation and by the agent.
func TestCompressionOfNewLayers(t *testing.T) {
	const chunked = "io.github.containers.zstd-chunked.manifest-checksum"
	for format, mediaType := range map[string]string{
		"gzip": "application/vnd.oci.image.layer.v1.tar+gzip", "zstd": "application/vnd.oci.image.layer.v1.tar+zstd", "zstd:chunked": "application/vnd.oci.image.layer.v1.tar+zstd",
	} {
		t.Run(format, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.file("context/a", strings.Repeat("content ", 10000))
			l.containerfile("FROM HOST/base/busy:1", "COPY a /a", "RUN echo b > /b")
			l.build("--compression-format", format, "--tag", l.image("os/layered:1"), "--push").wantSuccess(t)
			manifest := bases.Manifest(t, bases.Pull(t, l.registry.Host(), "os/layered:1"))
			if got, want := string(manifest.MediaType), "application/vnd.oci.image.manifest.v1+json"; got != want {
				t.Errorf("the manifest is %s, want %s", got, want)
			}
			for _, layer := range manifest.Layers[len(manifest.Layers)-2:] {
				if string(layer.MediaType) != mediaType {
					t.Errorf("a layer is %s, want %s", layer.MediaType, mediaType)
				}
				if _, has := layer.Annotations[chunked]; has != (format == "zstd:chunked") {
					t.Errorf("a layer has the annotations %v", layer.Annotations)
				}
			}
			dir := filepath.Join(l.dir, "copy")
			if out, err := exec.Command("skopeo", "copy", "--src-tls-verify=false", "docker://"+l.image("os/layered:1"), "oci:"+dir+":x").CombinedOutput(); err != nil {
				t.Errorf("skopeo: %v: %s", err, out)
			}
			l.newStore()
			l.containerfile("FROM HOST/os/layered:1", "RUN test $(wc -c < /a) = 80000 && test $(cat /b) = b")
			l.build().wantSuccess(t)
		})
	}
}

// TestReproducibleImages: the same inputs make the same digest, wherever and whenever
// they are built.
func TestReproducibleImages(t *testing.T) {
	first := newLab(t).withBusy()
	digests := map[string]string{}
	lines := []string{
		"FROM HOST/base/busy:1 AS made", "RUN mkdir /made && date > /made/when && echo made > /made/file && rm /made/when",
		"FROM HOST/base/busy:1", "ENV A=b", "LABEL l=m", "COPY Containerfile /in/", "COPY --chmod=0640 <<E /heredoc", "text", "E",
		"COPY --from=made /made /made", "WORKDIR /work", "RUN echo ran > ran && mkdir -p deep/er && ln ran deep/hard && touch /etc/passwd",
	}
	args := []string{"--source-date-epoch", "1000000000", "--rewrite-timestamp", "--tag", first.image("os/same:1"), "--push"}
	for name, more := range map[string][]string{"overlay": {"--storage-driver", "overlay"}, "vfs": {"--storage-driver", "vfs"}} {
		l := newLab(t)
		l.registry = first.registry
		l.containerfile(lines...)
		o := l.build(append(args[:len(args):len(args)], more...)...)
		o.wantSuccess(t)
		digests[name] = o.result.Digest
	}
	if digests["overlay"] != digests["vfs"] || digests["vfs"] == "" {
		t.Errorf("the digests are %v", digests)
	}

	// So do two pods.
	var pods []string
	for range 2 {
		l := newPod(t)
		l.registry = first.registry
		l.env = append(l.env, "TAG="+l.image("os/pod:1"), "SOURCE_DATE_EPOCH=1000000000", "STRATA_REWRITE_TIMESTAMP=true")
		l.pod(lines...)
		l.file(podMachineConfig, encoded(gzipped(t, machineConfig)))
		o := l.build()
		o.wantSuccess(t)
		pods = append(pods, o.result.Digest)
	}
	if pods[0] != pods[1] || pods[0] == "" {
		t.Errorf("the digests of two pods are %v", pods)
	}
}

// TestProxyOfThePod is L14 and B13 with what a build pod is given.
func TestProxyOfThePod(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		env   string
	}{
		"of the environment":                {nil, "HTTP_PROXY="},
		"of the environment and declared":   {[]string{"ARG HTTP_PROXY"}, "HTTP_PROXY="},
		"a build argument":                  {nil, "STRATA_BUILD_ARG=HTTP_PROXY="},
		"a build argument that is declared": {[]string{"ARG HTTP_PROXY"}, "STRATA_BUILD_ARG=HTTP_PROXY="},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPod(t).withBusy()
			p := startProxy(t)
			l.secrets = append(l.secrets, "labpass")
			l.env = append(l.env, tt.env+p.url(), "NO_PROXY=127.0.0.0/8,.svc", "STRATA_LOG_LEVEL=debug")
			l.pod(append(append([]string{"FROM HOST/base/busy:1"}, tt.lines...),
				`RUN test "$HTTP_PROXY" = "$http_proxy" && test "$NO_PROXY" = "$no_proxy"`,
				"RUN wget -q -O /page http://example.test && grep proxy /page")...)
			o := l.build()
			o.wantSuccess(t)
			if len(p.hosts) == 0 || slices.ContainsFunc(p.hosts, func(host string) bool { return host != "example.test" }) {
				t.Errorf("the proxy was asked for %v", p.hosts)
			}
			wantNowhere(t, l, "os/layered:1", "labpass")
			if strings.Contains(o.stderr, "lab:") {
				t.Error("the user of the proxy is in the output")
			}
		})
	}
}

// TestE05TemporaryDirectoryOfThePod is made where it is missing, and named where it
// cannot be.
func TestE05TemporaryDirectoryOfThePod(t *testing.T) {
	l := newPod(t).withBusy()
	l.pod("FROM HOST/base/busy:1", "COPY Containerfile /a", "RUN cat /a")
	env := l.env
	l.env = append(env[:len(env):len(env)], "TMPDIR=/tmp/no/such") // the pod's own /tmp
	l.build().wantSuccess(t)
	l.env = append(env[:len(env):len(env)], "TMPDIR=/proc/no/such")
	requests := len(l.registry.Requests())
	o := l.build()
	o.wantFailure(t, result.ReasonStorageUnavailable, "TMPDIR", "/proc/no")
	if n := len(l.registry.Requests()) - requests; n != 0 {
		t.Errorf("%d requests reached the registry first", n)
	}
}
