package registry

import (
	"context"
	"net/http"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

// OnDisk returns distribution's handler over a directory, which keeps the content:
// what a program without a test serves, and what is too large for memory. End it with
// the function that is returned too.
func OnDisk(dir string) (http.Handler, func() error) {
	return handler("filesystem", configuration.Parameters{"rootdirectory": dir})
}

// handler returns distribution's handler over a store, which logs nothing.
func handler(driver string, parameters configuration.Parameters) (http.Handler, func() error) {
	config := &configuration.Configuration{
		Storage: configuration.Storage{
			driver:        parameters,
			"delete":      configuration.Parameters{"enabled": true},
			"maintenance": configuration.Parameters{"uploadpurging": map[any]any{"enabled": false}},
		},
		Catalog: configuration.Catalog{MaxEntries: 1000},
	}
	app := handlers.NewApp(quiet{context.Background()}, config)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		app.ServeHTTP(w, r.WithContext(quiet{r.Context()}))
	}), app.Shutdown
}
