package retry_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strata-build/strata/retry"
)

var errDown = errors.New("down")

func TestDo(t *testing.T) {
	tests := []struct {
		name     string
		policy   retry.Policy
		fails    int // the first attempts that fail
		want     error
		attempts int
		lines    []string
	}{
		{
			name: "first attempt succeeds", policy: retry.Policy{Attempts: 3}, attempts: 1,
		},
		{
			name: "second attempt succeeds", policy: retry.Policy{Attempts: 3}, fails: 1, attempts: 2,
			lines: []string{"Retry 1/3 exited 1, retrying..."},
		},
		{
			name: "all attempts fail", policy: retry.Policy{Attempts: 3}, fails: 9, want: errDown, attempts: 3,
			lines: []string{"Retry 1/3 exited 1, retrying...", "Retry 2/3 exited 1, retrying...", "Retry 3/3 exited 1, no more retries left."},
		},
		{
			name: "zero attempts means one", policy: retry.Policy{}, fails: 9, want: errDown, attempts: 1,
			lines: []string{"Retry 1/1 exited 1, no more retries left."},
		},
		{
			name:   "hopeless error ends at once",
			policy: retry.Policy{Attempts: 3, Retryable: func(error) bool { return false }}, fails: 9, want: errDown, attempts: 1,
			lines: []string{"Retry 1/3 exited 1, no more retries left."},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var lines []string
			attempts := 0
			tt.policy.Report = func(a retry.Attempt) { lines = append(lines, a.String()) }
			err := retry.Do(t.Context(), tt.policy, func(_ context.Context, n int) error {
				if attempts++; n != attempts {
					t.Errorf("attempt %d was given the number %d", attempts, n)
				}
				if n <= tt.fails {
					return fmt.Errorf("attempt %d: %w", n, errDown)
				}
				return nil
			})
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if attempts != tt.attempts {
				t.Errorf("%d attempts, want %d", attempts, tt.attempts)
			}
			if !slices.Equal(lines, tt.lines) {
				t.Errorf("lines %q, want %q", lines, tt.lines)
			}
		})
	}
}

func TestDoReturnsTheLastError(t *testing.T) {
	err := retry.Do(t.Context(), retry.Policy{Attempts: 2}, func(_ context.Context, n int) error {
		return fmt.Errorf("attempt %d", n)
	})
	if err == nil || err.Error() != "attempt 2" {
		t.Errorf("error %v, want that of attempt 2 alone", err)
	}
}

func TestExitStatusOfACommand(t *testing.T) {
	err := exec.Command("sh", "-c", "exit 42").Run()
	a := retry.Attempt{N: 3, Of: 3, Last: true, Err: fmt.Errorf("step: %w", err)}
	if got, want := a.String(), "Retry 3/3 exited 42, no more retries left."; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
}

func TestWaitsDoubleUpToTheMaximum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waits []time.Duration
		policy := retry.Policy{
			Attempts: 6, Delay: 2 * time.Second, MaxDelay: 10 * time.Second,
			Report: func(a retry.Attempt) { waits = append(waits, a.Wait) },
		}
		start := time.Now()
		_ = retry.Do(t.Context(), policy, func(context.Context, int) error { return errDown })
		elapsed := time.Since(start)
		want := []time.Duration{2, 4, 8, 10, 10, 0}
		var sum time.Duration
		for i, w := range want {
			w *= time.Second
			sum += waits[i]
			if waits[i] < w || waits[i] > w+w/5+1 {
				t.Errorf("wait %d is %v, want %v plus at most a fifth", i+1, waits[i], w)
			}
		}
		if elapsed != sum {
			t.Errorf("it took %v, the waits are %v: nothing else may wait, least of all after the last attempt", elapsed, sum)
		}
	})
}

func TestFloorIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_ = retry.Do(t.Context(), retry.Policy{
			Attempts: 2, Delay: time.Second, MaxDelay: time.Second,
			Floor: func(error) time.Duration { return 40 * time.Second },
		}, func(context.Context, int) error { return errDown })
		if got := time.Since(start); got != 40*time.Second {
			t.Errorf("waited %v, want the 40s that were asked for", got)
		}
	})
}

func TestWakeEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{})
		time.AfterFunc(3*time.Second, func() { close(changed) })
		var waited time.Duration
		start := time.Now()
		_ = retry.Do(t.Context(), retry.Policy{
			Attempts: 2, Delay: time.Minute, MaxDelay: time.Minute,
			Wake:   func(context.Context, error) <-chan struct{} { return changed },
			Waited: func(d time.Duration) { waited = d },
		}, func(context.Context, int) error { return errDown })
		if got := time.Since(start); got != 3*time.Second || waited != got {
			t.Errorf("waited %v and reported %v, want 3s", got, waited)
		}
	})
}

func TestContextEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		attempts := 0
		start := time.Now()
		err := retry.Do(ctx, retry.Policy{Attempts: 3, Delay: time.Minute, MaxDelay: time.Minute}, func(context.Context, int) error {
			attempts++
			return errDown
		})
		if got := time.Since(start); got != 5*time.Second || attempts != 1 {
			t.Errorf("it took %v and %d attempts, want 5s and 1", got, attempts)
		}
		if !errors.Is(err, errDown) {
			t.Errorf("error %v, want that of the operation", err)
		}
	})
}

func TestNoAttemptOnceTheContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var lines []string
	err := retry.Do(ctx, retry.Policy{Attempts: 3, Report: func(a retry.Attempt) { lines = append(lines, a.String()) }}, func(context.Context, int) error {
		cancel()
		return errDown
	})
	if !errors.Is(err, errDown) || len(lines) != 1 || !strings.HasPrefix(lines[0], "Retry 1/3") {
		t.Errorf("error %v, lines %q; want one attempt", err, lines)
	}
	err = retry.Do(ctx, retry.Policy{Attempts: 3}, func(context.Context, int) error {
		t.Error("an attempt was made after the context had ended")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}
