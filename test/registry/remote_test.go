package registry_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/strata-build/strata/test/registry"
)

// TestPushThroughFaults shows each fault that hits a push once to a client that
// tries again.
func TestPushThroughFaults(t *testing.T) {
	for name, rule := range map[string]registry.Rule{
		"reply":        {Method: http.MethodPatch, Do: registry.Reply{Status: http.StatusServiceUnavailable}},
		"close":        {Method: http.MethodPatch, Do: registry.Close{}},
		"cut request":  {Method: http.MethodPatch, Do: registry.CutRequest(100)},
		"cut response": {Path: "^/v2/$", Do: registry.CutResponse(1)},
		"delay":        {Method: http.MethodPut, Path: "/manifests/", Do: registry.Delay(time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry.Start(t)
			rule.To = 1
			f := r.Fault(rule)
			img := randomImage(t)
			push(t, r, "app:1", img)
			if f.Fired() != 1 {
				t.Errorf("the fault acted %d times, want once", f.Fired())
			}
			if rule.Method == http.MethodPatch && r.Count(http.MethodPatch, "") != 4 {
				t.Errorf("%d PATCH requests for three blobs and one fault, want 4", r.Count(http.MethodPatch, ""))
			}
			pulled, err := remote.Image(reference(t, r, "app:1"), from(r)...)
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Image(pulled); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPushFailsAgainstLastingFault(t *testing.T) {
	r := registry.Start(t)
	r.Fault(registry.Rule{Method: http.MethodPut, Path: "/manifests/", Do: registry.Reply{Status: http.StatusServiceUnavailable}})
	err := remote.Write(reference(t, r, "app:1"), randomImage(t), from(r)...)
	wantCode(t, err, http.StatusServiceUnavailable)
	if r.Has(t, "app", "1") {
		t.Error("the tag is there")
	}
}

func TestPullThroughFaults(t *testing.T) {
	for name, action := range map[string]registry.Action{
		"cut response": registry.CutResponse(1000),
		"corrupt":      registry.Corrupt(1000),
		"close":        registry.Close{},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry.Start(t)
			push(t, r, "app:1", randomImage(t))
			r.Fault(registry.Rule{Method: http.MethodGet, Path: "/blobs/", Do: action})
			img, err := remote.Image(reference(t, r, "app:1"), from(r)...)
			if err != nil {
				t.Fatal(err)
			}
			if err := readLayers(img); err == nil {
				t.Error("the layers could be read")
			}
			r.ClearFaults()
			if err := readLayers(img); err != nil {
				t.Errorf("the layers cannot be read though the fault is gone: %v", err)
			}
		})
	}
}

func TestPullStalls(t *testing.T) {
	r := registry.Start(t)
	push(t, r, "app:1", randomImage(t))
	f := r.Fault(registry.Rule{Path: "/manifests/", Do: registry.Stall{}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := remote.Image(reference(t, r, "app:1"), from(r, remote.WithContext(ctx))...); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the deadline", err)
	}
	if f.Fired() == 0 {
		t.Error("the fault did not act")
	}
}

// TestPushOutlivesOutage shows a registry that goes down in the middle of a push
// and comes back.
func TestPushOutlivesOutage(t *testing.T) {
	r := registry.Start(t)
	down := make(chan struct{})
	r.Fault(registry.Rule{Method: http.MethodPost, To: 1, Do: registry.Call(func() {
		go func() {
			r.Stop()
			close(down)
			time.AfterFunc(200*time.Millisecond, r.Listen)
		}()
	})})
	r.Fault(registry.Rule{Method: http.MethodPost, To: 1, Do: registry.Stall{}})
	img := randomImage(t)
	err := remote.Write(reference(t, r, "app:1"), img, remote.WithTransport(r.Transport()), remote.WithJobs(1),
		remote.WithRetryPredicate(func(err error) bool { return err != nil }),
		remote.WithRetryBackoff(remote.Backoff{Duration: 50 * time.Millisecond, Factor: 1, Steps: 100}))
	if err != nil {
		t.Fatal(err)
	}
	<-down
	if got := r.Digest(t, "app", "1"); got != imageDigest(t, img) {
		t.Errorf("digest %s, want %s", got, imageDigest(t, img))
	}
}

// TestMuchData shows that the store copes with layers of a usual size.
func TestMuchData(t *testing.T) {
	r := registry.Start(t)
	blob := content(32 << 20)
	inTime(t, "storing 32 MiB", func() { seed(t, r, "app", blob) })
	got := read(t, send(t, r.Client(), http.MethodGet, r.URL()+"/v2/app/blobs/"+digestOf(blob), nil))
	if !bytes.Equal(got, blob) {
		t.Error("the blob came back changed")
	}
}
