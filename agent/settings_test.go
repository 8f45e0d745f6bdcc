package agent

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/strata-build/strata/images"
)

// plain is what can be compared of settings.
func plain(s *Settings) Settings {
	c := *s
	c.flags, c.destination, c.origin = nil, nil, nil
	return c
}

// checked is what check finds.
func checked(s *Settings, args []string) error {
	var p Problems
	if s.check(args, &p); len(p) > 0 {
		return p
	}
	return nil
}

func wantSettings(t *testing.T, got *Settings, want Settings) {
	t.Helper()
	if !reflect.DeepEqual(plain(got), want) {
		t.Errorf("settings\n%+v\nwant\n%+v", plain(got), want)
	}
}

func TestDefaults(t *testing.T) {
	wantSettings(t, newSettings(), defaults())
}

// defaults are those that the documentation names.
func defaults() Settings {
	return Settings{
		BuildSpec: images.BuildSpec{Format: "oci", Layers: true, Jobs: 1},
		TLSVerify: true, MaxRetries: 3, RetryOn: "any", RetryDelay: 2 * time.Second, RetryMaxDelay: 60 * time.Second,
		StallTimeout: 5 * time.Minute,
		ResultMax:    4096, LogFormat: "text", LogLevel: "info", Progress: "auto",
	}
}

