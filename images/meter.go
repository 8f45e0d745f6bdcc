package images

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/images/distribution"
)

// progressInterval is how often a copy reports how far a blob is: that of libimage,
// which pulls and cannot be told another one.
const progressInterval = time.Second

// meter adds up what a copy reads, and gives up on one that reads nothing any more.
// Its channel is never closed: a copy that failed may still have something to say.
type meter struct {
	events chan types.ProgressProperties
	ctx    context.Context // that of the copy
	cancel context.CancelCauseFunc
	stall  *time.Timer // nil for none
	// silence is how long nothing may be heard of it.
	silence time.Duration

	mu   sync.Mutex
	read int64
}

// newMeter returns a meter for a copy, which is to be made with its context. A copy
// that reads nothing for stall is given up, at most progressInterval later since that
// is how long what it read may be unknown; 0 means never.
func newMeter(parent context.Context, stall time.Duration) *meter {
	ctx, cancel := context.WithCancelCause(parent)
	m := &meter{events: make(chan types.ProgressProperties), ctx: ctx, cancel: cancel, silence: stall + progressInterval}
	if stall > 0 {
		m.stall = time.AfterFunc(m.silence, func() {
			cancel(fmt.Errorf("%w for %v", distribution.ErrStalled, stall))
		})
	}
	go func() {
		for p := range m.events {
			m.progress()
			if p.Event == types.ProgressEventDone {
				m.mu.Lock()
				m.read += int64(p.Offset) //nolint:gosec // no blob has 8 EiB
				m.mu.Unlock()
			}
		}
	}()
	return m
}

// progress says that the copy goes on, where it does not say so itself.
func (m *meter) progress() {
	if m.stall != nil {
		m.stall.Reset(m.silence)
	}
}

// stop ends the watch and returns the bytes that the copy read from its source, and
// the error with which it ended: that it stalled, where that is why.
func (m *meter) stop(ended error) (int64, error) {
	// Events are taken one after the other: when this one is, those before it count.
	m.events <- types.ProgressProperties{Event: types.ProgressEventRead}
	if m.stall != nil {
		m.stall.Stop()
	}
	if cause := context.Cause(m.ctx); ended != nil && cause != nil && !errors.Is(cause, m.ctx.Err()) {
		ended = cause // why it was given up, not that it was
	}
	m.cancel(nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read, ended
}
