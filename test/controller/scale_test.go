package controller

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	// scaleMemory is all that the controller gets, in bytes: 60 MB.
	scaleMemory = "60000000"
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
	c := exec.Command("sh", "-c", `echo $$ > "$0"/cgroup.procs && exec "$@"`, limited(b), binary, "--kubeconfig", server.Kubeconfig, "--agent-image", "registry.example:5000/strata:1", "--metrics-address", address, "--probe-address", "0")
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
		if err := c.Process.Signal(syscall.Signal(0)); err != nil {
			b.Fatalf("it did not live within its memory: %v", err)
		}
		b.ReportMetric(end["process_resident_memory_bytes"]/(1<<20), "MiB-resident")
		b.ReportMetric(anonymous(b, c.Process.Pid), "MiB-anonymous")
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
	by, want := map[string]int{}, make([]string, len(worlds))
	for i, w := range worlds {
		by[w.name], want[i] = i, w.pool().Spec.Configuration.Name
	}
	var mutex sync.Mutex
	ended, took := make([]time.Time, len(worlds)), make([]time.Duration, len(worlds))
	left := len(worlds)
	ctx, cancel := context.WithTimeout(b.Context(), 20*time.Minute)
	defer cancel()
	watcher, err := client.NewWithWatch(server.Config, client.Options{Scheme: scheme, Mapper: mapper})
	worlds[0].must(err)
	pods, err := watcher.Watch(ctx, &corev1.PodList{}, client.InNamespace(namespace))
	worlds[0].must(err)
	builds, err := watcher.Watch(ctx, &mcfgv1.MachineOSBuildList{})
	worlds[0].must(err)
	slots := make(chan struct{}, 8)
	for left > 0 {
		select {
		case <-ctx.Done():
			b.Fatalf("%d builds do not end", left)
		case e, open := <-pods.ResultChan():
			p, ok := e.Object.(*corev1.Pod)
			if !open || !ok {
				b.Fatalf("the watch of pods ended: %+v", e.Object)
			}
			i, known := by[p.Labels[group+"machine-os-config"]]
			mutex.Lock()
			again := known && !ended[i].IsZero()
			mutex.Unlock()
			if !known || again || p.Status.Phase != corev1.PodPending {
				continue
			}
			go func() { // a watch that is not read is ended by the server
				slots <- struct{}{}
				defer func() { <-slots }()
				start := metav1.Now()
				p.Status.StartTime = &start
				// Another event of the pod may have been faster.
				p.Status.Phase = corev1.PodSucceeded
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "build", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					Message: string(resultOf(result.ReasonSucceeded).Encode(result.MaxBytes)), StartedAt: start, FinishedAt: start,
				}}}}
				if admin.Status().Update(ctx, p) == nil {
					mutex.Lock()
					ended[i] = time.Now()
					mutex.Unlock()
				}
			}()
		case e, open := <-builds.ResultChan():
			build, ok := e.Object.(*mcfgv1.MachineOSBuild)
			if !open || !ok {
				b.Fatalf("the watch of builds ended: %+v", e.Object)
			}
			if !meta.IsStatusConditionTrue(build.Status.Conditions, "Succeeded") {
				continue
			}
			i, known := by[build.Spec.MachineOSConfig.Name]
			if !known || took[i] != 0 || want[i] != build.Spec.MachineConfig.Name {
				continue
			}
			mutex.Lock()
			took[i] = max(time.Since(ended[i]), 1)
			if ended[i].IsZero() {
				took[i] = 1 // it was seen before the answer to the update
			}
			mutex.Unlock()
			left--
		}
	}
	each(worlds, func(i int) { worlds[i].until("nothing is left", worlds[i].nothingLeft) })
	return took
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

// limited makes a control group with the memory that a controller is to live in, its
// program and everything included.
func limited(b *testing.B) string {
	b.Helper()
	dir, file := "/sys/fs/cgroup/memory/strata-scale", "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		dir, file = "/sys/fs/cgroup/strata-scale", "memory.max"
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(scaleMemory), 0o600); err != nil {
		b.Fatalf("the memory of a control group cannot be limited here: %v", err)
	}
	b.Cleanup(func() {
		// The kernel takes a moment to let go of a process that has ended.
		for range 100 {
			if os.Remove(dir) == nil {
				return
			}
			<-time.After(50 * time.Millisecond)
		}
		b.Errorf("%s cannot be removed", dir)
	})
	return dir
}

// anonymous is the memory of a process that is no file, in MiB: not its program.
func anonymous(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return n / 1024
		}
	}
	b.Fatal("there is no RssAnon")
	return 0
}

// scrape reads the metrics of the program.
func scrape(b *testing.B, address string) map[string]float64 {
	b.Helper()
	response, err := http.Get("http://" + address + "/metrics")
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
