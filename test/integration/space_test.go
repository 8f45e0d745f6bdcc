package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// many returns an image with so many empty files.
func many(t *testing.T, files int) (entries []bases.Entry) {
	t.Helper()
	for i := range files {
		entries = append(entries, bases.Regular("/many/"+itoa(i), 0o644, nil))
	}
	return entries
}

// TestNoSpace: wherever a filesystem runs full, the result says which one, how large
// it is and how full.
func TestNoSpace(t *testing.T) {
	busy := func(steps ...string) []string { return append([]string{"FROM HOST/base/busy:1"}, steps...) }
	for name, tt := range map[string]struct {
		containerfile []string
		// store and tmp are options of the filesystems that hold these.
		store, tmp string
		phase      result.Phase
		status     int // of the RUN that failed
		texts      []string
		args       []string
	}{
		"pull": {
			containerfile: []string{"FROM HOST/base/big:1"}, store: "size=24m", phase: result.Pull,
			texts: []string{"base/big:1", "STORE has ", "of 24 MiB used"},
		},
		"pull out of inodes": {
			containerfile: []string{"FROM HOST/base/many:1"}, store: "size=100m,nr_inodes=1500", phase: result.Pull,
			texts: []string{"base/many:1", "STORE has ", "of 1500 inodes used", "MiB of 100 MiB used"},
		},
		"temporary files of a pull": {
			// With overlay, a base image needs none.
			containerfile: []string{"FROM HOST/base/big:1"}, tmp: "size=8m", phase: result.Pull, args: []string{"--storage-driver", "vfs"},
			texts: []string{"TMP has ", "of 8.0 MiB used"},
		},
		"step": {
			containerfile: busy("RUN head -c 100000000 /dev/zero > /large"), store: "size=48m", phase: result.Build, status: 1,
			texts: []string{"line 2", "exited 1", "STORE has 48 MiB of 48 MiB used"},
		},
		"step that keeps it to itself": {
			containerfile: busy("RUN cat /dev/zero > /large 2> /dev/null; exit 7"), store: "size=48m", phase: result.Build, status: 7,
			texts: []string{"exited 7", "STORE has 48 MiB of 48 MiB used"},
		},
		"step that cleans up before it fails": {
			containerfile: busy("RUN cat /dev/zero > /large; sleep 2; rm /large; exit 8"), store: "size=48m", phase: result.Build, status: 8,
			texts: []string{"No space left on device", "STORE has 48 MiB of 48 MiB used"},
		},
		"step out of inodes": {
			containerfile: busy("RUN i=0; while touch /f$i; do i=$((i+1)); done; exit 9"), store: "size=48m,nr_inodes=2500", phase: result.Build, status: 9,
			texts: []string{"STORE has 2500 of 2500 inodes used", "MiB of 48 MiB used"},
		},
		"commit": {
			containerfile: busy("RUN head -c 40000000 /dev/urandom > /large"), store: "size=64m", phase: result.Build,
			texts: []string{"line 2", "STORE has ", "of 64 MiB used"},
		},
		"copy": {
			containerfile: busy("COPY large /"), store: "size=16m", phase: result.Build,
			texts: []string{"line 2", "STORE has ", "of 16 MiB used"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.addBase("base/big:1", bases.Big(t))
			l.addBase("base/many:1", bases.Append(t, bases.Busy(t), many(t, 3000)...))
			l.containerfile(tt.containerfile...)
			if strings.HasPrefix(name, "copy") {
				l.file("context/large", strings.Repeat("x", 32<<20))
			}
			store, tmp := filepath.Join(l.dir, "store"), filepath.Join(l.dir, "temporary")
			if tt.store != "" {
				l.tmpfs("store", tt.store)
			}
			if tt.tmp != "" {
				l.tmpfs("temporary", tt.tmp)
				l.env = append(l.env, "TMPDIR="+tmp)
			}
			o := l.build(append(tt.args, "--retry-on", "transient")...)
			for i := range tt.texts {
				tt.texts[i] = strings.NewReplacer("STORE", store, "TMP", tmp).Replace(tt.texts[i])
			}
			o.wantFailure(t, result.ReasonNoSpace, tt.texts...)
			if o.result.Phase != tt.phase || o.result.RunExitCode != tt.status {
				t.Errorf("phase %s, the step exited %d; want %s, %d", o.result.Phase, o.result.RunExitCode, tt.phase, tt.status)
			}
			o.wantAttempts(t, tt.phase, 1)
			// What it took is free again, and with more room it goes on in the same store.
			if tt.phase == result.Build {
				l.containerfile(busy("RUN echo x > /y")...)
				l.build().wantSuccess(t)
				l.checkStore()
			}
			if tt.store != "" {
				if err := syscall.Mount("tmpfs", store, "tmpfs", syscall.MS_REMOUNT, "size=400m,nr_inodes=100k"); err != nil {
					t.Fatal(err)
				}
				l.containerfile("FROM HOST/base/big:1", "RUN echo x > /y")
				l.build().wantSuccess(t)
				l.checkStore()
			}
		})
	}
}

