package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"go.podman.io/buildah/define"
	"go.podman.io/buildah/imagebuildah"
	"go.podman.io/buildah/pkg/cli"
	"go.podman.io/buildah/pkg/parse"
	"go.podman.io/common/libimage"
	"go.podman.io/common/pkg/config"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/storage/pkg/archive"
	"go.podman.io/storage/pkg/regexp"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

// BuildIDAnnotation is the annotation of an image that names the build it came from.
const BuildIDAnnotation = "build.strata.build-id"

// BuildSpec is what is to be built; its fields are the flags of the same name of
// `buildah build`.
type BuildSpec struct {
	Containerfile string // a path
	Context       string // a directory
	Tag           string
	BuildArgs     []string // NAME=VALUE, or NAME for that of the environment
	Volumes       []string
	Secrets       []string
	SSH           []string // ID, ID=SOCKET or ID=KEY[,KEY]
	BuildContexts []string // NAME=VALUE
	Target        string
	Labels        []string
	Annotations   []string
	Format        string // oci or docker
	Ulimits       []string
	Layers        bool
	NoCache       bool
	CacheFrom     []string
	CacheTo       []string
	Squash        bool
	Jobs          int
	// Compression is that of the layers which are pushed to CacheTo.
	Compression Compression
	// SourceDateEpoch is in seconds since 1970; nil keeps the clock.
	SourceDateEpoch  *int64
	RewriteTimestamp bool
	// BuildID, when it is not empty, becomes the annotation BuildIDAnnotation.
	BuildID string
	// AuthFile is that of images which only the build itself finds to be needed;
	// CacheAuthFile that of CacheTo.
	AuthFile, CacheAuthFile string
}

// Compression is how new layers are compressed.
type Compression struct {
	// Format is gzip, zstd or zstd:chunked; empty means gzip.
	Format string
	// Level is the level of the format; nil means its default.
	Level *int
}

func (c Compression) algorithm() (*compression.Algorithm, error) {
	if c.Format == "" {
		return nil, nil //nolint:nilnil // no choice was made, which is no error
	}
	a, err := compression.AlgorithmByName(c.Format)
	if err != nil {
		return nil, invalid("--compression-format", err)
	}
	return &a, nil
}

// check says what is wrong with the level: gzip has 0 to 9, zstd 1 to 20 as
// containers/image maps them.
func (c Compression) check() error {
	if c.Level == nil {
		return nil
	}
	least, most := 0, 9
	if strings.HasPrefix(c.Format, "zstd") {
		least, most = 0, 20
	}
	if *c.Level < least || *c.Level > most {
		return fmt.Errorf("%d is not between %d and %d", *c.Level, least, most)
	}
	return nil
}

// Check finds what is wrong with the specification before anything is fetched.
// The errors are sentences that name the flag.
func (s BuildSpec) Check() []error {
	var errs []error
	add := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	_, err := cli.GetFormat(s.Format)
	add("format", err)
	_, err = s.Compression.algorithm()
	add("compression-format", errors.Unwrap(err))
	_, err = s.contexts()
	add("build-context", err)
	add("volume", parse.Volumes(s.Volumes))
	_, err = parse.Secrets(s.Secrets)
	add("secret", err)
	_, err = parse.SSH(s.SSH)
	add("ssh", err)
	_, err = parse.RepoNamesToNamedReferences(s.CacheFrom)
	add("cache-from", err)
	_, err = parse.RepoNamesToNamedReferences(s.CacheTo)
	add("cache-to", err)
	if len(s.Ulimits) > 0 { // those of containers.conf are looked at with the rest of the sandbox
		if _, _, err = clampUlimits(s.Ulimits); err != nil {
			errs = append(errs, err)
		}
	}
	add("compression-level", s.Compression.check())
	for flag, pairs := range map[string][]string{"label": s.Labels, "annotation": s.Annotations} {
		for _, pair := range pairs {
			if name, _, _ := strings.Cut(pair, "="); name == "" {
				add(flag, fmt.Errorf("%q has no name", pair))
			}
		}
	}
	for _, spec := range s.Secrets {
		for field := range strings.SplitSeq(spec, ",") {
			if name, ok := strings.CutPrefix(field, "env="); ok {
				if _, set := os.LookupEnv(name); !set {
					add("secret", fmt.Errorf("%q: the variable %s is not set", spec, name))
				}
			}
		}
	}
	return errs
}

