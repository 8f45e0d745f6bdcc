package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
	"github.com/strata-build/strata/retry"
)

// build is one build from its settings to its Result.
type build struct {
	settings *Settings
	console  *console
	result   result.Result

	engine *images.Engine
	pulled map[images.Base]bool
	// authFiles is the content of auth files when an attempt last began to use them.
	authFiles map[string][]byte
	imageID   string
	digest    string
	// lost tells that the registry did not have what was pushed.
	lost bool
	// bytes is what the current phase transferred, nil when it transfers nothing.
	bytes *int64
	// output is the end of what the failed step wrote.
	output string
	// begun is told of the result so far whenever a phase or a step begins; nil for
	// nobody.
	begun func(*result.Result)
	mu    sync.Mutex // stages may run at once
}

// run performs the build. It always returns a Result, also when something in it
// panics.
func (b *build) run(ctx context.Context, userNS string) (r *result.Result) {
	b.result = result.Result{
		StartedAt: time.Now().UTC(), Agent: Version(), Image: b.settings.imageName(),
		Phases: map[result.Phase]result.PhaseStats{}, Phase: result.Prepare,
		Sandbox: &result.Sandbox{UserNS: userNS},
	}
	r = &b.result
	defer func() {
		if b.engine != nil {
			b.engine.Close()
		}
		b.result.FinishedAt = time.Now().UTC()
	}()
	defer func() {
		if p := recover(); p != nil {
			b.console.log.Error("The agent failed in a way that it should not", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			b.fail(fmt.Errorf("panic: %v", p))
		}
	}()
	if b.settings.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, b.settings.Deadline)
		defer cancel()
		defer stopStepsAtDeadline(ctx)()
	}
	if err := b.phases(ctx); err != nil {
		b.fail(err)
		return r
	}
	b.result.Conclude(result.ReasonSucceeded)
	b.result.Step = nil
	b.result.Digest = b.digest
	b.result.Message = b.summary()
	return r
}

// tell makes a change to the result and says how far the build is.
func (b *build) tell(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	if b.begun != nil {
		b.begun(&b.result)
	}
}

// stopStepsAtDeadline makes the deadline known to the steps that run: buildah
// stops these on a signal, not when a context ends.
func stopStepsAtDeadline(ctx context.Context) (cancel func() bool) {
	return context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}
	})
}

// phases runs them in their order; the first that fails for good ends the build.
func (b *build) phases(ctx context.Context) error {
	if err := b.phase(ctx, result.Prepare, 1, b.prepare); err != nil {
		return err
	}
	attempts := b.settings.MaxRetries
	if !b.alreadyPushed(ctx) {
		if err := b.preflight(ctx); err != nil {
			return err
		}
		if b.hasBases() {
			if err := b.phase(ctx, result.Pull, attempts, b.pull); err != nil {
				return err
			}
		}
		if err := b.phase(ctx, result.Build, attempts, b.build); err != nil {
			return err
		}
		if b.settings.destination == nil {
			return b.leave()
		}
		if err := b.phase(ctx, result.Push, attempts, b.push); err != nil {
			return err
		}
	}
	if err := b.phase(ctx, result.Verify, attempts, b.verify); err != nil {
		return err
	}
	return b.leave()
}

// phase makes the attempts of one phase and keeps account of them.
func (b *build) phase(ctx context.Context, name result.Phase, attempts int, op func(context.Context) error) error {
	b.result.Phase = name
	b.bytes = nil
	b.tell(func() {})
	start := time.Now()
	made := 0
	err := retry.Do(ctx, retry.Policy{
		Attempts:  attempts,
		Delay:     b.settings.RetryDelay,
		MaxDelay:  b.settings.RetryMaxDelay,
		Retryable: func(err error) bool { return b.retryable(ctx, err) },
		Floor:     func(err error) time.Duration { return images.AsError(err).RetryAfter },
		Wake:      func(ctx context.Context, err error) <-chan struct{} { return b.credentialsChanged(ctx, name, err) },
		Report:    func(a retry.Attempt) { b.report(name, a) },
		Waited: func(d time.Duration) {
			b.result.Attempts[len(b.result.Attempts)-1].Waited = d.Round(time.Millisecond).String()
		},
	}, func(ctx context.Context, n int) error {
		made = n
		return op(ctx)
	})
	if err != nil && ctx.Err() != nil && images.AsError(err).Class != result.ClassInterrupted {
		when := fmt.Sprintf("before %s began", name)
		if made > 0 {
			when = fmt.Sprintf("while %s waited for its next attempt, after: %v", name, err)
		}
		err = images.Stopped(ctx, when)
	}
	b.result.Phases[name] = result.PhaseStats{
		Seconds: time.Since(start).Round(time.Millisecond).Seconds(), Attempts: made, Bytes: b.bytes,
	}
	return err
}