// flagCases has a value for each flag that is not its default, and what it sets.
var flagCases = map[string]struct {
	value string
	set   func(*Settings)
}{
	"containerfile":                {"a/Containerfile", func(s *Settings) { s.Containerfile = "a/Containerfile" }},
	"tag":                          {"r.example/a:1", func(s *Settings) { s.Tag = "r.example/a:1" }},
	"push":                         {"true", func(s *Settings) { s.Push = true }},
	"stall-timeout":                {"7s", func(s *Settings) { s.StallTimeout = 7 * time.Second }},
	"output":                       {"oci:a", func(s *Settings) { s.Output = "oci:a" }},
	"authfile":                     {"a.json", func(s *Settings) { s.AuthFile = "a.json" }},
	"pull-authfile":                {"b.json", func(s *Settings) { s.PullAuthFile = "b.json" }},
	"push-authfile":                {"c.json", func(s *Settings) { s.PushAuthFile = "c.json" }},
	"tls-verify":                   {"false", func(s *Settings) { s.TLSVerify = false }},
	"cert-dir":                     {"certs", func(s *Settings) { s.CertDir = "certs" }},
	"registries-conf":              {"r.conf", func(s *Settings) { s.RegistriesConf = "r.conf" }},
	"signature-policy":             {"p.json", func(s *Settings) { s.SignaturePolicy = "p.json" }},
	"sign-by-sigstore-private-key": {"key", func(s *Settings) { s.SigningKey = "key" }},
	"sign-passphrase-file":         {"phrase", func(s *Settings) { s.PassphraseFile = "phrase" }},
	"build-arg":                    {"a=1,2", func(s *Settings) { s.BuildArgs = []string{"a=1,2"} }},
	"volume":                       {"/a:/b:ro", func(s *Settings) { s.Volumes = []string{"/a:/b:ro"} }},
	"secret":                       {"id=a,src=b", func(s *Settings) { s.Secrets = []string{"id=a,src=b"} }},
	"ssh":                          {"git=a,b", func(s *Settings) { s.SSH = []string{"git=a,b"} }},
	"build-context":                {"a=b", func(s *Settings) { s.BuildContexts = []string{"a=b"} }},
	"target":                       {"final", func(s *Settings) { s.Target = "final" }},
	"label":                        {"a=1,2", func(s *Settings) { s.Labels = []string{"a=1,2"} }},
	"annotation":                   {"b=1,2", func(s *Settings) { s.Annotations = []string{"b=1,2"} }},
	"platform":                     {"linux/arm64", func(s *Settings) { s.Platform = "linux/arm64" }},
	"format":                       {"docker", func(s *Settings) { s.Format = "docker" }},
	"ulimit":                       {"nofile=10:20", func(s *Settings) { s.Ulimits = []string{"nofile=10:20"} }},
	"layers":                       {"false", func(s *Settings) { s.Layers = false }},
	"no-cache":                     {"true", func(s *Settings) { s.NoCache = true }},
	"cache-from":                   {"r.example/c", func(s *Settings) { s.CacheFrom = []string{"r.example/c"} }},
	"cache-to":                     {"r.example/d", func(s *Settings) { s.CacheTo = []string{"r.example/d"} }},
	"squash":                       {"true", func(s *Settings) { s.Squash = true }},
	"jobs":                         {"4", func(s *Settings) { s.Jobs = 4 }},
	"isolation":                    {"rootless", func(s *Settings) { s.Isolation = "rootless" }},
	"security-opt":                 {"seccomp=unconfined", func(s *Settings) { s.SecurityOpts = []string{"seccomp=unconfined"} }},
	"single-id":                    {"true", func(s *Settings) { s.SingleID = true }},
	"storage-driver":               {"vfs", func(s *Settings) { s.StorageDriver = "vfs" }},
	"storage-root":                 {"/store", func(s *Settings) { s.StorageRoot = "/store" }},
	"build-id":                     {"0c5f", func(s *Settings) { s.BuildID = "0c5f" }},
	"compression-format":           {"zstd", func(s *Settings) { s.Compression.Format = "zstd" }},
	"compression-level":            {"7", func(s *Settings) { s.compressionLevel = 7 }},
	"source-date-epoch":            {"86400", func(s *Settings) { s.sourceDateEpoch = "86400" }},
	"rewrite-timestamp":            {"true", func(s *Settings) { s.RewriteTimestamp = true }},
	"max-retries":                  {"5", func(s *Settings) { s.MaxRetries = 5 }},
	"retry-on":                     {"transient", func(s *Settings) { s.RetryOn = "transient" }},
	"retry-delay":                  {"7s", func(s *Settings) { s.RetryDelay = 7 * time.Second }},
	"retry-max-delay":              {"5m", func(s *Settings) { s.RetryMaxDelay = 5 * time.Minute }},
	"deadline":                     {"1h30m", func(s *Settings) { s.Deadline = 90 * time.Minute }},
	"result":                       {"r.json", func(s *Settings) { s.Result = "r.json" }},
	"result-max":                   {"1024", func(s *Settings) { s.ResultMax = 1024 }},
	"digestfile":                   {"digest", func(s *Settings) { s.DigestFile = "digest" }},
	"iidfile":                      {"iid", func(s *Settings) { s.IIDFile = "iid" }},
	"log-format":                   {"json", func(s *Settings) { s.LogFormat = "json" }},
	"log-level":                    {"debug", func(s *Settings) { s.LogLevel = "debug" }},
	"progress":                     {"plain", func(s *Settings) { s.Progress = "plain" }},
}

func TestEveryFlagHasACase(t *testing.T) {
	flags := newSettings().flags
	flags.VisitAll(func(f *pflag.Flag) {
		if _, ok := flagCases[f.Name]; !ok {
			t.Errorf("--%s has no case", f.Name)
		}
	})
	for name := range flagCases {
		if flags.Lookup(name) == nil {
			t.Errorf("there is a case for --%s, which is no flag", name)
		}
	}
}