func (s BuildSpec) contexts() (map[string]*define.AdditionalBuildContext, error) {
	contexts := map[string]*define.AdditionalBuildContext{}
	for _, spec := range s.BuildContexts {
		name, value, ok := strings.Cut(spec, "=")
		if !ok || name == "" || value == "" {
			return nil, fmt.Errorf("%q is not NAME=VALUE", spec)
		}
		c, err := parse.GetAdditionalBuildContext(value)
		if err == nil && !c.IsImage && !c.IsURL {
			var info os.FileInfo
			if info, err = os.Stat(c.Value); err == nil && !info.IsDir() {
				err = errors.New("it is not a directory")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", spec, err)
		}
		contexts[name] = &c
	}
	return contexts, nil
}

func (s BuildSpec) args() map[string]string {
	args := map[string]string{}
	for _, spec := range s.BuildArgs {
		name, value, ok := strings.Cut(spec, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				continue
			}
		}
		args[name] = value
	}
	return args
}

// CheckPlatform says what is wrong with OS/ARCH[/VARIANT].
func CheckPlatform(platform string) error {
	if strings.Contains(platform, ",") {
		return fmt.Errorf("%q names several platforms: one build makes the image of one", platform)
	}
	_, _, _, err := parse.Platform(platform)
	if err != nil {
		return fmt.Errorf("%q is not OS/ARCH or OS/ARCH/VARIANT, such as linux/arm64", platform)
	}
	return nil
}

// Parse reads the Containerfile of the specification; see ParseContainerfile. One that
// has not changed since it was last read is not parsed again: the time that the parser
// takes for a line grows with the square of its length.
func (e *Engine) Parse(spec BuildSpec) (*Containerfile, error) {
	text, err := os.ReadFile(spec.Containerfile)
	if err != nil {
		return nil, invalid("the Containerfile cannot be read", err)
	}
	contexts, err := spec.contexts()
	if err != nil {
		return nil, invalid("--build-context", err)
	}
	args := spec.args()
	known := fmt.Sprintf("%q", []any{spec.Containerfile, text, args, spec.Target, spec.BuildContexts})
	if e.parsed.known != known {
		file, err := ParseContainerfile(spec.Containerfile, text, args, spec.Target, e.config.Platform, contexts)
		e.parsed = parsed{known, file, err}
	}
	return e.parsed.file, e.parsed.err
}

// parsed is what became of a Containerfile, and what it depends on.
type parsed struct {
	known string
	file  *Containerfile
	err   error
}

// CheckFiles says, before anything is pulled, which file or secret a step needs that
// is not there, and which script cannot be run. What can only be known when the step
// runs is left to it.
func (e *Engine) CheckFiles(spec BuildSpec, file *Containerfile) error {
	fail := func(n needed, reason result.Reason, format string, args ...any) error {
		step := n.step
		return &Error{
			Reason: reason, Class: result.ClassInput, Step: &step,
			Message: describeStep(&step, spec.Containerfile) + ": " + fmt.Sprintf(format, args...),
		}
	}
	for _, n := range file.sources {
		// As buildah does, a path cannot leave the context.
		_, err := os.Lstat(filepath.Join(spec.Context, filepath.Join("/", n.name)))
		if errors.Is(err, fs.ErrNotExist) {
			return fail(n, result.ReasonContextFileMissing, "%q is not in the build context %s", strings.TrimPrefix(n.name, "/"), absolute(spec.Context))
		}
	}
	// buildah mounts the script below /dev, where isolation chroot mounts nothing.
	if e.isolation.value == define.IsolationChroot && len(file.scripts) > 0 {
		n := file.scripts[0]
		return fail(n, result.ReasonContainerfileInvalid, "a heredoc that begins with #! cannot be run with isolation chroot: write RUN %s %s", n.name, strings.TrimSpace(strings.TrimPrefix(n.step.Instruction, "RUN")))
	}
	secrets, err := parse.Secrets(spec.Secrets)
	if err != nil {
		return invalid("--secret", err)
	}
	for _, n := range file.secrets {
		if _, given := secrets[n.name]; !given {
			return fail(n, result.ReasonStepFailed, "the secret %q is required, and no --secret has this id", n.name)
		}
	}
	return nil
}

