//go:build isal && cgo

package isal

// #cgo CFLAGS: -I${SRCDIR}/../../bin/isal/include
// #cgo LDFLAGS: ${SRCDIR}/../../bin/isal/isa-l.a
// #include <stdlib.h>
// #include <crc64.h>
// #include <igzip_lib.h>
//
// static struct inflate_state *inflate_new(void) { return malloc(sizeof(struct inflate_state)); }
//
// static void inflate_begin(struct inflate_state *s) {
// 	isal_inflate_init(s);
// 	s->crc_flag = ISAL_GZIP_NO_HDR_VER; // its own reader of headers loses its way where one comes in parts
// }
//
// // inflate reads from in and writes to out, and says in *in_len and *out_len how much of
// // either it left. The state keeps no pointer to them.
// static int inflate(struct inflate_state *s, uint8_t *in, uint32_t *in_len, uint8_t *out, uint32_t *out_len) {
// 	s->next_in = in;
// 	s->avail_in = *in_len;
// 	s->next_out = out;
// 	s->avail_out = *out_len;
// 	int result = isal_inflate(s);
// 	*in_len = s->avail_in;
// 	*out_len = s->avail_out;
// 	s->next_in = s->next_out = NULL;
// 	return result;
// }
//
// static int inflate_finished(struct inflate_state *s) { return s->block_state == ISAL_BLOCK_FINISH; }
import "C"

import (
	"bufio"
	"errors"
	"io"
	"math"
	"unsafe"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// bufferSize is what is read at once, in bytes.
const bufferSize = 64 << 10

// NewReader returns a reader of what a gzip file holds, all its members. Its errors are
// those of package gzip: ErrHeader, ErrChecksum, io.ErrUnexpectedEOF and
// flate.CorruptInputError. It is less strict than that package in one thing: it takes
// deflate whose codes for distances leave some of them out. It reads ahead. It has memory
// that Go does not know of, and has to be closed.
func NewReader(file io.Reader) (io.ReadCloser, error) {
	r := &reader{file: bufio.NewReaderSize(file, bufferSize)}
	if err := r.header.Reset(r.file); err != nil {
		return nil, err
	}
	if r.state = C.inflate_new(); r.state == nil {
		return nil, errors.New("there is no memory for a gzip reader")
	}
	C.inflate_begin(r.state)
	return r, nil
}

type reader struct {
	file   *bufio.Reader
	header gzip.Reader // reads headers, and nothing else
	// fileErr is the error with which the file ended.
	fileErr error
	state   *C.struct_inflate_state
	offset  int64 // in what follows the header
	// between tells that a member has ended, and another may follow.
	between bool
	err     error
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (n int, err error) {
	for n == 0 && r.err == nil && len(p) > 0 {
		if r.between {
			if r.err = r.fileErr; r.err == nil {
				r.err = r.header.Reset(r.file)
			}
			if r.err != nil {
				break
			}
			C.inflate_begin(r.state)
			r.between, r.offset = false, 0
		}
		if r.fileErr == nil {
			_, r.fileErr = r.file.Peek(1) // nil while there is something in the buffer
		}
		if n, r.err = r.inflate(p[:min(len(p), math.MaxInt32)]); r.err != nil {
			break
		}
		switch {
		case C.inflate_finished(r.state) != 0:
			r.between = true
		case n == 0 && errors.Is(r.fileErr, io.EOF): // the state had nothing left, either
			r.err = io.ErrUnexpectedEOF
		case n == 0:
			r.err = r.fileErr
		}
	}
	if n > 0 {
		return n, nil
	}
	return 0, r.err
}

// inflate makes as much of what is in the buffer of the file as fits into p.
func (r *reader) inflate(p []byte) (int, error) {
	buffered, _ := r.file.Peek(r.file.Buffered())
	in, out := C.uint32_t(len(buffered)), C.uint32_t(len(p))
	result := C.inflate(r.state, (*C.uint8_t)(unsafe.SliceData(buffered)), &in, (*C.uint8_t)(unsafe.SliceData(p)), &out)
	used, _ := r.file.Discard(len(buffered) - int(in))
	r.offset += int64(used)
	n := len(p) - int(out)
	switch result {
	case C.ISAL_DECOMP_OK, C.ISAL_END_INPUT, C.ISAL_OUT_OVERFLOW:
		return n, nil
	case C.ISAL_INCORRECT_CHECKSUM:
		return n, gzip.ErrChecksum
	default:
		return n, flate.CorruptInputError(r.offset)
	}
}

// Close implements io.Closer. It does not close the file.
func (r *reader) Close() error {
	if r.state != nil {
		C.free(unsafe.Pointer(r.state))
		r.state, r.err = nil, io.ErrClosedPipe
	}
	return nil
}

// UpdateCRC64 adds bytes to a CRC-64 with the polynomial of ISO 3309, as crc64.Update does
// with crc64.ISO.
func UpdateCRC64(crc uint64, p []byte) uint64 {
	return uint64(C.crc64_iso_refl(C.uint64_t(crc), (*C.uchar)(unsafe.SliceData(p)), C.uint64_t(len(p))))
}
