// Command registry is the registry of the test cluster: HTTPS, one user, images
// in a directory. The password is read anew for each request, so that it can be
// rotated.
package main

import (
	"context"
	"crypto/subtle"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "address to listen on")
	data := flag.String("data", "", "directory for the images")
	cert := flag.String("cert", "", "certificate, PEM")
	key := flag.String("key", "", "its key, PEM")
	user := flag.String("user", "strata", "name of the user")
	passwordFile := flag.String("password-file", "", "file with the user's password")
	flag.Parse()

	config := &configuration.Configuration{Storage: configuration.Storage{
		"filesystem":  configuration.Parameters{"rootdirectory": *data},
		"delete":      configuration.Parameters{"enabled": true},
		"maintenance": configuration.Parameters{"uploadpurging": map[any]any{"enabled": false}},
	}}
	config.Catalog.MaxEntries = 1000
	server := &http.Server{
		Addr:              *listen,
		Handler:           guard(*user, *passwordFile, handlers.NewApp(context.Background(), config)),
		ReadHeaderTimeout: time.Minute,
	}
	fmt.Fprintln(os.Stderr, server.ListenAndServeTLS(*cert, *key))
	os.Exit(1)
}

// guard lets requests with the user's name and password through.
func guard(user, passwordFile string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		want, err := os.ReadFile(passwordFile)
		if err != nil {
			http.Error(w, "the password file cannot be read", http.StatusInternalServerError)
			return
		}
		name, password, _ := r.BasicAuth()
		if name != user || subtle.ConstantTimeCompare([]byte(password), []byte(strings.TrimSpace(string(want)))) != 1 {
			w.Header().Set("WWW-Authenticate", `Basic realm="strata test cluster"`)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
			return
		}
		next.ServeHTTP(w, r)
	})
}
