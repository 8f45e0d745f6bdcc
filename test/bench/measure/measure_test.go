package measure

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	if code, ok := Main(); ok {
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func TestThePeakIsThatOfTheProgram(t *testing.T) {
	own, err := ownPeak()
	if err != nil {
		t.Fatal(err)
	}
	size := 2 * own
	ballast := make([]byte, size<<10) // makes this process larger than both programs
	for i := 0; i < len(ballast); i += os.Getpagesize() {
		ballast[i] = 1
	}
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, ballast, 0o600); err != nil {
		t.Fatal(err)
	}
	small, err := Run(io.Discard, "true")
	if err != nil {
		t.Fatal(err)
	}
	// dd holds one block.
	large, err := Run(io.Discard, "dd", "if="+file, "of=/dev/null", "bs="+strconv.FormatInt(size, 10)+"K")
	if err != nil {
		t.Fatal(err)
	}
	if small.Peak >= size || large.Peak < size || large.Peak > size+size/2 {
		t.Errorf("peaks of %d and %d KiB beside a process of more than %d KiB, want that of a small program and about %d", small.Peak, large.Peak, own+size, size)
	}
	if small.Floor >= own+size {
		t.Errorf("no peak below %d KiB is seen", small.Floor)
	}
}

func TestWhatWasWrittenCounts(t *testing.T) {
	const size = 8 << 20
	// In the folder of this package, since /tmp may be in memory.
	dir, err := os.MkdirTemp(".", "written-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	c, err := Run(io.Discard, "sh", "-c", `dd if=/dev/zero of="$1" bs=1M count=8 && rm "$1"`, "sh", filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Written < size || c.Written > size+size/8 {
		t.Errorf("%d bytes written, want a little more than %d", c.Written, size)
	}
}

func TestACommandThatFailsHasNoCost(t *testing.T) {
	var out bytes.Buffer
	if c, err := Run(&out, "sh", "-c", "echo why; exit 3"); err == nil || c != (Cost{}) || out.String() != "why\nexit status 3\n" {
		t.Errorf("cost %v, error %v, output %q", c, err, out.String())
	}
}
