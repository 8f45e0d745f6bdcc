package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// stopLimit is how long after a signal the result may be owed.
const stopLimit = 5 * time.Second

// stray is what a step can do to outlive the agent: processes that have lost their
// parent, that lead a session of their own, and that ignore every signal which can
// be ignored.
const stray = `trap '' TERM INT HUP QUIT; (setsid sh -c 'sleep 71 & sleep 71' &) ; (setsid setsid sleep 71 > /dev/null 2>&1 < /dev/null &) ; `

// TestE08StopInEveryPhase: wherever a build is when it is stopped, it says so in
// time, leaves no process behind, and what is under the tag is what was there.
func TestE08StopInEveryPhase(t *testing.T) {
	const began = `echo x >> /counter/runs; `
	plain := []string{"FROM HOST/base/busy:1", "RUN echo new > /new"}
	running := func(l *lab, _ *controlGroup) bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 }
	asked := func(method, path string) func(*lab, *controlGroup) bool {
		return func(l *lab, _ *controlGroup) bool { return l.registry.Count(method, path) > 0 }
	}
	for name, tt := range map[string]struct {
		phase         result.Phase
		containerfile []string
		args          []string
		fault         *registry.Rule
		// before is done to the store, after an image was built in it.
		before func(*lab)
		// there tells that the build has come to where it is to be stopped.
		there func(*lab, *controlGroup) bool
		// pushed tells that the new image is under the tag by then.
		pushed bool
	}{
		"prepare that waits for the store": {
			phase: result.Prepare, containerfile: plain, before: lockStore,
			there: func(_ *lab, g *controlGroup) bool { return waitsForLock(t, g) },
		},
		"pull that stalls": {
			phase: result.Pull, containerfile: []string{"FROM HOST/base/stalls:1"},
			fault: &registry.Rule{Path: "base/stalls/blobs/", Do: registry.StallResponse(1000)},
			there: asked(http.MethodGet, "base/stalls/blobs/"),
		},
		"step that sleeps": {
			phase: result.Build, containerfile: []string{"FROM HOST/base/busy:1", "RUN " + began + "sleep 60"}, there: running,
		},
		"step that is busy and ignores signals": {
			phase: result.Build, containerfile: []string{"FROM HOST/base/busy:1", "RUN " + stray + began + "while :; do :; done"}, there: running,
		},
		"step whose child is busy and ignores signals": {
			phase: result.Build, containerfile: []string{"FROM HOST/base/busy:1", "RUN " + stray + began + "sh -c 'while :; do :; done'; true"}, there: running,
		},
		"stages at once": {
			phase: result.Build, args: []string{"--jobs", "2"}, there: func(l *lab, _ *controlGroup) bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 1 },
			containerfile: []string{
				"FROM HOST/base/busy:1 AS one", "RUN " + began + "sleep 60", "FROM HOST/base/busy:1 AS two", "RUN " + began + "sleep 60",
				"FROM HOST/base/busy:1", "COPY --from=one / /one/", "COPY --from=two / /two/",
			},
		},
		"commit": {
			phase:         result.Build,
			containerfile: []string{"FROM HOST/base/busy:1", "RUN head -c 400000000 /dev/zero > /large; " + began},
			there:         func(l *lab, g *controlGroup) bool { return running(l, g) && len(g.processes()) <= 2 },
		},
		"push in the upload": {
			phase: result.Push, containerfile: plain, there: asked(http.MethodPatch, ""),
			fault: &registry.Rule{Method: http.MethodPatch, Do: registry.Stall{}},
		},
		"push before the manifest": {
			phase: result.Push, containerfile: plain, there: asked(http.MethodPut, "/manifests/"),
			fault: &registry.Rule{Method: http.MethodPut, Path: "/manifests/", Do: registry.Stall{}},
		},
		"verify": {
			phase: result.Verify, containerfile: plain, there: asked("", "/manifests/sha256:"), pushed: true,
			fault: &registry.Rule{Path: "/manifests/sha256:", Do: registry.Stall{}},
		},
		"wait for the next attempt": {
			phase: result.Build, containerfile: []string{"FROM HOST/base/busy:1", "RUN " + began + "exit 3"}, args: []string{"--retry-delay", "60s"},
			there: func(l *lab, _ *controlGroup) bool {
				return strings.Contains(readText(l.t, l.stderr), "Retry 1/3 exited 3")
			},
		},
	} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
			if sig != syscall.SIGTERM && name != "step that sleeps" && name != "push in the upload" {
				continue
			}
			t.Run(name+" "+sig.String(), func(t *testing.T) {
				l := newLab(t).withBusy()
				l.addBase("base/stalls:1", bases.Big(t))
				l.mkdir("counter")
				g := newControlGroup(t)
				l.wrap = g.wrap()
				args := append([]string{"--volume", filepath.Join(l.dir, "counter") + ":/counter", "--tag", l.image("os/stopped:1"), "--push"}, tt.args...)
				l.containerfile("FROM HOST/base/busy:1", "RUN echo old > /old")
				l.build(args...).wantSuccess(t)
				old := l.registry.Digest(t, "os/stopped", "1")

				l.containerfile(tt.containerfile...)
				l.registry.Reset()
				if tt.phase == result.Push {
					l.sendsNothingEarly()
				}
				if tt.fault != nil {
					l.registry.Fault(*tt.fault)
				}
				if tt.before != nil {
					tt.before(l)
				}
				cmd, done := l.start(args...)
				waitFor(t, func() bool { return tt.there(l, g) })
				if err := cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				signalled := time.Now()
				o := done(cmd.Wait())
				if took := time.Since(signalled); took > stopLimit {
					t.Errorf("it took %v to stop", took)
				} else {
					t.Logf("stopped after %v", took)
				}
				if o.code != 143 || o.result == nil || o.result.Reason != result.ReasonInterrupted || o.result.Outcome != result.Interrupted || o.result.Phase != tt.phase {
					t.Fatalf("exit %d, result %+v", o.code, o.result)
				}
				if last := o.result.Attempts[len(o.result.Attempts)-1]; tt.phase != result.Build && last.Class != result.ClassInterrupted {
					t.Errorf("the last attempt is %+v", last)
				}
				if left := g.processes(); len(left) != 0 {
					t.Errorf("processes are left: %v", left)
				}
				l.registry.ClearFaults()
				if now := l.registry.Digest(t, "os/stopped", "1"); (now != old) != tt.pushed {
					t.Errorf("the tag had %s and has %s", old, now)
				}
			})
		}
	}
}

