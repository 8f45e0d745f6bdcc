package agent

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/strata-build/strata/agent/result"
)

// newResult is the Result of a build that did not begin.
func newResult(s *Settings) *result.Result {
	now := time.Now().UTC()
	return &result.Result{Phase: result.Prepare, Image: s.imageName(), StartedAt: now, FinishedAt: now, Agent: Version()}
}

// deliver writes the Result where it was asked for. A place that cannot be
// written to changes nothing about the outcome: the Result is printed instead.
func deliver(s *Settings, r *result.Result, streams Streams) {
	r.Message = strings.TrimSpace(r.Message)
	data := r.Encode(s.ResultMax)
	path := s.Result
	if path == "" && exists(result.TerminationLog) {
		path = result.TerminationLog
	}
	switch path {
	case "":
		return
	case "-":
	default:
		err := result.Write(path, data)
		if err == nil {
			return
		}
		fmt.Fprintf(streams.Err, "Warning: the result cannot be written to %s and follows on standard output: %v\n", path, err)
	}
	if _, err := streams.Out.Write(data); err != nil {
		fmt.Fprintf(streams.Err, "Warning: the result cannot be written to standard output: %v\n", err)
	}
}

// printable leaves out of a line what would steer a terminal.
func printable(line string) string {
	return strings.Map(func(c rune) rune {
		if c != '\t' && unicode.IsControl(c) {
			return -1
		}
		return c
	}, line)
}

// outputLines is how much of a failed step's output a person is shown again.
const outputLines = 10

// explainFailure says in a few lines what went wrong and what to do about it.
func explainFailure(c *console, r *result.Result, output string) {
	entry := r.Reason.Entry()
	if c.json {
		c.log.Error("Build failed", "reason", string(r.Reason), "phase", string(r.Phase), "message", r.Message, "remedy", entry.Remedy)
		return
	}
	word := "failed"
	if r.Outcome == result.Interrupted {
		word = "was stopped"
	}
	c.text("")
	c.text(fmt.Sprintf("The build %s in phase %s: %s", word, r.Phase, r.Reason))
	c.text("  " + r.Message)
	if output != "" {
		lines := strings.Split(output, "\n")
		if more := len(lines) - outputLines; more > 0 {
			lines = append([]string{"…"}, lines[more:]...)
		}
		for _, line := range lines {
			c.text("  | " + printable(line))
		}
	}
	c.text("  What to do: " + entry.Remedy)
	c.text("  More: docs/troubleshooting.md#" + strings.ToLower(string(r.Reason)))
}
