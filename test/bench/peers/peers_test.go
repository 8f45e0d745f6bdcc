package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strata-build/strata/test/bench/measure"
)

func TestMain(m *testing.M) {
	if code, ok := measure.Main(); ok {
		os.Exit(code)
	}
	if len(os.Args) > 1 && (os.Args[1] == scriptCommand || os.Args[1] == limitCommand) {
		if err := run(context.Background(), os.Args[1:]); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// newBench returns a benchmark in a directory of the test with its registries.
func newBench(t *testing.T, rows ...builder) (*bench, *bytes.Buffer) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("run this test as root: it makes a mount namespace")
	}
	var records bytes.Buffer
	b := &bench{dir: t.TempDir(), rows: rows, rounds: 1, started: time.Now(), log: io.Discard, records: &records}
	for _, s := range []**server{&b.bases, &b.dest} {
		var err error
		if *s, err = listen(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*s).close() })
	}
	if err := b.bases.serve(b.basesDir()); err != nil {
		t.Fatal(err)
	}
	return b, &records
}

// little is a base with a shell, of one layer above the generated ones.
type little struct{ generated }

func (l little) layers(ctx context.Context, out io.Writer) ([]io.ReadCloser, error) {
	layers, err := l.generated.layers(ctx, out)
	var links bytes.Buffer
	w := tar.NewWriter(&links)
	for _, header := range []tar.Header{
		{Name: "bin/sh", Typeflag: tar.TypeSymlink, Linkname: "busybox"},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "proc/", Typeflag: tar.TypeDir, Mode: 0o755},
	} {
		err = errors.Join(err, w.WriteHeader(&header))
	}
	return append(layers, io.NopCloser(&links)), errors.Join(err, w.Close())
}

// TestTheLimitBuildsTheImage is the whole way of a run: the base is made, the script is
// run and measured, and what it pushed is looked at.
func TestTheLimitBuildsTheImage(t *testing.T) {
	b, records := newBench(t, builder{name: limitRow, script: limitScript})
	k := kind{
		letter: "a", base: little{generated{count: 3, files: 30, bytes: 3_000_000}}, builds: 1,
		steps: "FROM @BASE@\nCOPY machineconfig/ /etc/mco/\nRUN " + secretMount + "test -s /run/secrets/marker && echo 1 > /etc/one\nCOPY last.conf /etc/last.conf\nLABEL io.example.pool=worker\n",
	}
	got, err := b.run(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Error != "" {
		t.Fatalf("records %v", got)
	}
	r := got[0]
	// The files are compressed to two fifths of 3 MB, busybox to 1 MB, the configuration
	// not at all.
	if r.Wall <= 0 || r.CPU <= 0 || r.Peak < 1<<20 || r.Sent < 1_800_000 || r.Sent > 2_800_000 || r.Grown < 1_800_000 || len(r.Parts) != len(partNames) {
		t.Errorf("record %+v", r)
	}
	var written record
	if err := json.Unmarshal(records.Bytes(), &written); err != nil || written.Sent != r.Sent {
		t.Errorf("the file has %+v, error %v", written, err)
	}
}

// TestAFailedRunIsReported: one whose program fails, and one that succeeds and has pushed
// nothing.
func TestAFailedRunIsReported(t *testing.T) {
	does := func(program string) func(job) (script, error) {
		return func(j job) (script, error) {
			return script{Store: j.store, Builds: [][][]string{{{program}}}}, nil
		}
	}
	b, _ := newBench(t, builder{name: "fails", script: does("false")}, builder{name: "does nothing", script: does("true")})
	got, err := b.run(t.Context(), kind{letter: "f", steps: trivialSteps, builds: 1})
	if err != nil || len(got) != 2 || got[0].Error == "" || got[0].Wall != 0 || !strings.Contains(got[1].Error, "MANIFEST_UNKNOWN") {
		t.Fatalf("records %v, error %v", got, err)
	}
	var table strings.Builder
	writeTables(&table, got)
	for _, want := range []string{"| fails | 0, **1 failed** |", "does nothing failed in round 1: "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("the table does not hold %q:\n%s", want, &table)
		}
	}
}