// longestWait is how long a registry is waited for that asks to be left alone,
// where no deadline says how much time there is.
const longestWait = 15 * time.Minute

// retryable tells whether another attempt can help, as --retry-on has it. What
// was interrupted, and a sandbox that cannot build, is never tried again; nor is
// one whose registry asks to be left alone for longer than there is time.
func (b *build) retryable(ctx context.Context, err error) bool {
	e := images.AsError(err)
	left := longestWait
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	if e.RetryAfter > left {
		return false
	}
	switch e.Class {
	case result.ClassInterrupted, result.ClassSandbox:
		return false
	case result.ClassTransient, "":
		return true
	default:
		return b.settings.RetryOn == retryAny
	}
}

// report logs an attempt that failed and enters it in the Result.
func (b *build) report(name result.Phase, a retry.Attempt) {
	e := images.AsError(a.Err)
	b.result.Attempts = append(b.result.Attempts, result.Attempt{
		Phase: name, N: a.N, Of: a.Of, Class: e.Class, Host: e.Host, Status: e.Status, Error: e.Message,
	})
	if name == result.Prepare || e.Class == result.ClassInterrupted {
		return // nothing of this is tried again
	}
	attrs := []any{"phase", string(name), "reason", string(e.Reason)}
	if !a.Last {
		attrs = append(attrs, "wait", a.Wait)
	}
	b.console.log.Info(a.String(), append(attrs, "error", e.Message)...)
}

// prepare opens the store and reads what has to be known before anything is
// fetched.
func (b *build) prepare(ctx context.Context) (err error) {
	if ctx.Err() != nil {
		return images.Stopped(ctx, "before the build began")
	}
	b.readSecrets(ctx)
	config := engineConfig(b.settings, b.console)
	config.SingleID = b.result.Sandbox.UserNS == images.UserNSSingle
	config.Output.Step = func(step result.Step) { b.tell(func() { b.result.Step = &step }) }
	if b.engine, err = images.Open(config); err != nil {
		return err
	}
	b.result.Sandbox.Storage, b.result.Sandbox.Isolation = b.engine.Storage(), b.engine.Isolation()
	b.pulled = map[images.Base]bool{}
	b.engine.PlanPush(b.settings.destination, b.settings.BuildSpec)
	b.console.log.Debug("Prepared", "store", b.engine.StorageRoot(), "driver", b.engine.Storage(),
		"isolation", b.engine.Isolation(), "userns", b.result.Sandbox.UserNS, "temp", b.engine.TempDir(),
		"memory", images.OwnMemoryGroup().Limit(), "heap", debug.SetMemoryLimit(-1), "threads", runtime.GOMAXPROCS(0))
	if err := b.assemble(); err != nil {
		return err
	}
	b.describePod()
	return nil
}

func engineConfig(s *Settings, c *console) images.Config {
	var paths []string
	if s.destination != nil && s.destination.Local() {
		paths = append(paths, s.destination.Dir())
	}
	for _, volume := range s.Volumes {
		source, _, _ := strings.Cut(volume, ":")
		paths = append(paths, source)
	}
	return images.Config{
		Paths:       paths,
		StorageRoot: s.StorageRoot, StorageDriver: s.StorageDriver, Isolation: s.Isolation,
		SecurityOpts: s.SecurityOpts, Ulimits: s.Ulimits,
		TLSVerify: s.tlsVerify(), CertDir: s.CertDir, RegistriesConf: s.RegistriesConf, SignaturePolicy: s.SignaturePolicy, Authorities: s.Authorities,
		Platform: s.Platform, UserAgent: "strata/" + Version(), Stall: s.StallTimeout, Output: c.output(),
	}
}

// readSecrets makes known what must not be shown. Auth files change while the
// build runs, so they are read again whenever the libraries read them, and kept to
// tell later whether what was refused is still what they hold.
func (b *build) readSecrets(ctx context.Context) {
	b.awaitAuthFiles(ctx)
	b.authFiles = map[string][]byte{}
	for _, path := range append(images.DefaultAuthFiles(), b.settings.PullAuthFile, b.settings.PushAuthFile) {
		if path != "" {
			b.authFiles[path], _ = os.ReadFile(path) // what cannot be read is the libraries' to complain of
			b.console.redact.add(images.AuthSecrets(path)...)
		}
	}
	b.console.redact.add(images.SecretValues(b.settings.Secrets, b.settings.SSH)...)
	if text, err := os.ReadFile(b.settings.PassphraseFile); err == nil {
		b.console.redact.add(strings.TrimSpace(string(text)))
	}
}