func TestEachFlagSetsItsField(t *testing.T) {
	for name, c := range flagCases {
		want := defaults()
		c.set(&want)
		t.Run(name, func(t *testing.T) {
			if reflect.DeepEqual(want, defaults()) {
				t.Fatal("the case has the default: it proves nothing")
			}
			t.Run("by flag", func(t *testing.T) {
				wantSettings(t, parsed(t, "--"+name+"="+c.value), want)
			})
			t.Run("by variable", func(t *testing.T) {
				s := newSettings()
				variable := "STRATA_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
				if err := s.ReadEnvironment([]string{"HOME=/root", variable + "=" + c.value}); err != nil {
					t.Fatal(err)
				}
				wantSettings(t, s, want)
			})
			t.Run("flag over variable", func(t *testing.T) {
				s := parsed(t, "--"+name+"="+c.value)
				if err := s.ReadEnvironment([]string{Variable(name) + "=" + s.flags.Lookup(name).DefValue}); err != nil {
					t.Fatal(err)
				}
				wantSettings(t, s, want)
			})
		})
	}
}

func TestAllFlagsAtOnce(t *testing.T) {
	want := defaults()
	var args, environ []string
	for name, c := range flagCases {
		c.set(&want)
		args = append(args, "--"+name+"="+c.value)
		environ = append(environ, Variable(name)+"="+c.value)
	}
	wantSettings(t, parsed(t, args...), want)
	s := newSettings()
	if err := s.ReadEnvironment(environ); err != nil {
		t.Fatal(err)
	}
	wantSettings(t, s, want)
}

func TestOtherNamesOfFlags(t *testing.T) {
	for name, args := range map[string][]string{
		"containerfile": {"-f", "x"}, "tag": {"-t", "x"}, "output": {"-o", "x"},
	} {
		if got := parsed(t, args...).flags.Lookup(name).Value.String(); got != "x" {
			t.Errorf("%v sets --%s to %q, want x", args, name, got)
		}
	}
	if got := parsed(t, "--file", "x").Containerfile; got != "x" {
		t.Errorf("--file sets the Containerfile to %q, want x", got)
	}
	if got := parsed(t, "-v", "/a:/b").Volumes; !slices.Equal(got, []string{"/a:/b"}) {
		t.Errorf("-v sets the volumes to %q", got)
	}
}

func TestEnvironment(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		environ []string
		set     func(*Settings)
	}{
		{name: "nothing", environ: []string{"HOME=/root", "STRATAX=1", "XSTRATA_PUSH=true"}, set: func(*Settings) {}},
		{name: "MAX_RETRIES", environ: []string{"MAX_RETRIES=7"}, set: func(s *Settings) { s.MaxRetries = 7 }},
		{name: "BUILDAH_ISOLATION", environ: []string{"BUILDAH_ISOLATION=rootless"}, set: func(s *Settings) { s.Isolation = "rootless" }},
		{name: "STORAGE_DRIVER", environ: []string{"STORAGE_DRIVER=vfs"}, set: func(s *Settings) { s.StorageDriver = "vfs" }},
		{name: "REGISTRY_AUTH_FILE", environ: []string{"REGISTRY_AUTH_FILE=auth.json"}, set: func(s *Settings) { s.AuthFile = "auth.json" }},
		{name: "SOURCE_DATE_EPOCH", environ: []string{"SOURCE_DATE_EPOCH=5"}, set: func(s *Settings) { s.sourceDateEpoch = "5" }},
		{name: "an empty variable of others counts as none", environ: []string{"MAX_RETRIES=", "STORAGE_DRIVER="}, set: func(*Settings) {}},
		{
			name: "ours wins over that of others, in any order", set: func(s *Settings) { s.MaxRetries = 8 },
			environ: []string{"MAX_RETRIES=7", "STRATA_MAX_RETRIES=8", "STRATA_ISOLATION=", "BUILDAH_ISOLATION=rootless"},
		},
		{
			name: "a flag wins over both", args: []string{"--max-retries=9"}, set: func(s *Settings) { s.MaxRetries = 9 },
			environ: []string{"STRATA_MAX_RETRIES=8", "MAX_RETRIES=7"},
		},
		{
			name: "a flag with its default wins too", args: []string{"--max-retries=3"}, set: func(*Settings) {},
			environ: []string{"STRATA_MAX_RETRIES=8"},
		},
		{
			name: "one value of a list from each line", environ: []string{"STRATA_BUILD_ARG=A=1\n\nB=two words, and = more\n", "STRATA_LABEL=x=1\ny=2"},
			set: func(s *Settings) {
				s.BuildArgs, s.Labels = []string{"A=1", "B=two words, and = more"}, []string{"x=1", "y=2"}
			},
		},
		{
			name: "a list flag replaces the list of the variable", args: []string{"--build-arg=C=3", "--build-arg=D=4"},
			environ: []string{"STRATA_BUILD_ARG=A=1\nB=2"}, set: func(s *Settings) { s.BuildArgs = []string{"C=3", "D=4"} },
		},
		{name: "a value with an equals sign", environ: []string{"STRATA_RESULT=a=b=c"}, set: func(s *Settings) { s.Result = "a=b=c" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := parsed(t, tt.args...)
			if err := s.ReadEnvironment(tt.environ); err != nil {
				t.Fatal(err)
			}
			want := defaults()
			tt.set(&want)
			wantSettings(t, s, want)
		})
	}
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	for _, name := range []string{"STRATA_MAX_RETRY", "STRATA_FILE", "STRATA_", "STRATA_max_retries", "STRATA_MAX-RETRIES", "STRATA_PUSH_"} {
		t.Run(name, func(t *testing.T) {
			err := newSettings().ReadEnvironment([]string{"HOME=/root", name + "=hunter2"})
			wantProblems(t, err, name+" is set, but there is no such setting: ...")
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the value is in the error: %v", err)
			}
		})
	}
}

