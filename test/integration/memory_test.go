package integration

import (
	"testing"

	"github.com/strata-build/strata/agent/result"
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
