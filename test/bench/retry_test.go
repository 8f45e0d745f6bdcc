package bench

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/test/registry"
)

// agentOnly builds with the agent into a registry and returns how long it took.
func (p place) agentOnly(b *testing.B, args ...string) (time.Duration, error) {
	b.Helper()
	line := append([]string{"build", "--storage-root", filepath.Join(p.dir, "agent"), "--tls-verify=false", "--retry-delay", "10ms"}, args...)
	cmd := exec.Command(os.Getenv("AGENT_BINARY"), append(line, p.context)...)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.Fatalf("%v\n%s", err, out)
	}
	return time.Since(start), err
}

// BenchmarkCutPush pushes four layers of 50 MB, of which one is cut in the middle
// once, against a push that is not disturbed. bytes-ratio is what the registry
// received in all against that, less the part of the blob that was cut.
func BenchmarkCutPush(b *testing.B) {
	const layers, size, cutAt = 4, 50 << 20, 25 << 20
	containerfile := "FROM scratch\n"
	files := map[string]string{}
	for i := range layers {
		name := string(rune('a' + i))
		data := make([]byte, size)
		_, _ = rand.Read(data)
		files[name] = string(data)
		containerfile += "COPY " + name + " /" + name + "\n"
	}
	p := newPlace(b, containerfile, files)
	push := func(fault bool) int64 {
		r := registry.Start(b)
		if fault {
			r.Fault(registry.Rule{Method: "PATCH", From: 2, To: 2, Do: registry.CutRequest(cutAt)})
		}
		if _, err := p.agentOnly(b, "--tag", r.Host()+"/os/large:1", "--push"); err != nil {
			b.Fatal("the push failed")
		}
		received, _ := r.Totals()
		return received
	}
	push(false)
	var ratios []float64
	for b.Loop() {
		undisturbed := push(false)
		ratios = append(ratios, float64(push(true)-cutAt)/float64(undisturbed))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(ratios), "bytes-ratio")
}

// BenchmarkSecondAttempt fails the last of five steps, of a second each, once.
// overhead-ms is what the second attempt took beyond that step's own second.
func BenchmarkSecondAttempt(b *testing.B) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		b.Fatalf("%v: install busybox-static", err)
	}
	step := `RUN ["/bin/busybox", "sleep", "1"]` + "\n"
	p := newPlace(b, "FROM scratch\nCOPY busybox /bin/busybox\n"+strings.Repeat(step, 4)+
		`RUN ["/bin/busybox", "sh", "-c", "/bin/busybox sleep 1; test -e /once/done || { /bin/busybox touch /once/done; exit 1; }"]`+"\n",
		map[string]string{"busybox": string(busybox)})
	once := filepath.Join(p.dir, "once")
	var overhead []float64
	for b.Loop() {
		p.clean(b, true)()
		if err := errors.Join(os.RemoveAll(once), os.Mkdir(once, 0o755)); err != nil {
			b.Fatal(err)
		}
		args := []string{"--volume", once + ":/once", "--max-retries", "1"}
		if _, err := p.agentOnly(b, args...); err == nil {
			b.Fatal("the first attempt did not fail")
		}
		took, err := p.agentOnly(b, args...)
		if err != nil {
			b.Fatal("the second attempt failed")
		}
		overhead = append(overhead, float64((took - time.Second).Milliseconds()))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(overhead), "overhead-ms")
}
