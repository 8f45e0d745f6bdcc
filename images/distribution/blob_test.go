package distribution

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	digest "github.com/opencontainers/go-digest"
)

// blobServer serves one blob and breaks off each answer after so many bytes of it.
type blobServer struct {
	content []byte
	breaks  []int // the bytes of each answer; those beyond are whole
	ranged  bool  // whether it understands Range
	asked   []string
}

func (s *blobServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.URL.Path, "/blobs/") {
		return
	}
	content, first := s.content, 0
	s.asked = append(s.asked, r.Header.Get("Range"))
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &first); err == nil && s.ranged {
		content = content[first:]
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, len(s.content)-1, len(s.content)))
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if w.Header().Get("Content-Range") != "" {
		w.WriteHeader(http.StatusPartialContent)
	}
	if n := len(s.asked) - 1; n < len(s.breaks) {
		content = content[:s.breaks[n]]
	}
	_, _ = w.Write(content)
}

func TestDownload(t *testing.T) {
	content := make([]byte, 5<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	for name, tt := range map[string]struct {
		breaks []int
		ranged bool
		asked  []string // the Range of each request
		fails  string
	}{
		"whole":                            {nil, true, []string{""}, ""},
		"cut once":                         {[]int{2 << 20}, true, []string{"", "bytes=2097152-"}, ""},
		"cut early":                        {[]int{7}, true, []string{"", "bytes=7-"}, ""},
		"cut three times":                  {[]int{1 << 20, 1 << 20, 1 << 20}, true, []string{"", "bytes=1048576-", "bytes=2097152-", "bytes=3145728-"}, ""},
		"cut, and everything comes anew":   {[]int{2 << 20}, false, []string{"", "bytes=2097152-"}, ""},
		"cut before anything came":         {[]int{0}, true, []string{""}, "unexpected EOF"},
		"cut again before a MiB more came": {[]int{2 << 20, 100}, true, []string{"", "bytes=2097152-"}, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &blobServer{content: content, breaks: tt.breaks, ranged: tt.ranged}
			blob, size, err := connect(t, server(t, s.ServeHTTP), nil).Blob(t.Context(), digest.FromBytes(content))
			if err != nil || size != int64(len(content)) {
				t.Fatalf("size %d, error %v", size, err)
			}
			defer blob.Close()
			got, err := io.ReadAll(blob)
			if fmt.Sprint(s.asked) != fmt.Sprint(tt.asked) {
				t.Errorf("asked for %q, want %q", s.asked, tt.asked)
			}
			switch {
			case tt.fails == "" && (err != nil || !bytes.Equal(got, content)):
				t.Errorf("%d bytes, the right ones %v; error %v", len(got), bytes.Equal(got, content), err)
			case tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)):
				t.Errorf("error %v, want one with %q", err, tt.fails)
			}
		})
	}
}

func TestDownloadThatCannotBeTakenUpAgain(t *testing.T) {
	content := []byte(strings.Repeat("x", 100))
	for name, answer := range map[string]http.HandlerFunc{
		"refused": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"of another place": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 7-99/100")
			w.WriteHeader(http.StatusPartialContent)
		},
		"of no place": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusPartialContent) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &blobServer{content: content, breaks: []int{50}}
			c := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Range") != "" {
					answer(w, r)
					return
				}
				s.ServeHTTP(w, r)
			}), nil)
			blob, _, err := c.Blob(t.Context(), digest.FromBytes(content))
			if err != nil {
				t.Fatal(err)
			}
			defer blob.Close()
			if got, err := io.ReadAll(blob); err == nil || len(got) != 50 {
				t.Errorf("%d bytes, error %v", len(got), err)
			}
		})
	}
}

// TestReaderThatWaitsIsNoStall is of a download that is not read for longer than one
// may make no progress.
func TestReaderThatWaitsIsNoStall(t *testing.T) {
	s := &blobServer{content: []byte("content")}
	c := connect(t, server(t, s.ServeHTTP), func(o *Options) { o.Stall = 100 * time.Millisecond })
	blob, _, err := c.Blob(t.Context(), digest.FromString("content"))
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	time.Sleep(300 * time.Millisecond)
	if got, err := io.ReadAll(blob); string(got) != "content" {
		t.Errorf("%q, error %v", got, err)
	}
}

