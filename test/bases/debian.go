package bases

import (
	"os"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// DebianRoot is the variable that names the archive of Debian's root filesystem that
// `make` has mmdebstrap build: with bash, dnf, rpm and jq.
const DebianRoot = "DEBIAN_ROOT"

// Debian returns an image with the root filesystem in the archive that DEBIAN_ROOT
// names, as one layer.
func Debian(t testing.TB, opts ...Option) v1.Image {
	t.Helper()
	archive := os.Getenv(DebianRoot)
	if _, err := os.Stat(archive); err != nil {
		t.Fatalf("bases: %s does not name Debian's root filesystem, which `make debian` makes: %v", DebianRoot, err)
	}
	img := scratch(t, opts)
	layer, err := tarball.LayerFromFile(archive, tarball.WithMediaType(layerType(t, img)), tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatalf("bases: reading %s: %v", archive, err)
	}
	return Configure(t, appendLayer(t, img, layer), func(c *v1.ConfigFile) {
		c.Config.Env = []string{"PATH=" + Path}
		c.Config.Cmd = []string{"/bin/bash"}
	})
}
