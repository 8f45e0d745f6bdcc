package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// controlGroups writes the files of control groups below a directory and returns it.
func controlGroups(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		write(t, filepath.Join(root, path), text)
	}
	return root
}

func TestMemoryGroup(t *testing.T) {
	for _, s := range []struct {
		name    string
		cgroups string // as in /proc/self/cgroup
		files   map[string]string
		// dir is below the root, empty for no group.
		dir      string
		kills    int64
		limit    int64
		describe string
	}{
		{
			"version 2", "0::/kubepods/pod1/c1\n",
			map[string]string{
				"kubepods/pod1/c1/memory.events": "low 0\nhigh 0\nmax 57\noom 2\noom_kill 3\noom_group_kill 0\n",
				"kubepods/pod1/c1/memory.max":    "536870912\n", "kubepods/pod1/c1/memory.peak": "536862720\n",
				"kubepods/pod1/memory.max": "max\n", "kubepods/memory.max": "8589934592\n",
			},
			"kubepods/pod1/c1", 3, 512 << 20, "limit 512 MiB, peak 512 MiB",
		},
		{
			"version 2 in a container", "0::/\n",
			map[string]string{"memory.events": "oom_kill 1\n", "memory.max": "134217728\n", "memory.peak": "100663296\n"},
			"", 1, 128 << 20, "limit 128 MiB, peak 96 MiB",
		},
		{
			"version 2 whose path is that of the machine", "0::/kubepods/pod1/c1\n",
			map[string]string{"memory.events": "oom_kill 0\n", "memory.max": "134217728\n"},
			"", 0, 128 << 20, "limit 128 MiB",
		},
		{
			"version 2 with the limit of a group above", "0::/user.slice/build.scope\n",
			map[string]string{
				"user.slice/build.scope/memory.events": "oom_kill 4\n", "user.slice/build.scope/memory.max": "max\n",
				"user.slice/build.scope/memory.peak": "1048576\n", "user.slice/memory.max": "67108864\n",
			},
			"user.slice/build.scope", 4, 64 << 20, "limit 64 MiB, peak 1 MiB",
		},
		{
			"version 1", "9:name=systemd:/x\n4:memory:/docker/abc\n0::/\n",
			map[string]string{
				"memory/docker/abc/memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
				"memory/docker/abc/memory.limit_in_bytes": "268435456\n", "memory/docker/abc/memory.max_usage_in_bytes": "268435456\n",
				"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory.max": "1\n", "memory.events": "oom_kill 9\n",
			},
			"memory/docker/abc", 5, 256 << 20, "limit 256 MiB, peak 256 MiB",
		},
		{
			"version 1 without a limit", "4:memory:/docker/abc\n",
			map[string]string{
				"memory/memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
				"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.max_usage_in_bytes": "1048576\n",
			},
			"memory", 0, 0, "limit unknown, peak 1 MiB",
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			root := controlGroups(t, s.files)
			g := findMemoryGroup(root, []byte(s.cgroups))
			if g == nil || g.dir != filepath.Join(root, s.dir) {
				t.Fatalf("the group is %+v, want %s", g, s.dir)
			}
			if g.Kills() != s.kills || g.Limit() != s.limit || g.Describe() != s.describe {
				t.Errorf("%d kills, limit %d, %q; want %d, %d, %q", g.Kills(), g.Limit(), g.Describe(), s.kills, s.limit, s.describe)
			}
		})
	}
}

func TestNoMemoryGroup(t *testing.T) {
	for _, cgroups := range []string{"", "nonsense\n", "0::/x\n", "4:memory:/x\n", "5:cpu:/x\n"} {
		g := findMemoryGroup(t.TempDir(), []byte(cgroups))
		if g != nil || g.Kills() != 0 || g.Limit() != 0 {
			t.Errorf("%q: %+v", cgroups, g)
		}
	}
}

// TestOwnMemoryGroup reads what the kernel of this machine says.
func TestOwnMemoryGroup(t *testing.T) {
	g := OwnMemoryGroup()
	if g == nil {
		t.Fatal("there is no group: this machine has no memory controller, or it is not mounted at /sys/fs/cgroup")
	}
	if _, err := os.Stat(filepath.Join(g.dir, g.limit)); err != nil && g.dir != g.top {
		t.Error(err)
	}
	if !strings.HasPrefix(g.Describe(), "limit ") {
		t.Errorf("it describes itself as %q", g.Describe())
	}
}

func TestMemoryBounds(t *testing.T) {
	for limit, want := range map[int64]struct {
		heap    int64
		threads int
	}{16 << 20: {8 << 20, 1}, 128 << 20: {64 << 20, 2}, 1 << 30: {512 << 20, 21}} {
		if heap, threads := memoryBounds(limit); heap != want.heap || threads != want.threads {
			t.Errorf("limit %d: heap %d, %d threads; want %+v", limit, heap, threads, want)
		}
	}
}
