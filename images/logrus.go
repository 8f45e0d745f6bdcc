package images

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.podman.io/storage/pkg/regexp"

	"github.com/strata-build/strata/images/distribution"
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

// What containers/image says at the level debug, and nowhere else, of a pull: of a
// mirror that it went on from, and of a registry that it is about to leave alone for
// a while before it asks again.
const mirrorFailed = "Accessing \""

// ignoredAttributes is how containers/storage begins to say, of each file of a base image that
// has some, that its filesystem takes no extended attributes of a kind.
const ignoredAttributes = "ignored xattrs in archive"

var leavingAlone = regexp.Delayed(`^Too many requests to (\S+): sleeping for ([0-9.]+) seconds`)

// rateLimited is told of a registry that asks to be left alone; nil tells nobody.
var rateLimited atomic.Pointer[func(*distribution.Error)]

// listenToPull lets through what is said of a pull until stop is called. A pull that
// succeeds by another endpoint is a warning to whoever keeps the mirror. limited is
// called before the library waits by itself, which it is not to do: the attempts are
// the agent's to count.
func listenToPull(limited func(*distribution.Error)) (stop func()) {
	level := logrus.GetLevel()
	logrus.SetLevel(logrus.DebugLevel)
	rateLimited.Store(&limited)
	return func() {
		rateLimited.Store(nil)
		logrus.SetLevel(level)
	}
}

type logHook struct{ log *slog.Logger }

// Levels implements logrus.Hook.
func (logHook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (h logHook) Fire(entry *logrus.Entry) error {
	if m := leavingAlone.FindStringSubmatch(entry.Message); m != nil {
		if limited := rateLimited.Load(); limited != nil {
			(*limited)(tooManyRequests(m[1], m[2]))
		}
	}
	level := slog.LevelDebug
	if entry.Level <= logrus.WarnLevel && !strings.HasPrefix(entry.Message, ignoredAttributes) || strings.HasPrefix(entry.Message, mirrorFailed) {
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

func tooManyRequests(target, seconds string) *distribution.Error {
	e := &distribution.Error{Method: http.MethodGet, Host: target, Status: http.StatusTooManyRequests}
	if u, err := url.Parse(target); err == nil {
		e.Host = u.Host
	}
	if n, err := strconv.ParseFloat(seconds, 64); err == nil {
		e.RetryAfter = time.Duration(n * float64(time.Second))
	}
	return e
}