func TestBadVariablesAreReportedTogether(t *testing.T) {
	s := newSettings()
	err := s.ReadEnvironment([]string{
		"STRATA_NO_SUCH=1", "STRATA_PUSH=perhaps", "MAX_RETRIES=many", "STRATA_DEADLINE=3", "STRATA_TAG=r.example/a",
	})
	wantProblems(t, err,
		"STRATA_NO_SUCH is set, but there is no such setting: ...",
		`STRATA_PUSH="perhaps": ...`,
		`MAX_RETRIES="many": ...`,
		`STRATA_DEADLINE="3": ...`,
	)
	if s.Tag != "r.example/a" {
		t.Errorf("tag %q: a good variable has to count among bad ones", s.Tag)
	}
}

// wantProblems checks the sentences; one that ends with "..." may go on.
func wantProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	var got Problems
	if err != nil && !errors.As(err, &got) {
		t.Fatalf("error %T (%v), want Problems", err, err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d problems, want %d:\ngot  %q\nwant %q", len(got), len(want), got, want)
	}
	for i, w := range want {
		sentence := got[i].Error()
		prefix, open := strings.CutSuffix(w, "...")
		if sentence != w && (!open || !strings.HasPrefix(sentence, prefix)) {
			t.Errorf("problem %q, want %q", sentence, w)
		}
		if strings.ContainsAny(sentence, "\n\r") {
			t.Errorf("problem %q is more than one line", sentence)
		}
	}
}

