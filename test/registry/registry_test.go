package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sirupsen/logrus"

	"github.com/strata-build/strata/test/registry"
)

func TestContent(t *testing.T) {
	r := registry.Start(t)
	img := randomImage(t)
	push(t, r, "some/app:one", img)
	push(t, r, "some/app:two", img)

	pulled, err := remote.Image(reference(t, r, "some/app:one"), from(r)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(pulled); err != nil {
		t.Error(err)
	}
	r.Reset()
	digest := imageDigest(t, img)
	if got := r.Digest(t, "some/app", "one"); got != digest {
		t.Errorf("digest %s, want %s", got, digest)
	}
	if got := r.Tags(t, "some/app"); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("tags %q, want one and two", got)
	}
	if got := r.Tags(t, "some/other"); got != nil {
		t.Errorf("tags %q of a repository that is not there", got)
	}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if !r.HasBlob(t, "some/app", config.String()) {
		t.Error("the config blob is missing")
	}
	if r.HasBlob(t, "some/app", digestOf([]byte("else"))) {
		t.Error("there is a blob that nobody pushed")
	}

	r.Delete(t, "some/app", "one")
	if r.Has(t, "some/app", "one") || !r.Has(t, "some/app", "two") || !r.Has(t, "some/app", digest) {
		t.Error("deleting one tag did not take just that tag away")
	}
	r.Delete(t, "some/app", digest)
	if r.Has(t, "some/app", "two") || r.Has(t, "some/app", digest) {
		t.Error("deleting the manifest left it or a tag of it")
	}
	if got := r.Requests(); len(got) != 0 {
		t.Errorf("looking at the content left records: %v", got)
	}
}

func TestInsideGoesPastEverything(t *testing.T) {
	r := registry.New(t, registry.WithBasicAuth("/nowhere")) // does not listen
	r.Fault(registry.Rule{Do: registry.Close{}})
	img := randomImage(t)
	if err := remote.Write(reference(t, r, "app:1"), img, remote.WithTransport(r.Inside())); err != nil {
		t.Fatal(err)
	}
	if got := r.Digest(t, "app", "1"); got != imageDigest(t, img) {
		t.Errorf("digest %s, want %s", got, imageDigest(t, img))
	}
	pulled, err := remote.Image(reference(t, r, "app:1"), remote.WithTransport(r.Inside()))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(pulled); err != nil {
		t.Error(err)
	}
}

