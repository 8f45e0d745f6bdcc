package images

import (
	"sync"
	"time"

	"go.podman.io/image/v5/types"
)

// progressInterval is how often a copy reports how far a blob is. Only the end
// of a blob is of interest here, so it is long.
const progressInterval = time.Hour

// meter adds up what a copy transfers. Its channel is never closed: a copy that
// failed may still have something to say.
type meter struct {
	events chan types.ProgressProperties

	mu      sync.Mutex
	read    int64
	skipped map[string]bool
}

func newMeter() *meter {
	m := &meter{events: make(chan types.ProgressProperties), skipped: map[string]bool{}}
	go func() {
		for p := range m.events {
			m.mu.Lock()
			switch p.Event {
			case types.ProgressEventDone:
				m.read += int64(p.Offset) //nolint:gosec // no blob has 8 EiB
			case types.ProgressEventSkipped:
				m.skipped[p.Artifact.Digest.String()] = true
			}
			m.mu.Unlock()
		}
	}()
	return m
}

// total returns the bytes that the copy read from its source, and the digests of
// the blobs that the destination had already.
func (m *meter) total() (read int64, skipped map[string]bool) {
	// Events are taken one after the other: when this one is, those before it count.
	m.events <- types.ProgressProperties{Event: types.ProgressEventRead}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read, m.skipped
}
