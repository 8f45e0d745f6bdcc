package agent

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxMachineConfig is how much of an uncompressed MachineConfig is read, in bytes: no
// object of Kubernetes, and no number of ConfigMaps that a pod can mount, has as much.
const maxMachineConfig = 256 << 20

// encodedMachineConfig returns the MachineConfig in the files, which are its parts in
// order, in the form that Containerfiles of the Machine Config Operator decode: gzip,
// in base64. Files in that form, compressed with gzip or with zstd, are understood.
func encodedMachineConfig(files []string) ([]byte, error) {
	var data []byte
	for _, file := range files {
		part, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		data = append(data, part...)
	}
	name := files[0]
	if len(files) > 1 {
		name = fmt.Sprintf("%s to %s", files[0], files[len(files)-1])
	}
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("%s is not a MachineConfig that is compressed with gzip or zstd, in base64 or not: %w", name, err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return fail(errors.New("it is empty"))
	}
	compressed, encoded := data, []byte(nil)
	if !isCompressed(data) {
		var err error
		if compressed, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(data)), "")); err != nil {
			return fail(err)
		}
		encoded = data
	}
	text, err := decompress(compressed)
	if err != nil {
		return fail(err)
	}
	if !json.Valid(text) {
		return fail(errors.New("what it holds is not JSON"))
	}
	if encoded != nil && bytes.HasPrefix(compressed, gzipMagic) {
		return encoded, nil // as it came
	}
	var again bytes.Buffer
	w := gzip.NewWriter(&again)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return base64.StdEncoding.AppendEncode(nil, again.Bytes()), nil
}

// How compressed data begins (RFC 1952, section 2.3.1; RFC 8878, section 3.1.1).
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

func isCompressed(data []byte) bool {
	return bytes.HasPrefix(data, gzipMagic) || bytes.HasPrefix(data, zstdMagic)
}

func decompress(data []byte) ([]byte, error) {
	var r io.Reader
	switch {
	case bytes.HasPrefix(data, gzipMagic):
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		r = z
	case bytes.HasPrefix(data, zstdMagic):
		z, err := zstd.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		r = z
	default:
		return nil, errors.New("it is compressed with neither")
	}
	text, err := io.ReadAll(io.LimitReader(r, maxMachineConfig+1))
	if err == nil && len(text) > maxMachineConfig {
		err = fmt.Errorf("it has more than %d MiB", maxMachineConfig>>20)
	}
	return text, err
}
