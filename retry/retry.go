// Package retry runs an operation several times. It counts attempts, waits
// between them, and reports each one that failed; it knows nothing of images or
// of Kubernetes. Which errors are worth another attempt, how long the other side
// asked to be left alone, and what ends a wait early are the caller's to say.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	retrygo "github.com/avast/retry-go/v4"
)

// Policy says how an operation is tried again. The zero value makes one attempt.
type Policy struct {
	// Attempts is how many attempts are made in all; below 1 counts as 1.
	Attempts int
	// Delay is the wait after the first attempt. It doubles with each further
	// attempt up to MaxDelay; a fifth of each wait, at random, is added.
	Delay, MaxDelay time.Duration
	// Retryable tells whether another attempt can help; nil says always.
	Retryable func(error) bool
	// Floor is the least wait that a failure asks for (Retry-After); nil asks for none.
	Floor func(error) time.Duration
	// Wake returns a channel that ends the wait early when it is closed; it is
	// given up when the context ends. Nil, or a nil channel, never does.
	Wake func(context.Context, error) <-chan struct{}
	// Report is told of each attempt that failed, before the wait.
	Report func(Attempt)
	// Waited is told after each wait how long it was.
	Waited func(time.Duration)
}

// Attempt is an attempt that failed.
type Attempt struct {
	// N counts from 1; Of is how many there are in all.
	N, Of int
	Err   error
	// Wait is the wait that follows.
	Wait time.Duration
	// Last says that no attempt follows, because they are used up, the error
	// cannot heal, or the context has ended.
	Last bool
}

// String is the line that is logged of the attempt: "Retry k/N exited C,
// retrying..." or "Retry k/N exited C, no more retries left.".
func (a Attempt) String() string {
	if a.Last {
		return fmt.Sprintf("Retry %d/%d exited %d, no more retries left.", a.N, a.Of, ExitStatus(a.Err))
	}
	return fmt.Sprintf("Retry %d/%d exited %d, retrying...", a.N, a.Of, ExitStatus(a.Err))
}

// ExitStatus is the exit status of the command that failed, where the error
// carries one above 0 (as *exec.ExitError does), else 1.
func ExitStatus(err error) int {
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode()
	}
	return 1
}

// Do runs op until it succeeds or the policy has no further attempt, and
// returns the error of the last one. n counts from 1. No attempt is made after
// ctx has ended, and no wait follows the last attempt.
func Do(ctx context.Context, p Policy, op func(ctx context.Context, n int) error) error {
	p.Attempts = max(p.Attempts, 1)
	run := &run{ctx: ctx, policy: p}
	err := retrygo.Do(
		func() error {
			run.n++
			run.err = op(ctx, run.n)
			return run.err
		},
		retrygo.Context(ctx),
		retrygo.Attempts(uint(p.Attempts)),
		retrygo.LastErrorOnly(true),
		retrygo.DelayType(func(uint, error, *retrygo.Config) time.Duration { return run.wait }),
		retrygo.RetryIf(func(err error) bool { return run.failed(err) }),
		retrygo.WithTimer(run),
	)
	if run.err != nil && err != nil {
		// A context that ended during a wait hides what the operation said last.
		return run.err
	}
	return err
}

// run is the state of one call of Do. It is the timer of retry-go, so that a
// wait can be ended early.
type run struct {
	ctx    context.Context
	policy Policy
	n      int
	wait   time.Duration
	err    error
}

// failed reports the attempt that just failed and tells whether another follows.
func (r *run) failed(err error) bool {
	last := r.n >= r.policy.Attempts || r.ctx.Err() != nil ||
		(r.policy.Retryable != nil && !r.policy.Retryable(err))
	r.wait = 0
	if !last {
		r.wait = r.delay(err)
	}
	if r.policy.Report != nil {
		r.policy.Report(Attempt{N: r.n, Of: r.policy.Attempts, Err: err, Wait: r.wait, Last: last})
	}
	return !last
}

func (r *run) delay(err error) time.Duration {
	d := r.policy.Delay
	for i := 1; i < r.n && d < r.policy.MaxDelay; i++ {
		d *= 2
	}
	if d > r.policy.MaxDelay {
		d = r.policy.MaxDelay
	}
	if d > 0 {
		d += rand.N(d/5 + 1) //nolint:gosec // no secret hangs on it
	}
	if r.policy.Floor != nil {
		d = max(d, r.policy.Floor(err))
	}
	return d
}

// After implements retrygo.Timer.
func (r *run) After(d time.Duration) <-chan time.Time {
	ctx, cancel := context.WithCancel(r.ctx)
	var wake <-chan struct{}
	if r.policy.Wake != nil {
		wake = r.policy.Wake(ctx, r.err)
	}
	fired := make(chan time.Time, 1)
	start := time.Now()
	go func() {
		defer cancel()
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-wake:
		case <-ctx.Done():
			return
		}
		if r.policy.Waited != nil {
			r.policy.Waited(time.Since(start))
		}
		fired <- time.Now()
	}()
	return fired
}

var _ retrygo.Timer = (*run)(nil)