// Build makes one attempt to build the image and returns its id in the store.
// With layers, steps that an earlier attempt finished are not run again.
func (e *Engine) Build(ctx context.Context, spec BuildSpec, file *Containerfile) (id string, err error) {
	e.standByBoth(file)
	lines := e.config.Output.Lines()
	defer lines.Close()
	steps := newStepTracker(file, lines)
	options, err := e.buildOptions(ctx, spec, file)
	if err != nil {
		return "", err
	}
	if file.caches() {
		if err := e.keepCacheMounts(); err != nil {
			return "", FileError("the directory for caches of RUN steps cannot be made", err)
		}
	}
	stdout, stderr := steps.output(lines), steps.output(lines)
	options.Log = steps.log
	options.Out, options.Err = stdout, stderr
	steps.remark = e.remark
	steps.untrue = func(line string) bool { return isPushNotice(line) && e.caches.noneTakes(options.CacheTo) }
	steps.ended = e.space.stepFailed
	if e.config.Output.Step != nil {
		steps.begun = e.config.Output.Step
	}
	options.ReportWriter = e.reportWriter(lines)

	pulls, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if options.PullPolicy != define.PullNever {
		defer listenToPull(func(limited *distribution.Error) { cancel(limited) })()
	}
	if spec.Jobs == 1 || len(file.stages) == 1 { // else any stage may be the one at work
		e.relay.building(steps.inFinal)
		defer e.relay.building(nil)
	}
	group := OwnMemoryGroup()
	killed := group.Kills()
	e.space.reset()
	store := newDeparting(e.store, e.log)
	e.departing = store
	id, _, err = imagebuildah.BuildDockerfiles(pulls, store, options, spec.Containerfile)
	signal := stdout.end(err != nil) + stderr.end(err != nil)
	if err != nil {
		store.wait() // for the space, which another attempt may need
		var limited *distribution.Error
		if errors.As(context.Cause(pulls), &limited) {
			err = limited // it is why the build was given up
		}
		failed := e.buildError(ctx, err, spec, steps, signal)
		if failed.Reason == result.ReasonStepFailed && group.Kills() > killed {
			failed.Reason, failed.Class = result.ReasonStepOutOfMemory, result.ClassResource
			failed.Message += fmt.Sprintf(" (the kernel killed a process of this pod or group for memory: %s)", group.Describe())
		}
		if failed.Reason == result.ReasonNoSpace {
			e.relay.free()
		}
		return "", e.withSpace(failed)
	}
	e.built = true
	if e.standby != nil {
		e.standby.End()
	}
	if space, err := statSpace(e.store.GraphRoot()); err != nil || space.Tight() || e.Storage() != driverOverlay {
		store.wait() // for the space, which the push may need; without overlay, containers are whole copies
	}
	return id, nil
}

// remark logs what a logger of buildah's said beside the output of the steps.
func (e *Engine) remark(level, message string) {
	if text, err := strconv.Unquote(message); err == nil {
		message = text
	}
	if level == "debug" || level == "info" {
		e.log.Debug(message)
		return
	}
	e.log.Warn(message) // an error of which it is more than a remark is returned, too
}

