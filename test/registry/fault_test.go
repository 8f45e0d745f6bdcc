package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"

	"github.com/strata-build/strata/test/registry"
)

func TestRuleRange(t *testing.T) {
	r := registry.Start(t)
	f := r.Fault(registry.Rule{
		Method: http.MethodGet, Path: "^/v2/$", From: 2, To: 3,
		Do: registry.Reply{Status: http.StatusServiceUnavailable},
	})
	wantStatus(t, send(t, r.Client(), http.MethodHead, r.URL()+"/v2/", nil), http.StatusOK) // another method
	wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/_catalog", nil), http.StatusOK)
	for _, status := range []int{200, 503, 503, 200} {
		wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil), status)
	}
	if f.Seen() != 4 || f.Fired() != 2 {
		t.Errorf("the rule saw %d requests and acted on %d, want 4 and 2", f.Seen(), f.Fired())
	}
}

func TestRuleWhen(t *testing.T) {
	r := registry.Start(t)
	url := seed(t, r, "app", content(100))
	r.Fault(registry.Rule{
		When: func(r *http.Request) bool { return r.Header.Get("Range") != "" },
		Do:   registry.Reply{Status: http.StatusTeapot},
	})
	wantStatus(t, send(t, r.Client(), http.MethodGet, url, nil), http.StatusOK)
	wantStatus(t, send(t, r.Client(), http.MethodGet, url, nil, "Range", "bytes=1-2"), http.StatusTeapot)
}

func TestRulesEnd(t *testing.T) {
	r := registry.Start(t)
	status := func(want int) {
		t.Helper()
		wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil), want)
	}
	first := r.Fault(registry.Rule{Do: registry.Reply{Status: 500}})
	second := r.Fault(registry.Rule{Do: registry.Reply{Status: 502}})
	status(500)
	if first.Fired() != 1 || second.Fired() != 0 || second.Seen() != 1 {
		t.Errorf("the older rule acted %d times, the younger %d times and saw %d requests", first.Fired(), second.Fired(), second.Seen())
	}
	first.Remove()
	status(502)
	r.ClearFaults()
	status(200)
}

func TestReply(t *testing.T) {
	r := registry.Start(t)
	r.Fault(registry.Rule{Do: registry.Reply{
		Status: http.StatusTooManyRequests,
		Header: http.Header{"Retry-After": {"7"}},
		Body:   "slow down",
	}})
	res := send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil)
	wantStatus(t, res, http.StatusTooManyRequests)
	if got := res.Header.Get("Retry-After"); got != "7" {
		t.Errorf("Retry-After %q, want 7", got)
	}
	if got := read(t, res); string(got) != "slow down" {
		t.Errorf("body %q", got)
	}
	if got := last(t, r.Server); got.Status != http.StatusTooManyRequests || got.Sent != 9 {
		t.Errorf("record is %v", got)
	}
	// A client that sends much sees the answer as well.
	wantStatus(t, send(t, r.Client(), http.MethodPut, r.URL()+"/v2/", bytes.NewReader(content(8<<20))), http.StatusTooManyRequests)
	if got := last(t, r.Server); got.Received != 8<<20 {
		t.Errorf("record is %v", got)
	}
}

func TestRefuse(t *testing.T) {
	r := registry.Start(t)
	r.Fault(registry.Rule{To: 1, Do: registry.Refuse(errcode.ErrorCodeDenied, "")})
	r.Fault(registry.Rule{To: 2, Do: registry.Refuse(errcode.ErrorCodeManifestUnknown, "gone away")})
	res := send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil)
	wantStatus(t, res, http.StatusForbidden)
	wantContains(t, string(read(t, res)), `"code":"DENIED"`, `"message":"requested access to the resource is denied"`)
	res = send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil)
	wantStatus(t, res, http.StatusNotFound)
	wantContains(t, string(read(t, res)), `"code":"MANIFEST_UNKNOWN"`, `"message":"gone away"`)
}

