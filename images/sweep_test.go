package images

import (
	"slices"
	"strings"
	"testing"
)

func (b *bench) layers(t *testing.T) (ids []string) {
	t.Helper()
	layers, err := b.store.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		ids = append(ids, l.ID)
	}
	return ids
}

// TestTidy: which layers go, and when.
func TestTidy(t *testing.T) {
	for _, s := range []struct {
		name                   string
		built, killed, another bool
		// left is what tidy says, and whether the layer of no image stays.
		left bool
		// bare is whether the layer of no container stays.
		bare bool
	}{
		{name: "a build that failed may be tried again", left: true, bare: true},
		{name: "a build that succeeded", built: true, bare: true},
		{name: "after one that was killed", built: true, killed: true},
		{name: "a failure after one that was killed", killed: true, left: true, bare: true},
		{name: "beside another build", built: true, killed: true, another: true, left: true, bare: true},
	} {
		t.Run(s.name, func(t *testing.T) {
			b := open(t)
			made := strings.Repeat("a", 64)
			if _, err := b.store.CreateLayer(made, "", nil, "", false, nil); err != nil {
				t.Fatal(err)
			}
			kept, err := b.store.CreateLayer(strings.Repeat("b", 64), "", nil, "", false, nil)
			if err != nil {
				t.Fatal(err)
			}
			image, err := b.store.CreateImage("", nil, kept.ID, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			container, err := b.store.CreateContainer("", nil, image.ID, "", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			bare, err := b.store.(*recordedStore).Store.CreateLayer("", kept.ID, nil, "", true, nil)
			if err != nil {
				t.Fatal(err)
			}
			if s.another {
				config, _ := configured(t, func(c *Config) { c.StorageRoot = b.StorageRoot() })
				t.Setenv("TMPDIR", "")
				other, err := Open(config)
				if err != nil {
					t.Fatal(err)
				}
				defer other.Close()
			}
			b.built, b.killed = s.built, s.killed
			if left := b.tidy(); left != s.left {
				t.Errorf("something is left: %v, want %v", left, s.left)
			}
			now := b.layers(t)
			for id, want := range map[string]bool{made: s.left, kept.ID: true, container.LayerID: true, bare.ID: s.bare} {
				if slices.Contains(now, id) != want {
					t.Errorf("layer %s is there: %v, want %v", id, !want, want)
				}
			}
		})
	}
}

// TestForgetMounts corrects what a build counted that was killed.
func TestForgetMounts(t *testing.T) {
	b := open(t)
	layer, err := b.store.CreateLayer("", "", nil, "", false, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Mount(layer.ID, ""); err != nil {
		t.Fatal(err)
	}
	b.forgetMounts()
	if n, err := b.store.Mounted(layer.ID); err != nil || n != 0 {
		t.Errorf("the layer counts as mounted %d times (%v)", n, err)
	}
}