func (e *Engine) buildOptions(ctx context.Context, spec BuildSpec, file *Containerfile) (define.BuildOptions, error) {
	ulimits, warnings, err := clampUlimits(spec.Ulimits)
	if err != nil {
		return define.BuildOptions{}, invalid("the limits of RUN steps", err)
	}
	if len(warnings) > 0 && !e.warned && file.runs() {
		e.warned = true
		e.log.Warn("RUN steps get lower limits than asked for, since this process may not raise its own (no CAP_SYS_RESOURCE): " + strings.Join(warnings, ", "))
	}
	format, err := cli.GetFormat(spec.Format)
	if err != nil {
		return define.BuildOptions{}, invalid("--format", err)
	}
	algorithm, err := spec.Compression.algorithm()
	if err != nil {
		return define.BuildOptions{}, err
	}
	contexts, err := spec.contexts()
	if err != nil {
		return define.BuildOptions{}, invalid("--build-context", err)
	}
	// Where a mount names an image by a variable, buildah looks for a build context of
	// the name as it is written, and does not survive that there is none.
	for text, name := range file.mounted {
		if context, ok := contexts[name]; ok {
			contexts[text] = context
		} else {
			contexts[text] = &define.AdditionalBuildContext{IsImage: true, Value: name}
		}
	}
	cacheFrom, err := parse.RepoNamesToNamedReferences(spec.CacheFrom)
	if err != nil {
		return define.BuildOptions{}, invalid("--cache-from", err)
	}
	cacheTo, err := parse.RepoNamesToNamedReferences(spec.CacheTo)
	if err != nil {
		return define.BuildOptions{}, invalid("--cache-to", err)
	}
	conf, err := config.Default()
	if err != nil {
		return define.BuildOptions{}, invalid("containers.conf cannot be read", err)
	}
	args := spec.args()
	e.withholdProxies(args)
	authFile := spec.AuthFile
	if len(spec.CacheTo) > 0 {
		authFile = e.mergedAuthFile(spec.AuthFile, spec.CacheAuthFile)
	}
	cache := e.caches.use(ctx, spec, authFile)
	sys := e.system(authFile)
	if file.fetches() {
		if sys.DockerCertPath, err = e.certificates(""); err != nil {
			return define.BuildOptions{}, unavailable("the certificates of authorities cannot be collected", err)
		}
	}
	contextDir, err := e.ownedContext(spec.Context)
	if err != nil {
		return define.BuildOptions{}, err
	}
	annotations := spec.Annotations
	if spec.BuildID != "" {
		annotations = append(annotations[:len(annotations):len(annotations)], BuildIDAnnotation+"="+spec.BuildID)
	}
	options := define.BuildOptions{
		AdditionalBuildContexts: contexts,
		Annotations:             annotations,
		Architecture:            sys.ArchitectureChoice,
		Args:                    args,
		CacheFrom:               cacheFrom,
		CacheTo:                 cacheTo,
		CommonBuildOpts: &define.CommonBuildOptions{
			HTTPProxy:          true,
			Secrets:            spec.Secrets,
			SSHSources:         spec.SSH,
			ShmSize:            conf.Containers.ShmSize,
			Ulimit:             ulimits,
			SeccompProfilePath: e.seccomp,
		},
		Compression:             archive.Uncompressed, // the layers of a store are; the push compresses
		CompressionFormat:       algorithm,
		CompressionLevel:        spec.Compression.Level,
		ContainerSuffix:         e.ledger.name,
		ContextDirectory:        contextDir,
		ForceRmIntermediateCtrs: true,
		Isolation:               e.isolation.value,
		Jobs:                    &spec.Jobs,
		Labels:                  spec.Labels,
		Layers:                  spec.Layers,
		NamespaceOptions:        e.isolation.namespaces(),
		NetworkInterface:        noNetwork{},
		NoCache:                 spec.NoCache,
		OS:                      sys.OSChoice,
		Output:                  trimDocker(spec.Tag), // with it the library would push, and keep nothing
		OutputFormat:            format,
		PullPolicy:              e.pullPolicy(ctx, file.Bases),
		RemoveIntermediateCtrs:  true,
		RewriteTimestamp:        spec.RewriteTimestamp,
		Squash:                  spec.Squash,
		SystemContext:           sys,
		Target:                  spec.Target,
		TransientMounts:         spec.Volumes,

		CachePullSourceLookupReferenceFunc:      cache.source,
		CachePushDestinationLookupReferenceFunc: cache.destination,
	}
	if spec.SourceDateEpoch != nil {
		epoch := time.Unix(*spec.SourceDateEpoch, 0).UTC()
		options.SourceDateEpoch = &epoch
	}
	return options, nil
}

// pullPolicy keeps the build from registries when all images that it needs are in the
// store, as they are after Pull: for an image of a named platform it would ask even
// then. Not all can be there when one name stands for several platforms, as a name in
// the store has one image.
func (e *Engine) pullPolicy(ctx context.Context, bases []Base) define.PullPolicy {
	for _, b := range bases {
		if !e.present(ctx, b) {
			return define.PullIfMissing
		}
	}
	return define.PullNever
}

