package controller

import (
	"bufio"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/agent/result"
)

// The cluster of the benchmark: so many configs with an image each, of which some
// get other inputs at the same time.
const (
	scaleConfigs = 500
	scaleBuilds  = 50
)

// BenchmarkScale measures the program with many configs: calls of the API for each
// build, its memory, and the time from the end of a pod to the condition.
func BenchmarkScale(b *testing.B) {
	installed(b)
	binary := filepath.Join(b.TempDir(), "controller")
	if out, err := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, "github.com/strata-build/strata/cmd/controller").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	address := "127.0.0.1:18080"
	c := exec.Command(binary, "--kubeconfig", server.Kubeconfig, "--agent-image", "registry.example:5000/strata:1", "--metrics-address", address, "--probe-address", "0")
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	}()

	for b.Loop() {
		worlds := make([]*world, scaleConfigs)
		each(worlds, func(i int) { worlds[i] = newWorld(b) })
		finish(b, worlds)
		idle := scrape(b, address)
		some := worlds[:scaleBuilds]
		each(some, func(i int) { some[i].render(2) })
		took := finish(b, some)
		end := scrape(b, address)
		slices.Sort(took)
		calls := 0.0
		for name, n := range end {
			if strings.HasPrefix(name, "rest_client_requests_total") {
				calls += n - idle[name]
			}
		}
		b.ReportMetric(calls/scaleBuilds, "calls/build")
		b.ReportMetric(end["process_resident_memory_bytes"]/(1<<20), "MiB")
		b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "ms-median")
		b.ReportMetric(float64(took[len(took)-1].Milliseconds()), "ms-longest")
		<-time.After(15 * time.Second)
		quiet := scrape(b, address)
		calls = 0
		for name, n := range quiet {
			if strings.HasPrefix(name, "rest_client_requests_total") {
				calls += n - end[name]
			}
		}
		b.ReportMetric(calls, "calls/15s-idle")
		b.ReportMetric(0, "ns/op")
	}
}

// finish ends the pod of every world's active build with success as soon as it is
// there, and returns for each how long the condition took after that.
func finish(b *testing.B, worlds []*world) []time.Duration {
	b.Helper()
	by := map[string]int{}
	for i, w := range worlds {
		by[w.name] = i
	}
	ended, took := make([]time.Time, len(worlds)), make([]time.Duration, len(worlds))
	left := len(worlds)
	for deadline := time.Now().Add(20 * time.Minute); left > 0; {
		if time.Now().After(deadline) {
			b.Fatalf("%d builds do not end", left)
		}
		var pods corev1.PodList
		worlds[0].must(admin.List(b.Context(), &pods, client.InNamespace(namespace)))
		for _, p := range pods.Items {
			i, known := by[p.Labels[group+"machine-os-config"]]
			if !known || !ended[i].IsZero() || p.Status.Phase != corev1.PodPending {
				continue
			}
			start := metav1.Now()
			p.Status.StartTime = &start
			worlds[i].end(&p, resultOf(result.ReasonSucceeded))
			ended[i] = time.Now()
		}
		var builds mcfgv1.MachineOSBuildList
		worlds[0].must(admin.List(b.Context(), &builds))
		for _, build := range builds.Items {
			i, known := by[build.Spec.MachineOSConfig.Name]
			if known && !ended[i].IsZero() && took[i] == 0 && meta.IsStatusConditionTrue(build.Status.Conditions, "Succeeded") && worldPool(worlds[i]) == build.Spec.MachineConfig.Name {
				took[i] = time.Since(ended[i])
				left--
			}
		}
		<-time.After(5 * time.Millisecond)
	}
	each(worlds, func(i int) { worlds[i].until("nothing is left", worlds[i].nothingLeft) })
	return took
}

func worldPool(w *world) string {
	var pool mcfgv1.MachineConfigPool
	if admin.Get(w.ctx(), client.ObjectKey{Name: w.name}, &pool) != nil {
		return ""
	}
	return pool.Spec.Configuration.Name
}

// each calls f for every index, some at a time.
func each(worlds []*world, f func(int)) {
	var group sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range worlds {
		slots <- struct{}{}
		group.Go(func() { f(i); <-slots })
	}
	group.Wait()
}

// scrape reads the metrics of the program.
func scrape(b *testing.B, address string) map[string]float64 {
	b.Helper()
	response, err := http.Get("http://" + address + "/metrics") //nolint:gosec // an address of this test
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	found := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), "} ")
		if !ok {
			name, value, ok = strings.Cut(lines.Text(), " ")
		}
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil {
			found[name] = n
		}
	}
	return found
}
