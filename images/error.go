package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"github.com/strata-build/strata/agent/result"
)

// Error is a failure with the facts that decide what it means.
type Error struct {
	Reason result.Reason
	Class  result.Class
	// Message is one sentence for a person: what failed, where, and why.
	Message string
	// Host is the registry that was talked to, with its port; Status what it
	// answered, 0 when it did not.
	Host   string
	Status int
	// RetryAfter is how long the registry asked to be left alone, 0 for no wish.
	RetryAfter time.Duration
	// RunExitCode is the exit status of the RUN step that failed, else 0.
	RunExitCode int
	Step        *result.Step
	// Output is the end of what the failed step wrote.
	Output string
	// Err is the cause.
	Err error
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap implements errors.Unwrap.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode is the status that a shell would have seen of the operation: that of
// the failed RUN, or 1.
func (e *Error) ExitCode() int { return max(e.RunExitCode, 1) }

// AsError returns the *Error in the chain of err. An error that holds none is
// one that the package did not expect: InternalError.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Reason: result.ReasonInternalError, Message: err.Error(), Err: err}
}

// FileError is the error of a file of the machine that cannot be written.
func FileError(what string, err error) *Error {
	e := &Error{Reason: result.ReasonSettingsInvalid, Class: result.ClassSandbox, Message: fmt.Sprintf("%s: %v", what, err), Err: err}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		e.Reason, e.Class = result.ReasonNoSpace, result.ClassResource
		var path *fs.PathError
		if errors.As(err, &path) {
			if space, err := SpaceAt(filepath.Dir(path.Path)); err == nil {
				e.Message += " (" + space.String() + ")"
			}
		}
	}
	return e
}

// Stopped is the error of work that ctx ended: Interrupted, or DeadlineExceeded.
func Stopped(ctx context.Context, when string) *Error {
	v := classify(ctx, context.Cause(ctx), pulling)
	what := "stopped by a signal"
	if v.reason == result.ReasonDeadlineExceeded {
		what = "the deadline passed"
	}
	return &Error{Reason: v.reason, Class: v.class, Message: what + " " + when, Err: context.Cause(ctx)}
}

// rootCause is the error that all others are about.
func rootCause(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}