func TestConnectionsAreCountedAndCutOnce(t *testing.T) {
	b, _ := newBench(t)
	upload := func(size int) error {
		reply, err := http.Post("http://"+b.dest.host()+"/v2/os/x/blobs/uploads/", "", nil)
		if err != nil {
			return err
		}
		reply.Body.Close()
		request, err := http.NewRequest(http.MethodPatch, reply.Header.Get("Location"), bytes.NewReader(make([]byte, size)))
		if err != nil {
			return err
		}
		if reply, err = http.DefaultClient.Do(request); err != nil {
			return err
		}
		reply.Body.Close()
		return nil
	}
	if err := b.dest.serve(filepath.Join(b.dir, "content")); err != nil {
		t.Fatal(err)
	}
	b.dest.listener.cut(1 << 20)
	// The client may read of the reset first, and close the connection while it writes.
	if err := upload(4 << 20); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v, want a connection that is reset", err)
	}
	if err := upload(4 << 20); err != nil {
		t.Errorf("error %v after the cut", err)
	}
	if received, cuts := b.dest.listener.counts(); cuts != 1 || received < 5<<20 || received > 7<<20 {
		t.Errorf("%d bytes, %d cuts", received, cuts)
	}
}

func TestRatiosAreThoseOfRoundsInWhichBothCount(t *testing.T) {
	started := time.Now()
	one := func(row string, round int, wall float64, noisy bool) record {
		return record{Started: started, Case: "a", Row: row, Peer: row != "agent", Round: round, Wall: wall, Noisy: noisy}
	}
	rows := group([]record{
		one("agent", 0, 5, false), one("quick", 0, 10, false), one("slow", 0, 20, false),
		one("agent", 1, 90, true), one("quick", 1, 11, false), one("slow", 1, 30, true),
		one("agent", 2, 9, false), one("quick", 2, 12, false), one("slow", 2, 22, false),
	})[0]
	best := fastest(rows)
	if best == nil || best.row != "quick" {
		t.Fatalf("the fastest peer is %v", best)
	}
	if value, ok := rows[0].ratio(*best, wall); !ok || value != (5.0/10+9.0/12)/2 {
		t.Errorf("ratio %v, %v", value, ok)
	}
	if n := rows[0].n(); n != "2 (and 1 noisy)" {
		t.Errorf("n is %q", n)
	}
	all := runs{all: []record{one("agent", 0, 1, true), {Error: "why"}}}
	if n := all.n(); n != "1, noisy, **1 failed**" || all.median(wall) != 1 {
		t.Errorf("n is %q, median %v", n, all.median(wall))
	}
}

func TestPackagesAreMergedIntoUsr(t *testing.T) {
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, header := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir},
		{Name: "./lib/", Typeflag: tar.TypeDir},
		{Name: "./lib/modules/", Typeflag: tar.TypeDir},
		{Name: "./usr/lib/modules/", Typeflag: tar.TypeDir},
		{Name: "./lib/modules/a", Typeflag: tar.TypeReg},
		{Name: "./bin/b", Typeflag: tar.TypeLink, Linkname: "./lib/modules/a"},
		{Name: "./library", Typeflag: tar.TypeReg},
	} {
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := mergeTar(tar.NewWriter(&out), &in, map[string]bool{".": true}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&out); ; {
		header, err := r.Next()
		if err != nil {
			break
		}
		got = append(got, strings.TrimSpace(header.Name+" "+header.Linkname))
	}
	if want := "usr/lib/ usr/lib/modules/ usr/lib/modules/a usr/bin/b usr/lib/modules/a library"; strings.Join(got, " ") != want {
		t.Errorf("entries %q, want %q", got, want)
	}
}

func TestLoad(t *testing.T) {
	l, err := parseLoad("cpu  100 10 20 300 40 5 6 7 0 0\ncpu0 1\n")
	if want := (load{busy: 1410 * time.Millisecond, idle: 3400 * time.Millisecond, steal: 70 * time.Millisecond}); err != nil || l != want {
		t.Errorf("%+v, error %v, want %+v", l, err, want)
	}
	if noisy(10*time.Second, 2*time.Second, time.Second-tick) || !noisy(10*time.Second, 2*time.Second, time.Second+tick) {
		t.Error("a run is noisy when others took more than three tenths of a CPU")
	}
}
