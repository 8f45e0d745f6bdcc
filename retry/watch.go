package retry

import (
	"bytes"
	"context"
	"os"
	"time"
)

// WatchFile returns a channel that gets one value when the content of the file
// changes, and is closed without one when ctx ends. The file is looked at every
// interval: what is mounted from a cluster changes by a link that is exchanged in a
// directory above, which no watch of the file itself would see. A file that cannot
// be read has not changed.
func WatchFile(ctx context.Context, path string, interval time.Duration) <-chan struct{} {
	changed := make(chan struct{}, 1)
	before, _ := os.ReadFile(path)
	go func() {
		defer close(changed)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now, err := os.ReadFile(path); err == nil && !bytes.Equal(now, before) {
				changed <- struct{}{}
				return
			}
		}
	}()
	return changed
}
