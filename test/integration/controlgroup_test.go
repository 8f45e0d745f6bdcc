package integration

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// controlGroup is a control group of whichever version this machine has. What
// runs in it cannot leave it, however it forks.
type controlGroup struct {
	t   *testing.T
	dir string
	// The names of files in it: those of its version.
	limitFile, eventsFile string
}

var controlGroups atomic.Int32

func newControlGroup(t *testing.T) *controlGroup {
	t.Helper()
	g := &controlGroup{t: t, dir: "/sys/fs/cgroup/memory", limitFile: "memory.limit_in_bytes", eventsFile: "memory.oom_control"}
	if _, err := os.Stat(g.dir); err != nil {
		g.dir, g.limitFile, g.eventsFile = "/sys/fs/cgroup", "memory.max", "memory.events"
	}
	g.dir = filepath.Join(g.dir, "strata-test-"+itoa(os.Getpid())+"-"+itoa(int(controlGroups.Add(1))))
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The kernel takes a moment to let go of processes that have ended.
		waitFor(t, func() bool { return os.Remove(g.dir) == nil })
	})
	return g
}

// limit limits the memory, in bytes.
func (g *controlGroup) limit(bytes int) *controlGroup {
	g.t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, g.limitFile), []byte(itoa(bytes)), 0o600); err != nil {
		g.t.Fatalf("the memory of a control group cannot be limited here: %v", err)
	}
	return g
}

// wrap is the command that runs another one in the group.
func (g *controlGroup) wrap() []string {
	return []string{"sh", "-c", `echo $$ > ` + g.dir + `/cgroup.procs && exec "$@"`, "sh"}
}

// processes lists the processes in the group that have not ended, with their
// command lines.
func (g *controlGroup) processes() (found []string) {
	g.t.Helper()
	pids, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, pid := range strings.Fields(string(pids)) {
		if line, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && len(line) > 0 {
			found = append(found, pid+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}
