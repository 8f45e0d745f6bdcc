package controller

import (
	"log/slog"
	"os"

	"github.com/go-logr/logr"
)

// ctrlLogger says only what is wrong, unless STRATA_TEST_LOG asks for more.
func ctrlLogger() logr.Logger {
	level := slog.LevelError + 4
	if os.Getenv("STRATA_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
