package layers

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"go.podman.io/storage/pkg/archive"
	"golang.org/x/sys/unix"
)

// TestUntarStaysInside gives it links that lead out of the directory, as seen from outside.
func TestUntarStaysInside(t *testing.T) {
	outside := t.TempDir()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: strings.TrimPrefix(outside, "/"), Typeflag: tar.TypeDir, Mode: 0o700},
		{Name: "way", Typeflag: tar.TypeSymlink, Linkname: outside},
		{Name: "up", Typeflag: tar.TypeSymlink, Linkname: "../../../../../../../.." + outside},
		{Name: "way/one", Typeflag: tar.TypeReg, Mode: 0o600, Size: 3},
		{Name: "up/two", Typeflag: tar.TypeReg, Mode: 0o600, Size: 3},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("bad")[:h.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := untar(&b, dir, &archive.TarOptions{}); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) != 0 {
		t.Errorf("outside is %v (%v)", entries, err)
	}
	for _, name := range []string{"one", "two"} { // the links lead to the same place inside
		if data, err := os.ReadFile(filepath.Join(dir, outside, name)); err != nil || string(data) != "bad" {
			t.Errorf("%s is %q (%v)", name, data, err)
		}
	}
}

// TestOnThread looks at what other threads see meanwhile and afterwards.
func TestOnThread(t *testing.T) {
	root, err := os.Readlink("/proc/self/root")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 50 {
		dir := t.TempDir()
		all.Go(func() {
			err := onThread(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("it is the first thread")
				}
				if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Chroot(dir), unix.Chdir("/")); err != nil {
					return err
				}
				return os.WriteFile("/file", nil, 0o600)
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, err := os.Stat("/file"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("/file: %v", err)
	}
	if now, err := os.Readlink("/proc/self/root"); err != nil || now != root {
		t.Errorf("the root directory is %q (%v)", now, err)
	}
}

func TestErrorsOfUntar(t *testing.T) {
	if err := onThread(func() error { panic("a defect") }); err == nil || !strings.Contains(err.Error(), "a defect") {
		t.Errorf("a panic is the error %v", err)
	}
	gone := filepath.Join(t.TempDir(), "gone")
	if err := untar(&bytes.Buffer{}, gone, &archive.TarOptions{}); !errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrUnsuited) {
		t.Errorf("a directory that is gone: %v", err)
	}
	broken := &os.PathError{Op: "read", Path: "/elsewhere/archive", Err: unix.EIO}
	if err := untar(iotest.ErrReader(broken), t.TempDir(), &archive.TarOptions{}); !errors.Is(err, broken) || !strings.Contains(err.Error(), "read /elsewhere/archive:") {
		t.Errorf("an archive that cannot be read: %v", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: strings.Repeat("long", 100), Typeflag: tar.TypeReg, Mode: 0o600}), w.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := untar(&b, dir, &archive.TarOptions{}); !errors.Is(err, unix.ENAMETOOLONG) || !strings.Contains(err.Error(), " "+dir+"/long") {
		t.Errorf("a name that is too long: %v", err)
	}
}