func TestBadSettingsHaveOneSentenceEach(t *testing.T) {
	const digest = "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	inDirectory(t)
	tests := []struct {
		name    string
		args    []string
		context []string // default: context
		want    []string
	}{
		{"retry-on", []string{"--retry-on=never"}, nil, []string{`--retry-on "never" is not one of any, transient`}},
		{"log-format", []string{"--log-format=xml"}, nil, []string{`--log-format "xml" is not one of text, json`}},
		{"log-level", []string{"--log-level=INFO"}, nil, []string{`--log-level "INFO" is not one of debug, info, warn, error`}},
		{"progress", []string{"--progress="}, nil, []string{`--progress "" is not one of auto, plain, tty, json`}},
		{"isolation", []string{"--isolation=vm"}, nil, []string{`--isolation "vm" is not one of chroot, oci, rootless`}},
		{"security option", []string{"--security-opt=label=disable"}, nil, []string{`--security-opt: "label=disable" is neither seccomp=unconfined nor seccomp=PATH`}},
		{"missing profile", []string{"--security-opt=seccomp=no/such"}, nil, []string{"--security-opt: the seccomp profile cannot be read: open no/such: no such file or directory"}},
		{"format", []string{"--format=tar"}, nil, []string{"--format: ..."}},
		{"compression format", []string{"--compression-format=rar"}, nil, []string{"--compression-format: ..."}},

		{"no attempt", []string{"--max-retries=0"}, nil, []string{"--max-retries 0: it must be at least 1"}},
		{"negative attempts", []string{"--max-retries=-1"}, nil, []string{"--max-retries -1: it must be at least 1"}},
		{"negative jobs", []string{"--jobs=-1"}, nil, []string{"--jobs -1: it must be at least 0"}},
		{"result that holds nothing", []string{"--result-max=767"}, nil, []string{"--result-max 767: it must be at least 768"}},
		{"negative delay", []string{"--retry-delay=-1s"}, nil, []string{"--retry-delay -1s: it must not be negative"}},
		{"negative longest delay", []string{"--retry-max-delay=-1ms"}, nil, []string{"--retry-max-delay -1ms: it must not be negative"}},
		{"negative deadline", []string{"--deadline=-1h"}, nil, []string{"--deadline -1h0m0s: it must not be negative"}},
		{"epoch", []string{"--source-date-epoch=today"}, nil, []string{`--source-date-epoch "today" is not a number of seconds`}},

		{"push without tag", []string{"--push"}, nil, []string{"--push needs --tag, which names the registry and the image"}},
		{"push and output", []string{"--push", "--tag=r.example/a", "--output=oci:new"}, nil, []string{"--push and --output name two destinations: give one of them"}},
		{"tag is no reference", []string{"--tag=Not A Name"}, nil, []string{`--tag: "Not A Name" is not the name of an image: ...`}},
		{"tag with a digest", []string{"--tag=r.example/a" + digest}, nil, []string{`--tag: "r.example/a` + digest + `" has a digest, ...`}},
		{"push to no registry", []string{"--push", "--tag=busybox"}, nil, []string{`--tag: "busybox" does not say which registry to push to: ...`}},
		{"output that exists", []string{"--output=oci-archive:file"}, nil, []string{"--output: file exists: name a path that does not, or remove it"}},
		{"output without path", []string{"--output=oci:"}, nil, []string{`--output: "oci:" is not TRANSPORT:PATH ...`}},
		{"output of an unknown transport", []string{"--output=docker-daemon:a"}, nil, []string{`--output: "docker-daemon:a" is not TRANSPORT:PATH ...`}},
		{"output without transport", []string{"--output=new"}, nil, []string{`--output: "new" is not TRANSPORT:PATH ...`}},
		{"output in a missing directory", []string{"--output=oci:missing/new"}, nil, []string{"--output: ..."}},
		{"digestfile without destination", []string{"--digestfile=d"}, nil, []string{"--digestfile needs --push or --output: ..."}},
		{"digestfile in a missing directory", []string{"--output=oci:new", "--digestfile=missing/d"}, nil, []string{"--digestfile: ..."}},
		{"digestfile is a directory", []string{"--output=oci:new", "--digestfile=empty"}, nil, []string{"--digestfile: empty is a directory"}},
		{"iidfile in a file", []string{"--iidfile=file/i"}, nil, []string{"--iidfile: file is not a directory"}},
		{"iidfile is a directory", []string{"--iidfile=empty"}, nil, []string{"--iidfile: empty is a directory"}},

		{"missing context", nil, []string{"missing"}, []string{"the build context cannot be used: stat missing: no such file or directory"}},
		{"context is a file", nil, []string{"file"}, []string{"the build context file is not a directory"}},
		{"two contexts", nil, []string{"context", "empty"}, []string{"there is one build context, but 2 arguments were given: context empty; flags come before it"}},
		{"no Containerfile", nil, []string{"empty"}, []string{"there is no Containerfile and no Dockerfile in empty: name one with --containerfile"}},
		{"missing Containerfile", []string{"--containerfile=missing"}, nil, []string{"the Containerfile cannot be read: stat missing: no such file or directory"}},
		{"Containerfile is a directory", []string{"--containerfile=empty"}, nil, []string{"the Containerfile cannot be read: empty is a directory"}},
		{"Containerfile in the context is a directory", nil, []string{"odd"}, []string{"the Containerfile cannot be read: odd/Containerfile is a directory"}},

		{"missing authfile", []string{"--authfile=missing"}, nil, []string{"--authfile: stat missing: no such file or directory"}},
		{"missing pull authfile", []string{"--pull-authfile=missing"}, nil, []string{"--pull-authfile: stat missing: no such file or directory"}},
		{"push authfile is a directory", []string{"--push-authfile=empty"}, nil, []string{"--push-authfile: empty is a directory"}},
		{"missing registries.conf", []string{"--registries-conf=missing"}, nil, []string{"--registries-conf: stat missing: no such file or directory"}},
		{"missing policy", []string{"--signature-policy=missing"}, nil, []string{"--signature-policy: stat missing: no such file or directory"}},
		{"missing certificates", []string{"--cert-dir=missing"}, nil, []string{"--cert-dir: stat missing: no such file or directory"}},
		{"certificates are a file", []string{"--cert-dir=file"}, nil, []string{"--cert-dir: file is not a directory"}},

		{"several platforms", []string{"--platform=linux/amd64,linux/arm64"}, nil, []string{`--platform "linux/amd64,linux/arm64" names several platforms: ...`}},
		{"platform of four parts", []string{"--platform=linux/arm64/v8/x"}, nil, []string{"--platform..."}},
		{"platform without architecture", []string{"--platform=nonsense"}, nil, []string{"--platform..."}},
		{"build context without name", []string{"--build-context=a"}, nil, []string{`--build-context: "a" is not NAME=VALUE`}},
		{"build context without image", []string{"--build-context=a=docker-image://"}, nil, []string{`--build-context: "a=docker-image://": ...`}},
		{"build context that is missing", []string{"--build-context=a=missing"}, nil, []string{"--build-context: ..."}},
		{"secret without id", []string{"--secret=src=file"}, nil, []string{"--secret: ..."}},
		{"secret without file", []string{"--secret=id=a,src=missing"}, nil, []string{"--secret: ..."}},
		{"ssh without an agent", []string{"--ssh=default"}, nil, []string{"--ssh: SSH_AUTH_SOCK not set in environment"}},
		{"ssh with a missing key", []string{"--ssh=default=missing"}, nil, []string{"--ssh: stat missing: no such file or directory"}},
		{"ssh with a file that is no key", []string{"--ssh=default=file"}, nil, []string{"--ssh: cannot parse ssh key: ..."}},
		{"volume without destination", []string{"--volume=a"}, nil, []string{"--volume: ..."}},
		{"volume with a relative destination", []string{"--volume=/tmp:a"}, nil, []string{"--volume: ..."}},
		{"volume that is missing", []string{"--volume=/missing/volume:/a"}, nil, []string{"--volume: ..."}},
		{"ulimit without value", []string{"--ulimit=nofile"}, nil, []string{`--ulimit: ulimit "nofile": ...`}},
		{"ulimit that does not exist", []string{"--ulimit=bogus=1"}, nil, []string{`--ulimit: ulimit "bogus=1": ...`}},
		{"cache with a tag", []string{"--cache-from=r.example/a:b"}, nil, []string{"--cache-from: ..."}},
		{"cache that is no name", []string{"--cache-to=A B"}, nil, []string{"--cache-to: ..."}},

		{
			"all at once",
			[]string{"--tag=Not A Name", "--max-retries=0", "--deadline=-1s", "--retry-on=never", "--authfile=missing", "--platform=a/b,c/d", "--build-context=a"},
			[]string{"missing"},
			[]string{
				"the build context cannot be used: ...", "--tag: ...", "--authfile: ...", "--max-retries 0: ...",
				"--deadline -1s: ...", `--retry-on "never" ...`, "--platform ...", "--build-context: ...",
			},
		},
		{"a bad tag hides no bad output", []string{"--tag=Not A Name", "--output=oci:file"}, nil, []string{"--tag: ...", "--output: ..."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.context == nil {
				tt.context = []string{"context"}
			}
			wantProblems(t, checked(parsed(t, tt.args...), tt.context), tt.want...)
		})
	}
}

