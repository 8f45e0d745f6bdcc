package images

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/sirupsen/logrus"
)

// RouteLogs sends what the libraries log to log. They say little that a person
// needs: their warnings are kept, the rest is for debugging.
func RouteLogs(log *slog.Logger) {
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.WarnLevel)
	if log.Enabled(context.Background(), slog.LevelDebug) {
		logrus.SetLevel(logrus.DebugLevel)
	}
	logrus.StandardLogger().ReplaceHooks(logrus.LevelHooks{})
	logrus.AddHook(logHook{log})
}

// mirrorFailed is what containers/image says at the level debug of a mirror that
// it went on from.
const mirrorFailed = "Accessing \""

// listenToMirrors lets through what is said of mirrors while an image is pulled: a
// pull that succeeds by another endpoint is a warning to whoever keeps the mirror.
func listenToMirrors() (stop func()) {
	level := logrus.GetLevel()
	logrus.SetLevel(logrus.DebugLevel)
	return func() { logrus.SetLevel(level) }
}

type logHook struct{ log *slog.Logger }

// Levels implements logrus.Hook.
func (logHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (h logHook) Fire(entry *logrus.Entry) error {
	level := slog.LevelDebug
	if entry.Level <= logrus.WarnLevel || strings.HasPrefix(entry.Message, mirrorFailed) {
		// An error of a library is one that it went on from: those that it did
		// not go on from are returned, and reported once.
		level = slog.LevelWarn
	}
	args := make([]any, 0, 2*len(entry.Data))
	for k, v := range entry.Data {
		args = append(args, k, v)
	}
	h.log.Log(context.Background(), level, entry.Message, args...)
	return nil
}
