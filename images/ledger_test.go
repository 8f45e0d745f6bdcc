package images

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func discard() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func ledgerIn(t *testing.T, root, temp string) *ledger {
	t.Helper()
	l, err := openLedger(root, temp, discard())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// kill ends a build as the kernel does: its locks go, its files stay.
func (l *ledger) kill() {
	_ = l.file.Close()
	_ = l.users.Close()
}

func TestLedgerOfABuildThatWasKilled(t *testing.T) {
	root, temp := t.TempDir(), t.TempDir()
	killed := ledgerIn(t, root, temp)
	write(t, filepath.Join(temp, killed.name, "secret"), "s")
	for _, id := range []string{"a", "b"} {
		if err := killed.layer(id); err != nil {
			t.Fatal(err)
		}
	}
	lives := ledgerIn(t, root, t.TempDir())
	defer lives.close(false)
	if found := lives.abandoned(); len(found) != 0 {
		t.Errorf("%+v counts as abandoned while it lives", found)
	}
	if lives.alone() {
		t.Error("a build is alone while another one lives")
	}
	killed.kill()
	// Wherever its temporary files were, the next build removes them.
	next := ledgerIn(t, root, t.TempDir())
	if _, err := os.Stat(filepath.Join(temp, killed.name)); !os.IsNotExist(err) {
		t.Errorf("the temporary files are left: %v", err)
	}
	found := next.abandoned()
	if len(found) != 1 || found[0].name != killed.name || !slices.Equal(found[0].layers, []string{"a", "b"}) {
		t.Errorf("%+v is abandoned, want %s with a and b", found, killed.name)
	}
	next.close(false)
	if _, err := os.Stat(filepath.Join(root, ledgerDir, next.name)); !os.IsNotExist(err) {
		t.Errorf("a ledger is left: %v", err)
	}
	if !lives.alone() {
		t.Error("the last build is not alone")
	}
}

func TestLedgerThatIsKept(t *testing.T) {
	root := t.TempDir()
	l := ledgerIn(t, root, t.TempDir())
	if err := l.layer("x"); err != nil || !slices.Equal(l.made(), []string{"x"}) {
		t.Errorf("made %v (%v)", l.made(), err)
	}
	l.close(true)
	next := ledgerIn(t, root, t.TempDir())
	defer next.close(false)
	if found := next.abandoned(); len(found) != 1 || !slices.Equal(found[0].layers, []string{"x"}) {
		t.Errorf("%+v is abandoned", found)
	}
}

// TestLedgerKeepsSpace: a megabyte, until something is to be removed.
func TestLedgerKeepsSpace(t *testing.T) {
	root := inMemory(t, "size=4m")
	blocks := func(l *ledger) int64 {
		t.Helper()
		info, err := l.file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Blocks * 512
	}
	l := ledgerIn(t, root, t.TempDir())
	if blocks(l) < reserve {
		t.Errorf("it keeps %d bytes", blocks(l))
	}
	l.freeReserve()
	if blocks(l) >= reserve {
		t.Errorf("it still keeps %d bytes", blocks(l))
	}
	l.close(false)
	killed := ledgerIn(t, root, t.TempDir())
	killed.kill()
	full := write(t, root+"/full", "")
	for n := int64(64 << 10); os.Truncate(full, n) == nil && allocate(full, n) == nil; n += 64 << 10 {
		continue
	}
	// What the one that was killed kept is enough for the next.
	next, err := openLedger(root, t.TempDir(), discard())
	if err != nil {
		t.Fatalf("a full filesystem: %v", err)
	}
	next.close(false)
}

func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return syscall.Fallocate(int(f.Fd()), 0, 0, size)
}

// TestLedgerThatLies names a directory that is not its own.
func TestLedgerThatLies(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	kept := write(t, other+"/kept", "")
	write(t, filepath.Join(root, ledgerDir, tempPrefix+"1"), tempEntry+other+"\n"+layerEntry+"x\n")
	l := ledgerIn(t, root, t.TempDir())
	defer l.close(false)
	if found := l.abandoned(); len(found) != 1 || found[0].temp != "" || !slices.Equal(found[0].layers, []string{"x"}) {
		t.Errorf("%+v is abandoned", found)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}

func TestLedgersThatWereNotBegun(t *testing.T) {
	root := t.TempDir()
	path := write(t, filepath.Join(root, ledgerDir, tempPrefix+"1"+unnamed), "")
	l := ledgerIn(t, root, t.TempDir())
	defer l.close(false)
	if found := l.abandoned(); len(found) != 0 {
		t.Errorf("%+v is abandoned", found)
	}
	l.removeUnnamed()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("it is left: %v", err)
	}
}
