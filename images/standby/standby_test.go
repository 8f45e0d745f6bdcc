package standby

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crash lets processes end that would stand by.
const crash = "STRATA_TEST_CRASH"

func TestMain(m *testing.M) {
	if os.Args[0] == name && os.Getenv(crash) != "" {
		os.Exit(1)
	}
	if os.Args[0] == "holder" {
		hold()
	}
	if Serve(func() { copying(true) }) {
		os.Exit(0)
	}
	if os.Args[0] == copier {
		copying(false)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// copying is in the place of buildah's function: it reads what to do from standard input,
// and in which root, says who does it, and copies one of the further descriptors to the
// other. As that does, it stays in its root and leaves files open.
func copying(stoodBy bool) {
	var what, root string
	if _, err := fmt.Fscan(os.Stdin, &what, &root); err != nil {
		fmt.Fprintln(os.Stderr, "nothing to do:", err)
		os.Exit(1)
	}
	in, out := os.NewFile(3, "in"), os.NewFile(4, "out")
	dir, _ := os.Getwd()
	open, _ := os.ReadDir("/proc/self/fd")
	if err := errors.Join(os.Chdir(root), syscall.Chroot(root), os.Chdir("/")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	files, _ := os.ReadDir("/")
	var seen string
	for _, f := range files {
		seen += f.Name()
	}
	fmt.Printf("%d %t %s %s %s %d\n", os.Getpid(), stoodBy, os.Getenv("LOGLEVEL"), dir, seen, len(open))
	switch what {
	case "fail":
		fmt.Fprintln(os.Stderr, "it went wrong")
		os.Exit(1)
	case "die":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "hang":
		select {}
	}
	for range 3 { // files of earlier work that are open still would be closed now
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if _, err := io.Copy(out, in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "copied")
	runtime.KeepAlive(in)
}

// process is one that was started as buildah starts them.
type process struct {
	cmd           *exec.Cmd
	tell, says    *os.File // this test's ends of its standard input and output
	in, out       *os.File // and of the further descriptors
	stderr        bytes.Buffer
	pid           int // of the process that does the work
	stoodBy       bool
	logLevel, cwd string
	root, seen    string // the name of the one file in its root, and what it saw there
	open          int    // how many descriptors it has
}

// start starts a process and tells it what to do. It returns when one is at it.
func start(t *testing.T, what string, change ...func(*exec.Cmd)) *process {
	t.Helper()
	p := &process{}
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return r, w
	}
	theirTell, tell := pipe()
	says, theirSays := pipe()
	theirIn, in := pipe()
	out, theirOut := pipe()
	p.tell, p.says, p.in, p.out = tell, says, in, out
	p.cmd = exec.Command("/proc/self/exe")
	p.cmd.Args = []string{copier}
	p.cmd.Dir = "/"
	p.cmd.Env = append([]string{"LOGLEVEL=5"}, os.Environ()...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirTell, theirSays, &p.stderr
	p.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	for _, c := range change {
		c(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{theirTell, theirSays, theirIn, theirOut} {
		f.Close()
	}
	t.Cleanup(p.close)
	root := t.TempDir()
	p.root = filepath.Base(filepath.Dir(root)) + filepath.Base(root)
	if err := os.WriteFile(filepath.Join(root, p.root), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(tell, what, root)
	if _, err := fmt.Fscan(says, &p.pid, &p.stoodBy, &p.logLevel, &p.cwd, &p.seen, &p.open); err != nil {
		t.Fatalf("%s: %v: %s", what, err, p.stderr.String())
	}
	return p
}

func (p *process) close() {
	for _, f := range []*os.File{p.tell, p.says, p.in, p.out} {
		f.Close()
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// copies lets a process copy text, and checks that it does, and ends well.
func (p *process) copies(t *testing.T) {
	t.Helper()
	text := strings.Repeat("0123456789abcdef", 1<<14) // more than a pipe holds
	go func() {
		io.WriteString(p.in, text)
		p.in.Close()
	}()
	got, err := io.ReadAll(p.out)
	if err != nil || string(got) != text {
		t.Errorf("%d bytes were copied, %v; want %d", len(got), err, len(text))
	}
	if err := p.cmd.Wait(); err != nil || p.stderr.String() != "copied\n" {
		t.Errorf("it ended with %v and said %q", err, p.stderr.String())
	}
	if p.stoodBy == (p.pid == p.cmd.Process.Pid) {
		t.Errorf("the process %d was started, %d did the work, and says %t", p.cmd.Process.Pid, p.pid, p.stoodBy)
	}
	if p.logLevel != "5" || p.cwd != "/" || p.seen != p.root {
		t.Errorf("the level of the log is %s, the directory %s; in its root is %s, not %s", p.logLevel, p.cwd, p.seen, p.root)
	}
}

func pool(t *testing.T, n int) *Pool {
	t.Helper()
	p, err := Start(t.TempDir())
	for range n - 1 {
		if err == nil {
			err = p.Add()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("the process %d is still there", pid)
}

func TestWorkIsHandedOver(t *testing.T) {
	start(t, "copy").close() // what Go opens once and for all
	open := descriptors(t)
	p := pool(t, 1)
	var first *process
	for i := range 20 {
		c := start(t, "copy")
		c.copies(t)
		c.close()
		if i < 2 { // with the first, Go opens more once and for all
			first = c
		}
		if !c.stoodBy || c.pid != first.pid || c.open != first.open {
			t.Errorf("%d: stood by: %t; it is %d with %d descriptors, the first was %d with %d", i, c.stoodBy, c.pid, c.open, first.pid, first.open)
		}
	}
	if done := p.Close(); done != 20 {
		t.Errorf("%d pieces of work were done, want 20", done)
	}
	gone(t, first.pid)
	c := start(t, "copy")
	c.copies(t)
	c.close()
	if c.stoodBy {
		t.Error("something stands by after Close")
	}
	if left := descriptors(t); left != open {
		t.Errorf("%d descriptors were open, and %d are", open, left)
	}
	if left, err := os.ReadDir(filepath.Dir(p.path)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestManyAtOnce(t *testing.T) {
	p := pool(t, 2)
	var stoodBy atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				c := start(t, "copy")
				c.copies(t)
				if c.stoodBy {
					stoodBy.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if done := p.Close(); done != int(stoodBy.Load()) || done < 2 {
		t.Errorf("%d of 20 were done by those that stood by, who say it were %d", stoodBy.Load(), done)
	}
}

// Buildah copies from one root to another with two processes at once, of which one waits
// for the other.
func TestOneThatWaitsForAnother(t *testing.T) {
	pool(t, 1)
	first := start(t, "copy")
	second := start(t, "copy")
	if !first.stoodBy || second.stoodBy {
		t.Errorf("stood by: %t and %t", first.stoodBy, second.stoodBy)
	}
	second.copies(t)
	first.copies(t)
}

func TestNobodyStandsBy(t *testing.T) {
	dead := pool(t, 1)
	if err := dead.processes[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, dead.processes[0].Process.Pid)
	noSocket := filepath.Join(t.TempDir(), "x")
	for _, file := range []string{noSocket + "0", noSocket + "0.lock"} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for what, path := range map[string]string{
		"it has ended":     dead.path,
		"no such file":     filepath.Join(t.TempDir(), "none"),
		"no socket":        noSocket,
		"a long path":      filepath.Join(t.TempDir(), strings.Repeat("x", 200)),
		"a very long path": strings.Repeat("/x", 5000),
		"no path":          "",
	} {
		t.Run(what, func(t *testing.T) {
			t.Setenv(variable, path)
			c := start(t, "copy")
			c.copies(t)
			if c.stoodBy {
				t.Error("something stands by")
			}
		})
	}
}

func TestAPathThatIsTooLong(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	open := descriptors(t)
	if p, err := Start(dir); err == nil || p != nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("Start returned %v, %v", p, err)
	}
	if os.Getenv(variable) != "" || descriptors(t) != open {
		t.Error("something is left of it")
	}
}

func TestThoseThatStandByCrash(t *testing.T) {
	t.Setenv(crash, "1")
	p := pool(t, 2)
	if c := start(t, "copy"); c.stoodBy {
		t.Error("something stood by")
	} else {
		c.copies(t)
	}
	if done := p.Close(); done != 0 {
		t.Errorf("%d pieces of work were done", done)
	}
}

func TestWorkThatFails(t *testing.T) {
	p := pool(t, 2)
	c := start(t, "fail")
	if err := c.cmd.Wait(); err == nil || c.stderr.String() != "it went wrong\n" || !c.stoodBy {
		t.Errorf("it ended with %v and said %q", err, c.stderr.String())
	}
	c = start(t, "die")
	var exit *exec.ExitError
	if err := c.cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || !c.stoodBy {
		t.Errorf("it ended with %v", err)
	}
	if done := p.Close(); done != 0 {
		t.Errorf("%d pieces of work were done", done)
	}
}

func TestTheOneThatHandedOverIsKilled(t *testing.T) {
	p := pool(t, 1)
	c := start(t, "hang")
	if !c.stoodBy {
		t.Fatal("it does the work itself")
	}
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, c.pid)
	p.Close()
}

func TestAnotherUserGetsNothing(t *testing.T) {
	p := pool(t, 1)
	for _, dir := range []string{filepath.Dir(p.path), filepath.Dir(filepath.Dir(p.path))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{p.path + "0", p.path + "0.lock"} {
		if err := os.Chmod(file, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	c := start(t, "copy", func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
			AmbientCaps: []uintptr{unix.CAP_SYS_CHROOT},
		}
	})
	if c.stoodBy {
		t.Error("what stood by works for another user")
	}
	c.copies(t)
	if c := start(t, "copy"); !c.stoodBy {
		t.Error("nothing stands by any longer")
	} else {
		c.copies(t)
	}
}

// hold is a process that has others stand by: it writes their ids, and waits.
func hold() {
	p, err := Start(os.Args[1])
	if err == nil {
		err = p.Add()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children") // one for each thread
	for _, list := range lists {
		children, _ := os.ReadFile(list)
		fmt.Printf("%s ", children)
	}
	fmt.Println()
	select {}
}

func TestTheyEndWithTheOneThatStartedThem(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"holder", t.TempDir()}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	pids := strings.Fields(line)
	if err != nil || len(pids) != 2 {
		t.Errorf("it has the processes %v: %s, %v", pids, line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for _, pid := range pids {
		id, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		gone(t, id)
	}
}