// present tells whether the store has the image of the platform.
func (e *Engine) present(ctx context.Context, b Base) bool {
	sys, err := e.systemFor(b, "")
	if err != nil {
		return false
	}
	store, err := libimage.RuntimeFromStore(e.store, &libimage.RuntimeOptions{SystemContext: sys})
	if err != nil {
		return false
	}
	images, err := store.Pull(ctx, b.Name, config.PullPolicyNever, nil)
	if err != nil || len(images) == 0 {
		return false
	}
	info, err := images[0].Inspect(ctx, nil)
	return err == nil && (info.Architecture == cmp.Or(sys.ArchitectureChoice, runtime.GOARCH) || info.Architecture == "")
}

// buildError makes the Error of a failed build. signal is that which ended the
// step, empty for none.
func (e *Engine) buildError(ctx context.Context, err error, spec BuildSpec, steps *stepTracker, signal string) *Error {
	step := steps.failed(err)
	failed := &Error{Step: step, Err: err}
	v := classify(ctx, err, pulling)
	at, instruction := spec.Containerfile, ""
	if step != nil {
		at = describeStep(step, spec.Containerfile)
		instruction, _, _ = strings.Cut(strings.ToUpper(strings.TrimSpace(step.Instruction)), " ")
	}
	cause, atStep := stepCause(err)
	text := plainCause(oneLine(cause.Error()))
	status := commandStatus(err)
	switch {
	case v.class == result.ClassInterrupted:
		failed.Class, failed.Reason = v.class, v.reason
		failed.Message = "stopped at " + at
	case status != 0 && instruction == "RUN":
		failed.Class, failed.Reason = result.ClassInput, result.ReasonStepFailed
		failed.RunExitCode = status
		failed.Message = fmt.Sprintf("%s: exited %d", at, status)
		if signal != "" {
			failed.Message = fmt.Sprintf("%s: ended by a signal (%s)", at, signal)
		}
		if spec.Jobs == 1 { // else the end of the output may be that of another stage
			failed.Output = steps.tail.text()
		}
		if last := steps.tail.last(); last != "" && failed.Output != "" {
			failed.Message += ": " + oneLine(last)
			if answer := repositoryAnswer.FindString(failed.Output); answer != "" && !strings.Contains(last, answer) {
				failed.Message += " (" + oneLine(answer) + ")"
			}
		}
		if wrongFormat.MatchString(failed.Output) {
			failed.Reason = result.ReasonWrongArchitecture
			failed.Message += fmt.Sprintf(" (a program of another architecture than %s)", runtime.GOARCH)
		}
		if e.space.explains(steps.tail.text()) {
			failed.Class, failed.Reason = result.ClassResource, result.ReasonNoSpace
		}
		if notStarted.MatchString(steps.tail.last()) {
			failed.Class = result.ClassTransient
		}
	case atStep && missingSource(text) != "":
		failed.Class, failed.Reason = result.ClassInput, result.ReasonContextFileMissing
		failed.Message = fmt.Sprintf("%s: %s", at, describeMissing(missingSource(text), text, step.Instruction, spec.Context))
	case strings.Contains(text, "mounting an overlay over build context directory"):
		failed.Class, failed.Reason = result.ClassSandbox, result.ReasonUserNamespaceUnavailable
		failed.Message = "this sandbox cannot build: " + text
	case strings.Contains(text, "cannot depend on later stage"): // as of two with one name
		failed.Class, failed.Reason = result.ClassInput, result.ReasonContainerfileInvalid
		failed.Message = fmt.Sprintf("%s: %s", at, text)
	case instruction == "FROM" && strings.Contains(text, "no such file or directory"):
		failed.Class, failed.Reason = result.ClassInput, result.ReasonBaseImageNotFound
		failed.Message = at + ": there is no such file or directory"
	case v.reason != result.ReasonPullFailed && (instruction != "ADD" || v.class != result.ClassInput):
		failed.Class, failed.Reason, failed.Status, failed.RetryAfter = v.class, v.reason, v.status, v.retryAfter
		if failed.Host = requestHost(err); failed.Host == "" && instruction == "ADD" {
			failed.Host = hostOfURL(text)
		}
		if p := proxyFaultOf(err); p != nil {
			failed.Host, text = p.host, p.describe()
		}
		failed.Message = fmt.Sprintf("%s: %s", at, text)
		if v.reason == result.ReasonCertificateUntrusted {
			failed.Message += e.describeTrust(err, failed.Host)
		}
	case atStep:
		failed.Class, failed.Reason = result.ClassInput, result.ReasonStepFailed
		if instruction != "RUN" && instruction != "COPY" && instruction != "ADD" {
			failed.Reason = result.ReasonContainerfileInvalid
		}
		failed.Message = fmt.Sprintf("%s: %s", at, text)
	default:
		failed.Reason = result.ReasonInternalError
		failed.Message = fmt.Sprintf("%s: %s", at, text)
	}
	return failed
}