func TestStopAndListen(t *testing.T) {
	r := registry.New(t)
	url := r.URL() + "/v2/"
	refused := func() {
		t.Helper()
		if _, err := try(t, r.Client(), http.MethodGet, url, nil); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("error %v, want connection refused", err)
		}
	}
	refused()
	r.Listen()
	r.Listen() // no harm
	img := randomImage(t)
	push(t, r, "app:1", img)
	for range 3 {
		r.Stop()
		r.Stop() // no harm
		refused()
		time.AfterFunc(20*time.Millisecond, r.Listen)
		eventually(t, "the registry is back", func() bool {
			res, err := try(t, r.Client(), http.MethodGet, url, nil)
			return err == nil && res.StatusCode == http.StatusOK
		})
		if got := r.URL() + "/v2/"; got != url {
			t.Fatalf("the registry came back at %s, not %s", got, url)
		}
		pulled, err := remote.Image(reference(t, r, "app:1"), from(r)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(pulled); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStopCutsUploads shows that a client in the middle of a request notices.
func TestStopCutsUploads(t *testing.T) {
	r := registry.Start(t)
	place := beginUpload(t, r, "app")
	body, feed := io.Pipe()
	defer feed.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, place, body)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Client()
	failed := make(chan error, 1)
	go func() {
		res, err := c.Do(req)
		if err == nil {
			res.Body.Close()
		}
		failed <- err
	}()
	if _, err := feed.Write(content(1000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bytes arrived", func() bool {
		received, _ := r.Totals()
		return received == 1000
	})
	inTime(t, "Stop during an upload", r.Stop)
	feed.Close()
	if err := <-failed; err == nil {
		t.Error("the upload succeeded")
	}
}

// TestStopWaits shows that Stop leaves no handler behind.
func TestStopWaits(t *testing.T) {
	r := registry.Start(t)
	called, ended := make(chan struct{}), false
	r.Fault(registry.Rule{To: 1, Do: registry.Call(func() {
		close(called)
		time.Sleep(50 * time.Millisecond)
		ended = true
	})})
	c := r.Client()
	go func() {
		if res, err := c.Get(r.URL() + "/v2/"); err == nil {
			res.Body.Close()
		}
	}()
	<-called
	r.Stop()
	if !ended {
		t.Error("Stop returned while a request was being handled")
	}
}

func TestAddr(t *testing.T) {
	var addr string
	t.Run("free", func(t *testing.T) { addr = registry.Start(t).Host() })
	t.Run("given", func(t *testing.T) {
		r := registry.Start(t, registry.WithAddr(addr))
		if r.Host() != addr {
			t.Errorf("the registry is at %s, not %s", r.Host(), addr)
		}
		wantStatus(t, send(t, r.Client(), http.MethodGet, "http://"+addr+"/v2/", nil), http.StatusOK)
	})
}

func TestListenAfterTheTestDoesNothing(t *testing.T) {
	var r *registry.Registry
	t.Run("ends", func(t *testing.T) { r = registry.Start(t) })
	r.Listen()
	if _, err := try(t, &http.Client{}, http.MethodGet, r.URL()+"/v2/", nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error %v, want connection refused", err)
	}
}

func TestRecord(t *testing.T) {
	r := registry.Start(t)
	blob := content(5000)
	url := seed(t, r, "app", blob)
	if got := r.Requests(); len(got) != 0 {
		t.Fatalf("records before the first request: %v", got)
	}
	before := time.Now()
	c := r.Client()
	res := send(t, c, http.MethodGet, url+"?a=b", nil,
		"Range", "bytes=100-299", "User-Agent", "somebody/1", "Authorization", "Basic c2VjcmV0", "Cookie", "secret")
	wantStatus(t, res, http.StatusPartialContent)
	if got := read(t, res); !bytes.Equal(got, blob[100:300]) {
		t.Error("the range has other bytes than the blob")
	}
	read(t, send(t, c, http.MethodGet, url, nil, "Authorization", "Bearer secret"))
	read(t, send(t, c, http.MethodHead, url, nil, "Authorization", "Digest secret"))
	place := beginUpload(t, r, "app")
	send(t, c, http.MethodPatch, place, bytes.NewReader(blob[:700]))
	send(t, c, http.MethodGet, r.URL()+"/v2/app/manifests/none", nil)
	send(t, c, http.MethodHead, r.URL()+"/v2/app/manifests/none", nil)

	all := r.Requests()
	if len(all) != 6 {
		t.Fatalf("%d records, want 6: %v", len(all), all)
	}
	first := all[0]
	if first.Method != http.MethodGet || first.Path != "/v2/app/blobs/"+digestOf(blob) || first.Query != "a=b" {
		t.Errorf("first record is %v", first)
	}
	if first.Header.Get("Range") != "bytes=100-299" || first.Header.Get("User-Agent") != "somebody/1" {
		t.Errorf("header %v lacks the range or the agent", first.Header)
	}
	if first.Header.Get("Authorization") != "" || first.Header.Get("Cookie") != "" {
		t.Errorf("header %v has credentials", first.Header)
	}
	if first.Time.Before(before) || first.Time.After(time.Now()) {
		t.Errorf("time %v is not that of the request", first.Time)
	}
	type line struct {
		status         int
		received, sent int64
		auth           string
	}
	notFound := all[4].Sent // the size of an error's body is distribution's affair
	if notFound == 0 {
		t.Error("no bytes sent with a 404")
	}
	want := []line{
		{206, 0, 200, "basic"},
		{200, 0, 5000, "bearer"},
		{200, 0, 0, "other"},
		{202, 700, 0, ""},
		{404, 0, notFound, ""},
		{404, 0, 0, ""}, // whatever the handler wrote
	}
	for i, r := range all {
		if got := (line{r.Status, r.Received, r.Sent, r.Auth}); got != want[i] {
			t.Errorf("record %d is %+v, want %+v", i, got, want[i])
		}
		if r.Cut {
			t.Errorf("record %d says that the connection was cut", i)
		}
	}
	if received, sent := r.Totals(); received != 700 || sent != 5200+notFound {
		t.Errorf("totals %d and %d, want 700 and %d", received, sent, 5200+notFound)
	}
	for _, count := range []struct {
		method, path string
		want         int
	}{{"", "", 6}, {"GET", "", 3}, {"", "/blobs/", 4}, {"GET", "/blobs/sha256:", 2}, {"PUT", "", 0}} {
		if got := r.Count(count.method, count.path); got != count.want {
			t.Errorf("%d requests match %q %q, want %d", got, count.method, count.path, count.want)
		}
	}
	eventually(t, "all requests have an end", func() bool {
		return !slices.ContainsFunc(r.Requests(), func(r registry.Request) bool { return r.Took == 0 })
	})
	r.Reset()
	if got := r.Requests(); len(got) != 0 {
		t.Errorf("records after Reset: %v", got)
	}
}

// TestLogging shows that distribution leaves the standard logger alone, be it
// during success or failure.
func TestLogging(t *testing.T) {
	var logged bytes.Buffer
	logger := logrus.StandardLogger()
	out, level := logger.Out, logger.GetLevel()
	logger.SetOutput(&logged)
	logger.SetLevel(logrus.TraceLevel)
	t.Cleanup(func() {
		logger.SetOutput(out)
		logger.SetLevel(level)
	})
	r := registry.Start(t)
	push(t, r, "app:1", randomImage(t))
	wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/app/manifests/none", nil), http.StatusNotFound)
	wantStatus(t, send(t, r.Client(), http.MethodPut, r.URL()+"/v2/app/manifests/bad", bytes.NewReader([]byte("{"))), http.StatusBadRequest)
	r.Fault(registry.Rule{Method: http.MethodPatch, Do: registry.CutRequest(10)})
	if _, err := try(t, r.Client(), http.MethodPatch, beginUpload(t, r, "app"), bytes.NewReader(content(1000))); err == nil {
		t.Error("a cut upload succeeded")
	}
	r.Delete(t, "app", "1")
	r.Stop()
	if logged.Len() > 0 {
		t.Errorf("distribution logged: %s", logged.String())
	}
	logrus.WithContext(context.Background()).Info("mine")
	wantContains(t, logged.String(), "mine")
}
