package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"

	"go.podman.io/buildah/pkg/parse"
	"go.podman.io/common/libimage"
	"go.podman.io/common/pkg/config"
	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/shortnames"
	"go.podman.io/image/v5/types"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

// CheckBases says which base image has a name that cannot be resolved to a
// registry. It talks to none. containerfile is the path that a message names.
func (e *Engine) CheckBases(containerfile string, bases []Base) error {
	runtime, err := libimage.RuntimeFromStore(e.store, &libimage.RuntimeOptions{SystemContext: e.system("")})
	if err != nil {
		return unavailable("the store cannot be read", err)
	}
	for _, b := range bases {
		named, err := reference.ParseNormalizedNamed(trimDocker(b.Name))
		if err != nil {
			return baseError(containerfile, b, nameError(b.Name, err).Error(), err)
		}
		_, tagged := named.(reference.Tagged)
		_, digested := named.(reference.Digested)
		if tagged && digested && b.Name != trimDocker(b.Name) {
			return baseError(containerfile, b, fmt.Sprintf("%q has a tag and a digest, which is not possible behind docker://: leave one of the three out", b.Name), errors.New("a tag and a digest"))
		}
		if b.Name != trimDocker(b.Name) || !shortnames.IsShortName(b.Name) {
			continue
		}
		if exists, err := runtime.Exists(b.Name); err == nil && exists {
			continue
		}
		if _, err := shortnames.Resolve(e.system(""), b.Name); err != nil {
			return baseError(containerfile, b, fmt.Sprintf("%q is not a fully qualified image name: write the registry too, as in registry.example/%s (%v)", b.Name, b.Name, err), err)
		}
	}
	return nil
}

func baseError(containerfile string, b Base, message string, err error) *Error {
	return &Error{
		Reason: result.ReasonBaseImageNotFound, Class: result.ClassInput, Err: err,
		Message: fmt.Sprintf("%s, line %d: %s", containerfile, b.Line, oneLine(message)),
	}
}

// Pull makes one attempt to bring a base image into the store. An image that is
// there already, and for which no platform is asked for, is not fetched. What a mirror
// does not have whole comes from the next one, or from the registry itself. bytes
// is the size of the compressed blobs that came over the network.
func (e *Engine) Pull(ctx context.Context, containerfile string, b Base, authFile string) (bytes int64, err error) {
	sys, err := e.systemFor(b, authFile)
	if err != nil {
		return 0, syntaxError(containerfile, b.Line, err)
	}
	store, err := libimage.RuntimeFromStore(e.store, &libimage.RuntimeOptions{SystemContext: sys})
	if err != nil {
		return 0, unavailable("the store cannot be read", err)
	}
	tried := newEndpoints()
	var images []*libimage.Image
	for again := true; again; {
		var read int64
		images, read, err = e.pullOnce(ctx, store, b, tried)
		bytes += read
		again = err != nil && tried.giveUp(err, classify(ctx, err, pulling))
	}
	if err != nil {
		host, credentials := b.Name, "no credentials"
		if ref, parseErr := reference.ParseNormalizedNamed(trimDocker(b.Name)); parseErr == nil {
			ref = endpointOf(err, ref)
			host, credentials = reference.Domain(ref), e.describeCredentials(authFile, ref)
		}
		failed := e.transferError(ctx, err, transfer{pulling, "pulling", "the base image " + b.Name, host, credentials})
		if failed.Reason == result.ReasonNoSpace {
			e.relay.free()
		}
		if failed.Class == result.ClassInput {
			failed.Message = fmt.Sprintf("%s, line %d: %s", containerfile, b.Line, failed.Message)
		}
		return 0, failed
	}
	if b.Final {
		e.relay.based(images[0].StorageImage())
	}
	return bytes, checkPlatform(ctx, containerfile, b, images[0], sys)
}

// pullOnce pulls from the first of the places that has the manifest and was not given up.
func (e *Engine) pullOnce(ctx context.Context, store *libimage.Runtime, b Base, tried *endpoints) (images []*libimage.Image, bytes int64, err error) {
	lines := e.config.Output.Lines()
	defer lines.Close()
	e.space.reset()
	meter := newMeter(ctx, e.config.Stall)
	options := &libimage.PullOptions{CopyOptions: libimage.CopyOptions{
		MaxRetries: new(uint), // attempts are counted by the caller alone
		Writer:     e.reportWriter(lines),
		Progress:   meter.events,
	}}
	report := newPullReport(lines, e.config.Output.Terminal)
	if e.unsuited == nil {
		options.Writer = report
	}
	stopListening := func() {}
	defer func() { stopListening() }()
	options.SourceLookupReferenceFunc = func(ref types.ImageReference) (types.ImageReference, error) {
		staged := stagedReference{engine: e, name: b.Name, meter: meter, report: report}
		pull, ours := e.ownSource(ref, b.Final, tried)
		switch {
		case !ours:
			staged.ImageReference = forecast{ref, e, b.Name}
		case e.wantsSignature(ref):
			stopListening()
			stopListening = listenToPull(func(limited *distribution.Error) { meter.cancel(limited) })
			staged.ImageReference, staged.blobs = forecast{libraryReference{ref, e}, e, b.Name}, pull
		default:
			staged.ImageReference = forecast{pull, e, b.Name}
		}
		switch {
		case e.unsuited != nil:
			e.sayUnstaged(b.Name, e.unsuited)
		case !ours:
			e.sayUnstaged(b.Name, errors.New("it is in no registry"))
		default:
			return staged, nil
		}
		return staged.ImageReference, nil
	}
	images, err = store.Pull(meter.ctx, b.Name, config.PullPolicyMissing, options)
	bytes, err = meter.stop(err)
	return images, bytes, err
}

// systemFor returns a copy of the system context for a base image of its platform.
func (e *Engine) systemFor(b Base, authFile string) (sys *types.SystemContext, err error) {
	sys = e.system(authFile)
	if b.Platform != "" {
		sys.OSChoice, sys.ArchitectureChoice, sys.VariantChoice, err = parse.Platform(b.Platform)
	}
	return sys, err
}

// checkPlatform refuses a base whose steps could not run: an image that exists
// for one architecture only is pulled whatever that is.
func checkPlatform(ctx context.Context, containerfile string, b Base, image *libimage.Image, sys *types.SystemContext) error {
	want := sys.ArchitectureChoice
	if want == "" {
		want = runtime.GOARCH
	}
	info, err := image.Inspect(ctx, nil)
	if err != nil || info.Architecture == "" || info.Architecture == want || !b.From {
		return nil //nolint:nilerr // what cannot be told is left to the build
	}
	return &Error{
		Reason: result.ReasonWrongArchitecture, Class: result.ClassInput,
		Message: fmt.Sprintf("%s, line %d: the base image %s is for %s/%s, but %s is being built: name another image, or the platform with --platform",
			containerfile, b.Line, b.Name, info.Os, info.Architecture, want),
		Err: errors.New("architecture differs"),
	}
}

// reportWriter is where a copy says what it does: on the terminal, where it
// draws bars, or in lines.
func (e *Engine) reportWriter(lines io.Writer) io.Writer {
	if e.config.Output.Terminal != nil {
		return e.config.Output.Terminal
	}
	return lines
}

func trimDocker(name string) string { return strings.TrimPrefix(name, "docker://") }
