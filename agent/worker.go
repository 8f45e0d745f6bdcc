package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// workerName is the name by which a worker recognises itself.
const workerName = "strata-worker"

// sweeperName is the name of a worker that only removes what another one left.
const sweeperName = "strata-sweeper"

// Sweeping tells whether this process is one that only cleans up. It needs no
// settings but those of the store, and must not refuse others.
func Sweeping() bool { return os.Args[0] == sweeperName }

// Sweep removes what a worker left that was killed: its containers, which may hold
// copies of secrets, and its temporary files. Opening the store does it.
func Sweep(s *Settings, streams Streams) result.ExitCode {
	s.LogLevel = "warn" // nobody asked for this; only that it failed is of interest
	c := newConsole(streams.Err, s, newRedactor())
	images.RouteLogs(c.log)
	engine, err := images.Open(engineConfig(s, c))
	if err != nil {
		c.log.Warn("What the build left may still be in the store", "error", err)
		return result.ExitFailed
	}
	engine.Close()
	return result.ExitSucceeded
}

// needs are what a worker with these settings has to get at.
func (s *Settings) needs() images.Needs {
	n := images.Needs{Single: s.SingleID, StorageRoot: s.StorageRoot}
	for _, path := range slices.Concat([]string{
		filepath.Join(os.Getenv("HOME"), ".config/containers/storage.conf"), // the library reads it, and gives up where it may not
		s.Context, s.Containerfile, s.PullAuthFile, s.PushAuthFile, s.CertDir, s.RegistriesConf, s.SignaturePolicy,
	}, s.Pod.MachineConfig, s.Authorities) {
		if path != "" {
			n.Read = append(n.Read, path)
		}
	}
	for _, m := range s.Pod.Mounts {
		n.Read = append(n.Read, m.Source)
	}
	for _, file := range []string{s.DigestFile, s.IIDFile} {
		if file != "" {
			n.Write = append(n.Write, filepath.Dir(file))
		}
	}
	if dir := os.Getenv("TMPDIR"); dir != "" {
		n.Write = append(n.Write, dir)
	}
	if s.destination != nil && s.destination.Local() {
		n.Write = append(n.Write, s.destination.Dir())
	}
	return n
}

// resultFD is the descriptor on which a worker hands its Result to its supervisor.
const resultFD = 3

// userNSVariable tells the worker in which kind of user namespace it runs.
const userNSVariable = "_STRATA_USERNS"

// work builds, and hands the Result to the supervisor.
func work(s *Settings, streams Streams) result.ExitCode {
	unix.CloseOnExec(resultFD)
	pipe := os.NewFile(resultFD, "result")
	userNS := os.Getenv(userNSVariable)
	_ = os.Unsetenv(userNSVariable)

	redact := newRedactor()
	for _, arg := range s.BuildArgs {
		if name, value, ok := strings.Cut(arg, "="); ok && images.IsProxyVariable(name) {
			redact.addProxy(value)
		}
	}
	c := newConsole(streams.Err, s, redact)
	images.RouteLogs(c.log)
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals...)
	defer stop()
	surviveClosedOutput()
	if err := images.PrivateMounts(); err != nil {
		c.log.Debug("mounts of this build may be seen from outside", "error", err)
	}
	results := json.NewEncoder(pipe)
	b := &build{settings: s, console: c, begun: func(r *result.Result) {
		soFar := *r
		soFar.Attempts = slices.Clone(r.Attempts)
		if r.Step != nil {
			step := *r.Step
			soFar.Step = &step
		}
		redactResult(&soFar, c.redact)
		if err := results.Encode(soFar); err != nil {
			c.log.Debug("the supervisor does not listen", "error", err)
		}
	}}
	r := b.run(ctx, userNS)
	redactResult(r, c.redact)
	if r.Outcome == result.Succeeded {
		if b.digest != "" {
			word := "Pushed"
			if s.destination.Local() {
				word = "Written"
			}
			c.log.Info(word, "image", r.Image, "digest", b.digest)
		}
		if b.imageID != "" && s.Result != "-" {
			fmt.Fprintln(streams.Out, b.imageID)
		}
	} else {
		explainFailure(c, r, b.output)
	}
	if err := results.Encode(r); err != nil {
		c.log.Error("The result cannot be handed on", "error", err)
		return result.ExitFailed
	}
	return result.ExitCode(r.ExitCode)
}

// redactResult removes secrets from the texts of a Result.
func redactResult(r *result.Result, redact *redactor) {
	r.Message = redact.text(r.Message)
	for i := range r.Attempts {
		r.Attempts[i].Error = redact.text(r.Attempts[i].Error)
	}
	if r.Step != nil {
		r.Step.Instruction = redact.text(r.Step.Instruction)
	}
}
