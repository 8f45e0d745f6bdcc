package images

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.podman.io/buildah/pkg/parse"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/configfile"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/layers"
	"github.com/strata-build/strata/images/standby"
)

// Config is what an Engine needs to know of its surroundings.
type Config struct {
	// StorageRoot is the directory of the store, StorageDriver its driver; empty
	// means what containers/storage is configured to use.
	StorageRoot, StorageDriver string
	// Isolation is buildah's word for how RUN steps are isolated; empty means chroot.
	Isolation string
	// Ulimits are NAME=SOFT[:HARD] for RUN steps.
	Ulimits []string
	// SecurityOpts are buildah's words for what confines RUN steps; see CheckSecurityOpt.
	SecurityOpts []string
	// SingleID is set where only one id exists: files of others become root's.
	SingleID bool
	// TLSVerify false allows registries without TLS or with a certificate that
	// nobody vouches for; nil means as registries.conf says.
	TLSVerify *bool
	// CertDir, RegistriesConf and SignaturePolicy are paths; empty means the
	// places where containers/image looks.
	CertDir, RegistriesConf, SignaturePolicy string
	// Authorities are files with certificates of authorities that any server may have
	// its certificate from.
	Authorities []string
	// Platform is OS/ARCH[/VARIANT]; empty means this machine's.
	Platform string
	// UserAgent is sent to registries.
	UserAgent string
	// Stall is how long a transfer may make no progress before it is given up; 0
	// for ever.
	Stall time.Duration
	// Paths are further places that the build writes to, such as volumes; that they
	// run full is noticed.
	Paths  []string
	Output Output
}

// Output is where an Engine says what it does.
type Output struct {
	Log *slog.Logger
	// Lines makes a writer for text that consists of lines: steps, the output of
	// RUN, the progress of copies. Closing it flushes a line that did not end.
	Lines func() io.WriteCloser
	// Step is told of each step that begins, maybe of several at once; nil tells nobody.
	Step func(result.Step)
	// Terminal is where progress bars are drawn; nil draws none.
	Terminal *os.File
}

// Engine is the store and the sandbox of one build.
type Engine struct {
	config     Config
	log        *slog.Logger
	options    storage.StoreOptions
	store      storage.Store
	sys        types.SystemContext // a template: operations change copies
	tmp        string
	ledger     *ledger
	space      *spaceWatch
	killed     bool       // an earlier build was killed and left something
	built      bool       // there is an image of this build
	departing  *departing // the store of the last attempt to build, nil before it
	isolation  isolation
	seccomp    string // the path of the profile of steps, unconfined, or empty for the built-in one
	warned     bool   // that limits were lowered
	withheld   bool   // a proxy with a password, from build arguments
	policy     string // the path of the signature policy, empty for the built-in one
	authCopies map[string]authCopy
	parsed     parsed // the Containerfile as it was last read
	caches     *caches
	standby    *standby.Pool // nil where nothing stands by
	both       bool          // whether all do that are wanted
	relay      *relay        // nil where the doctor looks on
	stager     *layers.Stager
	unsuited   error           // why layers are not staged in this store, nil where they are
	unstaged   map[string]bool // why layers were unpacked by containers/image, as far as it was said
}

//go:embed policy.json
var defaultPolicy []byte

