package images

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/pkg/tlsclientconfig"
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

// certDirs are the directories with a directory of certificates for each registry
// (containers-certs.d(5)).
func certDirs() []string {
	return []string{filepath.Join(os.Getenv("HOME"), ".config/containers/certs.d"), "/etc/containers/certs.d", "/usr/share/containers/certs.d", "/etc/docker/certs.d"}
}

// certDir is the directory with certificates for a registry, empty for none.
func (e *Engine) certDir(host string) string {
	if e.sys.DockerCertPath != "" || host == "" {
		return e.sys.DockerCertPath
	}
	for _, base := range certDirs() {
		dir := filepath.Join(base, host)
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return ""
}

// authorityFiles are the certificates of authorities that are there for any registry.
// They make one pool, because one transfer talks to several servers: to the registry,
// to its token server and to the store that it keeps blobs in.
func (e *Engine) authorityFiles() []string {
	patterns := []string{filepath.Join(e.sys.DockerCertPath, "*.crt")}
	if e.sys.DockerCertPath == "" {
		patterns = nil
	}
	for _, dir := range certDirs() {
		patterns = append(patterns, filepath.Join(dir, "*", "*.crt"))
	}
	files := slices.Clone(e.config.Authorities)
	for _, pattern := range patterns {
		found, _ := filepath.Glob(pattern) // which fails for a bad pattern alone: for a path that cannot be read nothing is there
		files = append(files, found...)
	}
	return files
}

// trustPlaces lists where the certificates of authorities for a registry are looked
// for.
func (e *Engine) trustPlaces(host string) []string {
	var places []string
	if e.sys.DockerCertPath != "" {
		places = append(places, e.sys.DockerCertPath)
	}
	for _, dir := range certDirs() {
		places = append(places, filepath.Join(dir, host))
	}
	places = append(places, e.config.Authorities...)
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		places = append(places, file)
	}
	if dirs := os.Getenv("SSL_CERT_DIR"); dirs != "" {
		places = append(places, strings.Split(dirs, ":")...)
	}
	return append(places, "the certificates of the system")
}

// tls is the configuration for connections to a registry and to the servers that it
// sends its clients to. The certificates of the system are read where others are added to
// them: else the library reads them, once a certificate is to be checked.
func (e *Engine) tls(host string, insecure bool) (*tls.Config, error) {
	config := &tls.Config{InsecureSkipVerify: insecure, MinVersion: tls.VersionTLS12} //nolint:gosec // as the user says
	for _, file := range e.authorityFiles() {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it may not be needed
		}
		if config.RootCAs == nil {
			if config.RootCAs, err = x509.SystemCertPool(); err != nil {
				return nil, invalid("the certificates of the system cannot be read", err)
			}
		}
		config.RootCAs.AppendCertsFromPEM(text)
	}
	if dir := e.certDir(host); dir != "" {
		if err := tlsclientconfig.SetupCertificates(dir, config); err != nil {
			return nil, invalid("the certificates for "+host+" cannot be read", err)
		}
	}
	return config, nil
}

// certificates collects, for the library, in one directory what tls has for a
// connection to host: it has one directory for all servers that a transfer talks to.
// host is empty for ADD. The path is empty if there is nothing.
func (e *Engine) certificates(host string) (string, error) {
	links := map[string]string{} // from the name in the directory to the file
	for i, file := range e.authorityFiles() {
		if _, err := os.ReadFile(file); err == nil {
			links[fmt.Sprintf("%d.crt", i)] = file
		}
	}
	if own := e.certDir(host); own != "" {
		for _, pattern := range []string{"*.cert", "*.key"} {
			files, _ := filepath.Glob(filepath.Join(own, pattern))
			for _, file := range files {
				links[filepath.Base(file)] = file
			}
		}
	}
	if len(links) == 0 {
		return "", nil
	}
	dir, err := os.MkdirTemp(e.tmp, "certificates-")
	if err != nil {
		return "", err
	}
	for name, file := range links {
		target, err := filepath.Abs(file)
		if err == nil {
			err = os.Symlink(target, filepath.Join(dir, name))
		}
		if err != nil {
			return "", err
		}
	}
	return dir, nil
}
