package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// A result is owed within 5 s of a signal. These are counted from the signal, and
// what they leave is for sweepTime and for writing the result.
const (
	// stepGrace is how long steps have to end by themselves. The worker is told
	// of the signal, too, and cleans up once they are gone.
	stepGrace = time.Second
	// grace is how long the worker has to end by itself.
	grace = 2500 * time.Millisecond
	// lost is when a worker that was killed is not waited for any longer: the
	// kernel ends no process that waits for a disk.
	lost = 3500 * time.Millisecond
)

// supervise starts the worker, waits for it, and delivers its Result, or one of
// its own when the worker left none.
func supervise(s *Settings, streams Streams) result.ExitCode {
	// The worker is killed when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	r := newResult(s)
	c := newConsole(streams.Err, s, newRedactor())
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, stopSignals...)
	defer signal.Stop(signals)
	surviveClosedOutput()

	w, results, err := startWorker(s, c)
	if err != nil {
		e := images.AsError(err)
		r.Conclude(e.Reason)
		r.Message = e.Message
		r.Attempts = []result.Attempt{{Phase: result.Prepare, N: 1, Of: 1, Class: e.Class, Error: e.Message}}
	} else {
		got := watch(w, results, signals, s.Deadline)
		if got.result != nil {
			r = got.result
		}
		if r.Outcome == "" {
			sweepAfterWorker(s)
		} else {
			deliver(s, r, streams)
			return result.ExitCode(r.ExitCode)
		}
		r.Conclude(got.reason)
		r.Message = got.message
		if st := r.Step; st != nil && st.Line > 0 {
			r.Message = fmt.Sprintf("at step %d/%d of stage %s (%s, line %d): %s", st.Number, st.Of, st.Stage, s.Containerfile, st.Line, got.message)
		}
		made := r.Phases[r.Phase].Attempts
		for _, a := range r.Attempts {
			if a.Phase == r.Phase {
				made = max(made, a.N)
			}
		}
		r.Attempts = append(r.Attempts, result.Attempt{Phase: r.Phase, N: made + 1, Of: s.MaxRetries, Class: r.Reason.Entry().Class, Error: r.Message})
	}
	r.FinishedAt = time.Now().UTC()
	deliver(s, r, streams)
	explainFailure(c, r, "")
	return result.ExitCode(r.ExitCode)
}

// stopSignals are the signals that end a build.
var stopSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

// surviveClosedOutput keeps the process alive when nobody reads its output any
// more: the result is owed all the same. The signal is caught, not ignored, since
// the steps would inherit that.
func surviveClosedOutput() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// startWorker starts this program again with the same arguments. The results
// that come from the worker can be read from the file it returns.
func startWorker(s *Settings, c *console) (*images.Worker, *os.File, error) {
	// Orphans of the steps become children of this process, not of the machine's
	// first one, so that they can be reaped, and killed at the end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		c.log.Debug("orphans are left to others", "error", err)
	}
	w, err := images.NewWorker(s.needs(), append([]string{workerName}, os.Args[1:]...)...)
	if err != nil {
		return nil, nil, err
	}
	w.Finding.Log(c.log)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("making a pipe for the result: %w", err)
	}
	defer write.Close()
	if w.Cmd.Env == nil {
		w.Cmd.Env = os.Environ()
	}
	w.Cmd.Env = append(w.Cmd.Env, userNSVariable+"="+w.UserNS)
	w.Cmd.Stdout, w.Cmd.Stderr = os.Stdout, os.Stderr
	w.Cmd.ExtraFiles = []*os.File{write} // becomes resultFD
	if err := w.Start(); err != nil {
		_ = read.Close()
		return nil, nil, err
	}
	return w, read, nil
}

// sweepTime is how long removing what a worker left may take; the result is owed.
const sweepTime = time.Second

// sweepAfterWorker removes what a worker left that was killed.
func sweepAfterWorker(s *Settings) {
	w, err := images.NewWorker(s.needs(), append([]string{sweeperName}, os.Args[1:]...)...)
	if err != nil {
		return
	}
	w.Cmd.Stderr = os.Stderr
	if w.Start() != nil {
		return
	}
	timer := time.AfterFunc(sweepTime, func() { _ = w.Cmd.Process.Kill() })
	defer timer.Stop()
	_ = w.Wait()
}

// end is how a worker ended.
type end struct {
	// result is the last that the worker said, nil for nothing. Where it has no
	// outcome, the worker came no further, and reason and message say why.
	result  *result.Result
	reason  result.Reason
	message string
}

// watch waits for the worker, passing signals on, and leaves no process behind.
// The worker ends by itself at the deadline, 0 for none, or is ended soon after.
func watch(w *images.Worker, results *os.File, signals <-chan os.Signal, deadline time.Duration) end {
	defer results.Close()
	ended := make(chan error, 1)
	delivered := make(chan *result.Result, 1)
	go func() {
		var last *result.Result
		for decoder := json.NewDecoder(results); ; {
			r := &result.Result{}
			if decoder.Decode(r) != nil {
				break
			}
			last = r
		}
		delivered <- last
	}()
	go func() { ended <- w.Wait() }()
	orphans := time.NewTicker(time.Second)
	defer orphans.Stop()

	var slow, late, gone <-chan time.Time
	stop := func(in time.Duration) {
		slow, late, gone = time.After(in+stepGrace), time.After(in+grace), time.After(in+lost)
	}
	if deadline > 0 {
		stop(deadline)
	}
	stopped := end{reason: result.ReasonDeadlineExceeded, message: fmt.Sprintf("the deadline of %v passed", deadline)}
	stopping := false
	group := images.OwnMemoryGroup()
	killed := group.Kills()
	for {
		select {
		case sig := <-signals:
			if !stopping {
				stopping = true
				stop(0)
				stopped = end{reason: result.ReasonInterrupted, message: fmt.Sprintf("stopped by a signal (%v)", sig)}
			}
			_ = w.Cmd.Process.Signal(syscall.SIGTERM)
		case <-slow:
			killDescendants(w.Cmd.Process.Pid)
		case <-late:
			stopping = true
			stopped.message += fmt.Sprintf("; the build did not end by itself within %v", grace)
			_ = w.Cmd.Process.Kill()
			killDescendants(0)
		case <-gone:
			_ = results.Close() // else the worker's last word is waited for
			stopped.result = <-delivered
			return stopped
		case <-orphans.C:
			reapOrphans(w.Cmd.Process.Pid)
		case err := <-ended:
			killDescendants(0)
			reapOrphans(0)
			got := end{reason: result.ReasonInternalError, message: fmt.Sprintf("the process that builds ended without a result: %v", err)}
			switch {
			case stopping:
				got = stopped
			case wasKilled(w) && group.Kills() > killed:
				got = end{reason: result.ReasonStepOutOfMemory, message: "the kernel killed the process that builds for memory: " + group.Describe()}
			case wasKilled(w):
				got = end{reason: result.ReasonInterrupted, message: "somebody killed the process that builds (SIGKILL)"}
			}
			got.result = <-delivered
			return got
		}
	}
}

// wasKilled tells whether the worker was ended by a signal that it cannot catch.
func wasKilled(w *images.Worker) bool {
	status, ok := w.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}
