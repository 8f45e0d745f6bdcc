//go:build cgo

package standby

import "C" // for handover.c
