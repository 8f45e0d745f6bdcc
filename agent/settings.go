package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// Settings is everything that a build is told: by flags, then by the environment,
// then by the files that a build pod mounts, then by defaults. It is read once and
// checked once; after that nothing looks at flags or variables again.
type Settings struct {
	images.BuildSpec

	Push   bool
	Output string // TRANSPORT:PATH

	AuthFile     string // for both directions, unless one of these is set
	PullAuthFile string
	PushAuthFile string

	TLSVerify       bool
	CertDir         string
	SigningKey      string
	PassphraseFile  string
	RegistriesConf  string
	SignaturePolicy string

	Isolation     string
	SecurityOpts  []string
	SingleID      bool
	StorageDriver string
	StorageRoot   string
	Platform      string

	MaxRetries    int
	RetryOn       string
	RetryDelay    time.Duration
	RetryMaxDelay time.Duration
	Deadline      time.Duration
	StallTimeout  time.Duration

	Result     string // a path, "-" for standard output, empty for nowhere
	ResultMax  int
	DigestFile string
	IIDFile    string

	LogFormat string
	LogLevel  string
	Progress  string

	compressionLevel int
	sourceDateEpoch  string

	// Pod is what a build pod mounts.
	Pod Pod
	// Authorities are files with certificates of authorities that every server may
	// have its certificate from.
	Authorities []string

	flags *pflag.FlagSet
	// origin is the variable that a flag got its value from, by the flag's name.
	origin map[string]string
	// destination is where the image goes, nil for the store alone.
	destination *images.Destination
}

// once is a flag that has one value: a second one would silently win over the first.
type once string

// String implements pflag.Value.
func (o *once) String() string { return string(*o) }

// Set implements pflag.Value.
func (o *once) Set(value string) error {
	if *o != "" {
		return fmt.Errorf("it is %q already, and takes one value", string(*o))
	}
	*o = once(value)
	return nil
}

// Type implements pflag.Value.
func (o *once) Type() string { return "string" }

// The values of --retry-on.
const (
	retryAny       = "any"
	retryTransient = "transient"
)

// envPrefix begins the variable of each flag: --max-retries is STRATA_MAX_RETRIES.
const envPrefix = "STRATA_"

// otherVariables are variables with names that exist elsewhere and that count as
// a flag. The one with the prefix wins over these.
var otherVariables = []struct{ variable, flag string }{
	{"TAG", "tag"},
	{"BASE_IMAGE_PULL_CREDS", "pull-authfile"},
	{"FINAL_IMAGE_PUSH_CREDS", "push-authfile"},
	{"MAX_RETRIES", "max-retries"},
	{"BUILDAH_ISOLATION", "isolation"},
	{"STORAGE_DRIVER", "storage-driver"},
	{"SOURCE_DATE_EPOCH", "source-date-epoch"},
	{"REGISTRY_AUTH_FILE", "authfile"},
}

