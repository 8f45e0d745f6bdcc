package images

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.podman.io/storage"
)

// slowStore deletes containers once it is released, and notes what it is asked for.
type slowStore struct {
	storage.Store
	release chan struct{}
	mu      sync.Mutex
	asked   []string
}

func (s *slowStore) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
}

func (s *slowStore) DeleteContainer(id string) error {
	<-s.release
	s.note("container " + id)
	return errors.New("it is busy")
}

func (s *slowStore) DeleteImage(id string, _ bool) ([]string, error) {
	s.note("image " + id)
	return nil, nil
}

func (s *slowStore) DeleteLayer(id string) error {
	s.note("layer " + id)
	return nil
}

// TestDepartingContainers are not waited for, but by what cannot be done before they are
// gone.
func TestDepartingContainers(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(storage.Store) error
	}{
		{"image a", func(s storage.Store) error { _, err := s.DeleteImage("a", true); return err }},
		{"layer a", func(s storage.Store) error { return s.DeleteLayer("a") }},
	} {
		slow := &slowStore{release: make(chan struct{})}
		store := newDeparting(slow, slog.New(slog.DiscardHandler))
		for _, id := range []string{"a", "b"} {
			if err := store.DeleteContainer(id); err != nil {
				t.Fatal(err)
			}
		}
		if slow.asked != nil {
			t.Errorf("%q were done at once", slow.asked)
		}
		ended := make(chan error, 1)
		go func() { ended <- tt.then(store) }()
		select {
		case <-ended:
			t.Fatalf("%s did not wait", tt.name)
		case <-time.After(100 * time.Millisecond): // more than one that does not wait takes
		}
		close(slow.release)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if n := len(slow.asked); n != 3 || slow.asked[2] != tt.name {
			t.Errorf("%q were done, want %s at last", slow.asked, tt.name)
		}
		if slices.Sort(slow.asked); !slices.Equal(slow.asked[:2], []string{"container a", "container b"}) {
			t.Errorf("%q were done", slow.asked)
		}
	}
}

// TestContainersAreGoneAfterABuild: at once when it failed, and soon when it did not.
func TestContainersAreGoneAfterABuild(t *testing.T) {
	for _, tt := range []struct {
		steps string
		fails bool
	}{
		{"FROM scratch\nCOPY a /a\nCOPY a /b\n", false},
		{"FROM scratch\nCOPY a /a\nCOPY a /b\nRUN [\"/none\"]\n", true},
	} {
		s := newSite(t)
		spec := BuildSpec{Context: s.context, Containerfile: s.containerfile(t, tt.steps), Format: "oci", Layers: true, Jobs: 1}
		file, err := s.Parse(spec)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Build(t.Context(), spec, file); (err != nil) != tt.fails {
			t.Fatal(err)
		}
		if !tt.fails {
			s.departing.wait()
		}
		if left, err := s.store.Containers(); err != nil || len(left) > 0 {
			t.Errorf("%d containers are left (%v)", len(left), err)
		}
	}
}
