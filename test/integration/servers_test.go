package integration

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/strata-build/strata/test/bases"
)

// grammarContext makes the build context of the cases of the grammar.
func grammarContext(l *lab, dir string) string {
	l.t.Helper()
	for name, text := range map[string]string{
		"files/a.txt": "a\n", "files/b.md": "b\n", "files/sub/c.txt": "c\n", "files/sub/deeper/d.txt": "d\n", "files/with space": "space\n", "files/empty": "",
		"archives/a.tar": tarOf(l.t, "one", "in a.tar\n"), "archives/a.tar.gz": gzipped(l.t, tarOf(l.t, "one", "in a.tar.gz\n")),
		"archives/a.tar.bz2": bzipped(l.t, tarOf(l.t, "two", "in a.tar.bz2\n")), "archives/not.tar.gz": "no archive\n",
	} {
		l.file(filepath.Join(dir, name), text)
	}
	context := filepath.Join(l.dir, dir)
	link(l.t, "a.txt", filepath.Join(context, "files/link"))
	chown(l.t, filepath.Join(context, "files/b.md"), 1234, 0o640)
	if err := os.Chmod(filepath.Join(context, "files/sub"), 0o750); err != nil {
		l.t.Fatal(err)
	}
	return context
}

// triggers is an image that has something to be done by the build of another one.
func triggers(t *testing.T) v1.Image {
	t.Helper()
	return bases.Configure(t, bases.Busy(t), func(c *v1.ConfigFile) {
		c.Config.OnBuild = []string{"ARG A=default", "RUN echo $A > /onbuild", "COPY files/a.txt /copied-on-build", "LABEL on=build"}
	})
}

// tarOf is an archive of one file, of 21:22.
func tarOf(t *testing.T, name, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640, Uid: 21, Gid: 22, Size: int64(len(text)), ModTime: time.Unix(1e9, 0)}
	if err := w.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func bzipped(t *testing.T, text string) string {
	t.Helper()
	cmd := exec.Command("bzip2", "-c")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// served is what plain.txt of fileServer has.
const served = "from the server\n"

// fileServer serves a text and an archive and returns its URL.
func fileServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"plain.txt": served, "a.tar.gz": gzipped(t, tarOf(t, "one", "in a.tar.gz\n"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return server.URL
}

const makeRepository = `set -e
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com HOME=$PWD
git init -q -b main work && cd work
echo first > readme && git add . && git commit -q -m first && git tag v1
echo main > readme && git commit -q -a -m second
git checkout -q -b side && mkdir dir && echo side > dir/file && git add . && git commit -q -m side
git checkout -q main && cd .. && git clone -q --bare work repo.git`

// gitServer serves repo.git: two commits on main, the first one with the tag v1, and a
// branch side. It returns the URL of what it serves.
func gitServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", makeRepository)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	where, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(where)), "git-http-backend"),
		Env:  []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"},
	})
	t.Cleanup(server.Close)
	return server.URL
}

// withLibraries is a program of this machine with what it is linked to.
func withLibraries(t *testing.T, program string) (entries []bases.Entry) {
	t.Helper()
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{program}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, bases.Regular(path, 0o755, data))
	}
	return entries
}
