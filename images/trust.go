package images

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
)

// describeTrust says, of a certificate that is not trusted, who issued it and
// where certificates of authorities were looked for.
func (e *Engine) describeTrust(err error, host string) string {
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		return ""
	}
	issuer := ""
	if unknown.Cert != nil {
		issuer = fmt.Sprintf("; it was issued by %q", unknown.Cert.Issuer.String())
	}
	return fmt.Sprintf("%s; authorities were looked for in %s", issuer, strings.Join(e.trustPlaces(host), ", "))
}

// hasMirrors tells whether pulls of ref go to other registries first.
func (e *Engine) hasMirrors(ref reference.Named) bool {
	registry, err := sysregistriesv2.FindRegistry(&e.sys, ref.Name())
	return err == nil && registry != nil && len(registry.Mirrors) > 0
}

// trustPlaces lists where containers/image and the Go library look for the
// certificates of authorities for a registry.
func (e *Engine) trustPlaces(host string) []string {
	var places []string
	if e.sys.DockerCertPath != "" {
		places = append(places, e.sys.DockerCertPath)
	} else {
		for _, dir := range certDirs() {
			places = append(places, filepath.Join(dir, host))
		}
	}
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		places = append(places, file)
	}
	if dirs := os.Getenv("SSL_CERT_DIR"); dirs != "" {
		places = append(places, strings.Split(dirs, ":")...)
	}
	return append(places, "the certificates of the system")
}

// allAuthorities collects the certificates of authorities that are there for single
// registries in one directory, for ADD: buildah has one directory for the servers
// that ADD fetches from, and none for each of them. It returns an empty path if
// there are none.
func (e *Engine) allAuthorities() (string, error) {
	dir := filepath.Join(e.tmp, "authorities")
	if err := os.RemoveAll(dir); err != nil { // what a former attempt collected
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	found := 0
	for _, base := range certDirs() {
		files, err := filepath.Glob(filepath.Join(base, "*", "*.crt"))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				continue // containers/image says so where the file is needed
			}
			found++
			if err := os.Symlink(file, filepath.Join(dir, fmt.Sprintf("%d.crt", found))); err != nil {
				return "", err
			}
		}
	}
	if found == 0 {
		return "", nil
	}
	return dir, nil
}
