package cluster

import (
	"context"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLifeOfACluster takes a second cluster up and down as people do: twice, with
// nothing up, and after runs that were killed.
func TestLifeOfACluster(t *testing.T) {
	const name = "strata-life"
	second := t.TempDir()
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command("./cluster", args...)
		cmd.Env = append(os.Environ(), "CLUSTER_DIR="+second, "CLUSTER_NAME="+name, "CLUSTER_NET=10.231")
		return cmd
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := command(args...).CombinedOutput()
		if err != nil {
			t.Fatalf("cluster %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	t.Cleanup(func() { run("down") })
	nothing := func() {
		t.Helper()
		if left := run("status"); left != "" {
			t.Errorf("processes are left:\n%s", left)
		}
		if _, err := net.InterfaceByName(name); err == nil {
			t.Error("the network interface is left")
		}
		err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, _ error) error {
			if d != nil && d.Name() == name {
				t.Errorf("%s is left", path)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(second, "kubeconfig")); err == nil {
			t.Error("the kubeconfig is left")
		}
	}

	run("down") // with nothing up
	nothing()

	killed := command("up")
	killed.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the node's first processes", func(context.Context) (bool, error) {
		return strings.Contains(run("status"), "kube-apiserver"), nil
	})
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
	run("up") // over what the killed one left

	first := run("exec", "cat", "/proc/1/stat")
	if out := run("up"); !strings.Contains(out, "is up already") {
		t.Errorf("the second up: %s", out)
	}
	if again := run("exec", "cat", "/proc/1/stat"); startOf(first) != startOf(again) {
		t.Error("the second up started the node anew")
	}

	// A component that is killed comes back.
	run("stop", "registry")
	if strings.Contains(run("status"), "registry -listen") {
		t.Error("the registry runs after it was stopped")
	}
	run("start", "registry")
	await(t, "the registry is back", func(context.Context) (bool, error) {
		return strings.Contains(run("status"), "registry -listen"), nil
	})

	// `down` does not need what `up` wrote.
	if err := os.RemoveAll(filepath.Join(second, "state")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	run("down")
	t.Logf("down took %v", time.Since(began).Round(100*time.Millisecond))
	nothing()
}

// startOf returns when a process started, from its /proc/PID/stat.
func startOf(stat string) string {
	_, fields, _ := strings.Cut(stat, ") ")
	return strings.Fields(fields)[19]
}
