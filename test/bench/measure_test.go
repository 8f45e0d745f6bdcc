package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A program is not started by the process of the benchmark but by a small one of
// its own: the peak that the kernel accounts to a process begins with that of the
// process that started it (its memory is shared until the exec), and the benchmark
// is larger than what it measures.
const (
	measureVariable = "STRATA_BENCH_MEASURE"
	// measureFD is where the small process writes what it measured.
	measureFD = 3
)

func TestMain(m *testing.M) {
	if os.Getenv(measureVariable) != "" {
		os.Exit(measureCommand())
	}
	os.Exit(m.Run())
}

// cost is what one run of a program took.
type cost struct {
	Wall, CPU time.Duration
	// Peak is the peak resident memory of the largest process, in KiB.
	Peak int64
	// Floor is that of the process that measured, in KiB: no Peak is seen below it.
	Floor int64
}

// measure runs a command and returns its cost, and what it wrote where it fails.
func measure(line ...string) (cost, error) {
	var c cost
	read, write, err := os.Pipe()
	if err != nil {
		return c, err
	}
	defer read.Close()
	cmd := exec.Command("/proc/self/exe", line...)
	cmd.Env = append(os.Environ(), measureVariable+"=1")
	cmd.ExtraFiles = []*os.File{write}
	out, err := cmd.CombinedOutput()
	write.Close()
	if err != nil {
		return c, fmt.Errorf("%s: %w\n%s", strings.Join(line, " "), err, out)
	}
	return c, json.NewDecoder(read).Decode(&c)
}

// measureCommand is the small process: it runs the command in its arguments, reports
// its cost, and returns the exit status.
func measureCommand() int {
	syscall.CloseOnExec(measureFD)
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, measureVariable+"=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	err := cmd.Run()
	c := cost{Wall: time.Since(start)}
	if err == nil {
		c.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		c.Peak = cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss //nolint:forcetypeassert // it is on Linux
		c.Floor, err = ownPeak()
	}
	if err == nil {
		err = json.NewEncoder(os.NewFile(measureFD, "cost")).Encode(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// ownPeak is the peak resident memory of this process since its exec, in KiB; what
// getrusage says includes that of the process that started it.
func ownPeak() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(status), "\nVmHWM:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	return strconv.ParseInt(number, 10, 64)
}

func TestThePeakIsThatOfTheProgram(t *testing.T) {
	own, err := ownPeak()
	if err != nil {
		t.Fatal(err)
	}
	size := 2 * own
	ballast := make([]byte, size<<10) // makes this process larger than both programs
	for i := 0; i < len(ballast); i += os.Getpagesize() {
		ballast[i] = 1
	}
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, ballast, 0o600); err != nil {
		t.Fatal(err)
	}
	small, err := measure("true")
	if err != nil {
		t.Fatal(err)
	}
	// dd holds one block.
	large, err := measure("dd", "if="+file, "of=/dev/null", "bs="+strconv.FormatInt(size, 10)+"K")
	if err != nil {
		t.Fatal(err)
	}
	if small.Peak >= size || large.Peak < size || large.Peak > size+size/2 {
		t.Errorf("peaks of %d and %d KiB beside a process of more than %d KiB, want that of a small program and about %d", small.Peak, large.Peak, own+size, size)
	}
	if small.Floor >= own+size {
		t.Errorf("no peak below %d KiB is seen", small.Floor)
	}
}

func TestACommandThatFailsHasNoCost(t *testing.T) {
	if _, err := measure("sh", "-c", "echo why; exit 3"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("error %v, want one with what the command wrote", err)
	}
}
