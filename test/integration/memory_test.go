package integration

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

func TestB04StepOverTheMemoryLimit(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN head -c 300000000 /dev/zero | tail -c 290000000 > /dev/null")
	l.wrap = newControlGroup(t).limit(128 << 20).wrap()
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonStepOutOfMemory, "line 2", "limit 128 MiB", "peak 128 MiB")
	if n := len(o.result.Attempts); n != 1 {
		t.Errorf("%d attempts failed", n)
	}
}

// TestMemoryOfTheAgent: it knows the limit, keeps below it however large the layers
// are, and leaves room for the steps.
func TestMemoryOfTheAgent(t *testing.T) {
	l := newLab(t)
	l.addBase("base/big:1", bases.Big(t))
	g := newControlGroup(t).limit(192 << 20)
	l.wrap = g.wrap()
	l.containerfile("FROM HOST/base/big:1", "RUN head -c 250000000 /dev/urandom > /large", "RUN dd if=/dev/zero of=/dev/null bs=30M count=2")
	o := l.build("--tag", l.image("os/large:1"), "--push", "--log-level", "debug", "--retry-on", "transient")
	o.wantSuccess(t)
	for _, want := range []string{"memory=201326592", "heap=100663296", "threads="} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("the log does not hold %q", want)
		}
	}
	if text := readText(t, filepath.Join(g.dir, g.eventsFile)); !strings.Contains(text, "oom_kill 0") {
		t.Errorf("something was killed for memory: %s", text)
	}
	l.env = append(l.env, "GOMEMLIMIT=80MiB", "GOMAXPROCS=1")
	if o := l.build("--log-level", "debug"); !strings.Contains(o.stderr, "heap=83886080") || !strings.Contains(o.stderr, "threads=1") {
		t.Error("GOMEMLIMIT and GOMAXPROCS are not what they say")
	}
}

// TestStepIsKilledRatherThanTheAgent: the step is smaller than the agent when memory
// runs out, and goes all the same, so that the agent can say so and clean up.
func TestStepIsKilledRatherThanTheAgent(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	l.wrap = newControlGroup(t).limit(128 << 20).wrap()
	// Many small ones fill the memory.
	l.containerfile("FROM HOST/base/busy:1", "RUN cat /proc/self/oom_score_adj > /counter/score; for i in $(seq 60); do (dd if=/dev/zero bs=2M count=1 2>/dev/null | tail -c 2M | (sleep 1; cat) > /dev/null) & done; for j in $(jobs -p); do wait $j || exit 9; done; wait; dd if=/dev/zero of=/dev/null bs=120M count=2")
	o := l.build("--retry-on", "transient", "--volume", filepath.Join(l.dir, "counter")+":/counter")
	o.wantFailure(t, result.ReasonStepOutOfMemory, "line 2", "limit 128 MiB, peak 128 MiB", "the kernel killed a process of this pod or group")
	if score := l.lines(filepath.Join(l.dir, "counter/score")); len(score) != 1 || atoi(t, score[0]) < 500 {
		t.Errorf("the step has the score %v", score)
	}
	l.checkStore()
}
