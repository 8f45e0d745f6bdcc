//go:build !isal || !cgo

package isal

import (
	"hash/crc64"
	"io"

	"github.com/klauspost/compress/gzip"
)

// NewReader returns a reader of what a gzip file holds, all its members. Its errors are
// those of package gzip. It reads ahead, and has to be closed.
func NewReader(file io.Reader) (io.ReadCloser, error) { return gzip.NewReader(file) }

var iso = crc64.MakeTable(crc64.ISO)

// UpdateCRC64 adds bytes to a CRC-64 with the polynomial of ISO 3309.
func UpdateCRC64(crc uint64, p []byte) uint64 { return crc64.Update(crc, iso, p) }
