package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helper is what a process does that a test started.
func helper(name string) int {
	switch name {
	case "sleep":
		sleep()
	case "tree": // two children with a child each
		start("branch")
		start("branch")
		sleep()
	case "branch":
		start("sleep")
		sleep()
	case "orphan": // leaves its child behind
		start("sleep")
	case "end":
	case "supervise":
		return superviseTree()
	case "reap":
		return reap()
	default:
		return 99
	}
	return 0
}

// sleep lasts until the process is killed, and not for ever when nobody does.
func sleep() {
	wait := time.NewTimer(time.Minute)
	<-wait.C
}

func start(name string) *exec.Cmd {
	cmd := helperCommand(name)
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd
}

func helperCommand(name string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperVariable+"="+name)
	return cmd
}

// eventually tells whether the condition becomes true within ten seconds.
func eventually(condition func() bool) bool {
	for range 1000 {
		if condition() {
			return true
		}
		wait := time.NewTimer(10 * time.Millisecond)
		<-wait.C
	}
	return false
}

func runHelper(t *testing.T, name string) {
	t.Helper()
	if out, err := helperCommand(name).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestKillDescendantsLeavesNoProcess(t *testing.T) { runHelper(t, "supervise") }

// superviseTree kills a tree of processes in which one has lost its parent.
func superviseTree() int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Println("no orphan will come here:", err)
		return 1
	}
	if hasChildren() {
		fmt.Println("there are children, before any was started")
		return 1
	}
	tree := start("tree").Process.Pid
	orphan := start("orphan")
	_ = orphan.Wait()
	self := os.Getpid()
	// A process that starts another one may have a further child for a moment, so
	// the whole picture has to be right at once.
	var all []int
	if !eventually(func() bool {
		all = descendants(self)
		return len(all) == 6 && len(children(self)) == 2 && slices.Contains(children(self), tree) &&
			len(children(tree)) == 2 && len(descendants(tree)) == 4 && !slices.ContainsFunc(all, zombie)
	}) {
		fmt.Println("descendants", all, "of", self, "those of the tree", tree, "are", descendants(tree), "want six, of which four")
		return 1
	}
	killDescendants(tree)
	if !eventually(func() bool {
		left := slices.DeleteFunc(descendants(self), zombie)
		return len(left) == 1 && left[0] == tree
	}) {
		fmt.Println("descendants", descendants(self), "are left, want only", tree, "that was to be spared")
		return 1
	}
	killDescendants(0)
	for _, pid := range all {
		if !eventually(func() bool { return zombie(pid) }) {
			fmt.Println(pid, "survived")
			return 1
		}
	}
	if !hasChildren() {
		fmt.Println("children that have ended count as none")
		return 1
	}
	if !eventually(func() bool { reapOrphans(0); return len(children(self)) == 0 && !hasChildren() }) {
		fmt.Println("children", children(self), "were not reaped")
		return 1
	}
	return 0
}

func TestReapOrphansLeavesTheOneThatSomebodyWaitsFor(t *testing.T) { runHelper(t, "reap") }

func reap() int {
	awaited, ended, running := start("end"), start("end"), start("sleep")
	defer running.Process.Kill()
	if !eventually(func() bool { return zombie(awaited.Process.Pid) && zombie(ended.Process.Pid) }) {
		fmt.Println("the children do not end")
		return 1
	}
	if !eventually(func() bool {
		reapOrphans(awaited.Process.Pid)
		_, _, there := processStat(ended.Process.Pid)
		return !there
	}) {
		fmt.Println("the child that had ended was not reaped")
		return 1
	}
	if err := awaited.Wait(); err != nil {
		fmt.Println("the child that somebody waits for was reaped:", err)
		return 1
	}
	if zombie(running.Process.Pid) {
		fmt.Println("the child that runs was not left alone")
		return 1
	}
	return 0
}

func TestProcessStatReadsAnyCommandName(t *testing.T) {
	for _, name := range []string{"plain", "x (y) z", ") Z 1 (", "a) S 1 2", "a\nb"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			executable, err := filepath.Abs(os.Args[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(executable, path); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(path)
			cmd.Env = append(os.Environ(), helperVariable+"=sleep")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if err != nil || strings.TrimSuffix(string(comm), "\n") != name {
				t.Errorf("the command is called %q (%v), want %q", comm, err, name)
			}
			state, parent, ok := processStat(pid)
			if !ok || parent != os.Getpid() || !strings.ContainsRune("RSD", rune(state)) {
				t.Errorf("state %c, parent %d, %v; want one that runs, %d, true", state, parent, ok, os.Getpid())
			}
			if !slices.Contains(children(os.Getpid()), pid) {
				t.Error("it is not among the children of this process")
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if !eventually(func() bool { return zombie(pid) }) {
				t.Error("it was killed and does not count as ended")
			}
			if state, parent, ok = processStat(pid); state != 'Z' || parent != os.Getpid() || !ok {
				t.Errorf("state %c, parent %d, %v after its end; want Z, %d, true", state, parent, ok, os.Getpid())
			}
			_ = cmd.Wait()
			if _, _, ok = processStat(pid); ok || !zombie(pid) {
				t.Error("it was reaped and is still there")
			}
		})
	}
}

func TestDescendantsOfAProcessWithoutChildren(t *testing.T) {
	cmd := helperCommand("sleep")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	if got := descendants(cmd.Process.Pid); len(got) != 0 {
		t.Errorf("descendants %v, want none", got)
	}
	if got := descendants(-1); len(got) != 0 {
		t.Errorf("descendants %v of no process, want none", got)
	}
}
