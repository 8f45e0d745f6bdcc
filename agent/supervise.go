package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// grace is how long a worker has, after a signal, to end by itself. A result is
// owed within 5 s; what is left is for killing the worker and writing the result.
const grace = 3500 * time.Millisecond

// supervise starts the worker, waits for it, and delivers its Result, or one of
// its own when the worker left none.
func supervise(s *Settings, streams Streams) result.ExitCode {
	// The worker is killed when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	r := newResult(s)
	c := newConsole(streams.Err, s, newRedactor())
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)

	w, results, err := startWorker(c)
	if err != nil {
		e := images.AsError(err)
		r.Conclude(e.Reason)
		r.Message = e.Message
		r.Attempts = []result.Attempt{{Phase: result.Prepare, N: 1, Of: 1, Class: e.Class, Error: e.Message}}
	} else if got := watch(w, results, signals, s.Deadline); got.result != nil {
		r = got.result
		deliver(s, r, streams)
		return result.ExitCode(r.ExitCode)
	} else {
		r.Conclude(got.reason)
		r.Message = got.message
	}
	r.FinishedAt = time.Now().UTC()
	explainFailure(c, r, "")
	deliver(s, r, streams)
	return result.ExitCode(r.ExitCode)
}

// startWorker starts this program again with the same arguments. The results
// that come from the worker can be read from the file it returns.
func startWorker(c *console) (*images.Worker, *os.File, error) {
	// Orphans of the steps become children of this process, not of the machine's
	// first one, so that they can be reaped, and killed at the end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		c.log.Debug("orphans are left to others", "error", err)
	}
	w, err := images.NewWorker(append([]string{workerName}, os.Args[1:]...)...)
	if err != nil {
		return nil, nil, err
	}
	if w.Warning != "" {
		c.log.Warn(w.Warning)
	}
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

// end is how a worker ended: with a Result, or for a reason that is told from outside.
type end struct {
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
		var r result.Result
		if data, err := io.ReadAll(results); err == nil && json.Unmarshal(data, &r) == nil {
			delivered <- &r
		} else {
			delivered <- nil
		}
	}()
	go func() { ended <- w.Wait() }()
	orphans := time.NewTicker(time.Second)
	defer orphans.Stop()

	var late <-chan time.Time
	if deadline > 0 {
		late = time.After(deadline + grace)
	}
	killed := end{reason: result.ReasonDeadlineExceeded, message: fmt.Sprintf("the deadline of %v passed; the build did not end by itself within %v", deadline, grace)}
	stopping := false
	for {
		select {
		case sig := <-signals:
			if !stopping {
				stopping = true
				late = time.After(grace)
				killed = end{reason: result.ReasonInterrupted, message: fmt.Sprintf("stopped by a signal (%v); the build did not end by itself within %v", sig, grace)}
			}
			_ = w.Cmd.Process.Signal(syscall.SIGTERM)
		case <-late:
			stopping = true
			killDescendants()
			_ = w.Cmd.Process.Kill()
		case <-orphans.C:
			reapOrphans(w.Cmd.Process.Pid)
		case err := <-ended:
			killDescendants()
			reapOrphans(0)
			if r := <-delivered; r != nil {
				return end{result: r}
			}
			if stopping {
				return killed
			}
			return end{reason: result.ReasonInternalError, message: fmt.Sprintf("the process that builds ended without a result: %v%s", err, perhapsKilled(w))}
		}
	}
}

// perhapsKilled explains an end that nothing in the agent asked for.
func perhapsKilled(w *images.Worker) string {
	if status, ok := w.Cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		return "; somebody killed it, most likely the kernel because the memory limit was reached"
	}
	return ""
}