func TestMirrorIsToldWhatItStandsFor(t *testing.T) {
	var asked string
	c := connect(t, server(t, func(_ http.ResponseWriter, r *http.Request) { asked = r.URL.String() }), func(o *Options) { o.Namespace = "quay.io" })
	if _, _, err := c.Manifest(t.Context(), "1", nil); err != nil {
		t.Fatal(err)
	}
	if want := "/v2/os/x/manifests/1?ns=quay.io"; asked != want {
		t.Errorf("asked for %s, want %s", asked, want)
	}
}

func TestManifestThatIsTooLarge(t *testing.T) {
	c := connect(t, server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, maxManifest+1)) }), nil)
	if _, text, err := c.Manifest(t.Context(), "1", nil); err == nil || text != nil {
		t.Errorf("%d bytes, error %v", len(text), err)
	}
}

// TestBlobThatIsDeclaredToBeEncoded is taken as it is, also where it is taken up again.
func TestBlobThatIsDeclaredToBeEncoded(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write([]byte("a layer"))
	_ = z.Close()
	s := &blobServer{content: packed.Bytes(), breaks: []int{9}, ranged: true}
	client := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		s.ServeHTTP(w, r)
	}), nil)
	blob, size, err := client.Blob(t.Context(), digest.FromBytes(s.content))
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	got, err := io.ReadAll(blob)
	if err != nil || size != int64(len(s.content)) || !bytes.Equal(got, s.content) {
		t.Errorf("%d bytes of %d, error %v", len(got), size, err)
	}
	if len(s.asked) != 2 {
		t.Errorf("asked %q", s.asked)
	}
}

// TestBlobStart is of registries that answer for a part of a blob, or with all of it.
func TestBlobStart(t *testing.T) {
	content := []byte("0123456789")
	for name, tt := range map[string]struct {
		status int
		header http.Header
		body   []byte
		want   string
		size   int64
		ok     bool
		fails  string
	}{
		"a part":                   {206, http.Header{"Content-Range": {"bytes 0-3/10"}}, content[:4], "0123", 10, true, ""},
		"a part of an unknown":     {206, http.Header{"Content-Range": {"bytes 0-3/*"}}, content[:4], "0123", -1, true, ""},
		"a part without its place": {206, nil, content[:4], "0123", -1, true, ""},
		"another part":             {206, http.Header{"Content-Range": {"bytes 2-5/10"}}, content[2:6], "", 0, false, "bytes 2-5/10"},
		"everything":               {200, nil, content, "0123", 10, true, ""},
		"less than was asked for":  {200, nil, content[:2], "01", 2, true, ""},
		"nothing":                  {404, nil, nil, "", 0, false, ""},
		"a refusal":                {403, nil, nil, "", 0, false, "403"},
	} {
		t.Run(name, func(t *testing.T) {
			client := connect(t, server(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.URL.Path, "/blobs/") {
					return
				}
				if asked := r.Header.Get("Range"); r.Method != http.MethodGet || asked != "bytes=0-3" {
					t.Errorf("%s with the range %q", r.Method, asked)
				}
				for name, values := range tt.header {
					w.Header()[name] = values
				}
				w.WriteHeader(tt.status)
				_, _ = w.Write(tt.body)
			}), nil)
			start, size, ok, err := client.BlobStart(t.Context(), digest.FromBytes(content), 4)
			if string(start) != tt.want || size != tt.size || ok != tt.ok || (err == nil) != (tt.fails == "") {
				t.Errorf("%q, size %d, %v, error %v; want %q, %d, %v, error %q", start, size, ok, err, tt.want, tt.size, tt.ok, tt.fails)
			}
			if err != nil && !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("the error is %v, want %q in it", err, tt.fails)
			}
		})
	}
}
