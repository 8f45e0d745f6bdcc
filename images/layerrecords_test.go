package images

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"go.podman.io/storage"
)

// askedStore counts how often it is asked for layers.
type askedStore struct {
	storage.Store
	n int
}

func (s *askedStore) Layers() ([]storage.Layer, error) {
	s.n++
	return s.Store.Layers()
}

// TestLayerRecords are what the store has, after each kind of change of it, and are read
// once as long as there is none.
func TestLayerRecords(t *testing.T) {
	b := open(t)
	bare := b.store.(*recordedStore).Store
	asked := &askedStore{Store: bare}
	records := &layerRecords{store: asked}
	t.Cleanup(records.close)
	id, child := strings.Repeat("a", 64), strings.Repeat("b", 64)
	check := func(after string) {
		t.Helper()
		for _, id := range []string{id, child} {
			want, err := bare.Layer(id)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if got := records.layer(id); !reflect.DeepEqual(got, want) {
					t.Errorf("after %s: %+v, want %+v", after, got, want)
				}
			}
		}
		if asked.n != 1 {
			t.Errorf("after %s the store was asked %d times, want 1", after, asked.n)
		}
		asked.n = 0
	}
	if _, err := bare.CreateLayer(id, "", nil, "", false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := bare.CreateLayer(child, id, nil, "", true, nil); err != nil {
		t.Fatal(err)
	}
	check("layers were made")
	if err := bare.SetNames(id, []string{"a-name"}); err != nil {
		t.Fatal(err)
	}
	check("one got a name")
	if _, err := bare.Mount(child, ""); err != nil {
		t.Fatal(err)
	}
	check("one was mounted")
	if got := records.layer(child); got == nil || got.MountCount != 1 {
		t.Errorf("%+v is not mounted", got)
	}
	if _, err := bare.Unmount(child, true); err != nil {
		t.Fatal(err)
	}
	check("it was unmounted")
	if err := bare.DeleteLayer(child); err != nil {
		t.Fatal(err)
	}
	if got := records.layer(child); got != nil {
		t.Errorf("%+v is said to be there", got)
	}
	if _, err := b.store.Layer(child); !errors.Is(err, storage.ErrLayerUnknown) {
		t.Errorf("%v, want %v", err, storage.ErrLayerUnknown)
	}
	if layer, err := b.store.Layer("a-name"); err != nil || layer.ID != id {
		t.Errorf("by its name the layer is %v (%v)", layer, err)
	}
}
