package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/pgzip"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/images/isal"
)

// The physical limit is the work without a builder: what has to be done at least, each
// part as fast as this machine can, one part after the other.

const (
	limitRow     = "limit"
	limitCommand = "limit"
	// transfers is how many blobs are fetched or sent at the same time.
	transfers = 6
)

// limitScript has this program do the work.
func limitScript(j job) (script, error) {
	b := j.builds[0]
	return script{Store: j.store, Builds: [][][]string{{{"/proc/self/exe", limitCommand, j.store, b.containerfile, b.context, b.secret, b.tag}}}}, nil
}

// limit is the work in the process that limitScript starts.
type limit struct {
	store, containerfile, context, secret, tag string

	steps []string // lines of the Containerfile
	img   v1.Image // the base
	files []string // its blobs
	upper string   // what the steps changed
	layer string   // that as a blob
}

func runLimit(ctx context.Context, args []string) error {
	l := &limit{store: args[0], containerfile: args[1], context: args[2], secret: args[3], tag: args[4]}
	if err := l.read(ctx); err != nil {
		return err
	}
	took := map[string]float64{}
	for i, do := range []func(context.Context) error{l.download, l.unpack, l.run, l.compress, l.upload} {
		start := time.Now()
		if err := do(ctx); err != nil {
			return fmt.Errorf("%s: %w", partNames[i], err)
		}
		took[partNames[i]] = time.Since(start).Seconds()
	}
	text, err := json.Marshal(took)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.store, partsFile), text, 0o644)
}

// partsFile has the seconds of each part, in the store.
const partsFile = "parts.json"

var partNames = []string{"download", "unpacking", "steps", "compression", "upload"}

func (l *limit) read(ctx context.Context) error {
	text, err := os.ReadFile(l.containerfile)
	if err != nil {
		return err
	}
	l.steps = strings.Split(strings.TrimSpace(string(text)), "\n")
	l.img, err = image(ctx, strings.TrimPrefix(l.steps[0], "FROM "))
	return err
}

// download fetches all blobs, whose digests are verified on the way.
func (l *limit) download(context.Context) error {
	layers, err := l.img.Layers()
	if err != nil {
		return err
	}
	l.files = make([]string, len(layers))
	if err := os.MkdirAll(filepath.Join(l.store, "blobs"), 0o755); err != nil {
		return err
	}
	return parallel(transfers, len(layers), func(i int) error {
		l.files[i] = filepath.Join(l.store, "blobs", fmt.Sprint(i))
		blob, err := layers[i].Compressed()
		if err != nil {
			return err
		}
		defer blob.Close()
		return writeAll(l.files[i], blob)
	})
}

// unpack gives each layer a directory, as many at a time as there are CPUs, the largest
// first.
func (l *limit) unpack(ctx context.Context) error {
	order := make([]int, len(l.files))
	sizes := make([]int64, len(l.files))
	for i, file := range l.files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		order[i], sizes[i] = i, info.Size()
	}
	slices.SortFunc(order, func(a, b int) int { return int(sizes[b] - sizes[a]) })
	return parallel(runtime.NumCPU(), len(order), func(i int) error {
		dir := filepath.Join(l.store, "layers", fmt.Sprint(order[i]))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		file, err := os.Open(l.files[order[i]])
		if err != nil {
			return err
		}
		defer file.Close()
		plain, err := isal.NewReader(file)
		if err != nil {
			return err
		}
		defer plain.Close()
		tar := exec.CommandContext(ctx, "tar", "--extract", "--numeric-owner", "--directory", dir)
		tar.Stdin, tar.Stderr = plain, os.Stderr
		return tar.Run()
	})
}

// run does what the steps do, natively, in an overlay of the layers.
func (l *limit) run(ctx context.Context) error {
	l.upper = filepath.Join(l.store, "upper")
	work, root := filepath.Join(l.store, "work"), filepath.Join(l.store, "mount")
	if err := errors.Join(os.Mkdir(l.upper, 0o755), os.Mkdir(work, 0o755), os.Mkdir(root, 0o755)); err != nil {
		return err
	}
	// Names relative to the layers, since the options of a mount fit into a page.
	if err := os.Chdir(filepath.Join(l.store, "layers")); err != nil {
		return err
	}
	var lower []string
	for i := range slices.Backward(l.files) {
		lower = append(lower, fmt.Sprint(i))
	}
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+strings.Join(lower, ":")+",upperdir="+l.upper+",workdir="+work); err != nil {
		return err
	}
	defer unix.Unmount(root, unix.MNT_DETACH)
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		return err
	}
	defer unix.Unmount(filepath.Join(root, "proc"), unix.MNT_DETACH)
	for _, step := range l.steps {
		word, rest, _ := strings.Cut(step, " ")
		var err error
		switch word {
		case "RUN":
			// The secret stays outside; the step sees its content by another name.
			line := strings.NewReplacer(secretMount, "", "/run/secrets/marker", "/proc/self/fd/0").Replace(rest)
			secret, openErr := os.Open(l.secret)
			if openErr != nil {
				return openErr
			}
			defer secret.Close()
			cmd := exec.CommandContext(ctx, "chroot", root, "/bin/sh", "-c", line)
			cmd.Stdin, cmd.Stderr = secret, os.Stderr
			err = cmd.Run()
		case "COPY":
			from, to, _ := strings.Cut(rest, " ")
			if strings.HasSuffix(to, "/") {
				from += "."
			}
			err = command(ctx, os.Stderr, "cp", "-a", l.context+"/"+from, filepath.Join(root, to))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

// compress makes the one new layer.
func (l *limit) compress(ctx context.Context) error {
	l.layer = filepath.Join(l.store, "layer")
	file, err := os.Create(l.layer)
	if err != nil {
		return err
	}
	packed := pgzip.NewWriter(file)
	tar := exec.CommandContext(ctx, "tar", "--create", "--numeric-owner", "--directory", l.upper, ".")
	tar.Stdout, tar.Stderr = packed, os.Stderr
	return errors.Join(tar.Run(), packed.Close(), file.Close())
}

// upload sends the blobs of the base as they came, the new layer, and the manifest.
func (l *limit) upload(ctx context.Context) error {
	added, err := tarball.LayerFromFile(l.layer, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return err
	}
	layers, err := l.img.Layers()
	if err != nil {
		return err
	}
	config, err := l.img.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs, config.History = nil, nil
	config.Config.Labels[label] = "worker"
	img, err := mutate.ConfigFile(empty.Image, config)
	if err != nil {
		return err
	}
	img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
	for i, layer := range layers {
		layers[i] = blob{layer, l.files[i]}
	}
	if img, err = mutate.AppendLayers(img, append(layers, added)...); err != nil {
		return err
	}
	ref, err := name.ParseReference(l.tag, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(ref, img, remote.WithContext(ctx), remote.WithJobs(transfers))
}

// blob is a layer of the base whose blob is in a file.
type blob struct {
	v1.Layer
	file string
}

func (b blob) Compressed() (io.ReadCloser, error) { return os.Open(b.file) }

// parallel calls do for 0 to n-1, so many at a time.
func parallel(width, n int, do func(int) error) error {
	failed := make([]error, n)
	slots := make(chan struct{}, width)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			failed[i] = do(i)
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

func writeAll(path string, in io.Reader) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, in)
	return errors.Join(err, file.Close())
}
