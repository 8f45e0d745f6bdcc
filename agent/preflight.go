package agent

import (
	"context"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
	"github.com/strata-build/strata/retry"
)

// preflightTime is how long the check before the long part of a build may take.
const preflightTime = 10 * time.Second

// preflight looks, before the long part of a build, for what would make it fail at
// its end: a registry that will not let the image in, a file or a secret that a step
// needs and that is not there. What it finds is said at once. With --retry-on any the
// build goes on, since it may be put right until it is needed; with transient it ends
// here, as the first and last attempt of the phase in which it would have failed.
func (b *build) preflight(ctx context.Context) error {
	if file, err := b.engine.Parse(b.settings.BuildSpec); err == nil {
		b.engine.StandBy(file)
		if err := b.finding(ctx, result.Build, b.engine.CheckFiles(b.settings.BuildSpec, file)); err != nil {
			return err
		}
	}
	d := b.settings.destination
	if d == nil || d.Local() {
		return nil
	}
	b.readSecrets(ctx)
	limited, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	err := b.engine.CheckPush(limited, d, b.settings.PushAuthFile)
	if err == nil {
		b.engine.PushEarly(ctx)
		return nil
	}
	if ctx.Err() != nil {
		return nil // an end of the whole build is the next phase's to notice
	}
	switch images.AsError(err).Class {
	case result.ClassSandbox: // a setting, which will not be another one by then
		return b.phase(ctx, result.Push, 1, func(context.Context) error { return err })
	case result.ClassAuth:
		return b.finding(ctx, result.Push, err)
	default:
		b.console.log.Warn("It could not be found out whether the image may be pushed", "error", err)
		return nil
	}
}

// finding says what a preflight found for a phase, and ends the build where that is
// what a finding does; nil finds nothing.
func (b *build) finding(ctx context.Context, phase result.Phase, err error) error {
	switch {
	case err == nil:
		return nil
	case b.settings.RetryOn == retryAny:
		b.console.log.Warn(string(phase)+" would fail now; it is tried all the same when its turn comes", "reason", string(images.AsError(err).Reason), "error", err)
		return nil
	}
	return b.phase(ctx, phase, b.settings.MaxRetries, func(context.Context) error { return err })
}

// credentialsLook is how often an auth file that was refused is looked at.
const credentialsLook = 250 * time.Millisecond

// authFileGap is how long an auth file that was good when the build began is waited for
// that is not there, or is not complete: whoever replaces it is about to.
const authFileGap = 2 * time.Second

// awaitAuthFiles waits until the auth files can be read, or no longer.
func (b *build) awaitAuthFiles(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, authFileGap)
	defer cancel()
	look := time.NewTicker(credentialsLook)
	defer look.Stop()
	for _, path := range []string{b.settings.PullAuthFile, b.settings.PushAuthFile} {
		for path != "" && images.CheckAuthFile(path) != nil {
			select {
			case <-look.C:
			case <-ctx.Done():
				return
			}
		}
	}
}

// credentialsChanged returns a channel that is closed when the auth file of a phase
// changes whose credentials were refused, or has since it was read, nil where nothing
// can change. A file that is not there for a moment, while its volume is updated, has
// not changed.
func (b *build) credentialsChanged(ctx context.Context, phase result.Phase, err error) <-chan struct{} {
	failed := images.AsError(err)
	path := b.settings.PushAuthFile
	if phase == result.Pull || failed.Reason == result.ReasonBaseImageUnauthorized {
		path = b.settings.PullAuthFile
	}
	if failed.Class != result.ClassAuth || path == "" {
		return nil
	}
	changed := retry.WatchFile(ctx, path, b.authFiles[path], credentialsLook)
	said := make(chan struct{})
	go func() {
		if _, ok := <-changed; ok {
			b.console.log.Info("credentials changed on disk, trying again", "file", path)
			close(said)
		}
	}()
	return said
}
