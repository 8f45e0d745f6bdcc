package layers

import (
	"errors"
	"strings"
	"testing"

	"go.podman.io/storage"
	drivers "go.podman.io/storage/drivers"
	"go.podman.io/storage/pkg/idtools"
)

// described is a store of which no more than a description is asked for.
type described struct {
	storage.Store
	driver  drivers.Driver
	options []string
	ids     []idtools.IDMap
}

func (d described) GraphDriver() (drivers.Driver, error) { return d.driver, nil }
func (d described) GraphOptions() []string               { return d.options }
func (d described) UIDMap() []idtools.IDMap              { return d.ids }
func (d described) GIDMap() []idtools.IDMap              { return nil }

// named is a driver that stages layers, and plain one that does not.
type (
	named struct {
		drivers.DriverWithDiffer
		name string
	}
	plain struct{ drivers.Driver }
)

func (n named) String() string { return n.name }
func (plain) String() string   { return "vfs" }

func TestSuits(t *testing.T) {
	overlay := named{name: "overlay"}
	for name, tt := range map[string]struct {
		store described
		why   string // empty where it suits
	}{
		"overlay":                  {store: described{driver: overlay}},
		"overlay with options":     {store: described{driver: overlay, options: []string{"overlay.mountopt=nodev", "overlay.ignore_chown_errors=true", "overlay.use_composefs=false", "overlay.mount_program=/x"}}},
		"another driver":           {described{driver: plain{}}, "vfs"},
		"another that stages":      {described{driver: named{name: "other"}}, "other"},
		"mapped owners":            {described{driver: overlay, ids: []idtools.IDMap{{HostID: 1, Size: 1}}}, "owners"},
		"a forced mask":            {described{driver: overlay, options: []string{"overlay.force_mask=0755"}}, "force_mask"},
		"a forced mask, by a word": {described{driver: overlay, options: []string{"force_mask=shared"}}, "force_mask"},
		"composefs":                {described{driver: overlay, options: []string{"overlay.use_composefs=true"}}, "use_composefs"},
		"additional layers":        {described{driver: overlay, options: []string{"overlay.additionallayerstore=/l:ref"}}, "additionallayerstore"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Suits(tt.store)
			if tt.why == "" && err != nil || tt.why != "" && (!errors.Is(err, ErrUnsuited) || !strings.Contains(err.Error(), tt.why)) {
				t.Errorf("%v, want one that says %q", err, tt.why)
			}
		})
	}
}