func TestProblemsAreOneSentenceAfterTheOther(t *testing.T) {
	p := Problems{errors.New("first\nproblem"), errors.New("second")}
	if got, want := p.Error(), "first problem; second"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

// sshKey is a private key as ssh reads them.
func sshKey(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func TestCheckCompletesAllSettings(t *testing.T) {
	inDirectory(t)
	for _, name := range []string{"pull.json", "push.json", "registries.conf", "policy.json", "secret"} {
		writeFile(t, name, "{}")
	}
	writeFile(t, "key", sshKey(t))
	s := parsed(t, "--containerfile=Containerfile", "--tag=r.example/a", "--push", "--authfile=file",
		"--pull-authfile=pull.json", "--push-authfile=push.json", "--tls-verify=false", "--cert-dir=empty",
		"--registries-conf=registries.conf", "--signature-policy=policy.json", "--build-arg=A=1", "--volume=/tmp:/a",
		"--secret=id=a,src=secret", "--ssh=git=key", "--build-context=more=empty", "--target=final", "--label=a=1", "--annotation=a=1",
		"--platform=linux/arm64/v8", "--format=oci", "--ulimit=nofile=10:20", "--layers=false", "--no-cache",
		"--cache-from=r.example/c", "--cache-to=r.example/d", "--squash", "--jobs=0", "--isolation=oci",
		"--security-opt=seccomp=file", "--single-id", "--storage-driver=vfs", "--storage-root=store", "--build-id=0c5f", "--compression-format=zstd:chunked",
		"--compression-level=0", "--source-date-epoch=0", "--rewrite-timestamp", "--max-retries=1", "--retry-on=transient",
		"--retry-delay=0", "--retry-max-delay=0", "--deadline=1h", "--result=-", "--result-max=768", "--digestfile=digest",
		"--iidfile=iid", "--log-format=json", "--log-level=error", "--progress=json")
	if err := checked(s, []string{"context"}); err != nil {
		t.Fatal(err)
	}
	if s.Containerfile != "context/Containerfile" || s.Context != "context" {
		t.Errorf("Containerfile %q in context %q", s.Containerfile, s.Context)
	}
	if s.Compression.Level == nil || *s.Compression.Level != 0 {
		t.Errorf("compression level %v, want the 0 that was given", s.Compression.Level)
	}
	if s.SourceDateEpoch == nil || *s.SourceDateEpoch != 0 {
		t.Errorf("epoch %v, want the 0 that was given", s.SourceDateEpoch)
	}
	if got := s.tlsVerify(); got == nil || *got {
		t.Errorf("tls-verify %v, want false", got)
	}
	if s.destination == nil || s.imageName() != "r.example/a:latest" || s.destination.Local() {
		t.Errorf("destination %+v, image %q", s.destination, s.imageName())
	}
	if s.PullAuthFile != "pull.json" || s.PushAuthFile != "push.json" || s.BuildSpec.AuthFile != "pull.json" {
		t.Errorf("auth files %q, %q, %q", s.PullAuthFile, s.PushAuthFile, s.BuildSpec.AuthFile)
	}
}

func TestCheckLeavesWhatWasNotGivenToOthers(t *testing.T) {
	inDirectory(t)
	s := newSettings()
	if err := checked(s, []string{"context"}); err != nil {
		t.Fatal(err)
	}
	if s.Compression.Level != nil || s.SourceDateEpoch != nil || s.tlsVerify() != nil || s.destination != nil || s.imageName() != "" {
		t.Errorf("level %v, epoch %v, tls-verify %v, destination %v, image %q; want none",
			s.Compression.Level, s.SourceDateEpoch, s.tlsVerify(), s.destination, s.imageName())
	}
}

func TestOneAuthFileServesBothDirections(t *testing.T) {
	inDirectory(t)
	writeFile(t, "other", "{}")
	for _, tt := range []struct {
		args       []string
		pull, push string
	}{
		{nil, "", ""},
		{[]string{"--authfile=file"}, "file", "file"},
		{[]string{"--authfile=file", "--pull-authfile=other"}, "other", "file"},
		{[]string{"--authfile=file", "--push-authfile=other"}, "file", "other"},
		{[]string{"--pull-authfile=other"}, "other", ""},
	} {
		s := parsed(t, tt.args...)
		if err := checked(s, []string{"context"}); err != nil {
			t.Fatal(err)
		}
		if s.PullAuthFile != tt.pull || s.PushAuthFile != tt.push || s.BuildSpec.AuthFile != tt.pull {
			t.Errorf("%v: pull %q, push %q, build %q; want %q, %q, %q", tt.args, s.PullAuthFile, s.PushAuthFile, s.BuildSpec.AuthFile, tt.pull, tt.push, tt.pull)
		}
	}
}

func TestWhereTheContainerfileIsLookedFor(t *testing.T) {
	tests := []struct {
		name, flag string
		files      []string
		context    []string
		want       string
	}{
		{name: "Containerfile in the context", files: []string{"c/Containerfile", "c/Dockerfile", "Containerfile"}, context: []string{"c"}, want: "c/Containerfile"},
		{name: "else Dockerfile", files: []string{"c/Dockerfile", "Containerfile"}, context: []string{"c"}, want: "c/Dockerfile"},
		{name: "no context is this directory", files: []string{"Dockerfile"}, want: "Dockerfile"},
		{name: "given, here", flag: "f", files: []string{"f", "c/f", "c/Containerfile"}, context: []string{"c"}, want: "f"},
		{name: "given, in the context", flag: "f", files: []string{"c/f", "c/Containerfile"}, context: []string{"c"}, want: "c/f"},
		{name: "given, outside of the context", flag: "d/f", files: []string{"d/f", "c/Containerfile"}, context: []string{"c"}, want: "d/f"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			for _, f := range tt.files {
				writeFile(t, f, "FROM scratch\n")
			}
			s := parsed(t, "--containerfile="+tt.flag)
			if err := checked(s, tt.context); err != nil {
				t.Fatal(err)
			}
			if s.Containerfile != tt.want {
				t.Errorf("Containerfile %q, want %q", s.Containerfile, tt.want)
			}
		})
	}
}

func TestImageName(t *testing.T) {
	inDirectory(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--tag=a"}, "a"},
		{[]string{"--tag=r.example:5000/a", "--push"}, "r.example:5000/a:latest"},
		{[]string{"--tag=docker://r.example/a:1", "--push"}, "r.example/a:1"},
		{[]string{"--tag=docker.io/library/a:1", "--push"}, "docker.io/library/a:1"},
		{[]string{"--tag=a", "--output=oci:new:name"}, "oci:new:name"},
	} {
		s := parsed(t, tt.args...)
		if err := checked(s, []string{"context"}); err != nil {
			t.Errorf("%v: %v", tt.args, err)
		} else if got := s.imageName(); got != tt.want {
			t.Errorf("%v: image %q, want %q", tt.args, got, tt.want)
		}
	}
	if _, err := os.Stat("new"); err == nil {
		t.Error("checking the settings made the output")
	}
}
