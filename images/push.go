package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	digest "github.com/opencontainers/go-digest"
	imgspecv1 "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/common/pkg/config"
	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/image"
	"go.podman.io/image/v5/manifest"
	"go.podman.io/image/v5/pkg/compression"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/signature/sigstore"
	istorage "go.podman.io/image/v5/storage"
	"go.podman.io/image/v5/transports/alltransports"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

// Destination is where an image goes: a registry, or a file or directory.
type Destination struct {
	// Name is how a message calls it.
	Name string
	// ref is the reference that is written to; for a file it is beside the file
	// until the copy is complete.
	ref  types.ImageReference
	host string
	// path and partial are set for a file or directory.
	path, partial string
	open          func(path string) (types.ImageReference, error)
	// forgetsManifest tells that the format keeps no manifest (docker-archive): what
	// is read from it is made anew, and only its config can be compared.
	forgetsManifest bool
	config          digest.Digest // of the image that was written
	// known are compressed layers that may be in the registry already.
	known map[digest.Digest]layerKind
	// signingKey and passphraseFile are paths, empty for no signature and no passphrase.
	signingKey, passphraseFile string
}

// SignWith makes a push sign the image with a private key in sigstore's format; the
// file with its passphrase may be empty. The signature goes into the registry as an
// attachment, which registries.d has to allow.
func (d *Destination) SignWith(key, passphraseFile string) {
	d.signingKey, d.passphraseFile = key, passphraseFile
}

// Local tells whether the destination is a file or directory.
func (d *Destination) Local() bool { return d.path != "" }

// Dir is the directory in which a file or directory is written, empty for a registry.
func (d *Destination) Dir() string {
	if !d.Local() {
		return ""
	}
	return filepath.Dir(d.path)
}

// RegistryDestination parses the name of an image in a registry. A name without
// a tag or digest gets the tag latest.
func RegistryDestination(name string) (*Destination, error) {
	named, err := reference.ParseNormalizedNamed(trimDocker(name))
	if err != nil {
		return nil, nameError(name, err)
	}
	if reference.Domain(named) == "docker.io" && !strings.HasPrefix(trimDocker(name), "docker.io/") {
		return nil, fmt.Errorf("%q does not say which registry to push to: write it in full, as in registry.example/%s", name, name)
	}
	ref, err := docker.NewReference(reference.TagNameOnly(named))
	if err != nil {
		return nil, fmt.Errorf("%q cannot be pushed to: %w", name, err)
	}
	return &Destination{Name: reference.TagNameOnly(named).String(), ref: ref, host: reference.Domain(named)}, nil
}

// outputTransports are the transports that --output can write.
var outputTransports = map[string]bool{"oci": true, "oci-archive": true, "docker-archive": true, "dir": true}

// OutputDestination parses TRANSPORT:PATH[:NAME]. The path must not exist.
func OutputDestination(spec string) (*Destination, error) {
	transport, rest, ok := strings.Cut(spec, ":")
	if !ok || !outputTransports[transport] || rest == "" {
		return nil, fmt.Errorf("%q is not TRANSPORT:PATH with one of the transports oci, oci-archive, docker-archive and dir", spec)
	}
	path, suffix := rest, ""
	if i := strings.IndexByte(rest, ':'); i >= 0 && transport != "dir" {
		path, suffix = rest[:i], rest[i:]
	}
	if path = strings.TrimRight(path, "/"); path == "" {
		return nil, fmt.Errorf("%q names no path", spec)
	}
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%s exists: name a path that does not, or remove it", path)
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a directory", filepath.Dir(path))
	}
	d := &Destination{Name: spec, path: absolute(path), forgetsManifest: transport == "docker-archive"}
	d.partial = fmt.Sprintf("%s.partial-%d", d.path, os.Getpid())
	// Whether it can be written to is found out by trying.
	if err := os.Mkdir(d.partial, 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(d.partial); err != nil {
		return nil, err
	}
	d.open = func(path string) (types.ImageReference, error) {
		return alltransports.ParseImageName(transport + ":" + path + suffix)
	}
	var err error
	d.ref, err = d.open(d.partial)
	return d, err
}

// CheckTag says what is wrong with the name of an image.
func CheckTag(name string) error {
	named, err := reference.ParseNormalizedNamed(trimDocker(name))
	if err != nil {
		return nameError(name, err)
	}
	if _, ok := named.(reference.Digested); ok {
		return fmt.Errorf("%q has a digest, which an image that is yet to be built cannot have: name a tag", name)
	}
	return nil
}

