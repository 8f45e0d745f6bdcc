package registry

import (
	"crypto/subtle"
	"fmt"
	"os"
	"strings"
)

// passwordOK tells whether the file has the line user:password.
func passwordOK(file, user, password string) (bool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return false, fmt.Errorf("password file: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		u, p, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":")
		if ok && u == user && subtle.ConstantTimeCompare([]byte(p), []byte(password)) == 1 {
			return true, nil
		}
	}
	return false, nil
}
