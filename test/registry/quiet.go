package registry

import (
	"context"
	"io"
	"reflect"

	"github.com/sirupsen/logrus"
)

// quiet is a context in which distribution finds a logger that drops everything,
// and so leaves the standard logger of logrus alone. Distribution looks its
// logger up under a key whose type it does not export; the type's name has to
// do.
type quiet struct{ context.Context }

var silence = func() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.PanicLevel)
	return logrus.NewEntry(logger)
}()

const (
	loggerKeyPackage = "github.com/distribution/distribution/v3/internal/dcontext"
	loggerKeyName    = "loggerKey"
)

// Value returns the silent logger for distribution's logger key, and otherwise
// what the context underneath has.
func (q quiet) Value(key any) any {
	if typ := reflect.TypeOf(key); typ != nil && typ.Name() == loggerKeyName && typ.PkgPath() == loggerKeyPackage {
		return silence
	}
	return q.Context.Value(key)
}
