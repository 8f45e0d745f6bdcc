package integration

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// storageTool is the command line of containers/storage, of the version that the
// agent embeds: what it says of a store is the word of those who define it.
var storageTool = sync.OnceValues(func() (string, error) {
	path := filepath.Join(os.TempDir(), "strata-containers-storage")
	out, err := exec.Command("go", "build", "-o", path, "go.podman.io/storage/cmd/containers-storage").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// storage runs the tool on the store of the lab and returns what it prints.
func (l *lab) storage(args ...string) (string, error) {
	l.t.Helper()
	tool, err := storageTool()
	if err != nil {
		l.t.Fatalf("building the command line of containers/storage: %v", err)
	}
	// It leaves a mount behind.
	line := []string{"--mount", tool, args[0], "--graph", l.store, "--run", filepath.Join(l.store, "run"), "--storage-driver", "overlay"}
	cmd := exec.Command("unshare", append(line, args[1:]...)...)
	cmd.Env = append(l.env, "CONTAINERS_STORAGE_CONF=/dev/null")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// list lists the IDs of the images, layers or containers in the store.
func (l *lab) list(kind string) (ids []string) {
	l.t.Helper()
	out, err := l.storage(kind, "--json")
	if err != nil {
		l.t.Fatalf("listing %s: %v: %s", kind, err, out)
	}
	var all []struct{ ID string }
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		l.t.Fatalf("%v: %s", err, out)
	}
	for _, one := range all {
		ids = append(ids, one.ID)
	}
	return ids
}

// checkStore checks that the store is whole and holds nothing but images: no layer
// that none of them has, no container, no temporary file, no mount.
func (l *lab) checkStore() {
	l.t.Helper()
	if out, err := l.storage("check", "--max", "1ns"); err != nil || strings.TrimSpace(out) != "" {
		l.t.Errorf("the check of the store: %v\n%s", err, out)
	}
	if left := l.list("containers"); len(left) != 0 {
		l.t.Errorf("containers are left: %v", left)
	}
	for _, dir := range []string{"tmp", "overlay-containers", "overlay/tempdirs", "overlay/staging", "overlay-layers/tmp", "run/overlay-containers"} {
		entries, err := os.ReadDir(filepath.Join(l.store, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			l.t.Error(err)
		}
		for _, e := range entries {
			if !e.IsDir() || strings.HasPrefix(e.Name(), "buildah-cache-") { // of RUN --mount=type=cache, which is to stay
				continue
			}
			l.t.Errorf("%s/%s is left", dir, e.Name())
		}
	}
	for what, pattern := range map[string]string{"ledgers": "strata/strata-*", "layers that were kept": "strata/blobs/*"} {
		if left, _ := filepath.Glob(filepath.Join(l.store, pattern)); len(left) != 0 {
			l.t.Errorf("%s are left: %v", what, left)
		}
	}
	var mounts []struct{ ID string }
	data, err := os.ReadFile(filepath.Join(l.store, "run/overlay-layers/mountpoints.json"))
	if err == nil {
		err = json.Unmarshal(data, &mounts)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(mounts) != 0 {
		l.t.Errorf("layers count as mounted: %v (%v)", mounts, err)
	}
	for line := range strings.Lines(readText(l.t, "/proc/self/mountinfo")) {
		if strings.Contains(line, l.store+"/") {
			l.t.Errorf("a mount is left: %s", line)
		}
	}
}

// newBase puts an image of several layers into the registry that no store has, and
// returns its name there.
func (l *lab) newBase(random *rand.Rand) string {
	l.t.Helper()
	name := "base/new:" + itoa(random.IntN(1<<30))
	img := bases.Busy(l.t)
	for i := range 3 {
		data := make([]byte, 1<<20)
		rand.NewChaCha8([32]byte{byte(random.Uint32()), byte(random.Uint32()), byte(i)}).Read(data)
		img = bases.Append(l.t, img, bases.Regular("/data"+itoa(i), 0o644, data))
	}
	l.addBase(name, img)
	return name
}

// TestKilledAtAnyMoment kills the agent, with SIGKILL, again and again at moments
// that nobody chose. The next build needs no help, and what is in the store after it
// is what it would be if nothing had happened.
func TestKilledAtAnyMoment(t *testing.T) {
	const rounds = 40
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)

	l := newLab(t).withBusy()
	g := newControlGroup(t)
	l.wrap = g.wrap()
	l.tmpfs("store", "size=4g") // a disk that others write to has its own times
	l.file("context/a", strings.Repeat("a", 1<<20))
	prepare := func() { // each round needs a base that the store does not have
		name := l.newBase(random)
		l.containerfile("FROM HOST/"+name+" AS one", "COPY a /a", "RUN head -c 4000000 /dev/urandom > /random",
			"FROM HOST/base/busy:1", "RUN --mount=type=tmpfs,target=/t --mount=type=cache,target=/c echo > /c/x", "COPY --from=one /random /random")
	}
	to := registry.Start(t) // another one, so that layers are kept on their way
	args := []string{"--tag", to.Host() + "/os/killed:1", "--push"}
	prepare()
	l.build(args...).wantSuccess(t)
	l.checkStore()
	prepare()
	whole := l.build(args...) // no longer than the builds that follow
	whole.wantSuccess(t)

	kill := map[string]func(pid int){
		"supervisor": func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) },
		"worker": func(pid int) {
			for _, child := range children(t, pid) {
				_ = syscall.Kill(child, syscall.SIGKILL)
			}
		},
		"everything": func(int) {
			for _, process := range g.processes() {
				pid, _, _ := strings.Cut(process, " ")
				_ = syscall.Kill(atoi(t, pid), syscall.SIGKILL)
			}
		},
	}
	victims := []string{"supervisor", "worker", "everything"}
	finished := 0
	for round := range rounds {
		prepare()
		victim := victims[round%len(victims)]
		moment := time.Duration(random.Int64N(int64(whole.took)))
		cmd, _ := l.start(args...)
		<-time.After(moment)
		kill[victim](cmd.Process.Pid)
		if cmd.Wait() == nil {
			finished++
		}
		waitFor(t, func() bool { return len(g.processes()) == 0 })
		if t.Failed() {
			t.Fatalf("round %d: the %s was killed after %v", round, victim, moment)
		}
	}
	t.Logf("%d of %d builds were done when they were to be killed", finished, rounds)
	if finished > rounds/2 {
		t.Errorf("%d of %d builds were done before: most were to be killed", finished, rounds)
	}
	l.registry.Reset()
	o := l.build(args...)
	o.wantSuccess(t)
	for _, phase := range []result.Phase{result.Pull, result.Build, result.Push} {
		o.wantAttempts(t, phase, 1)
	}
	bases.Check(t, bases.Pull(t, to.Host(), "os/killed:1"))
	l.checkStore()
}

// TestE10BuildsAtOnce builds several times at once in one store, on the same base.
func TestE10BuildsAtOnce(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	l := newLab(t).withBusy()
	l.tmpfs("store", "size=4g")
	labs := []*lab{l.beside("one"), l.beside("two"), l.beside("three")}
	// build starts the builds on a base that the store does not have.
	var base string
	build := func(t *testing.T, labs []*lab, round int) (cmds []*exec.Cmd, dones []func(error) outcome) {
		t.Helper()
		name := l.newBase(random)
		base = name
		for i, b := range labs {
			b.containerfile("FROM HOST/"+name, "RUN echo "+itoa(i)+" > /who; cat /data* | md5sum > /sum", "COPY Containerfile /", "RUN cat /who")
			cmd, done := b.start("--tag", l.image("os/at-once-"+itoa(i)+":"+itoa(round)), "--push")
			cmds, dones = append(cmds, cmd), append(dones, done)
		}
		return cmds, dones
	}
	check := func(t *testing.T, o outcome, i, round int) {
		t.Helper()
		o.wantSuccess(t)
		for _, phase := range []result.Phase{result.Pull, result.Build, result.Push} {
			o.wantAttempts(t, phase, 1)
		}
		img := bases.Pull(t, l.registry.Host(), "os/at-once-"+itoa(i)+":"+itoa(round))
		if data, _ := bases.File(t, img, "/who"); string(data) != itoa(i)+"\n" {
			t.Errorf("build %d made an image with %q", i, data)
		}
	}
	t.Run("two", func(t *testing.T) {
		for round := range 10 {
			cmds, dones := build(t, labs[:2], round)
			for i, done := range dones {
				check(t, done(cmds[i].Wait()), i, round)
			}
			for _, layer := range bases.LayerDigests(t, bases.Pull(t, l.registry.Host(), base))[1:] { // all but that of busybox
				if n := l.registry.Count(http.MethodGet, "base/new/blobs/"+layer); n != 1 {
					t.Errorf("a layer of the base was fetched %d times, want once", n)
				}
			}
		}
		l.checkStore()
	})
	t.Run("three, of which one is killed", func(t *testing.T) {
		for round := 10; round < 15; round++ {
			cmds, dones := build(t, labs, round)
			<-time.After(time.Duration(random.Int64N(int64(time.Second))))
			_ = cmds[2].Process.Kill()
			for i, done := range dones[:2] {
				check(t, done(cmds[i].Wait()), i, round)
			}
			_ = cmds[2].Wait()
			// Its worker ends with it, but not at once.
			waitFor(t, func() bool { return len(processesWith(t, labs[2].dir, "")) == 0 })
		}
		labs[0].build("--no-cache").wantSuccess(t)
		l.checkStore()
	})
}
