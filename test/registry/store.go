package registry

import (
	"bytes"
	"context"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

// storeName is the name under which distribution finds the store.
const storeName = "strata-test-memory"

func init() { factory.Register(storeName, stores{}) }

type stores struct{}

func (stores) Create(context.Context, map[string]any) (storagedriver.StorageDriver, error) {
	return store{inmemory.New()}, nil
}

// store is distribution's store in memory, spared its writer's habit of copying
// all it has on each write: with that, 32 MiB take seconds, and minutes under
// the race detector.
type store struct{ storagedriver.StorageDriver }

// Writer returns a writer that collects and hands on everything at once.
func (s store) Writer(ctx context.Context, path string, appending bool) (storagedriver.FileWriter, error) {
	w, err := s.StorageDriver.Writer(ctx, path, appending)
	if err != nil {
		return nil, err
	}
	return &writer{FileWriter: w}, nil
}

type writer struct {
	storagedriver.FileWriter
	pending bytes.Buffer
}

func (w *writer) Write(p []byte) (int, error) { return w.pending.Write(p) }

func (w *writer) flush() error {
	if w.pending.Len() == 0 {
		return nil
	}
	_, err := w.FileWriter.Write(w.pending.Bytes())
	w.pending.Reset()
	return err
}

// Close hands on what was written; more can be appended later.
func (w *writer) Close() error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.FileWriter.Close()
}

// Commit hands on what was written and makes it final.
func (w *writer) Commit(ctx context.Context) error {
	if err := w.flush(); err != nil {
		return err
	}
	return w.FileWriter.Commit(ctx)
}
