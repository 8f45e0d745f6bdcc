package blobs

import (
	_ "crypto/sha512" // which the program has
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	digest "github.com/opencontainers/go-digest"
)

const text = "the bytes of a layer, as they were pulled"

// told is what a Dir says of the blob that it is to keep.
type told struct {
	times int
	err   error
}

func (o *told) done(err error) { o.times, o.err = o.times+1, err }

// in returns a Dir, and a function that lists the files in it.
func in(t *testing.T) (d *Dir, files func() []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "not", "yet")
	return At(path), func() (names []string) {
		entries, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
}

// TestTee: whoever reads gets the same, and the blob is kept if it is the whole one.
func TestTee(t *testing.T) {
	for name, tt := range map[string]struct {
		stream io.Reader
		blob   digest.Digest
		// read reads the stream as somebody may.
		read  func(io.Reader) (string, error)
		kept  bool
		told  int
		fails bool
	}{
		"to its end":           {read: whole, kept: true, told: 1},
		"a byte at a time":     {stream: iotest.OneByteReader(strings.NewReader(text)), read: whole, kept: true, told: 1},
		"an end with the data": {stream: iotest.DataErrReader(strings.NewReader(text)), read: whole, kept: true, told: 1},
		"no further than its size, which is known": {read: func(r io.Reader) (string, error) {
			all := make([]byte, len(text))
			n, err := io.ReadFull(r, all)
			return string(all[:n]), err
		}, kept: true, told: 1},
		"in part": {read: func(r io.Reader) (string, error) {
			_, err := io.CopyN(io.Discard, r, 7)
			return text, err
		}},
		"not at all":   {read: func(io.Reader) (string, error) { return text, nil }},
		"another blob": {blob: digest.FromString("another"), read: whole, told: 1},
		"a sha512":     {blob: digest.SHA512.FromString(text), read: whole, kept: true, told: 1},
		"a stream that breaks off": {
			stream: io.MultiReader(strings.NewReader(text[:9]), iotest.ErrReader(errors.New("reset"))), read: whole, fails: true,
		},
		"a name that is no digest": {blob: "../../escape", read: whole, told: 1},
	} {
		t.Run(name, func(t *testing.T) {
			d, files := in(t)
			if tt.stream == nil {
				tt.stream = strings.NewReader(text)
			}
			if tt.blob == "" {
				tt.blob = digest.FromString(text)
			}
			var o told
			stream := d.Tee(io.NopCloser(tt.stream), tt.blob, o.done)
			got, err := tt.read(stream)
			if closeErr := stream.Close(); closeErr != nil {
				t.Error(closeErr)
			}
			if (err != nil) != tt.fails || err == nil && got != text {
				t.Errorf("read %q, %v", got, err)
			}
			if d.Has(tt.blob) != tt.kept || o.times != tt.told || tt.kept != (o.times == 1 && o.err == nil) {
				t.Errorf("kept: %v, told %d times, %v", d.Has(tt.blob), o.times, o.err)
			}
			if found := files(); len(found) > 1 || len(found) == 1 && found[0] != tt.blob.String() || !tt.kept && len(found) > 0 {
				t.Errorf("the directory has %q", found)
			}
			if !tt.kept {
				return
			}
			file, size, err := d.Open(tt.blob)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if back, err := whole(file); err != nil || back != text || size != int64(len(text)) {
				t.Errorf("the blob has %q, %d bytes, %v", back, size, err)
			}
		})
	}
}

func whole(r io.Reader) (string, error) {
	all, err := io.ReadAll(r)
	return string(all), err
}

// TestTeeThatCannotWrite goes on as if there were none.
func TestTeeThatCannotWrite(t *testing.T) {
	d, _ := in(t)
	var o told
	stream := d.Tee(io.NopCloser(strings.NewReader(text)), digest.FromString(text), o.done).(*tee)
	_ = stream.file.Close() // as a disk that is full takes nothing
	if got, err := whole(stream); got != text || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if o.times != 1 || o.err == nil || !d.Empty() || stream.Close() != nil {
		t.Errorf("told %d times, %v; empty: %v", o.times, o.err, d.Empty())
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o = told{}
	if got, err := whole(At(file).Tee(io.NopCloser(strings.NewReader(text)), digest.FromString(text), o.done)); got != text || err != nil || o.err == nil {
		t.Errorf("read %q, %v; told %v", got, err, o.err)
	}
}

// TestClearWhileABlobIsWritten: nothing comes to be after it.
func TestClearWhileABlobIsWritten(t *testing.T) {
	d, files := in(t)
	var o told
	stream := d.Tee(io.NopCloser(strings.NewReader(text)), digest.FromString(text), o.done)
	if _, err := io.CopyN(io.Discard, stream, 5); err != nil {
		t.Fatal(err)
	}
	if err := d.Clear(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stream); err != nil || stream.Close() != nil {
		t.Errorf("reading on: %v", err)
	}
	if found := files(); len(found) > 0 || o.err == nil {
		t.Errorf("the directory has %q, and it was told %v", found, o.err)
	}
	again := d.Tee(io.NopCloser(strings.NewReader(text)), digest.FromString(text), o.done)
	if _, err := io.Copy(io.Discard, again); err != nil || d.Has(digest.FromString(text)) {
		t.Errorf("after it was cleared a blob was kept (%v)", err)
	}
	if _, err := os.Stat(d.Path()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
}

// TestAdopt takes over what is a blob, and leaves nothing of the rest.
func TestAdopt(t *testing.T) {
	parent := t.TempDir()
	other, mine := filepath.Join(parent, "other"), At(filepath.Join(parent, "mine"))
	if err := mine.Adopt(other); err != nil || !mine.Empty() {
		t.Errorf("adopting what is not there: %v", err)
	}
	blob := digest.FromString(text)
	for _, name := range []string{blob.String(), partial + "1", "notes"} {
		if err := errors.Join(os.MkdirAll(other, 0o700), os.WriteFile(filepath.Join(other, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	linked := digest.FromString("linked")
	if err := os.Symlink("/etc/passwd", filepath.Join(other, linked.String())); err != nil {
		t.Fatal(err)
	}
	if err := mine.Adopt(other); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(mine.Path())
	if err != nil || len(entries) != 1 || !mine.Has(blob) {
		t.Errorf("taken over: %v (%v), want %s alone", entries, err, blob)
	}
	if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the other directory is left: %v", err)
	}
}

func TestOpenOfWhatIsNotThere(t *testing.T) {
	d, _ := in(t)
	if _, _, err := d.Open(digest.FromString(text)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, _, err := d.Open("../../etc/passwd"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want one of the name", err)
	}
}
