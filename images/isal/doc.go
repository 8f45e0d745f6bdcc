// Package isal reads gzip and computes checksums with Intel's ISA-L, which is several
// times as fast at both as what Go has (docs/performance.md). `make` builds that library
// from Debian's source and sets the build tag isal; without it, or without cgo, the same
// functions are those of Go modules.
package isal
