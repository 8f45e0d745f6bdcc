//go:build cgo

package prefault

import "C" // for prefault.c