// Open finds out what can be built with: a directory for temporary files, the
// store, the isolation of steps, the signature policy and the configuration of
// registries. It talks to no registry. The error is an *Error whose reason is
// UserNamespaceUnavailable, StorageUnavailable, NoSpace or SettingsInvalid.
func Open(config Config) (*Engine, error) {
	e := &Engine{config: config, log: config.Output.Log}
	e.caches = &caches{engine: e, left: map[string]bool{}}
	if err := e.open(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) open() error {
	e.begin()
	for _, c := range checks {
		f, err := e.look(c)
		if err != nil {
			return err
		}
		e.say(c, f)
		if c.name == checkTemp {
			e.relay = &relay{engine: e, kept: keptBy(e.ledger.dir, e.ledger.name)}
		}
		if c.name == checkDriver {
			recorded := newRecordedStore(e.store, e.ledger, e.relay)
			e.store = recorded
			e.stager, e.unsuited = layers.NewStager(e.store, filepath.Join(e.ledger.dir, "turns")), layers.Suits(e.store)
			if e.unsuited == nil {
				recorded.stager = e.stager
			}
			e.sweep()
		}
	}
	return nil
}

// begin prepares the environment that the libraries read.
func (e *Engine) begin() {
	keepOwnProxies(e.log)
	spellProxies()
}

// Storage is the driver of the store.
func (e *Engine) Storage() string { return e.store.GraphDriverName() }

// StorageRoot is the directory of the store.
func (e *Engine) StorageRoot() string { return e.store.GraphRoot() }

// Isolation is the isolation of RUN steps.
func (e *Engine) Isolation() string { return e.isolation.name }

// TempDir is the directory of temporary files; it is gone after Close.
func (e *Engine) TempDir() string { return e.tmp }

// Close releases the store and removes temporary files. It may be called twice.
func (e *Engine) Close() {
	if e.standby != nil {
		e.log.Debug("Processes that stood by did work of copies", "times", e.standby.Close())
		e.standby = nil
	}
	if e.space != nil {
		e.space.stop()
		e.space = nil
	}
	left := false
	if e.relay != nil {
		left = e.relay.close()
		e.relay = nil
	}
	if e.tmp != "" {
		left = !removeTemp(e.tmp, e.log) || left
		e.tmp = ""
	}
	if e.stager != nil {
		e.stager.Close()
		e.stager = nil
	}
	if e.departing != nil {
		e.departing.wait()
		e.departing = nil
	}
	if e.store != nil {
		if e.ledger != nil { // without it, as where the doctor looks on, nothing was done
			e.ledger.freeReserve()
			left = !e.deleteContainers(e.ledger.name) || left // buildah may have had no space to
			left = e.tidy() || left
		}
		if _, err := e.store.Shutdown(false); err != nil {
			e.log.Debug("Releasing the store", "error", err)
		}
		e.store = nil
	}
	for _, c := range e.authCopies {
		_ = c.file.Close()
	}
	e.authCopies = nil
	if e.ledger != nil {
		e.ledger.close(left)
		e.ledger = nil
	}
}

func unavailable(what string, err error) error {
	e := &Error{
		Reason: result.ReasonStorageUnavailable, Class: result.ClassSandbox,
		Message: fmt.Sprintf("%s: %v", what, err), Err: err,
	}
	if isFull(err) {
		e.Reason, e.Class = result.ReasonNoSpace, result.ClassResource
	}
	return e
}

func invalid(what string, err error) error {
	return &Error{
		Reason: result.ReasonSettingsInvalid, Class: result.ClassSandbox,
		Message: fmt.Sprintf("%s: %v", what, err), Err: err,
	}
}

// lookAtConfiguration reads the configuration of registries and trust.
func (e *Engine) lookAtConfiguration() (Finding, error) {
	if err := e.configureRegistries(); err != nil {
		return Finding{}, err
	}
	policy := e.policy
	if policy == "" {
		policy = "the built-in one"
	}
	return ok("registries.conf can be read, and the signature policy is %s", policy), nil
}

// configureRegistries fills the system context and checks, before anything is
// fetched, that the files it names can be read.
func (e *Engine) configureRegistries() error {
	e.sys = types.SystemContext{
		DockerCertPath:           e.config.CertDir,
		SystemRegistriesConfPath: e.config.RegistriesConf,
		SignaturePolicyPath:      e.config.SignaturePolicy,
		BigFilesTemporaryDir:     e.tmp,
		BlobInfoCacheDir:         filepath.Join(e.options.GraphRoot, "cache"), // where libimage has it
		DockerRegistryUserAgent:  e.config.UserAgent,
	}
	if verify := e.config.TLSVerify; verify != nil {
		e.sys.DockerInsecureSkipTLSVerify = types.NewOptionalBool(!*verify)
		e.sys.OCIInsecureSkipTLSVerify = !*verify
	}
	if e.config.Platform != "" {
		var err error
		if e.sys.OSChoice, e.sys.ArchitectureChoice, e.sys.VariantChoice, err = parse.Platform(e.config.Platform); err != nil {
			return invalid("--platform", err)
		}
	}
	if e.config.RegistriesConf != "" {
		if _, err := os.Stat(e.config.RegistriesConf); err != nil {
			return invalid("the registries configuration cannot be read", err)
		}
	}
	_, err := sysregistriesv2.GetRegistries(&e.sys)
	if path := emptyMount(err); path != "" && e.config.RegistriesConf == "" {
		e.log.Warn(path + " is an empty directory, as a kubelet mounts a key that its ConfigMap lacks: no configuration of registries is used")
		e.sys.SystemRegistriesConfPath = os.DevNull
		_, err = sysregistriesv2.GetRegistries(&e.sys)
	}
	if err != nil {
		return invalid("the registries configuration cannot be read", err)
	}
	return e.configurePolicy()
}

// configurePolicy makes sure that there is a signature policy: the one that was
// named or found, which must be readable, or the built-in one where there is none.
func (e *Engine) configurePolicy() error {
	_, err := signature.DefaultPolicy(&e.sys)
	switch {
	case err == nil:
		e.policy = e.config.SignaturePolicy
		if e.policy == "" {
			e.policy = foundPolicy()
		}
		return nil
	case e.config.SignaturePolicy == "" && emptyMount(err) != "":
		e.log.Warn(emptyMount(err) + " is an empty directory, as a kubelet mounts a key that its ConfigMap lacks")
	case !errors.Is(err, configfile.ErrConfigFileNotFound) || e.config.SignaturePolicy != "":
		return invalid("the signature policy cannot be used", err)
	}
	path := filepath.Join(e.tmp, "policy.json")
	if err := os.WriteFile(path, defaultPolicy, 0o600); err != nil {
		return unavailable("the built-in signature policy cannot be written", err)
	}
	e.sys.SignaturePolicyPath = path
	e.log.Info("No signature policy is configured: the built-in one accepts any image")
	return nil
}

// emptyMount is the path of the file that could not be read because it is an empty
// directory, if that is what the error says. A volume's subPath that is not there is
// mounted so, as with a ConfigMap that is optional and does not exist.
func emptyMount(err error) string {
	var e *fs.PathError
	if !errors.As(err, &e) || !errors.Is(e.Err, syscall.EISDIR) {
		return ""
	}
	if entries, err := os.ReadDir(e.Path); err != nil || len(entries) > 0 {
		return ""
	}
	return e.Path
}

// foundPolicy is the path of the policy that signature.DefaultPolicy reads, which
// it does not tell: the same search, with the same words.
func foundPolicy() string {
	for _, path := range foundFiles(&configfile.File{
		Name: "policy", Extension: "json", DoNotLoadDropInFiles: true, EnvironmentName: "CONTAINERS_POLICY_JSON",
	}) {
		return path
	}
	return ""
}

// foundFiles are the files of a configuration that the libraries read.
func foundFiles(config *configfile.File) (paths []string) {
	for item, err := range configfile.Read(config) {
		if err == nil {
			paths = append(paths, item.Name)
		}
	}
	return paths
}

// system returns a copy of the system context that uses the given auth file.
func (e *Engine) system(authFile string) *types.SystemContext {
	sys := e.sys
	sys.AuthFilePath = e.authFilePath(authFile)
	return &sys
}
