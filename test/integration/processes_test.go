package integration

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// children lists the processes whose parent is pid, also those that have ended and
// were not waited for.
func children(t *testing.T, pid int) (found []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if fields := stat(e.Name()); err == nil && len(fields) > 1 && fields[1] == itoa(pid) {
			found = append(found, child)
		}
	}
	return found
}

// state is the letter of the state of a process, empty when there is none.
func state(pid int) string {
	if fields := stat(itoa(pid)); len(fields) > 0 {
		return fields[0]
	}
	return ""
}

// stat reads the fields of /proc/PID/stat behind the name of the command: the state,
// the parent, and so on.
func stat(pid string) []string {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
}
