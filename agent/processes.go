package agent

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reapOrphans reaps children of this process that have ended, other than the one
// with the pid except, whose end somebody else waits for.
func reapOrphans(except int) {
	if !hasChildren() {
		return
	}
	for _, pid := range children(os.Getpid()) {
		if pid != except {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// killDescendants kills every process that descends from this one, except the one
// with the pid except, and waits, for a moment, until they have ended.
func killDescendants(except int) {
	for range 20 {
		if !hasChildren() { // whose own would be this one's by now
			return
		}
		pids := descendants(os.Getpid())
		alive := false
		for _, pid := range pids {
			if pid == except {
				continue
			}
			if unix.Kill(pid, syscall.SIGKILL) == nil && !zombie(pid) {
				alive = true
			}
		}
		if !alive {
			return
		}
		wait := time.NewTimer(10 * time.Millisecond)
		<-wait.C
	}
}

func descendants(pid int) []int {
	var all []int
	for _, child := range children(pid) {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// hasChildren tells whether this process has any, dead ones included. It asks once, where
// children looks at every process there is.
func hasChildren() bool {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return !errors.Is(err, unix.ECHILD)
		}
	}
}

// children lists the processes whose parent is pid.
func children(pid int) []int {
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if _, parent, ok := processStat(child); ok && parent == pid {
			pids = append(pids, child)
		}
	}
	return pids
}

func zombie(pid int) bool {
	state, _, ok := processStat(pid)
	return !ok || state == 'Z'
}

// processStat reads the state and the parent from /proc/PID/stat (proc(5)),
// behind the name of the command, which may itself hold parentheses.
func processStat(pid int) (state byte, parent int, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, false
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) < 2 || len(fields[0]) == 0 {
		return 0, 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return fields[0][0], parent, err == nil
}
