package images

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/images/distribution"
)

// reader tells a meter of what is read, as a copy does: at most every progressInterval.
type reader struct {
	meter *meter
	last  time.Time
}

func (r *reader) read() {
	if time.Since(r.last) > progressInterval {
		r.meter.events <- types.ProgressProperties{Event: types.ProgressEventRead}
		r.last = time.Now()
	}
}

func TestATransferThatIsReadInTimeIsNotGivenUp(t *testing.T) {
	for _, stall := range []time.Duration{100 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 5 * time.Minute} {
		for _, pause := range []time.Duration{stall / 100, stall / 3, stall * 9 / 10, stall - 1} {
			synctest.Test(t, func(t *testing.T) {
				m := newMeter(t.Context(), stall)
				defer close(m.events)
				r := reader{meter: m, last: time.Now()}
				for range 300 {
					time.Sleep(pause)
					r.read()
				}
				if m.ctx.Err() != nil {
					t.Errorf("stall %v, read every %v: %v", stall, pause, context.Cause(m.ctx))
				}
				_, _ = m.stop(nil)
			})
		}
	}
}

func TestATransferThatIsNoLongerReadIsGivenUp(t *testing.T) {
	for _, stall := range []time.Duration{time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			m := newMeter(t.Context(), stall)
			defer close(m.events)
			r := reader{meter: m}
			r.read()
			start := time.Now()
			<-m.ctx.Done()
			if took := time.Since(start); took < stall || took > stall+progressInterval {
				t.Errorf("given up after %v, want %v and at most %v more", took, stall, progressInterval)
			}
			if _, err := m.stop(m.ctx.Err()); !errors.Is(err, distribution.ErrStalled) {
				t.Errorf("error %v", err)
			}
		})
	}
}
