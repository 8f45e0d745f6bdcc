// Package agent is one build from start to result: settings in, Result out. It
// reads as a list of phases (build.go); each is tried several times on its own,
// and none repeats what an earlier one finished.
//
// A build runs in two processes. The supervisor (supervise.go) starts the worker,
// in a user namespace where the sandbox needs one, passes signals on, reaps what
// the steps leave behind, and writes the Result whatever becomes of the worker.
// The worker (worker.go) does the building.
package agent

import (
	"fmt"
	"io"
	"os"

	"github.com/strata-build/strata/agent/result"
)

// Streams are where the agent writes.
type Streams struct {
	Out io.Writer
	Err *os.File
}

// Run performs a build with settings that were checked, and returns the exit
// code. The first word of the command line tells the supervisor from the worker.
func Run(s *Settings, streams Streams) result.ExitCode {
	if os.Args[0] == workerName {
		return work(s, streams)
	}
	return supervise(s, streams)
}

// Refuse writes the Result of settings that cannot be used, after one sentence
// for each problem, and returns the exit code.
func Refuse(s *Settings, err error, streams Streams) result.ExitCode {
	problems, ok := err.(Problems) //nolint:errorlint // made here and never wrapped
	if !ok {
		problems = Problems{err}
	}
	for _, p := range problems {
		fmt.Fprintf(streams.Err, "Error: %s\n", oneLine(p.Error()))
	}
	r := newResult(s)
	r.Conclude(result.ReasonSettingsInvalid)
	r.Message = problems.Error()
	r.Attempts = []result.Attempt{{Phase: result.Prepare, N: 1, Of: 1, Class: r.Reason.Entry().Class, Error: r.Message}}
	deliver(s, r, streams)
	return result.ExitCode(r.ExitCode)
}