func TestNoSpaceForTheStoreItself(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1")
	store := l.tmpfs("store", "size=64k")
	if err := os.WriteFile(filepath.Join(store, "other"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	o := l.build()
	o.wantFailure(t, result.ReasonNoSpace, "the store "+store, "is full, 0 B of 64 KiB are free")
	if o.result.Phase != result.Prepare || len(l.registry.Requests()) != 0 {
		t.Errorf("it ended in %s after %d requests", o.result.Phase, len(l.registry.Requests()))
	}
}

func TestNoSpaceForTheFileOfTheID(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1")
	full := l.tmpfs("full", "size=4k")
	if err := os.WriteFile(filepath.Join(full, "other"), make([]byte, 4<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	o := l.build("--iidfile", filepath.Join(full, "iid"))
	if o.code != int(result.ExitResource) || o.result.Reason != result.ReasonNoSpace ||
		!strings.Contains(o.result.Message, "--iidfile") || !strings.Contains(o.result.Message, full+" has 4.0 KiB of 4.0 KiB used") {
		t.Errorf("exit %d, %+v", o.code, o.result)
	}
}

// TestStepThatOnlySpeaksOfSpace has a disk with room.
func TestStepThatOnlySpeaksOfSpace(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN echo No space left on device >&2; exit 5")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonStepFailed, "exited 5", "No space left on device")
}

// TestLittleSpace: what a build in a pod finds out before its node evicts it.
func TestLittleSpace(t *testing.T) {
	l := newLab(t).withBusy()
	l.mkdir("counter")
	store := l.tmpfs("store", "size=64m")
	l.env = append(l.env, "KUBERNETES_SERVICE_HOST=192.0.2.1")
	l.containerfile("FROM HOST/base/busy:1", "RUN head -c 62000000 /dev/zero > /large; echo x > /counter/runs; sleep 72")
	cmd, done := l.start("--volume", filepath.Join(l.dir, "counter")+":/counter")
	waitFor(t, func() bool { return strings.Contains(readText(t, l.stderr), "Warning: Little space is left") })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	o := done(cmd.Wait())
	if o.code != 143 || o.result.Reason != result.ReasonInterrupted || !strings.Contains(o.result.Message, "little space was left: "+store+" has ") {
		t.Errorf("exit %d, %+v", o.code, o.result)
	}
}

// TestForecast warns of a base that will not fit, with numbers, before a layer is
// fetched.
func TestForecast(t *testing.T) {
	l := newLab(t)
	l.addBase("base/big:1", bases.Big(t))
	l.containerfile("FROM HOST/base/big:1")
	store := l.tmpfs("store", "size=120m")
	o := l.build()
	o.wantSuccess(t) // what is random grows less than most layers
	o.wantLine(t, "Warning: The base image "+l.image("base/big:1")+" may not fit into the store: its layers have 3")
	if before, _, _ := strings.Cut(o.stderr, "Copying blob"); !strings.Contains(before, "may not fit") || !strings.Contains(before, store+" has 119 MiB left") {
		t.Error("the warning comes late, or without the space that is left")
	}
	if n := l.registry.Count("GET", "/manifests/"); n != 1 {
		t.Errorf("the manifest was fetched %d times", n)
	}
	l.mkdir("store")
	if err := syscall.Mount("tmpfs", store, "tmpfs", syscall.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	if o := l.build("--no-cache"); strings.Contains(o.stderr, "may not fit") {
		t.Error("there is a warning although the base is in the store")
	}
}
