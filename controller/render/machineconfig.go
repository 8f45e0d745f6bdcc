package render

import (
	"bytes"
	"compress/gzip"
	"fmt"
)

// PartBytes is how much of a file one ConfigMap is given. The API server takes
// 1 MiB of values in one ConfigMap; the rest is left for nothing in particular.
const PartBytes = 1<<20 - 1<<10

// MaxParts is in how many ConfigMaps a MachineConfig may be. A MachineOSBuild
// lists at most ten related objects, five of which may be other things.
const MaxParts = 5

// TooLargeError says that a MachineConfig fits into no build.
type TooLargeError struct {
	Name             string
	Bytes, Compacted int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("MachineConfig %s has %d bytes, and %d when compressed; at most %d fit into the %d ConfigMaps that a build may have for it",
		e.Name, e.Bytes, e.Compacted, MaxParts*PartBytes, MaxParts)
}

// Parts compresses a MachineConfig with gzip and cuts it. The parts, one after
// the other, are one gzip stream. It fails with a TooLargeError.
func Parts(name string, content []byte) ([][]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	rest := b.Bytes()
	if len(rest) > MaxParts*PartBytes {
		return nil, &TooLargeError{Name: name, Bytes: len(content), Compacted: len(rest)}
	}
	var parts [][]byte
	for len(rest) > PartBytes {
		parts = append(parts, rest[:PartBytes])
		rest = rest[PartBytes:]
	}
	return append(parts, rest), nil
}

// PartFile is the name in the pod of part number i, from 0, of n.
func PartFile(i, n int) string {
	if n == 1 {
		return MachineConfigFile
	}
	return fmt.Sprintf("%s.%d", MachineConfigFile, i)
}
