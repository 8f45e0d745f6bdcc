package images

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestConfigIsSentWhileLayersAreAskedFor has a registry that tells nothing of layers
// before it has the config.
func TestConfigIsSentWhileLayersAreAskedFor(t *testing.T) {
	c := newCourier(t, insecure)
	target := newHub(t)
	arrived := make(chan struct{})
	var once sync.Once
	config := "sha256:" + c.id
	target.fault = func(_ http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodPut && r.URL.Query().Get("digest") == config:
			once.Do(func() { close(arrived) })
		case r.Method == http.MethodHead && !strings.HasSuffix(r.URL.Path, config):
			select {
			case <-arrived:
			case <-time.After(10 * time.Second):
				t.Error("the config waits for layers")
			}
		}
		return false
	}
	if _, sent, err := c.Push(t.Context(), c.id, destination(t, target.host+"/os/layered:1"), Compression{}, ""); err != nil || sent == 0 {
		t.Errorf("%d bytes were sent, error %v", sent, err)
	}
}

// TestConfigThatFailsAtFirst is sent again at the end of the push, and counted once.
func TestConfigThatFailsAtFirst(t *testing.T) {
	c := newCourier(t, insecure)
	target := newHub(t)
	failed := false
	target.fault = func(w http.ResponseWriter, r *http.Request) bool {
		target.mu.Lock()
		defer target.mu.Unlock()
		if r.Method != http.MethodPut || r.URL.Query().Get("digest") != "sha256:"+c.id || failed {
			return false
		}
		failed = true
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	_, sent, err := c.Push(t.Context(), c.id, destination(t, target.host+"/os/layered:1"), Compression{}, "")
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for _, blob := range target.blobs {
		want += int64(len(blob))
	}
	if !failed || sent != want {
		t.Errorf("failed: %v; %d bytes are said to be sent, %d arrived", failed, sent, want)
	}
}
