package agent

import (
	"encoding/base64"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
)

// redacted stands where a secret was.
const redacted = "[redacted]"

// minSecret is the length in bytes below which a string is not taken for a
// secret: replacing every "a" would hide the text, not the password.
const minSecret = 3

// redactor removes known secrets from text. Everything that leaves the program
// as text passes through one: lines of the log and of RUN steps, and the Result.
type redactor struct {
	mu      sync.RWMutex
	secrets []string // longest first, so that no part of a longer one is left
}

// newRedactor knows the passwords in the proxies that the environment names.
func newRedactor() *redactor {
	r := &redactor{}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"} {
		for _, value := range []string{os.Getenv(name), os.Getenv(strings.ToLower(name))} {
			if u, err := url.Parse(value); err == nil && u.User != nil {
				if password, ok := u.User.Password(); ok {
					_, escaped, _ := strings.Cut(u.User.String(), ":")
					r.add(password, escaped)
				}
			}
		}
	}
	return r
}

// add makes secrets known, and their base64.
func (r *redactor) add(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range secrets {
		if len(s) < minSecret || slices.Contains(r.secrets, s) {
			continue
		}
		r.secrets = append(r.secrets, s, base64.StdEncoding.EncodeToString([]byte(s)))
	}
	slices.SortFunc(r.secrets, func(a, b string) int { return len(b) - len(a) })
}

// text returns s without secrets.
func (r *redactor) text(s string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, secret := range r.secrets {
		if strings.Contains(s, secret) {
			s = strings.ReplaceAll(s, secret, redacted)
		}
	}
	return s
}