// lockStore holds the locks of the store, as another program does that works in it.
func lockStore(l *lab) {
	l.t.Helper()
	for _, name := range []string{"storage.lock", "overlay-layers/layers.lock", "overlay-images/images.lock", "overlay-containers/containers.lock"} {
		f, err := os.OpenFile(filepath.Join(l.store, name), os.O_RDWR, 0)
		if err != nil {
			l.t.Fatal(err)
		}
		l.t.Cleanup(func() { _ = f.Close() })
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
			l.t.Fatal(err)
		}
	}
}

// waitsForLock tells whether a process of the group waits for the lock of a file
// (/proc/locks, as in proc_locks(5), marks one that waits with an arrow).
func waitsForLock(t *testing.T, g *controlGroup) bool {
	t.Helper()
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range g.processes() {
		pid, _, _ := strings.Cut(process, " ")
		for line := range strings.Lines(string(locks)) {
			if fields := strings.Fields(line); len(fields) > 5 && fields[1] == "->" && fields[5] == pid {
				return true
			}
		}
	}
	return false
}

// TestFirstProcess: as the first process of a container the agent reaps the orphans
// of its steps while these still run, takes signals, and leaves no process.
func TestFirstProcess(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	g := newControlGroup(t)
	l.wrap = append(g.wrap(), "unshare", "--pid", "--mount-proc", "--fork", "--kill-child")
	l.containerfile("FROM HOST/base/busy:1",
		"RUN "+stray+"for i in 1 2 3 4 5 6 7 8 9; do (sh -c 'echo x >> /counter/orphans' &) ; done; while :; do sleep 1; done")
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter")
	waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/orphans"))) == 9 })
	// unshare(1) passes no signal on: the agent is its child.
	first := children(t, cmd.Process.Pid)
	if len(first) != 1 {
		t.Fatalf("unshare has the children %v", first)
	}
	waitFor(t, func() bool {
		for _, child := range children(t, first[0]) {
			if state(child) == "Z" {
				return false
			}
		}
		return true
	})
	signalled := time.Now()
	if err := syscall.Kill(first[0], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	o := done(cmd.Wait())
	if took := time.Since(signalled); took > stopLimit {
		t.Errorf("it took %v to stop", took)
	}
	if o.code != 143 || o.result == nil || o.result.Reason != result.ReasonInterrupted || o.result.Phase != result.Build {
		t.Fatalf("exit %d, result %+v", o.code, o.result)
	}
	if left := g.processes(); len(left) != 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// TestStopOfAWorkerThatCannotBeKilled: the result does not wait for one that hangs in
// the kernel, as on a disk that does not answer. In version 1 of control groups a
// frozen process is not killed either.
func TestStopOfAWorkerThatCannotBeKilled(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x > /counter/runs; sleep 73")
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter")
	waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 })
	worker := children(t, cmd.Process.Pid)
	thaw := freeze(t, worker[0])
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	signalled := time.Now()
	o := done(cmd.Wait())
	if took := time.Since(signalled); took > stopLimit {
		t.Errorf("it took %v to stop", took)
	}
	if o.code != 143 || o.result == nil || o.result.Reason != result.ReasonInterrupted || o.result.Phase != result.Build || o.result.Step == nil {
		t.Errorf("exit %d, result %+v", o.code, o.result)
	}
	thaw()
	waitFor(t, func() bool { return state(worker[0]) == "" || state(worker[0]) == "Z" })
	l.containerfile("FROM HOST/base/busy:1", "RUN true")
	l.build().wantSuccess(t)
	l.checkStore()
}

// freeze freezes a process until thaw is called.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	dir, file, frozen, thawed := "/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"
	if _, err := os.Stat(dir); err != nil {
		dir, file, frozen, thawed = "/sys/fs/cgroup", "cgroup.freeze", "1", "0"
	}
	dir = filepath.Join(dir, "strata-test-frozen-"+itoa(pid))
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put("cgroup.procs", itoa(pid))
	put(file, frozen)
	waitFor(t, func() bool { return strings.Contains(readText(t, filepath.Join(dir, file)), frozen) })
	t.Cleanup(func() { waitFor(t, func() bool { return os.Remove(dir) == nil }) })
	return func() { put(file, thawed) }
}