// Push makes one attempt to copy the image id to the destination and returns the
// digest of its manifest and the size of the blobs that were sent. Blobs that
// the destination has are not sent again.
func (e *Engine) Push(ctx context.Context, id string, d *Destination, c Compression, authFile string) (string, int64, error) {
	fail := func(err error) error { return e.pushError(ctx, err, d, authFile) }
	src, err := istorage.Transport.NewStoreReference(e.store, nil, id)
	if err != nil {
		return "", 0, fail(err)
	}
	// What is pushed was built here, from images that the policy was asked about.
	policy, err := signature.NewPolicyContext(&signature.Policy{
		Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()},
	})
	if err != nil {
		return "", 0, fail(err)
	}
	defer policy.Destroy() //nolint:errcheck // it holds nothing that could be lost
	sys := e.system(authFile)
	if sys.CompressionFormat, err = c.algorithm(); err != nil {
		return "", 0, err
	}
	sys.CompressionLevel = c.Level
	if d.Local() {
		if err := os.RemoveAll(d.partial); err != nil {
			return "", 0, fail(err)
		}
		defer os.RemoveAll(d.partial) //nolint:errcheck // nothing is there after success
	}
	lines := e.config.Output.Lines()
	defer lines.Close()
	e.space.reset()
	meter := newMeter(ctx, e.config.Stall)
	options := &copy.Options{
		ReportWriter:     e.reportWriter(lines),
		SourceCtx:        sys,
		DestinationCtx:   sys,
		Progress:         meter.events,
		ProgressInterval: progressInterval,
	}
	outcome := &pushOutcome{}
	target := d.ref
	switch {
	case d.Local():
	case d.signingKey != "": // which only containers/image can
		target = libraryReference{d.ref, e}
		options.SignBySigstorePrivateKeyFile = d.signingKey
		if options.SignSigstorePrivateKeyPassphrase, err = passphrase(d.passphraseFile); err != nil {
			return "", 0, err
		}
		defer listenToPull(func(limited *distribution.Error) { meter.cancel(limited) })()
	default:
		client, err := e.connect(ctx, d.ref.DockerReference(), authFile)
		if err != nil {
			return "", 0, fail(err)
		}
		defer client.Close()
		if d.known == nil {
			d.known = e.knownLayers(id)
		}
		e.relay.handOver(meter.progress)
		defer e.relay.handOver(nil)
		push := pushReference{ImageReference: d.ref, client: client, known: d.known, algorithm: compression.Gzip, outcome: outcome, gzip: e.isDocker(id), relay: e.relay}
		if sys.CompressionFormat != nil {
			push.algorithm, push.only = *sys.CompressionFormat, true
		}
		target = push
	}
	if conf, err := config.Default(); err == nil {
		options.MaxParallelDownloads = conf.Engine.ImageParallelCopies
	}
	man, err := copy.Image(meter.ctx, policy, target, src, options)
	if push, own := target.(pushReference); own && err != nil && outcome.rejected != nil && outcome.others && !push.only {
		// The other format, in which it may be taken, has gzip alone.
		outcome.rejected, push.gzip = nil, true
		target = push
		man, err = copy.Image(meter.ctx, policy, target, src, options)
	}
	written, err := meter.stop(err)
	var format types.ManifestTypeRejectedError
	if err != nil && outcome.rejected != nil && (errors.As(err, &format) || strings.Contains(err.Error(), everyFormatRejected)) {
		err = outcome.rejected // the copy made a sentence of what it was told
	}
	if err != nil {
		return "", 0, fail(err)
	}
	manifestDigest, err := manifest.Digest(man)
	if err != nil {
		return "", 0, fail(err)
	}
	if d.signingKey != "" {
		outcome.sent = written
	}
	if d.Local() {
		pushed, err := manifest.FromBlob(man, manifest.GuessMIMEType(man))
		if err != nil {
			return "", 0, fail(err)
		}
		d.config = pushed.ConfigInfo().Digest
		outcome.sent = written
		// What came to be at the path in the meantime is not written over.
		if err := unix.Renameat2(unix.AT_FDCWD, d.partial, unix.AT_FDCWD, d.path, unix.RENAME_NOREPLACE); err != nil {
			return "", 0, fail(err)
		}
	}
	e.relay.arrived()
	return manifestDigest.String(), outcome.sent + e.relay.sentEarly(), nil
}

// isDocker tells whether the image is in the format of Docker.
func (e *Engine) isDocker(id string) bool {
	data, err := e.store.ImageBigData(id, storage.ImageDigestBigDataKey)
	return err == nil && manifest.GuessMIMEType(data) == manifest.DockerV2Schema2MediaType
}

// checkKey says why the push cannot sign.
func (d *Destination) checkKey() error {
	if d.signingKey == "" {
		return nil
	}
	phrase, err := passphrase(d.passphraseFile)
	if err != nil {
		return err
	}
	signer, err := sigstore.NewSigner(sigstore.WithPrivateKeyFile(d.signingKey, phrase))
	if err != nil {
		return invalid("--sign-by-sigstore-private-key: the key "+d.signingKey+" cannot be used", err)
	}
	return signer.Close()
}

