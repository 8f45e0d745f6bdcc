package images

import (
	"log/slog"
	"sync"

	"go.podman.io/storage"
)

// departing is the store of a build, in which working containers go while the push has
// begun: nobody waits until they are unmounted and their records are on the disk. What
// could not be deleted is deleted when the engine is closed.
type departing struct {
	storage.Store
	log *slog.Logger

	turn sync.Mutex // is held by the one that deletes

	mu      sync.Mutex // guards what follows
	pending int        // containers that are to go
	ended   *sync.Cond // when there are none
}

func newDeparting(store storage.Store, log *slog.Logger) *departing {
	d := &departing{Store: store, log: log}
	d.ended = sync.NewCond(&d.mu)
	return d
}

// add changes how many containers are to go.
func (d *departing) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending += n; d.pending == 0 {
		d.ended.Broadcast()
	}
}

// wait waits until no containers are to go.
func (d *departing) wait() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.pending > 0 {
		d.ended.Wait()
	}
}

// DeleteContainer implements storage.Store, and never fails.
func (d *departing) DeleteContainer(id string) error {
	d.add(1)
	go func() {
		defer d.add(-1)
		d.turn.Lock()
		defer d.turn.Unlock()
		if err := d.Store.DeleteContainer(id); err != nil {
			d.log.Debug("A working container is left to the end of the build", "container", id, "error", err)
		}
	}()
	return nil
}

// DeleteImage implements storage.Store. An image of a container cannot be deleted.
func (d *departing) DeleteImage(id string, commit bool) ([]string, error) {
	d.wait()
	return d.Store.DeleteImage(id, commit)
}

// DeleteLayer implements storage.Store. A layer of a container cannot be deleted.
func (d *departing) DeleteLayer(id string) error {
	d.wait()
	return d.Store.DeleteLayer(id)
}