// NewSettings returns settings whose flags are defined on flags.
func NewSettings(flags *pflag.FlagSet) *Settings {
	s := &Settings{flags: flags, origin: map[string]string{}}
	f := flags
	f.SortFlags = false

	f.StringVarP(&s.Containerfile, "containerfile", "f", "", "`path` of the Containerfile (default: Containerfile, then Dockerfile, in the context)")
	f.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "file" { // as buildah calls it
			name = "containerfile"
		}
		return pflag.NormalizedName(name)
	})
	f.VarP((*once)(&s.Tag), "tag", "t", "`name` of the image")
	f.BoolVar(&s.Push, "push", false, "push the image to the registry in its name after the build")
	f.VarP((*once)(&s.Output), "output", "o", "write the image to `TRANSPORT:PATH` (oci, oci-archive, docker-archive or dir) instead of a registry")

	f.StringVar(&s.AuthFile, "authfile", "", "`path` of the auth file for pull and push; read again at every attempt")
	f.StringVar(&s.PullAuthFile, "pull-authfile", "", "`path` of the auth file for pull alone")
	f.StringVar(&s.PushAuthFile, "push-authfile", "", "`path` of the auth file for push alone")
	f.BoolVar(&s.TLSVerify, "tls-verify", true, "require HTTPS and verify certificates of registries")
	f.StringVar(&s.CertDir, "cert-dir", "", "`directory` with certificates for registries")
	f.StringVar(&s.RegistriesConf, "registries-conf", "", "`path` of registries.conf")
	f.StringVar(&s.SignaturePolicy, "signature-policy", "", "`path` of the signature policy (default: where containers/image looks, else one that accepts any image)")

	f.StringVar(&s.SigningKey, "sign-by-sigstore-private-key", "", "`path` of a private key in sigstore's format with which the pushed image is signed")
	f.StringVar(&s.PassphraseFile, "sign-passphrase-file", "", "`path` of a file with the passphrase of that key")

	f.StringArrayVar(&s.BuildArgs, "build-arg", nil, "`NAME=VALUE` of an ARG, or NAME for the value in the environment")
	f.StringArrayVarP(&s.Volumes, "volume", "v", nil, "`SOURCE:DEST[:OPTIONS]` to mount for RUN steps")
	f.StringArrayVar(&s.Secrets, "secret", nil, "`id=ID,src=PATH` (or env=NAME) of a secret for RUN --mount=type=secret")
	f.StringArrayVar(&s.SSH, "ssh", nil, "`ID[=PATH,...]` of an SSH agent, by its socket (default that of SSH_AUTH_SOCK), or of private keys for RUN --mount=type=ssh")
	f.StringArrayVar(&s.BuildContexts, "build-context", nil, "`NAME=VALUE` of a further build context: a directory, an archive URL or docker-image://NAME")
	f.StringVar(&s.Target, "target", "", "`stage` to build up to")
	f.StringArrayVar(&s.Labels, "label", nil, "`NAME=VALUE` of a label of the image")
	f.StringArrayVar(&s.Annotations, "annotation", nil, "`NAME=VALUE` of an annotation of the image")
	f.StringVar(&s.Platform, "platform", "", "`OS/ARCH[/VARIANT]` to build for (default: that of this machine)")
	f.StringVar(&s.Format, "format", "oci", "`format` of the image: oci or docker")
	f.StringArrayVar(&s.Ulimits, "ulimit", nil, "`NAME=SOFT[:HARD]` of a resource limit for RUN steps")

	f.BoolVar(&s.Layers, "layers", true, "keep the result of each step, so that the next attempt or build resumes there")
	f.BoolVar(&s.NoCache, "no-cache", false, "run every step, whatever earlier builds left")
	f.StringArrayVar(&s.CacheFrom, "cache-from", nil, "`repository` to look for finished steps in; one that fails is left alone")
	f.StringArrayVar(&s.CacheTo, "cache-to", nil, "`repository` to push finished steps to; one that fails is left alone")
	f.BoolVar(&s.Squash, "squash", false, "put everything that the build adds into one layer")
	f.IntVar(&s.Jobs, "jobs", 1, "`number` of stages to build at the same time")

	f.StringVar(&s.Isolation, "isolation", "", "`kind` of isolation of RUN steps: chroot, oci or rootless (default chroot)")
	f.StringArrayVar(&s.SecurityOpts, "security-opt", nil, "`seccomp=PATH` of the seccomp profile of RUN steps, or seccomp=unconfined for none (default: that of buildah)")
	f.BoolVar(&s.SingleID, "single-id", false, "make do with one user id where the sandbox gives no more: every file in the image belongs to root")
	f.StringVar(&s.StorageDriver, "storage-driver", "", "`driver` of the store (default: as configured, else the best that works: native overlay, fuse-overlayfs, vfs)")
	f.StringVar(&s.StorageRoot, "storage-root", "", "`directory` of the store (default: as configured)")
	f.StringVar(&s.BuildID, "build-id", "", "`id` of this build: an image with the same id under the tag is not built again")

	f.StringVar(&s.Compression.Format, "compression-format", "", "`format` in which new layers are compressed: gzip, zstd or zstd:chunked (default gzip)")
	f.IntVar(&s.compressionLevel, "compression-level", 0, "`level` of the compression")
	f.StringVar(&s.sourceDateEpoch, "source-date-epoch", "", "`seconds` since 1970 that count as the time of the build")
	f.BoolVar(&s.RewriteTimestamp, "rewrite-timestamp", false, "make no file in new layers younger than --source-date-epoch")

	f.IntVar(&s.MaxRetries, "max-retries", 3, "`attempts` in all for each of pull, build, push and verify")
	f.StringVar(&s.RetryOn, "retry-on", retryAny, "`kind` of failure that is tried again: any, or transient for those that can heal with time")
	f.DurationVar(&s.RetryDelay, "retry-delay", 2*time.Second, "`wait` after the first attempt; it doubles with each further one")
	f.DurationVar(&s.RetryMaxDelay, "retry-max-delay", time.Minute, "longest `wait` between attempts")
	f.DurationVar(&s.Deadline, "deadline", 0, "`time` after which the build ends, whatever it does (default none)")

	f.DurationVar(&s.StallTimeout, "stall-timeout", 5*time.Minute, "`time` after which a transfer that makes no progress is given up and tried again; 0 never")

	f.StringVar(&s.Result, "result", "", "`path` for the result as JSON, - for standard output (default "+result.TerminationLog+" where that exists)")
	f.IntVar(&s.ResultMax, "result-max", result.MaxBytes, "most `bytes` that the result may have")
	f.StringVar(&s.DigestFile, "digestfile", "", "`path` for the digest of the pushed image")
	f.StringVar(&s.IIDFile, "iidfile", "", "`path` for the id of the image")

	f.StringVar(&s.LogFormat, "log-format", formatText, "`format` of the log on standard error: text or json")
	f.StringVar(&s.LogLevel, "log-level", "info", "least `level` that is logged: debug, info, warn or error")
	f.StringVar(&s.Progress, "progress", progressAuto, "`kind` of progress: auto (bars on a terminal), plain, tty or json")
	return s
}

