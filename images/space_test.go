package images

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSpaceSaysHowFullItIs(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, s := range []struct {
		space       Space
		full, tight bool
		text        string
	}{
		{Space{Mount: "/a", Size: 64 * mib, Used: 64 * mib}, true, true, "/a has 64 MiB of 64 MiB used"},
		{Space{Mount: "/a", Size: 64 * mib, Used: 32 * mib, Free: 32 * mib}, false, false, "/a has 32 MiB of 64 MiB used"},
		// What is reserved for root is neither used nor free.
		{Space{Mount: "/a", Size: 100 * gib, Used: 90 * gib, Free: 5 * gib, Inodes: 1000, FreeInodes: 900}, false, true, "/a has 90 GiB of 100 GiB used, and 100 of 1000 inodes used"},
		{Space{Mount: "/a", Size: 100 * gib, Used: 10 * gib, Free: 90 * gib, Inodes: 1000, FreeInodes: 51}, false, false, "/a has 949 of 1000 inodes used, and 10 GiB of 100 GiB used"},
		{Space{Mount: "/a", Size: 100 * gib, Used: 10 * gib, Free: 90 * gib, Inodes: 1000, FreeInodes: 49}, false, true, "/a has 951 of 1000 inodes used, and 10 GiB of 100 GiB used"},
		{Space{Mount: "/a", Size: 100 * gib, Used: 10 * gib, Free: 90 * gib, Inodes: 1000, FreeInodes: 0}, true, true, "/a has 1000 of 1000 inodes used, and 10 GiB of 100 GiB used"},
		{Space{Mount: "/a", Size: 4 << 10, Used: 4 << 10, Inodes: 1000, FreeInodes: 10}, true, true, "/a has 4.0 KiB of 4.0 KiB used, and 990 of 1000 inodes used"},
		{Space{Mount: "/unlimited"}, false, false, "/unlimited has 0 B of 0 B used"},
	} {
		if s.space.Full() != s.full || s.space.Tight() != s.tight || s.space.String() != s.text {
			t.Errorf("%+v: full %v, tight %v, %q; want %v, %v, %q", s.space, s.space.Full(), s.space.Tight(), s.space, s.full, s.tight, s.text)
		}
	}
}

// inMemory mounts a filesystem in memory and returns where.
func inMemory(t *testing.T, options string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "mounted")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestSpaceAt(t *testing.T) {
	dir := inMemory(t, "size=1m,nr_inodes=100")
	write(t, dir+"/file", strings.Repeat("x", 256<<10))
	for _, path := range []string{dir, dir + "/file", dir + "/not/yet/there"} {
		s, err := SpaceAt(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := (Space{Mount: dir, Size: 1 << 20, Used: 256 << 10, Free: 768 << 10, Inodes: 100, FreeInodes: 98}); s != want {
			t.Errorf("%s: %+v, want %+v", path, s, want)
		}
	}
}

// TestSpaceWatchRemembers what is not there any more when somebody asks.
func TestSpaceWatchRemembers(t *testing.T) {
	small, large := inMemory(t, "size=2m"), inMemory(t, "size=64m")
	b := &record{}
	w := watchSpace(slog.New(slog.NewTextHandler(b, nil)), large, small, small+"/again", "/proc/none")
	defer w.stop()
	if n := len(w.watched); n != 3 { // /proc has no size
		t.Errorf("%d filesystems are watched", n)
	}
	if w.explains("No space left on device") {
		t.Error("there is room, and a step that speaks of space is believed")
	}
	file := write(t, small+"/file", strings.Repeat("x", 2<<20))
	w.look()
	if w.explains("it is broken") || !w.explains("sh: write error: No space left on device") || !w.explains("disk quota exceeded") {
		t.Error("what was full before the step failed explains the failure where the step says so")
	}
	w.stepFailed()
	if !w.explains("it is broken") {
		t.Error("what is full when the step fails explains the failure")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if text := w.describe(nil); !strings.HasPrefix(text, small+" has 2.0 MiB of 2.0 MiB used, and 2 of ") {
		t.Errorf("it says %q", text)
	}
	w.reset()
	if w.explains("No space left on device") {
		t.Error("what was before the reset is not forgotten")
	}
	err := &os.PathError{Op: "write", Path: large + "/gone/file", Err: unix.ENOSPC}
	if text := w.describe(err); !strings.HasPrefix(text, large+" has ") || !strings.HasSuffix(text, "after what did not fit was removed") {
		t.Errorf("it says %q", text)
	}
	if text := b.String(); strings.Count(text, "Little space is left: "+small) != 1 {
		t.Errorf("the log is %q, want one warning", text)
	}
}
