package isal

import (
	"bytes"
	"errors"
	"hash/crc64"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// texts are what is compressed: nothing, text, noise (which is stored), runs, and all of
// them one after the other.
func texts(t testing.TB) map[string][]byte {
	t.Helper()
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 300<<10)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	all := map[string][]byte{
		"nothing": {}, "one byte": {'x'}, "noise": noise, "zeros": make([]byte, 2<<20), "program": program[:min(len(program), 4<<20)],
	}
	all["mixed"] = slices.Concat(all["zeros"][:100<<10], noise, all["program"][:1<<20], noise)
	return all
}

func compress(t testing.TB, text []byte, level int, header gzip.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	w.Header = header
	_, err = w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t testing.TB, file io.Reader) ([]byte, error) {
	t.Helper()
	r, err := NewReader(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// TestReader reads what was compressed in all ways, given as it comes: at once, byte by
// byte, in halves, with the end in the last read.
func TestReader(t *testing.T) {
	headers := map[string]gzip.Header{
		"plain": {}, "with all fields": {Name: "a name", Comment: "a comment", Extra: bytes.Repeat([]byte("extra"), 1000)},
	}
	for name, text := range texts(t) {
		for _, level := range []int{gzip.HuffmanOnly, gzip.NoCompression, gzip.BestSpeed, gzip.DefaultCompression, gzip.BestCompression} {
			for kind, header := range headers {
				file := compress(t, text, level, header)
				for how, reader := range map[string]io.Reader{
					"at once": bytes.NewReader(file), "in halves": iotest.HalfReader(bytes.NewReader(file)),
					"end with data": iotest.DataErrReader(bytes.NewReader(file)), "byte by byte": iotest.OneByteReader(bytes.NewReader(file)),
				} {
					if how == "byte by byte" && len(file) > 500<<10 {
						continue
					}
					if got, err := read(t, reader); err != nil || !bytes.Equal(got, text) {
						t.Errorf("%s, level %d, %s, %s: %d bytes of %d, %v", name, level, kind, how, len(got), len(text), err)
					}
				}
			}
		}
	}
}

// TestReaderOfManyMembers reads members one after the other, with a buffer that ends
// anywhere in them.
func TestReaderOfManyMembers(t *testing.T) {
	var file, want []byte
	for i := range 2000 {
		text := bytes.Repeat([]byte{byte(i), byte(i >> 8)}, i%97)
		file, want = append(file, compress(t, text, 1+i%9, gzip.Header{})...), append(want, text...)
	}
	for at := range 200 {
		split := io.MultiReader(bytes.NewReader(file[:at]), bytes.NewReader(file[at:]))
		if got, err := read(t, split); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("split at %d: %d bytes of %d, %v", at, len(got), len(want), err)
		}
	}
	if got, err := read(t, iotest.OneByteReader(bytes.NewReader(file))); err != nil || !bytes.Equal(got, want) {
		t.Errorf("byte by byte: %d bytes of %d, %v", len(got), len(want), err)
	}
}

// TestReaderOfSmallReads reads a few bytes at a time.
func TestReaderOfSmallReads(t *testing.T) {
	text := texts(t)["mixed"]
	for _, size := range []int{1, 7, 513} {
		r, err := NewReader(bytes.NewReader(compress(t, text, 6, gzip.Header{})))
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for p := make([]byte, size); ; {
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%d at a time: %d bytes of %d, %v", size, len(got), len(text), err)
		}
	}
}

// TestReaderRefuses gives files that are none.
func TestReaderRefuses(t *testing.T) {
	text := texts(t)["mixed"][:200<<10]
	file := compress(t, text, 6, gzip.Header{})
	changed := func(at int) []byte {
		c := slices.Clone(file)
		c[at] ^= 0x40
		return c
	}
	for name, tt := range map[string]struct {
		file []byte
		want error
	}{
		"another kind of file": {[]byte("this is not compressed at all"), gzip.ErrHeader},
		"another method":       {append([]byte{0x1f, 0x8b, 7}, file[3:]...), gzip.ErrHeader},
		"something behind":     {append(slices.Clone(file), "rest of another kind"...), gzip.ErrHeader},
		"another checksum":     {changed(len(file) - 6), gzip.ErrChecksum},
		"another length":       {changed(len(file) - 2), gzip.ErrChecksum},
		"no end":               {file[:len(file)-1], io.ErrUnexpectedEOF},
		"no checksum":          {file[:len(file)-8], io.ErrUnexpectedEOF},
		"half of it":           {file[:len(file)/2], io.ErrUnexpectedEOF},
		"half of a header":     {file[:5], io.ErrUnexpectedEOF},
		"half of a second":     {append(slices.Clone(file), file[:20]...), io.ErrUnexpectedEOF},
		"a block of no kind":   {[]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0}, flate.CorruptInputError(0)},
		"what lies before it":  {[]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 0x03, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0}, flate.CorruptInputError(0)},
	} {
		got, err := read(t, bytes.NewReader(tt.file))
		var corrupt flate.CorruptInputError
		if is := errors.As(tt.want, &corrupt); is && !errors.As(err, &corrupt) || !is && !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if !bytes.HasPrefix(slices.Concat(text, text), got) {
			t.Errorf("%s: what was read is not how the text begins", name)
		}
	}
	cut := errors.New("connection cut")
	if _, err := read(t, io.MultiReader(bytes.NewReader(file[:1000]), iotest.ErrReader(cut))); !errors.Is(err, cut) {
		t.Errorf("the error of the file: %v", err)
	}
	if _, err := read(t, io.MultiReader(bytes.NewReader(file), iotest.ErrReader(cut))); !errors.Is(err, cut) {
		t.Errorf("the error of the file behind its end: %v", err)
	}
}

