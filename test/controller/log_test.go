package controller

import (
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// quiet lets controllers say nothing: that they are stopped in the middle of things
// is what these tests are about. STRATA_TEST_LOG lets them say everything.
func quiet() {
	logger := logr.Discard()
	if os.Getenv("STRATA_TEST_LOG") != "" {
		logger = logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}
