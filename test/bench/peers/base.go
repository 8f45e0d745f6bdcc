package main

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/stream"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// base is an image to build upon, which is made when a registry does not have it.
type base interface {
	repository() string
	layers(ctx context.Context, out io.Writer) ([]io.ReadCloser, error)
}

var (
	_ base = debian{}
	_ base = generated{}
)

// tag is what base images have.
const tag = ":1"

// provide makes the image in the registry unless it is there.
func provide(ctx context.Context, host string, b base, out io.Writer) error {
	ref, err := name.ParseReference(host+"/"+b.repository()+tag, name.Insecure)
	if err != nil {
		return err
	}
	_, err = remote.Head(ref, remote.WithContext(ctx))
	var missing *transport.Error
	if err == nil || !errors.As(err, &missing) || missing.StatusCode != http.StatusNotFound {
		return err
	}
	fmt.Fprintf(out, "making the base image %s\n", b.repository())
	layers, err := b.layers(ctx, out)
	if err != nil {
		return err
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Cmd: []string{"/bin/bash"},
			Labels: map[string]string{"containers.bootc": "1", "ostree.bootable": "true"},
		},
	})
	if err != nil {
		return err
	}
	img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, layer := range layers {
		if img, err = mutate.Append(img, mutate.Addendum{
			Layer:   stream.NewLayer(layer, stream.WithCompressionLevel(gzip.DefaultCompression), stream.WithMediaType(types.OCILayer)),
			History: v1.History{CreatedBy: b.repository()},
		}); err != nil {
			return err
		}
	}
	return remote.Write(ref, img, remote.WithContext(ctx), remote.WithJobs(runtime.NumCPU()))
}

// compressed is the size of an image's layers as they are stored, in bytes.
func compressed(img v1.Image) (int64, error) {
	manifest, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, layer := range manifest.Layers {
		sum += layer.Size
	}
	return sum, nil
}

// image returns an image in a registry that speaks HTTP.
func image(ctx context.Context, text string) (v1.Image, error) {
	ref, err := name.ParseReference(text, name.Insecure)
	if err != nil {
		return nil, err
	}
	return remote.Image(ref, remote.WithContext(ctx))
}

// check returns an error unless the image that was pushed is the one that was to be
// built: on the layers of the base, with the steps' own above and the label.
func check(ctx context.Context, pushed string, below v1.Image) error {
	img, err := image(ctx, pushed)
	if err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	var want []v1.Hash
	if below != nil {
		config, err := below.ConfigFile()
		if err != nil {
			return err
		}
		want = config.RootFS.DiffIDs
	}
	if len(config.RootFS.DiffIDs) <= len(want) {
		return fmt.Errorf("%s has %d layers, the base %d", pushed, len(config.RootFS.DiffIDs), len(want))
	}
	for i, id := range want {
		if config.RootFS.DiffIDs[i] != id {
			return fmt.Errorf("layer %d of %s is not that of the base", i, pushed)
		}
	}
	if value := config.Config.Labels[label]; value != "worker" {
		return fmt.Errorf("%s has %q in the label %s", pushed, value, label)
	}
	return nil
}
