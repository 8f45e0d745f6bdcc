package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// turns lets one process at a time make a layer, so that others which pull the same image
// at the same time find it when it is theirs. It is a file in which each layer has a byte,
// where its id says, that is locked while the layer is made.
type turns struct{ file *os.File }

// turnInterval is how often a layer is looked at that another process makes; the lock
// itself cannot be waited for until a context ends.
const turnInterval = 20 * time.Millisecond

func openTurns(path string) (*turns, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &turns{file}, nil
}

// take waits until no other process makes the layer. It calls waits as long as it does.
func (t *turns) take(ctx context.Context, id string, waits func()) error {
	for {
		err := t.lock(id, unix.F_WRLCK)
		if err == nil {
			return ctx.Err()
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("locking %s: %w", t.file.Name(), err)
		}
		waits()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(turnInterval):
		}
	}
}

// give ends the turn.
func (t *turns) give(id string) { _ = t.lock(id, unix.F_UNLCK) }

// offsetDigits is how many hexadecimal digits of an id an offset in a file can have.
const offsetDigits = 15

func (t *turns) lock(id string, how int16) error {
	at, err := strconv.ParseInt(id[:offsetDigits], 16, 64)
	if err != nil {
		return err
	}
	return unix.FcntlFlock(t.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: how, Start: at, Len: 1})
}

func (t *turns) close() { _ = t.file.Close() }
