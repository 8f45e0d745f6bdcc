package images

import (
	"fmt"
	"strings"
)

// nameError says that a name is not that of an image, and why where the parser, whose
// error is err, does not say it.
func nameError(name string, err error) error {
	name = trimDocker(name)
	hint := ""
	switch {
	case strings.HasPrefix(name, "["):
		hint = ": the registry of an image cannot be written as an IPv6 address, give it a name, for example in /etc/hosts"
	case strings.Contains(name, "://"):
		_, bare, _ := strings.Cut(name, "://")
		host, path, _ := strings.Cut(bare, "/")
		bare = host[strings.LastIndexByte(host, '@')+1:] + "/" + path // without who asks
		hint = fmt.Sprintf(": it is a URL, write %s", bare)
	}
	return fmt.Errorf("%q is not the name of an image%s: %w", name, hint, err)
}