// Problems are all the reasons why settings cannot be used, one sentence each.
type Problems []error

// Error implements error.
func (p Problems) Error() string {
	sentences := make([]string, len(p))
	for i, err := range p {
		sentences[i] = oneLine(err.Error())
	}
	return strings.Join(sentences, "; ")
}

func (p *Problems) add(format string, args ...any) {
	*p = append(*p, fmt.Errorf(format, args...))
}

// FindResult looks for where the result goes in a command line that could not be
// understood.
func (s *Settings) FindResult(args []string) {
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--result="); ok {
			s.Result = value
		} else if arg == "--result" && i+1 < len(args) {
			s.Result = args[i+1]
		}
	}
}

// Read completes the settings from the environment and a build pod's files, and finds
// everything that is wrong with them. args are the arguments that are no flags. The
// error is of type Problems.
func (s *Settings) Read(args, environ []string) error {
	if err := s.ReadEnvironment(environ); err != nil {
		return err
	}
	var p Problems
	s.readPod(args, environ, "", &p)
	s.check(args, &p)
	if len(p) > 0 {
		return p
	}
	return nil
}

// ReadEnvironment sets each flag that was not given to what the environment says
// of it. A list flag takes one value from each line of its variable. Where neither names a
// store, a build pod's volume for it does.
func (s *Settings) ReadEnvironment(environ []string) error {
	var problems Problems
	values := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
		if rest, ok := strings.CutPrefix(name, envPrefix); ok {
			flag := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
			if f := s.flags.Lookup(flag); f == nil || Variable(f.Name) != name || flag == "help" {
				problems.add("%s is set, but there is no such setting: remove it, or see `agent build --help` for the right name", name)
			}
		}
	}
	s.flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		for _, name := range variables(f.Name) {
			value, ok := values[name]
			if !ok || (value == "" && name != Variable(f.Name)) {
				continue
			}
			if err := s.set(f, value); err != nil {
				problems.add("%s=%q: %w", name, value, err)
			}
			s.origin[f.Name] = name
			return
		}
	})
	if len(problems) > 0 {
		return problems
	}
	s.readStore(environ, "")
	return nil
}

func (s *Settings) set(f *pflag.Flag, value string) error {
	if _, list := f.Value.(pflag.SliceValue); !list {
		return s.flags.Set(f.Name, value)
	}
	for line := range strings.Lines(value) {
		if line = strings.TrimRight(line, "\n"); line == "" {
			continue
		}
		if err := s.flags.Set(f.Name, line); err != nil {
			return err
		}
	}
	return nil
}

// named is how a message calls a setting: by the flag, or the variable that it came
// from.
func (s *Settings) named(flag string) string {
	if variable := s.origin[flag]; variable != "" {
		return variable
	}
	return "--" + flag
}