func TestClose(t *testing.T) {
	for _, opts := range [][]registry.Option{nil, {registry.WithTLS()}} {
		r := registry.Start(t, opts...)
		r.Fault(registry.Rule{To: 2, Do: registry.Close{}})
		_, err := try(t, once(r), http.MethodGet, r.URL()+"/v2/", nil)
		wantReset(t, err)
		_, err = try(t, once(r), http.MethodPut, r.URL()+"/v2/", bytes.NewReader(content(8<<20)))
		wantCut(t, err)
		for _, got := range r.Requests() {
			if got.Status != 0 || !got.Cut || got.Received != 0 || got.Sent != 0 {
				t.Errorf("record is %v", got)
			}
		}
		wantStatus(t, send(t, once(r), http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	}
}

// TestCloseIsRepeated pins what the comment on Close warns of.
func TestCloseIsRepeated(t *testing.T) {
	r := registry.Start(t)
	c := r.Client()
	read(t, send(t, c, http.MethodGet, r.URL()+"/v2/", nil))
	r.Reset()
	f := r.Fault(registry.Rule{To: 1, Do: registry.Close{}})
	wantStatus(t, send(t, c, http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	if f.Fired() != 1 || r.Count("", "") != 2 {
		t.Errorf("%d resets in %d requests, want 1 in 2", f.Fired(), r.Count("", ""))
	}
}

func TestCutRequest(t *testing.T) {
	for _, opts := range [][]registry.Option{nil, {registry.WithTLS()}} {
		r := registry.Start(t, opts...)
		blob := content(4 << 20)
		place := beginUpload(t, r, "app")
		f := r.Fault(registry.Rule{Method: http.MethodPatch, To: 1, Do: registry.CutRequest(100_000)})
		_, err := try(t, once(r), http.MethodPatch, place, bytes.NewReader(blob))
		wantCut(t, err)
		inTime(t, "the handler ends", func() { r.Stop(); r.Listen() })
		if got := last(t, r.Server); f.Fired() != 1 || got.Received != 100_000 || got.Status != 0 || got.Sent != 0 || !got.Cut {
			t.Errorf("record is %v", got)
		}
		// The registry has what came before the cut, and the upload can go on.
		res := send(t, r.Client(), http.MethodGet, place, nil)
		wantStatus(t, res, http.StatusNoContent)
		if got := res.Header.Get("Range"); got != "0-99999" {
			t.Fatalf("the registry has the range %s, want 0-99999", got)
		}
		place = res.Header.Get("Location")
		res = send(t, r.Client(), http.MethodPatch, place, bytes.NewReader(blob[100_000:]))
		wantStatus(t, res, http.StatusAccepted)
		place = res.Header.Get("Location") + "&digest=" + digestOf(blob)
		wantStatus(t, send(t, r.Client(), http.MethodPut, place, nil), http.StatusCreated)
		if !r.HasBlob(t, "app", digestOf(blob)) {
			t.Error("the blob is not there")
		}
	}
}

func TestCutRequestSparesShortBodies(t *testing.T) {
	r := registry.Start(t)
	r.Fault(registry.Rule{Do: registry.CutRequest(1000)})
	wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	wantStatus(t, send(t, r.Client(), http.MethodPatch, beginUpload(t, r, "app"), bytes.NewReader(content(1000))), http.StatusAccepted)
	_, err := try(t, once(r), http.MethodPatch, beginUpload(t, r, "app"), bytes.NewReader(content(1001)))
	wantCut(t, err)
}

// narrow is a client that takes few bytes at a time from the network.
func narrow(r *registry.Registry) *http.Client {
	transport := r.Transport()
	transport.DisableKeepAlives = true
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return conn, err
	}
	return &http.Client{Transport: transport}
}

func TestCutResponse(t *testing.T) {
	blob := content(4 << 20)
	for _, opts := range [][]registry.Option{nil, {registry.WithTLS()}} {
		r := registry.Start(t, opts...)
		url := seed(t, r, "app", blob)
		for _, n := range []int{0, 1, 3_000_000} {
			r.Reset()
			f := r.Fault(registry.Rule{Do: registry.CutResponse(n)})
			res := send(t, narrow(r), http.MethodGet, url, nil)
			wantStatus(t, res, http.StatusOK)
			if res.ContentLength != int64(len(blob)) {
				t.Errorf("length %d announced, want %d", res.ContentLength, len(blob))
			}
			got, err := io.ReadAll(res.Body)
			wantReset(t, err)
			if !bytes.Equal(got, blob[:n]) {
				t.Errorf("%d bytes arrived, or others than the first %d", len(got), n)
			}
			if got := last(t, r.Server); got.Status != 200 || got.Sent != int64(n) || !got.Cut {
				t.Errorf("record is %v", got)
			}
			f.Remove()
		}
	}
}

func TestCutResponseSparesShortBodies(t *testing.T) {
	r := registry.Start(t)
	url := seed(t, r, "app", content(1000))
	r.Fault(registry.Rule{Do: registry.CutResponse(1000)})
	if got := read(t, send(t, r.Client(), http.MethodGet, url, nil)); len(got) != 1000 {
		t.Errorf("%d bytes, want 1000", len(got))
	}
	if last(t, r.Server).Cut {
		t.Error("the connection was cut")
	}
}

// TestCutResponseOfDeafClient shows that a client that does not read holds up
// neither the cut nor Stop.
func TestCutResponseOfDeafClient(t *testing.T) {
	r := registry.Start(t)
	url := seed(t, r, "app", content(12<<20))
	deaf := func(n int, waiting func() bool) {
		t.Helper()
		f := r.Fault(registry.Rule{Do: registry.CutResponse(n)})
		wantStatus(t, send(t, narrow(r), http.MethodGet, url, nil), http.StatusOK)
		eventually(t, "the server waits for the client", waiting)
		begin := time.Now()
		inTime(t, "Stop", r.Stop)
		if took := time.Since(begin); took > patience/4 {
			t.Errorf("Stop took %v", took)
		}
		f.Remove()
		r.Listen()
	}
	// All is written and waits to be delivered.
	deaf(400_000, func() bool { return last(t, r.Server).Cut })
	// The system takes no more.
	deaf(11<<20, func() bool { return last(t, r.Server).Sent > 0 })
}

func TestDelay(t *testing.T) {
	r := registry.Start(t)
	r.Fault(registry.Rule{To: 1, Do: registry.Delay(50 * time.Millisecond)})
	begin := time.Now()
	wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("the reply came after %v", took)
	}
}

// hang sends a request, checks that there is no end to it, and returns how it
// fails once stop was called.
func hang(t *testing.T, r *registry.Registry, method string, body io.Reader, stop func(cancel func())) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, r.URL()+"/v2/", body)
	if err != nil {
		t.Fatal(err)
	}
	c := once(r)
	failed := make(chan error, 1)
	go func() {
		res, err := c.Do(req)
		if err == nil {
			res.Body.Close()
		}
		failed <- err
	}()
	eventually(t, "the request arrived", func() bool { return r.Count(method, "") == 1 })
	select {
	case err := <-failed:
		t.Fatalf("the request ended with %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	inTime(t, "the end of the wait", func() { stop(cancel) })
	select {
	case err = <-failed:
	case <-time.After(patience):
		t.Fatal("the client still waits")
	}
	if err == nil {
		t.Fatal("the request succeeded")
	}
	eventually(t, "the handler ended", func() bool { return last(t, r.Server).Took > 0 })
	if got := last(t, r.Server); got.Status != 0 || got.Sent != 0 {
		t.Errorf("record is %v", got)
	}
	return err
}

func TestWaitsEnd(t *testing.T) {
	for name, action := range map[string]registry.Action{"delay": registry.Delay(time.Hour), "stall": registry.Stall{}} {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			// A server that has not read a body does not see that the client left.
			body := func(unread bool) io.Reader {
				if method == http.MethodPut && (name == "stall" || unread) {
					return bytes.NewReader(content(4 << 20))
				}
				return nil
			}
			t.Run(name+" "+method+" client leaves", func(t *testing.T) {
				r := registry.Start(t)
				r.Fault(registry.Rule{Do: action})
				if err := hang(t, r, method, body(false), func(cancel func()) { cancel() }); !errors.Is(err, context.Canceled) {
					t.Errorf("error %v, want that of the context", err)
				}
			})
			t.Run(name+" "+method+" server stops", func(t *testing.T) {
				r := registry.Start(t)
				r.Fault(registry.Rule{Do: action})
				hang(t, r, method, body(true), func(func()) { r.Stop() })
			})
		}
	}
}

func TestStallResponse(t *testing.T) {
	r := registry.Start(t)
	blob := content(100_000)
	url := seed(t, r, "app", blob)
	r.Fault(registry.Rule{Do: registry.StallResponse(60_000)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	got := make([]byte, 60_000)
	if _, err := io.ReadFull(res.Body, got); err != nil || !bytes.Equal(got, blob[:60_000]) {
		t.Fatalf("the first 60000 bytes: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	if n, err := res.Body.Read(got); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d more bytes, error %v", n, err)
	}
	eventually(t, "the handler ended", func() bool { return last(t, r.Server).Took > 0 })
	if got := last(t, r.Server); got.Status != 200 || got.Sent != 60_000 {
		t.Errorf("record is %v", got)
	}
}

func TestCorrupt(t *testing.T) {
	r := registry.Start(t)
	blob := content(100_000)
	url := seed(t, r, "app", blob)
	want := bytes.Clone(blob)
	want[70_000] ^= 0xff
	r.Fault(registry.Rule{From: 1, To: 1, Do: registry.Corrupt(70_000)})
	if got := read(t, send(t, r.Client(), http.MethodGet, url, nil)); !bytes.Equal(got, want) {
		t.Error("the reply does not differ in just the byte at 70000")
	}
	if got := read(t, send(t, r.Client(), http.MethodGet, url, nil)); !bytes.Equal(got, blob) {
		t.Error("the second reply is wrong: the content itself was changed")
	}
}

func TestCall(t *testing.T) {
	r := registry.Start(t)
	file := t.TempDir() + "/called"
	r.Fault(registry.Rule{From: 2, Do: registry.Call(func() { os.WriteFile(file, nil, 0o600) })})
	wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	if _, err := os.Stat(file); err == nil {
		t.Error("called before its time")
	}
	wantStatus(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	if _, err := os.Stat(file); err != nil {
		t.Errorf("not called: %v", err)
	}
}

func TestRulesCompose(t *testing.T) {
	r := registry.Start(t)
	blob := content(1000)
	url := seed(t, r, "app", blob)
	r.Fault(registry.Rule{Do: registry.Delay(30 * time.Millisecond)})
	r.Fault(registry.Rule{Do: registry.CutResponse(500)})
	r.Fault(registry.Rule{Do: registry.Corrupt(2)})
	begin := time.Now()
	res := send(t, once(r), http.MethodGet, url, nil)
	got, err := io.ReadAll(res.Body)
	wantReset(t, err)
	want := bytes.Clone(blob[:500])
	want[2] ^= 0xff
	if took := time.Since(begin); !bytes.Equal(got, want) || took < 30*time.Millisecond {
		t.Errorf("%d bytes after %v", len(got), took)
	}
}

func TestRequestString(t *testing.T) {
	got := registry.Request{Method: "PATCH", Path: "/v2/a", Query: "_state=long&x=y", Status: 202, Cut: true, Received: 3, Sent: 4}.String()
	wantContains(t, got, "PATCH /v2/a?x=y -> 202 cut", "3", "4")
	if strings.Contains(got, "long") {
		t.Errorf("%q has the state of the upload", got)
	}
}