// wrongFormat is what buildah says of a step whose program it could not start.
var wrongFormat = regexp.Delayed(`(?m)^process failed to start with error: fork/exec .*: exec format error`)

// notStarted is what containers/storage says when a step did not begin: the copy of this
// program that was to run it could not be sealed, since the kernel still held a page of it
// (fcntl(2): F_SEAL_WRITE, EBUSY), which lasts moments.
var notStarted = regexp.Delayed(`^Close_Fd sealing memfd copy: `)

// repositoryAnswer is what librepo, by which dnf and rpm-ostree fetch packages, says of
// the answer of a repository. What they say last is only that a package is not there.
var repositoryAnswer = regexp.Delayed(`(?:Status code: \d{3}|Curl error \(\d+\)).*`)

// maxInstruction is how much of an instruction a message quotes, in bytes: the cause
// comes behind it, and is what matters.
const maxInstruction = 240

func describeStep(step *result.Step, containerfile string) string {
	at := fmt.Sprintf("step %d/%d of stage %s", step.Number, step.Of, step.Stage)
	if step.Line > 0 {
		at += fmt.Sprintf(" (%s, line %d)", containerfile, step.Line)
	}
	text := oneLine(step.Instruction)
	if len(text) > maxInstruction {
		text = strings.ToValidUTF8(text[:maxInstruction], "") + " …"
	}
	return at + ": " + text
}

// stepCause returns what went wrong in a step, without buildah's mention of the
// step, and whether it was in a step at all.
func stepCause(err error) (cause error, atStep bool) {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.HasPrefix(e.Error(), "building at STEP ") || strings.HasPrefix(e.Error(), "resolving step ") {
			if inner := errors.Unwrap(e); inner != nil {
				return inner, true
			}
		}
	}
	return err, false
}

// internals are Go structures that buildah prints into its errors.
var internals = regexp.Delayed(`error during bulk transfer for copier\.request\{.*\}: |committing container for step \{.*?\}: |for step \{.*?\}`)

// plainCause leaves out of an error what only a developer of buildah understands.
func plainCause(text string) string { return internals.ReplaceAllString(text, "") }

// quotedURL finds the URL that buildah names in the error of an ADD.
var quotedURL = regexp.Delayed(`"(https?://[^"]+)"`)

func hostOfURL(text string) string {
	if m := quotedURL.FindStringSubmatch(text); m != nil {
		if u, err := url.Parse(m[1]); err == nil {
			return u.Host
		}
	}
	return ""
}

// missing finds the path in what buildah says of a source that is not there: of a
// file, of a pattern (twice), of a mount. It comes from another process, as text.
var missing = regexp.Delayed(`(?:stat: "([^"]+)": no such file or directory|no items matching glob "([^"]+)"|globs \[([^\]]+)\] matched nothing|opening directory "([^"]+)" under .*no such file or directory)`)

func missingSource(text string) string {
	m := missing.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return strings.Join(m[1:], "")
}

// describeMissing says where the source was looked for.
func describeMissing(path, text, instruction, context string) string {
	// The path is below a directory at which buildah mounted the context.
	if i := strings.Index(path, "/merge/"); i >= 0 {
		path = path[i+len("/merge"):]
	}
	where := "the build context " + absolute(context)
	for word := range strings.FieldsSeq(instruction) {
		if from, ok := strings.CutPrefix(word, "--from="); ok {
			where = from
		}
	}
	why := ""
	if strings.Contains(text, "filtered out") {
		why = ", or is excluded by its ignore file"
	}
	return fmt.Sprintf("%q is not in %s%s", strings.TrimPrefix(path, "/"), where, why)
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
