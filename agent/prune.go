package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// prunerName is the name of a worker that prunes.
const prunerName = "strata-pruner"

// Pruning is what `agent prune` is told.
type Pruning struct {
	images.PruneOptions
	settings *Settings
}

// NewPruning returns a Pruning whose flags are defined on flags: its own, and those
// of a build that mean the same.
func NewPruning(flags *pflag.FlagSet) *Pruning {
	p := &Pruning{settings: NewSettings(pflag.NewFlagSet("build", pflag.ContinueOnError))}
	flags.SortFlags = false
	flags.BoolVarP(&p.All, "all", "a", false, "remove every image that no container uses, not only those without a name")
	flags.BoolVar(&p.Force, "force", false, "prune also while other builds work in the store; one that needs what is removed fails")
	for _, name := range []string{"storage-driver", "storage-root", "single-id", "log-format", "log-level"} {
		flags.AddFlag(p.settings.flags.Lookup(name))
	}
	return p
}

// Run prunes and returns the exit code. The IDs of the images that are gone go to
// standard output, one a line.
func (p *Pruning) Run(environ []string, streams Streams) result.ExitCode {
	err := p.settings.ReadEnvironment(environ)
	if err == nil && p.settings.LogFormat != formatText && p.settings.LogFormat != formatJSON {
		err = fmt.Errorf("--log-format %q is not one of %s, %s", p.settings.LogFormat, formatText, formatJSON)
	}
	if err == nil {
		if err = new(slog.Level).UnmarshalText([]byte(p.settings.LogLevel)); err != nil {
			err = fmt.Errorf("--log-level: %w", err)
		}
	}
	if err != nil {
		fmt.Fprintf(streams.Err, "Error: %v\n", err)
		return result.ExitSettings
	}
	c := newConsole(streams.Err, p.settings, newRedactor())
	images.RouteLogs(c.log)
	if os.Args[0] == prunerName {
		err = p.prune(c, streams)
	} else {
		err = p.start()
	}
	if err == nil {
		return result.ExitSucceeded
	}
	e := images.AsError(err)
	if e.Message != "" {
		c.log.Error(e.Message)
	}
	return e.Reason.Entry().Exit
}

// start runs the worker, which may do what this process may not.
func (p *Pruning) start() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, err := images.NewWorker(p.settings.needs(), append([]string{prunerName}, os.Args[1:]...)...)
	if err != nil {
		return err
	}
	w.Cmd.Stdout, w.Cmd.Stderr = os.Stdout, os.Stderr
	if err := w.Start(); err != nil {
		return err
	}
	if err := w.Wait(); err != nil {
		failed := images.AsError(err)
		failed.Message = "" // the worker has said it
		if w.Cmd.ProcessState.ExitCode() == int(result.ExitSandbox) {
			failed.Reason = result.ReasonStorageUnavailable
		}
		return failed
	}
	return nil
}

// prune does it.
func (p *Pruning) prune(c *console, streams Streams) error {
	ctx, stop := signal.NotifyContext(context.Background(), stopSignals...)
	defer stop()
	if err := images.PrivateMounts(); err != nil {
		c.log.Debug("Mounts may be seen from outside", "error", err)
	}
	engine, err := images.Open(engineConfig(p.settings, c))
	if err != nil {
		return err
	}
	defer engine.Close()
	pruned, err := engine.Prune(ctx, p.PruneOptions)
	if err != nil {
		return err
	}
	for _, id := range pruned.Images {
		fmt.Fprintln(streams.Out, id)
	}
	c.log.Info(fmt.Sprintf("Removed %d images and %d layers of no image; %s", len(pruned.Images), pruned.Layers, pruned.Space), "store", engine.StorageRoot())
	return nil
}