// passphrase is the first line of the file, as buildah reads it; none has none.
func passphrase(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, invalid("--sign-passphrase-file", err)
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return line, nil
}

// pushError makes the Error of a push.
func (e *Engine) pushError(ctx context.Context, err error, d *Destination, authFile string) *Error {
	failed := e.transferError(ctx, err, transfer{pushing, "pushing", d.Name, d.host, e.destinationCredentials(d, authFile)})
	if !d.Local() && failed.Class != result.ClassInterrupted && e.hasMirrors(d.ref.DockerReference()) {
		failed.Message += fmt.Sprintf(" (mirrors do not apply to push: it goes to %s itself)", d.host)
	}
	return failed
}

func (e *Engine) destinationCredentials(d *Destination, authFile string) string {
	if named := d.ref.DockerReference(); named != nil && !d.Local() {
		return e.describeCredentials(authFile, named)
	}
	return "no credentials"
}

// Verify makes one attempt to confirm that the destination has the image under
// the digest that was pushed.
func (e *Engine) Verify(ctx context.Context, d *Destination, want, authFile string) error {
	got, err := e.confirm(ctx, d, want, authFile)
	if err != nil {
		return e.transferError(ctx, err, transfer{pushing, "verifying", d.Name, d.host, e.destinationCredentials(d, authFile)})
	}
	if got == "" {
		return &Error{
			Reason: result.ReasonPushFailed, Class: result.ClassTransient, Host: d.host, Status: http.StatusNotFound,
			Message: fmt.Sprintf("verifying %s failed: %s has nothing under %s, which was pushed", d.Name, d.host, want),
		}
	}
	if got != want {
		return &Error{
			Reason: result.ReasonDigestMismatch, Class: result.ClassTransient, Host: d.host,
			Message: fmt.Sprintf("%s was pushed as %s, but %s has %s there", d.Name, want, d.host, got),
		}
	}
	return nil
}

func (e *Engine) confirm(ctx context.Context, d *Destination, want, authFile string) (string, error) {
	if !d.Local() {
		client, err := e.connect(ctx, d.ref.DockerReference(), authFile)
		if err != nil {
			return "", err
		}
		defer client.Close()
		got, err := client.ManifestDigest(ctx, want, manifest.DefaultRequestedManifestMIMETypes)
		return got.String(), err
	}
	ref, err := d.open(d.path)
	if err != nil {
		return "", err
	}
	src, err := ref.NewImageSource(ctx, e.system(authFile))
	if err != nil {
		return "", err
	}
	defer src.Close()
	man, mime, err := image.UnparsedInstance(src, nil).Manifest(ctx)
	if err != nil {
		return "", err
	}
	if d.forgetsManifest {
		found, err := manifest.FromBlob(man, mime)
		if err == nil && found.ConfigInfo().Digest == d.config {
			return want, nil
		}
	}
	got, err := manifest.Digest(man)
	return got.String(), err
}

// Pushed asks the destination for an image of the build with this id and returns
// its digest, empty when the image there is another one or there is none.
func (e *Engine) Pushed(ctx context.Context, d *Destination, buildID, authFile string) (string, error) {
	fail := func(err error) error {
		return e.transferError(ctx, err, transfer{pushing, "looking for", d.Name, d.host, e.destinationCredentials(d, authFile)})
	}
	client, err := e.connect(ctx, d.ref.DockerReference(), authFile)
	if err != nil {
		return "", fail(err)
	}
	defer client.Close()
	tagged, ok := d.ref.DockerReference().(reference.Tagged)
	if !ok {
		return "", nil
	}
	_, man, err := client.Manifest(ctx, tagged.Tag(), manifest.DefaultRequestedManifestMIMETypes)
	if distribution.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fail(err)
	}
	if manifest.GuessMIMEType(man) != imgspecv1.MediaTypeImageManifest {
		return "", nil // it has no annotations
	}
	oci, err := manifest.OCI1FromManifest(man)
	if err != nil || oci.Annotations[BuildIDAnnotation] != buildID {
		return "", nil
	}
	found, err := manifest.Digest(man)
	if err == nil {
		e.relay.arrived()
	}
	return found.String(), err
}

// CheckPush finds out, before anything is built, whether a push would be let in:
// once, and as the push will do it. The error is an *Error.
func (e *Engine) CheckPush(ctx context.Context, d *Destination, authFile string) error {
	if err := d.checkKey(); err != nil {
		return err
	}
	client, err := e.connect(ctx, d.ref.DockerReference(), authFile)
	if err != nil {
		return e.pushError(ctx, err, d, authFile)
	}
	if err := client.CheckPush(ctx); err != nil {
		client.Close()
		return e.pushError(ctx, err, d, authFile)
	}
	e.relay.admit(client)
	return nil
}