// TestReaderKeepsTheErrorOfTheFile, which comes with the last bytes and is not repeated.
func TestReaderKeepsTheErrorOfTheFile(t *testing.T) {
	cut := errors.New("connection cut")
	file := compress(t, texts(t)["mixed"][:200<<10], 6, gzip.Header{})
	for _, size := range []int{1, 100, 1 << 20} {
		r, err := NewReader(&once{data: file[:len(file)-4], err: cut})
		if err != nil {
			t.Fatal(err)
		}
		for p := make([]byte, size); err == nil; {
			_, err = r.Read(p)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if !errors.Is(err, cut) {
			t.Errorf("%d at a time: %v", size, err)
		}
	}
}

// once gives its data with an error, and after that an end.
type once struct {
	data []byte
	err  error
}

func (o *once) Read(p []byte) (int, error) {
	n := copy(p, o.data)
	o.data = o.data[n:]
	if len(o.data) > 0 {
		return n, nil
	}
	err := o.err
	o.err = io.EOF
	return n, err
}

func TestReaderAfterClose(t *testing.T) {
	r, err := NewReader(bytes.NewReader(compress(t, []byte("text"), 6, gzip.Header{})))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil {
		t.Error(err)
	}
}

func TestUpdateCRC64(t *testing.T) {
	table := crc64.MakeTable(crc64.ISO)
	for name, text := range texts(t) {
		var got uint64
		for rest := text; len(rest) > 0; {
			n := min(len(rest), 1+len(rest)/3)
			got, rest = UpdateCRC64(got, rest[:n]), rest[n:]
		}
		if want := crc64.Checksum(text, table); got != want {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
}

// FuzzReader compares with the other implementation.
func FuzzReader(f *testing.F) {
	for _, text := range []string{"", "text", "text text text text"} {
		f.Add(compress(f, []byte(text), 6, gzip.Header{}))
		f.Add(compress(f, []byte(text), 0, gzip.Header{Name: "name"}))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		var want []byte
		other, wantErr := gzip.NewReader(bytes.NewReader(file))
		if wantErr == nil {
			want, wantErr = io.ReadAll(other)
		}
		got, err := read(t, bytes.NewReader(file))
		var corrupt flate.CorruptInputError
		if err == nil && errors.As(wantErr, &corrupt) {
			return // with codes that leave some out
		}
		if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v; the other has %d, %v", len(got), err, len(want), wantErr)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	text := texts(b)["program"]
	file := compress(b, text, 6, gzip.Header{})
	readers := map[string]func(io.Reader) (io.ReadCloser, error){
		"this": NewReader,
		"Go":   func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) },
	}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range readers {
			if !yield(name) {
				return
			}
		}
	}) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				r, err := readers[name](bytes.NewReader(file))
				if err != nil {
					b.Fatal(err)
				}
				_, err = io.Copy(struct{ io.Writer }{io.Discard}, r)
				if err := errors.Join(err, r.Close()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
