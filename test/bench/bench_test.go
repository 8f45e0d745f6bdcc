// Package bench compares the agent with buildah's own command line of the
// version that it embeds. Both are run in turn, in one call, so that the speed
// of the machine cancels out: read the ratios, not the times. `make bench` builds
// both and runs it.
package bench

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/strata-build/strata/test/bench/measure"
)

func TestMain(m *testing.M) {
	if code, ok := measure.Main(); ok {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

// program is a way to do the work: some commands, run one after the other.
type program struct {
	name     string
	commands [][]string
}

// run runs the commands and adds up their cost.
func (p program) run(b *testing.B) measure.Cost {
	b.Helper()
	var sum measure.Cost
	for _, line := range p.commands {
		var out bytes.Buffer
		c, err := measure.Run(&out, line...)
		if err != nil {
			b.Fatalf("%s: %v\n%s", p.name, err, &out)
		}
		sum.Wall += c.Wall
		sum.CPU += c.CPU
		sum.Peak, sum.Floor = max(sum.Peak, c.Peak), max(sum.Floor, c.Floor)
	}
	return sum
}

// compare runs the programs in turn and reports the medians of the first and the
// medians of the ratios, pair by pair.
func compare(b *testing.B, agent, peer program, before func()) {
	b.Helper()
	var costs []measure.Cost
	var wall, cpu, peak []float64
	turn := func() {
		before()
		a, p := agent.run(b), peer.run(b)
		if a.Peak <= a.Floor || p.Peak <= p.Floor {
			b.Fatalf("peaks of %d and %d KiB cannot be told from the %d KiB of what measures them", a.Peak, p.Peak, max(a.Floor, p.Floor))
		}
		costs = append(costs, a)
		wall = append(wall, float64(a.Wall)/float64(p.Wall))
		cpu = append(cpu, float64(a.CPU)/float64(p.CPU))
		peak = append(peak, float64(a.Peak)/float64(p.Peak))
	}
	turn() // not counted: caches are warm after it
	costs, wall, cpu, peak = nil, nil, nil, nil
	for b.Loop() {
		turn()
	}
	slices.SortFunc(costs, func(x, y measure.Cost) int { return int(x.Wall - y.Wall) })
	b.ReportMetric(0, "ns/op") // the time of both together says nothing
	b.ReportMetric(float64(costs[len(costs)/2].Wall.Milliseconds()), "agent-ms")
	b.ReportMetric(float64(costs[len(costs)/2].Peak)/1024, "agent-MiB")
	b.ReportMetric(median(wall), "wall-ratio")
	b.ReportMetric(median(cpu), "cpu-ratio")
	b.ReportMetric(median(peak), "peak-ratio")
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// binary copies a program to a place of its own. How much of a program is counted
// as resident depends on how its file came into the page cache; this way both did
// in the same way.
func binary(b *testing.B, variable string) string {
	b.Helper()
	path := os.Getenv(variable)
	if path == "" {
		b.Fatalf("%s names no program: run `make bench`", variable)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	copied := filepath.Join(b.TempDir(), filepath.Base(path))
	if err := os.WriteFile(copied, data, 0o755); err != nil {
		b.Fatal(err)
	}
	return copied
}

// bench is where the programs work.
type place struct {
	dir, context string
}

func newPlace(b *testing.B, containerfile string, files map[string]string) place {
	b.Helper()
	p := place{dir: b.TempDir()}
	p.context = filepath.Join(p.dir, "context")
	write := func(name, text string, mode fs.FileMode) {
		path := filepath.Join(p.context, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			b.Fatal(err)
		}
	}
	write("Containerfile", containerfile, 0o644)
	for name, text := range files {
		write(name, text, 0o755)
	}
	policy := filepath.Join(p.dir, "policy.json")
	if err := os.WriteFile(policy, []byte(`{"default":[{"type":"insecureAcceptAnything"}]}`), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Setenv("CONTAINERS_POLICY_JSON", policy) // buildah has none of its own
	return p
}

// agent builds into an OCI layout.
func (p place) agent(b *testing.B) program {
	return program{"agent", [][]string{{
		binary(b, "AGENT_BINARY"), "build", "--storage-root", filepath.Join(p.dir, "agent"), "--tag", "x",
		"--output", "oci:" + filepath.Join(p.dir, "agent.oci"), p.context,
	}}}
}

// buildah does the same, in the two commands that it takes.
func (p place) buildah(b *testing.B) program {
	line := []string{
		binary(b, "BUILDAH_BINARY"), "--root", filepath.Join(p.dir, "buildah"), "--runroot", filepath.Join(p.dir, "buildah-run"),
	}
	with := func(args ...string) []string { return append(line[:len(line):len(line)], args...) }
	return program{"buildah", [][]string{
		with("build", "--isolation", "chroot", "--layers", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--tag", "x", p.context),
		with("push", "x", "oci:"+filepath.Join(p.dir, "buildah.oci")),
	}}
}

// clean removes what the last turn left: the layouts and, where the store is to be
// cold, the stores.
func (p place) clean(b *testing.B, cold bool) func() {
	return func() {
		names := []string{"agent.oci", "buildah.oci"}
		if cold {
			names = append(names, "agent", "buildah", "buildah-run")
		}
		for _, name := range names {
			if err := os.RemoveAll(filepath.Join(p.dir, name)); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkTrivialBuild is FROM scratch and COPY of one file into an OCI layout.
func BenchmarkTrivialBuild(b *testing.B) {
	for _, cold := range []bool{true, false} {
		b.Run(fmt.Sprintf("cold=%v", cold), func(b *testing.B) {
			p := newPlace(b, "FROM scratch\nCOPY a /a\n", map[string]string{"a": "a\n"})
			compare(b, p.agent(b), p.buildah(b), p.clean(b, cold))
		})
	}
}

// BenchmarkRunSteps is five RUN steps that do nothing, from a cold store.
func BenchmarkRunSteps(b *testing.B) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		b.Fatalf("%v: install busybox-static", err)
	}
	p := newPlace(b, "FROM scratch\nCOPY busybox /bin/busybox\n"+strings.Repeat("RUN [\"/bin/busybox\", \"true\"]\n", 5), map[string]string{"busybox": string(busybox)})
	compare(b, p.agent(b), p.buildah(b), p.clean(b, true))
}

// BenchmarkVersion is the start of the program: its cost is that of every step
// that starts it again.
func BenchmarkVersion(b *testing.B) {
	agent := program{"agent", [][]string{{binary(b, "AGENT_BINARY"), "version"}}}
	var cpu []float64
	for b.Loop() {
		cpu = append(cpu, float64(agent.run(b).CPU.Microseconds())/1000)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(cpu), "cpu-ms")
}
