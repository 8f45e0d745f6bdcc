package images

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/strata-build/strata/agent/result"
)

// Severity says what a Finding means for a build.
type Severity string

// The severities.
const (
	// SeverityOK is a check that found what a build needs.
	SeverityOK Severity = "ok"
	// SeverityWarning does not stop a build, and makes it slower or poorer.
	SeverityWarning Severity = "warning"
	// SeverityFailure stops a build.
	SeverityFailure Severity = "failure"
	// SeverityUnknown is a check that was not made, since an earlier one failed.
	SeverityUnknown Severity = "unknown"
)

// Finding is what one look at the sandbox found. A build logs it, or ends with it;
// `agent doctor` shows all of them.
type Finding struct {
	// Check is what was looked at, such as "user namespace".
	Check    string   `json:"check"`
	Severity Severity `json:"severity"`
	// Found is one clause that says what was found, and what was chosen for it.
	Found string `json:"found"`
	// Hint is the one line to change, empty where nothing is to be changed.
	Hint string `json:"hint,omitempty"`
	// Reason is that of the build that fails, empty unless Severity is failure.
	Reason result.Reason `json:"reason,omitempty"`
}

// Err is the error of a build that cannot be made for what was found, nil unless
// the finding is a failure.
func (f Finding) Err() error {
	if f.Severity != SeverityFailure {
		return nil
	}
	message := f.Found
	if f.Reason == result.ReasonUserNamespaceUnavailable {
		message = "this sandbox cannot build: " + message
	}
	if f.Hint != "" {
		message += ". To mend it: " + f.Hint
	}
	return &Error{Reason: f.Reason, Class: f.Reason.Entry().Class, Message: message, Err: foundError{f}}
}

// foundError is the cause of an Error that a finding made.
type foundError struct{ Finding }

// Error implements error.
func (f foundError) Error() string { return f.Found }

// asFinding makes a finding of the error of a check.
func asFinding(err error) Finding {
	var found foundError
	if errors.As(err, &found) {
		return found.Finding
	}
	e := AsError(err)
	return failure(e.Reason, "%s", e.Message)
}

func ok(format string, args ...any) Finding {
	return Finding{Severity: SeverityOK, Found: fmt.Sprintf(format, args...)}
}

// hinted returns the finding with what to change.
func (f Finding) hinted(format string, args ...any) Finding {
	f.Hint = fmt.Sprintf(format, args...)
	return f
}

func warning(format string, args ...any) Finding {
	return Finding{Severity: SeverityWarning, Found: fmt.Sprintf(format, args...)}
}

func failure(reason result.Reason, format string, args ...any) Finding {
	return Finding{Severity: SeverityFailure, Reason: reason, Found: fmt.Sprintf(format, args...)}
}

// Log says in one line what was found and chosen.
func (f Finding) Log(log *slog.Logger) {
	if f.Severity == SeverityOK {
		log.Info(f.line())
	} else {
		log.Warn(f.line())
	}
}

func (f Finding) line() string {
	if f.Severity == SeverityOK {
		return strings.ToUpper(f.Check[:1]) + f.Check[1:] + ": " + f.Found
	}
	line := f.Found
	if f.Hint != "" {
		line += ". To mend it: " + f.Hint
	}
	return line
}
