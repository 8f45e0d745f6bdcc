package result_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func wantFile(t *testing.T, path, text string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != text {
		t.Errorf("%s holds %q (%v), want %q", path, got, err, text)
	}
}

// wantNames checks that nothing else, such as a temporary file, is in a directory.
func wantNames(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if fmt.Sprint(got) != fmt.Sprint(names) {
		t.Errorf("%s holds %v, want %v", dir, got, names)
	}
}

func TestWriteNewFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "result.json")
	if err := result.Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "new")
	wantNames(t, dir, "result.json")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o644 {
		t.Errorf("mode %o, want 644: others read the Result", mode)
	}
}

func TestWriteReplacesALongerFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "result.json")
	mustWrite(t, path, strings.Repeat("old", 3000))
	before, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	if err := result.Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "new")
	wantNames(t, dir, "result.json")
	if old, err := io.ReadAll(before); err != nil || len(old) != 9000 {
		t.Errorf("who had opened the old file reads %d bytes of it (%v), want all 9000", len(old), err)
	}
}

func TestWriteIntoAMissingDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := result.Write(filepath.Join(dir, "missing", "result.json"), []byte("new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want that it does not exist", err)
	}
	wantNames(t, dir)
}

func TestWriteToADirectory(t *testing.T) {
	dir := t.TempDir()
	err := result.Write(dir, []byte("new"))
	if err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("error %v, want that it is a directory", err)
	}
	wantNames(t, dir)
}

func TestWriteKeepsASymlink(t *testing.T) {
	for _, kind := range []string{"absolute", "relative", "to a file that is not there yet"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
			to := target
			switch kind {
			case "relative":
				to = "target"
				fallthrough
			case "absolute":
				mustWrite(t, target, strings.Repeat("old", 100))
			}
			if err := os.Symlink(to, link); err != nil {
				t.Fatal(err)
			}
			if err := result.Write(link, []byte("new")); err != nil {
				t.Fatal(err)
			}
			if got, err := os.Readlink(link); err != nil || got != to {
				t.Errorf("the link leads to %q (%v), want %q", got, err, to)
			}
			wantFile(t, target, "new")
			wantNames(t, dir, "link", "target")
		})
	}
}

// TestWriteToAMountedFile has what a termination log is: a file that can be
// written to and not be replaced.
func TestWriteToAMountedFile(t *testing.T) {
	host, dir := filepath.Join(t.TempDir(), "host"), t.TempDir()
	path := filepath.Join(dir, "termination-log")
	mustWrite(t, host, strings.Repeat("old", 3000))
	mustWrite(t, path, "")
	if err := syscall.Mount(host, path, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(path, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if err := result.Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	wantFile(t, host, "new")
	wantFile(t, path, "new")
	wantNames(t, dir, "termination-log")
}

func TestWriteWhereTheDirectoryIsReadOnly(t *testing.T) {
	dir, err := os.MkdirTemp("", "result-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "result.json")
	mustWrite(t, path, strings.Repeat("old", 3000))
	if err := errors.Join(os.Chmod(path, 0o666), os.Chmod(dir, 0o555)); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700)
	asOther(t, func() {
		if f, err := os.Create(filepath.Join(dir, "other")); err == nil {
			f.Close()
			t.Error("the directory can be written to: this proves nothing")
		}
		if err := result.Write(path, []byte("new")); err != nil {
			t.Error(err)
		}
		err := result.Write(filepath.Join(dir, "new.json"), []byte("new"))
		if !errors.Is(err, fs.ErrPermission) {
			t.Errorf("error %v for a new file, want that it is not permitted", err)
		}
	})
	wantFile(t, path, "new")
	wantNames(t, dir, "result.json")
}

// asOther runs f where permissions count: root gives up its rights over files
// for the thread of f, which ends with it.
func asOther(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0)
		f()
	}()
	<-done
}

func TestWriteToAPipe(t *testing.T) {
	data := complete().Encode(result.MaxBytes)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	if err := result.Write(fmt.Sprintf("/proc/self/fd/%d", write.Fd()), data); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 2*len(data))
	n, err := read.Read(got)
	if err != nil || !bytes.Equal(got[:n], data) {
		t.Errorf("the first read gets %q (%v), want all of it", got[:n], err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(read); err != nil || len(rest) > 0 {
		t.Errorf("%q follows (%v)", rest, err)
	}
}

func TestWriteToANamedPipe(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte)
	go func() {
		data, _ := os.ReadFile(path)
		got <- data
	}()
	if err := result.Write(path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if data := <-got; string(data) != "new" {
		t.Errorf("the reader gets %q, want %q", data, "new")
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("the pipe became %v (%v)", info, err)
	}
	wantNames(t, dir, "pipe")
}

func TestWriteToAFullDevice(t *testing.T) {
	if err := result.Write("/dev/full", []byte("new")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("error %v, want that no space is left", err)
	}
}

func TestReaderNeverSeesHalfAResult(t *testing.T) {
	const rewrites = 200
	dir := t.TempDir()
	path := filepath.Join(dir, "result.json")
	long := newResult(result.ReasonStepFailed, message(strings.Repeat("long ", 1000))).Encode(result.MaxBytes)
	short := newResult(result.ReasonSucceeded).Encode(result.MaxBytes)
	if err := result.Write(path, long); err != nil {
		t.Fatal(err)
	}
	reading, done, reads := make(chan struct{}), make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { reads <- n }()
		for {
			data, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(data, long) && !bytes.Equal(data, short) {
				t.Errorf("read %d sees %q (%v)", n, data, err)
				return
			}
			if n++; n == 1 {
				close(reading)
			}
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	<-reading
	for i := range rewrites {
		data := long
		if i%2 == 0 {
			data = short
		}
		if err := result.Write(path, data); err != nil {
			t.Error(err)
		}
	}
	close(done)
	if n := <-reads; n < 2 {
		t.Errorf("%d reads during %d rewrites prove nothing", n, rewrites)
	}
	wantNames(t, dir, "result.json")
}
