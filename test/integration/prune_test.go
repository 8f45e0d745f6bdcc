package integration

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// prune runs `agent prune` on the store of the lab.
func (l *lab) prune(args ...string) (code int, stdout, stderr string) {
	l.t.Helper()
	cmd := exec.Command(agentBinary, append([]string{"prune", "--storage-root", l.store}, args...)...)
	cmd.Env = l.env
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func (l *lab) wantPruned(args ...string) (ids []string) {
	l.t.Helper()
	code, stdout, stderr := l.prune(args...)
	if code != 0 || !strings.Contains(stderr, "of no image") {
		l.t.Fatalf("prune %v: exit %d: %s", args, code, stderr)
	}
	return strings.Fields(stdout)
}

// layerBytes is how much the layers of the store hold.
func (l *lab) layerBytes() (total int64) {
	l.t.Helper()
	err := filepath.WalkDir(filepath.Join(l.store, "overlay"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return total
}

// TestBuildsOneAfterTheOther replaces an image again and again: prune takes what was
// replaced, and the store is as large as after the first.
func TestBuildsOneAfterTheOther(t *testing.T) {
	const size = 4 << 20
	l := newLab(t).withBusy()
	l.mkdir("counter")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x >> /counter/runs", "COPY data /data", "RUN wc -c < /data > /count")
	build := func(content string) outcome {
		t.Helper()
		l.file("context/data", strings.Repeat(content, size))
		o := l.build("--tag", "localhost/again", "--volume", filepath.Join(l.dir, "counter")+":/counter")
		o.wantSuccess(t)
		return o
	}
	build("0")
	if ids := l.wantPruned(); len(ids) != 0 {
		t.Errorf("after one build %v are removed: the next one has to run their steps again", ids)
	}
	first := l.layerBytes()
	for _, content := range []string{"1", "2", "3"} {
		build(content)
	}
	last := strings.TrimSpace(build("4").stdout)
	if grown := l.layerBytes(); grown < first+4*size {
		t.Errorf("%d bytes after the first build, %d after the fifth: what was replaced is not there, which a build with its content would use", first, grown)
	}
	removed := l.wantPruned()
	if slices.Contains(removed, last) || len(removed) < 4 {
		t.Errorf("%v were removed", removed)
	}
	if now := l.layerBytes(); now > first+size/2 || now < first-size/2 {
		t.Errorf("%d bytes in layers after the first build, %d after five and a prune", first, now)
	}
	l.checkStore()
	if o := build("4"); strings.TrimSpace(o.stdout) != last || strings.Count(o.stderr, "--> Using cache") != 3 {
		t.Error("the last build was not there any more")
	}
	if runs := l.lines(filepath.Join(l.dir, "counter/runs")); len(runs) != 1 {
		t.Errorf("the step before what changed ran %d times", len(runs))
	}
	l.wantPruned("--all")
	if left := append(l.list("images"), l.list("layers")...); len(left) != 0 {
		t.Errorf("%v are left of all", left)
	}
	build("5")
}

// TestPruneWhileABuildWorks: what the build may be about to use is left alone.
func TestPruneWhileABuildWorks(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x > /counter/runs; while ! test -e /counter/go; do sleep 0.1; done", "RUN echo y > /y")
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter")
	waitFor(t, func() bool { return len(l.lines(filepath.Join(l.dir, "counter/runs"))) > 0 })
	code, stdout, stderr := l.prune("--all")
	if code != int(result.ExitSandbox) || stdout != "" || !strings.Contains(stderr, "another build works in the store "+l.store) || !strings.Contains(stderr, "--force") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
	// Even then, what a container uses stays.
	l.wantPruned("--all", "--force")
	l.file("counter/go", "")
	done(cmd.Wait()).wantSuccess(t)
	l.checkStore()
}

// TestPruneRepairs: layers and files that are not whole any more.
func TestPruneRepairs(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo x > /x")
	l.build("--tag", "localhost/kept").wantSuccess(t)
	kept := l.list("images")
	l.containerfile("FROM scratch", "COPY Containerfile /")
	o := l.build("--tag", "localhost/damaged")
	o.wantSuccess(t)
	damaged := strings.TrimSpace(o.stdout)
	if err := os.Remove(filepath.Join(l.store, "overlay-images", damaged, "manifest")); err != nil {
		t.Fatal(err)
	}
	if ids := l.wantPruned(); len(ids) != 1 || ids[0] != damaged {
		t.Errorf("%v were removed, want %s", ids, damaged)
	}
	if now := l.list("images"); !slices.Equal(now, kept) {
		t.Errorf("the images are %v, want %v", now, kept)
	}
	l.checkStore()
}

func TestPruneRefusesWhatItDoesNotKnow(t *testing.T) {
	l := newLab(t)
	for _, args := range [][]string{{"--log-level", "loud"}, {"--log-format", "xml"}, {"--keep"}, {"argument"}} {
		if code, _, stderr := l.prune(args...); code != int(result.ExitSettings) || !strings.Contains(stderr, strings.TrimLeft(args[len(args)-1], "-")) {
			t.Errorf("%v: exit %d, %q", args, code, stderr)
		}
	}
	if _, err := os.Stat(l.store); err == nil {
		t.Error("a store was made")
	}
}
