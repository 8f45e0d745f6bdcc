package retry

import (
	"bytes"
	"context"
	"os"
	"time"
)

// WatchFile returns a channel that gets one value when the content of the file is not
// what it was before, and is closed without one when ctx ends. The file is looked at
// now and every interval: what is mounted from a cluster changes by a link that is
// exchanged in a directory above, which no watch of the file itself would see. A file
// that cannot be read has not changed.
func WatchFile(ctx context.Context, path string, before []byte, interval time.Duration) <-chan struct{} {
	changed := make(chan struct{}, 1)
	go func() {
		defer close(changed)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			if now, err := os.ReadFile(path); err == nil && !bytes.Equal(now, before) {
				changed <- struct{}{}
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	}()
	return changed
}
