package images

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryGroup is the control group whose memory limit this process is under, and
// with it the steps, which run in the same one.
type MemoryGroup struct {
	dir string
	// The names of its files: those of version 2 (cgroup-v2.rst, "Memory") or of
	// version 1 (cgroup-v1/memory.rst).
	events, limit, peak string
}

// OwnMemoryGroup finds the group; nil where there is none to be seen.
func OwnMemoryGroup() *MemoryGroup {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	return findMemoryGroup("/sys/fs/cgroup", data)
}

func findMemoryGroup(root string, cgroups []byte) *MemoryGroup {
	var found *MemoryGroup
	for lines := bufio.NewScanner(bytes.NewReader(cgroups)); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), ":", 3)
		if len(fields) != 3 {
			continue
		}
		g := MemoryGroup{events: "memory.events", limit: "memory.max", peak: "memory.peak"}
		top := root
		switch {
		case fields[1] == "memory":
			g = MemoryGroup{events: "memory.oom_control", limit: "memory.limit_in_bytes", peak: "memory.max_usage_in_bytes"}
			top = filepath.Join(root, "memory")
		case fields[0] != "0" || found != nil:
			continue
		}
		// In a container the group may be mounted as if it were the topmost.
		for _, dir := range []string{filepath.Join(top, fields[2]), top} {
			if _, err := os.Stat(filepath.Join(dir, g.events)); err == nil {
				g.dir = dir
				found = &g
				break
			}
		}
	}
	return found
}

// Kills is how many processes of the group the kernel has killed for memory.
func (g *MemoryGroup) Kills() int64 {
	if g == nil {
		return 0
	}
	data, err := os.ReadFile(filepath.Join(g.dir, g.events))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

// Describe says how much memory the group may have and had at most.
func (g *MemoryGroup) Describe() string {
	text := "limit " + g.mebibytes(g.limit)
	if peak := g.mebibytes(g.peak); peak != "unknown" {
		text += ", peak " + peak
	}
	return text
}

func (g *MemoryGroup) mebibytes(file string) string {
	data, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return "unknown"
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return "unknown" // "max"
	}
	return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
}
