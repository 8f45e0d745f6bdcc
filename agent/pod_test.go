package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// TestStoreIsAVolumeAlone: a directory that nothing is mounted at is left to the
// libraries, and so is the store of those who build in no pod.
func TestStoreIsAVolumeAlone(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"home/build/.local/share/containers", "tmp/containerfile"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, podContainerfile), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := newSettings()
	s.readStore([]string{"HOME=/home/build"}, root)
	if s.StorageRoot != "" {
		t.Errorf("the store is %s", s.StorageRoot)
	}
}
