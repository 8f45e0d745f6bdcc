package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// memoryGroup makes a control group with a limit in bytes, of whichever version
// this machine has, and returns the command that runs another one in it.
func memoryGroup(t *testing.T, limit string) (wrap []string) {
	t.Helper()
	dir, file := "/sys/fs/cgroup/memory/strata-test-"+itoa(os.Getpid()), "memory.limit_in_bytes"
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		dir, file = "/sys/fs/cgroup/strata-test-"+itoa(os.Getpid()), "memory.max"
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The kernel takes a moment to let go of processes that have ended.
		waitFor(t, func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, file), []byte(limit), 0o600); err != nil {
		t.Fatalf("the memory of a control group cannot be limited here: %v", err)
	}
	return []string{"sh", "-c", `echo $$ > ` + dir + `/cgroup.procs && exec "$@"`, "sh"}
}

func TestB04StepOverTheMemoryLimit(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN head -c 300000000 /dev/zero | tail -c 290000000 > /dev/null")
	l.wrap = memoryGroup(t, "134217728")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonStepOutOfMemory, "line 2", "limit 128 MiB")
	if n := len(o.result.Attempts); n != 1 {
		t.Errorf("%d attempts failed", n)
	}
}