// alreadyPushed tells whether an earlier pod of the same build has pushed the
// image; then there is nothing left but to verify it.
func (b *build) alreadyPushed(ctx context.Context) bool {
	d := b.settings.destination
	if b.settings.BuildID == "" || d == nil || d.Local() {
		return false
	}
	digest, err := b.engine.Pushed(ctx, d, b.settings.BuildID, b.settings.PushAuthFile)
	if err != nil {
		b.console.log.Debug("No image of this build was found at the destination", "error", err)
		return false
	}
	if digest == "" {
		return false
	}
	b.digest = digest
	b.console.log.Info("The image of this build is already pushed: nothing is built again", "image", d.Name, "digest", digest)
	return true
}

// hasBases tells whether there is anything to pull. A Containerfile that cannot
// be understood names no image: it fails in the build, to which it belongs.
func (b *build) hasBases() bool {
	file, err := b.engine.Parse(b.settings.BuildSpec)
	return err == nil && len(file.Bases) > 0
}

// pull brings the base images into the store.
func (b *build) pull(ctx context.Context) error {
	file, err := b.engine.Parse(b.settings.BuildSpec)
	if err != nil {
		return err
	}
	if err := b.engine.CheckBases(b.settings.Containerfile, file.Bases); err != nil {
		return err
	}
	for _, base := range file.Bases {
		if b.pulled[base] {
			continue
		}
		b.readSecrets(ctx)
		bytes, err := b.engine.Pull(ctx, b.settings.Containerfile, base, b.settings.PullAuthFile)
		if err != nil {
			return err
		}
		b.pulled[base] = true
		b.addBytes(bytes)
	}
	return nil
}

// build reads the Containerfile and runs its steps.
func (b *build) build(ctx context.Context) error {
	file, err := b.engine.Parse(b.settings.BuildSpec)
	if err != nil {
		return err
	}
	b.readSecrets(ctx)
	spec := b.settings.BuildSpec
	if spec.Volumes, err = b.mountCopies(); err != nil {
		return err
	}
	b.imageID, err = b.engine.Build(ctx, spec, file)
	return err
}

// push copies the image to its destination.
func (b *build) push(ctx context.Context) error {
	b.readSecrets(ctx)
	digest, bytes, err := b.engine.Push(ctx, b.imageID, b.settings.destination, b.settings.Compression, b.settings.PushAuthFile)
	if err != nil {
		return err
	}
	b.digest = digest
	b.addBytes(bytes)
	return nil
}

// verify asks the destination whether it has what was pushed. What a registry has
// lost meanwhile, or never kept, it is sent again.
func (b *build) verify(ctx context.Context) error {
	if b.lost {
		if err := b.push(ctx); err != nil {
			return err
		}
	}
	b.readSecrets(ctx)
	err := b.engine.Verify(ctx, b.settings.destination, b.digest, b.settings.PushAuthFile)
	if err != nil && b.imageID != "" && !b.settings.destination.Local() {
		failed := images.AsError(err)
		b.lost = failed.Reason == result.ReasonDigestMismatch || failed.Reason == result.ReasonPushFailed && failed.Status == http.StatusNotFound
	}
	return err
}

// leave writes the files that were asked for.
func (b *build) leave() error {
	for _, f := range []struct{ flag, path, text string }{
		{"digestfile", b.settings.DigestFile, b.digest},
		{"iidfile", b.settings.IIDFile, "sha256:" + b.imageID},
	} {
		if f.path == "" || f.text == "sha256:" {
			continue
		}
		if err := result.Write(f.path, []byte(f.text)); err != nil {
			return images.FileError(fmt.Sprintf("the image is complete, but --%s cannot be written", f.flag), err)
		}
	}
	return nil
}

func (b *build) addBytes(n int64) {
	if b.bytes == nil {
		b.bytes = new(int64)
	}
	*b.bytes += n
}

// fail concludes the Result with an error.
func (b *build) fail(err error) {
	e := images.AsError(err)
	b.result.Conclude(e.Reason)
	if e.Class == result.ClassRejected { // a pull can be rejected, too, which has no reason of its own
		b.result.ExitCode = int(e.Class.Exit())
	}
	b.result.Message = e.Message
	if e.Class == result.ClassInterrupted && b.engine != nil {
		if text := b.engine.LittleSpace(); text != "" { // a node that evicts a pod says no more than the signal
			b.result.Message += "; little space was left: " + text
		}
	}
	b.result.RunExitCode = e.RunExitCode
	b.result.Step = e.Step
	b.output = e.Output
	if errors.Is(err, context.Canceled) && e.Reason == result.ReasonInternalError {
		b.result.Conclude(result.ReasonInterrupted)
	}
}

func (b *build) summary() string {
	switch {
	case b.imageID == "":
		return fmt.Sprintf("%s is already there, from this build", b.result.Image)
	case b.settings.destination != nil:
		return fmt.Sprintf("built and written to %s", b.result.Image)
	case b.result.Image != "":
		return fmt.Sprintf("built %s", b.result.Image)
	}
	return "built " + b.imageID
}
