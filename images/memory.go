package images

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// MemoryGroup is the control group whose memory limit this process is under, and
// with it the steps, which run in the same one.
type MemoryGroup struct {
	// dir is its directory, top that of the topmost group that can be seen.
	dir, top string
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
				g.dir, g.top = dir, top
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
	text := "limit unknown"
	if limit := g.Limit(); limit > 0 {
		text = "limit " + mebibytes(limit)
	}
	if peak, ok := readBytes(filepath.Join(g.dir, g.peak)); ok { // Linux 5.19 or later, in version 2
		text += ", peak " + mebibytes(peak)
	}
	return text
}

// Limit is how many bytes of memory the group may have, by a limit of its own or of a
// group that it is in; 0 for no limit that can be seen.
func (g *MemoryGroup) Limit() (bytes int64) {
	if g == nil {
		return 0
	}
	for dir := g.dir; strings.HasPrefix(dir, g.top); dir = filepath.Dir(dir) {
		if limit, ok := readBytes(filepath.Join(dir, g.limit)); ok && limit < unlimited && (bytes == 0 || limit < bytes) {
			bytes = limit
		}
	}
	return bytes
}

// unlimited is more than any machine has; version 1 writes the largest number of
// whole pages for no limit, version 2 the word max.
const unlimited = 1 << 60

func readBytes(path string) (int64, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n, err == nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }

// threadMemory is how much a thread more needs when layers are compressed: six
// layers at once (containers/image, copy.go, maxParallelDownloads), for each of which
// pgzip keeps as many blocks of 1 MiB as there are threads, in and out.
const threadMemory = 6 * 2 << 20

// BoundMemory makes this process take no more than half of the memory that its group
// may have, and leave the rest to the steps: the collector of garbage works harder
// before that, and no more threads compress than there is memory for. What GOMEMLIMIT
// and GOMAXPROCS say counts more. CPU limits are the runtime's business: since Go
// 1.25 it has as many threads as the group has CPUs.
func BoundMemory() {
	limit := OwnMemoryGroup().Limit()
	if limit == 0 {
		return
	}
	heap, threads := memoryBounds(limit)
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heap)
	}
	if os.Getenv("GOMAXPROCS") == "" && threads < runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(threads)
	}
}

// memoryBounds are the bytes that this process may have and the threads for which
// half of these are enough.
func memoryBounds(limit int64) (heap int64, threads int) {
	heap = limit / 2
	return heap, max(1, int(heap/2/threadMemory))
}

// stepScore is by how much likelier the kernel kills a step than the agent where
// memory runs out, in thousandths of the memory that there is (proc_pid_oom_score_adj(5)).
// An agent that lives can say what happened, and clean up.
const stepScore = 500

// offerToOOMKiller makes this process, and those it starts, likelier to be killed.
func offerToOOMKiller() {
	const file = "/proc/self/oom_score_adj"
	if score, ok := readBytes(file); ok {
		_ = os.WriteFile(file, strconv.AppendInt(nil, min(score+stepScore, 1000), 10), 0)
	}
}
