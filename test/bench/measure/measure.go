// Package measure runs a program and says what it took.
//
// The program is not started by the process that wants to know but by a small one
// of its own: the peak that the kernel accounts to a process begins with that of the
// process that started it (its memory is shared until the exec), and who measures is
// often larger than what is measured. The small process is the caller's own program
// again, so main (or TestMain) has to call Main first:
//
//	if code, ok := measure.Main(); ok {
//		os.Exit(code)
//	}
package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// variable is set in the environment of the small process.
	variable = "STRATA_BENCH_MEASURE"
	// costFD is where the small process writes what it measured.
	costFD = 3
)

// Cost is what one run of a program took, with all the processes that it started and
// waited for.
type Cost struct {
	Wall, CPU time.Duration
	// Peak is the peak resident memory of the largest process, in KiB (ru_maxrss).
	Peak int64
	// Floor is that of the process that measured, in KiB: no Peak is seen below it.
	Floor int64
	// Written is how many bytes of pages were made dirty in files, whether or not
	// they reached the disk before the file was removed (ru_oublock times 512).
	Written int64
}

// Run runs a command, which writes to out, and returns its cost. A command that
// fails has none.
func Run(out io.Writer, line ...string) (Cost, error) {
	var c Cost
	read, write, err := os.Pipe()
	if err != nil {
		return c, err
	}
	defer read.Close()
	cmd := exec.Command("/proc/self/exe", line...)
	cmd.Env = append(os.Environ(), variable+"=1")
	cmd.ExtraFiles = []*os.File{write}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	write.Close()
	if err != nil {
		return c, fmt.Errorf("%s: %w", strings.Join(line, " "), err)
	}
	return c, json.NewDecoder(read).Decode(&c)
}

// Main does the work of the small process, if this is one: it runs the command in
// the arguments and reports its cost. It returns the exit status, and whether this is
// one.
func Main() (code int, ok bool) {
	if os.Getenv(variable) == "" {
		return 0, false
	}
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1, true
	}
	return 0, true
}

func command() error {
	syscall.CloseOnExec(costFD)
	if err := os.Unsetenv(variable); err != nil {
		return err
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return err
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage) //nolint:forcetypeassert // it is on Linux
	c := Cost{
		Wall:    time.Since(start),
		CPU:     cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		Peak:    usage.Maxrss,
		Written: usage.Oublock * 512,
	}
	var err error
	if c.Floor, err = ownPeak(); err != nil {
		return err
	}
	return json.NewEncoder(os.NewFile(costFD, "cost")).Encode(c)
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