// Variable is the name of the environment variable of a flag.
func Variable(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// variables lists the variables of a flag, the one that wins first.
func variables(flag string) []string {
	names := []string{Variable(flag)}
	for _, o := range otherVariables {
		if o.flag == flag {
			names = append(names, o.variable)
		}
	}
	return names
}

// check finds everything that is wrong with the settings.
func (s *Settings) check(args []string, p *Problems) {
	if err := images.EnsureRuntimeDir(s.StorageRoot); err != nil {
		p.add("%w", err)
	}
	s.checkContext(args, p)
	s.checkDestination(p)
	s.checkPaths(p)
	s.checkNumbers(p)

	for _, c := range []struct {
		flag, value string
		allowed     []string
	}{
		{"retry-on", s.RetryOn, []string{retryAny, retryTransient}},
		{"log-format", s.LogFormat, []string{formatText, formatJSON}},
		{"log-level", s.LogLevel, []string{"debug", "info", "warn", "error"}},
		{"progress", s.Progress, []string{progressAuto, progressPlain, progressTTY, progressJSON}},
		{"isolation", s.Isolation, []string{"", "chroot", "oci", "rootless"}},
	} {
		if !slices.Contains(c.allowed, c.value) {
			p.add("%s %q is not one of %s", s.named(c.flag), c.value, strings.TrimPrefix(strings.Join(c.allowed, ", "), ", "))
		}
	}
	if s.Platform != "" {
		if err := images.CheckPlatform(s.Platform); err != nil {
			p.add("--platform %w", err)
		}
	}
	if err := images.CheckSecurityOpt(s.SecurityOpts); err != nil {
		p.add("--security-opt: %w", err)
	}
	if s.BuildID != "" && s.Format == "docker" {
		p.add("--build-id needs --format oci: an image of the format docker has no annotations to carry it")
	}
	*p = append(*p, s.Check()...)
	if s.PullAuthFile == "" {
		s.PullAuthFile = s.AuthFile
	}
	if s.PushAuthFile == "" {
		s.PushAuthFile = s.AuthFile
	}
	s.BuildSpec.AuthFile, s.CacheAuthFile = s.PullAuthFile, s.PushAuthFile
}

func (s *Settings) checkContext(args []string, p *Problems) {
	s.Context = "."
	if s.Pod.Context {
		if err := readable(s.Containerfile); err != nil {
			p.add("the Containerfile cannot be read: %w", err)
		}
		return
	}
	switch {
	case len(args) == 1:
		s.Context = args[0]
	case len(args) > 1:
		p.add("there is one build context, but %d arguments were given: %s; flags come before it", len(args), strings.Join(args, " "))
		return
	}
	if info, err := os.Stat(s.Context); err != nil {
		p.add("the build context cannot be used: %w", err)
		return
	} else if !info.IsDir() {
		p.add("the build context %s is not a directory", s.Context)
		return
	}
	path, err := s.findContainerfile()
	if err != nil {
		p.add("%w", err)
		return
	}
	s.Containerfile = path
	if err := readable(path); err != nil {
		p.add("the Containerfile cannot be read: %w", err)
	}
}

// findContainerfile looks where buildah looks: for a path that was given, here
// and then in the context; else for the two usual names in the context.
func (s *Settings) findContainerfile() (string, error) {
	if s.Containerfile != "" {
		inContext := filepath.Join(s.Context, s.Containerfile)
		if _, err := os.Stat(s.Containerfile); errors.Is(err, fs.ErrNotExist) && exists(inContext) {
			return inContext, nil
		}
		return s.Containerfile, nil
	}
	for _, name := range []string{"Containerfile", "Dockerfile"} {
		if path := filepath.Join(s.Context, name); exists(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no Containerfile and no Dockerfile in %s: name one with --containerfile", s.Context)
}

func (s *Settings) checkDestination(p *Problems) {
	push := s.Push
	if s.Tag != "" {
		if err := images.CheckTag(s.Tag); err != nil {
			p.add("%s: %w", s.named("tag"), err)
			s.Push = s.Push && s.Output != "" // it has no destination that could be checked
		}
	}
	var err error
	switch {
	case s.Push && s.Output != "":
		p.add("--push and --output name two destinations: give one of them")
	case s.Push && s.Tag == "":
		p.add("--push needs --tag, which names the registry and the image")
	case s.Push:
		if s.destination, err = images.RegistryDestination(s.Tag); err != nil {
			p.add("%s: %w", s.named("tag"), err)
		} else {
			s.destination.SignWith(s.SigningKey, s.PassphraseFile)
		}
	case s.Output != "":
		if s.destination, err = images.OutputDestination(s.Output); err != nil {
			p.add("%s: %w", s.named("output"), err)
		}
	}
	if s.SigningKey != "" && !push {
		p.add("--sign-by-sigstore-private-key needs --push: an image is signed in a registry")
	}
	if s.PassphraseFile != "" && s.SigningKey == "" {
		p.add("--sign-passphrase-file needs --sign-by-sigstore-private-key, the key that it is for")
	}
	if s.DigestFile != "" && !push && s.Output == "" {
		p.add("--digestfile needs --push or --output: an image has no digest before it is written somewhere")
	}
}

func (s *Settings) checkPaths(p *Problems) {
	for _, f := range []struct{ flag, path string }{
		{"authfile", s.AuthFile},
		{"pull-authfile", s.PullAuthFile},
		{"push-authfile", s.PushAuthFile},
		{"registries-conf", s.RegistriesConf},
		{"signature-policy", s.SignaturePolicy},
		{"sign-by-sigstore-private-key", s.SigningKey},
		{"sign-passphrase-file", s.PassphraseFile},
	} {
		if f.path == "" {
			continue
		}
		err := readable(f.path)
		if err == nil && strings.HasSuffix(f.flag, "authfile") {
			err = images.CheckAuthFile(f.path)
		}
		if err != nil {
			p.add("%s: %w", s.named(f.flag), err)
		}
	}
	if s.CertDir != "" {
		if info, err := os.Stat(s.CertDir); err != nil {
			p.add("--cert-dir: %w", err)
		} else if !info.IsDir() {
			p.add("--cert-dir: %s is not a directory", s.CertDir)
		}
	}
	for _, f := range []struct{ flag, path string }{{"digestfile", s.DigestFile}, {"iidfile", s.IIDFile}} {
		if f.path == "" {
			continue
		}
		if info, err := os.Stat(filepath.Dir(f.path)); err != nil {
			p.add("--%s: %w", f.flag, err)
		} else if !info.IsDir() {
			p.add("--%s: %s is not a directory", f.flag, filepath.Dir(f.path))
		} else if info, err := os.Stat(f.path); err == nil && info.IsDir() {
			p.add("--%s: %s is a directory", f.flag, f.path)
		}
	}
}

func (s *Settings) checkNumbers(p *Problems) {
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"max-retries", s.MaxRetries, 1}, {"jobs", s.Jobs, 0}, {"result-max", s.ResultMax, result.MinBytes},
	} {
		if n.value < n.min {
			p.add("%s %d: it must be at least %d", s.named(n.flag), n.value, n.min)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"retry-delay", s.RetryDelay}, {"retry-max-delay", s.RetryMaxDelay}, {"deadline", s.Deadline}, {"stall-timeout", s.StallTimeout}} {
		if d.value < 0 {
			p.add("%s %v: it must not be negative", s.named(d.flag), d.value)
		}
	}
	if s.sourceDateEpoch != "" {
		seconds, err := strconv.ParseInt(s.sourceDateEpoch, 10, 64)
		if err != nil {
			p.add("--source-date-epoch %q is not a number of seconds", s.sourceDateEpoch)
		}
		s.SourceDateEpoch = &seconds
	}
	if s.flags.Changed("compression-level") {
		s.Compression.Level = &s.compressionLevel
	}
}

// tlsVerify is what --tls-verify says, nil when it was not given and registries.conf
// decides.
func (s *Settings) tlsVerify() *bool {
	if !s.flags.Changed("tls-verify") {
		return nil
	}
	return &s.TLSVerify
}

func (s *Settings) logLevel() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // checked: one of the four words
	return level
}

// imageName is what the Result calls the image.
func (s *Settings) imageName() string {
	switch {
	case s.destination != nil:
		return s.destination.Name
	default:
		return s.Tag
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readable says why a path is not a file that can be read, and read again at the
// next attempt.
func readable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory", path)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file, which could be read more than once", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
