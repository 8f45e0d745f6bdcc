package retry_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strata-build/strata/retry"
)

func TestWatchFile(t *testing.T) {
	const interval, limit = time.Second, time.Minute
	tests := []struct {
		name string
		// at the beginning, and after ten seconds; empty for no file
		first, then string
		want        time.Duration // -1 for no change
	}{
		{"changed before the watch began", "new", "new", 0},
		{"changes while it is watched", "old", "new", 10 * time.Second},
		{"never changes", "old", "old", -1},
		{"is removed", "old", "", -1},
		{"appears as another one", "", "new", 10 * time.Second},
		{"appears as it was", "", "old", -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			set := func(content string) {
				if err := os.RemoveAll(path); err != nil {
					t.Error(err)
				}
				if content == "" {
					return
				}
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Error(err)
				}
			}
			set(tt.first)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				start := time.Now()
				time.AfterFunc(10*time.Second-interval/2, func() { set(tt.then) })
				_, changed := <-retry.WatchFile(ctx, path, []byte("old"), interval)
				took := time.Since(start)
				if changed != (tt.want >= 0) || changed && took != tt.want || !changed && took != limit {
					t.Errorf("changed %v after %v, want %v (-1ns for never)", changed, took, tt.want)
				}
				time.Sleep(limit)
			})
		})
	}
}
