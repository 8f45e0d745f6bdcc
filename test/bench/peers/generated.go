package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// generated is a base image of any size: the files of a layer are alike in size, and
// compress to about two fifths.
type generated struct {
	count, files int
	bytes        int64 // unpacked
}

// growth is what the cost of a build is measured over: one number differs at a time.
var growth = []generated{
	{20, 10_000, 2_000_000_000},
	{5, 10_000, 2_000_000_000},
	{60, 10_000, 2_000_000_000},
	{20, 10_000, 200_000_000},
	{20, 10_000, 6_000_000_000},
	{20, 1_000_000, 2_000_000_000},
}

func (g generated) String() string {
	return fmt.Sprintf("%d layers, %.1f GB, %d files", g.count, float64(g.bytes)/1e9, g.files)
}

func (g generated) repository() string {
	return fmt.Sprintf("growth/layers%d-files%d-bytes%d", g.count, g.files, g.bytes)
}

// layers returns the layers as archives that are made while they are read. The first
// has a busybox.
func (g generated) layers(context.Context, io.Writer) ([]io.ReadCloser, error) {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("%w: install busybox-static", err)
	}
	var layers []io.ReadCloser
	for i := range g.count {
		read, write := io.Pipe()
		go func() {
			out := tar.NewWriter(write)
			var err error
			if i == 0 {
				err = writeFile(out, "bin/busybox", busybox)
			}
			if err == nil {
				err = g.fill(out, i)
			}
			write.CloseWithError(errors.Join(err, out.Close()))
		}()
		layers = append(layers, read)
	}
	return layers, nil
}

// filesPerDirectory is about what a node has in its largest directories.
const filesPerDirectory = 500

func (g generated) fill(out *tar.Writer, layer int) error {
	random := rand.NewChaCha8([32]byte{byte(layer), byte(g.count)})
	data := make([]byte, g.bytes/int64(g.files))
	for i := range g.files / g.count {
		// A third random, two thirds a text that repeats: see generated.
		for at := 0; at < len(data); at += 48 {
			_, _ = random.Read(data[at:min(at+16, len(data))])
			copy(data[min(at+16, len(data)):], "what is in the files of a layer ")
		}
		if err := writeFile(out, fmt.Sprintf("data/%d/%d/%d", layer, i/filesPerDirectory, i), data); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(out *tar.Writer, name string, data []byte) error {
	if err := out.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := out.Write(data)
	return err
}
