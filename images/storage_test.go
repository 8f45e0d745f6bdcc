package images

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.podman.io/storage"
	"golang.org/x/sys/unix"
)

// mounted returns a directory on an overlay, which carries no other one.
func mounted(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+dir+"/lower,upperdir="+dir+"/upper,workdir="+dir+"/work"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	return merged
}

func TestDrivers(t *testing.T) {
	for _, c := range []struct {
		name string
		root func(*testing.T) string
		// named by a flag, configured in storage.conf
		named, configured string
		options           []string
		fuse              bool // fuse-overlayfs is in the PATH
		files             map[string]string
		want              string
		why               string
	}{
		{name: "nothing there", root: (*testing.T).TempDir, want: "overlay, vfs"},
		{name: "with fuse-overlayfs", root: (*testing.T).TempDir, fuse: true, want: "overlay, overlay by FUSE, vfs"},
		{name: "on an overlay", root: mounted, want: "vfs", why: "overlay at ROOT does not carry native overlay, and fuse-overlayfs is not installed"},
		{name: "on an overlay with fuse-overlayfs", root: mounted, fuse: true, want: "overlay by FUSE, vfs"},
		{name: "vfs by name", root: (*testing.T).TempDir, named: "vfs", want: "vfs"},
		{name: "overlay by name", root: (*testing.T).TempDir, named: "overlay", want: "overlay"},
		{name: "overlay by name on an overlay", root: mounted, named: "overlay", want: "", why: "overlay at ROOT does not carry native overlay"},
		{name: "configured", root: mounted, configured: "overlay", want: "vfs"},
		{name: "another one configured", root: (*testing.T).TempDir, configured: "zfs", want: "zfs, overlay, vfs"},
		{name: "mount program", root: (*testing.T).TempDir, configured: "overlay", options: []string{"overlay.mount_program=/p"}, want: "overlay by /p, overlay, vfs"},
		{
			name: "images of vfs", root: (*testing.T).TempDir, files: map[string]string{"vfs-layers/layers.json": `[{"id":"1"}]`},
			want: "vfs", why: priorImages,
		},
		{
			name: "images of vfs where overlay is configured", root: (*testing.T).TempDir, configured: "overlay",
			files: map[string]string{"vfs-layers/layers.json": `[{"id":"1"}]`}, want: "overlay, vfs",
		},
		{name: "no image of vfs", root: (*testing.T).TempDir, files: map[string]string{"vfs-layers/layers.json": `[]`}, want: "overlay, vfs"},
		{
			name: "images of fuse-overlayfs", root: (*testing.T).TempDir, fuse: true,
			files: map[string]string{"overlay-layers/layers.json": `[{"id":"1"}]`, "overlay/.has-mount-program": "true"}, want: "overlay by FUSE",
		},
		{
			name: "images of fuse-overlayfs without it", root: (*testing.T).TempDir,
			files: map[string]string{"overlay-layers/layers.json": `[{"id":"1"}]`, "overlay/.has-mount-program": "true"},
			want:  "", why: "stored by a mount program, and fuse-overlayfs is not installed",
		},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			path := t.TempDir()
			fuse := filepath.Join(path, "fuse-overlayfs")
			if c.fuse {
				write(t, fuse, "#!/bin/sh\n")
				if err := os.Chmod(fuse, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", path)
			root := c.root(t)
			for name, text := range c.files {
				write(t, filepath.Join(root, name), text)
			}
			e := &Engine{
				config:  Config{StorageDriver: c.named},
				options: storage.StoreOptions{GraphRoot: root, GraphDriverName: c.configured, GraphDriverOptions: c.options},
			}
			found, why := e.drivers()
			var got []string
			for _, d := range found {
				text := d.name
				if d.program != "" {
					text += " by " + strings.Replace(d.program, fuse, "FUSE", 1)
				}
				got = append(got, text)
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("the drivers are %v, want %s", got, c.want)
			}
			if len(found) > 0 {
				why = found[len(found)-1].why
			}
			if want := strings.ReplaceAll(c.why, "ROOT", root); !strings.Contains(why, want) {
				t.Errorf("since %q, want %q", why, want)
			}
			if entries, _ := filepath.Glob(filepath.Join(root, ".strata-trial-*")); len(entries) != 0 {
				t.Errorf("left behind: %v", entries)
			}
		})
	}
}

func TestDriverOptions(t *testing.T) {
	for _, c := range []struct {
		configured string
		options    []string
		single     bool
		driver     driver
		want       string
	}{
		{"overlay", []string{"overlay.mountopt=nodev", "overlay.mount_program=/p"}, false, driver{name: "overlay"}, "overlay.mountopt=nodev"},
		{"overlay", []string{"overlay.mountopt=nodev", "overlay.mount_program=/p"}, false, driver{name: "overlay", program: "/q"}, "overlay.mountopt=nodev overlay.mount_program=/q"},
		{"overlay", []string{"overlay.mountopt=nodev"}, false, driver{name: "vfs"}, ""},
		{"", nil, true, driver{name: "vfs"}, "vfs.ignore_chown_errors=true"},
	} {
		e := &Engine{config: Config{SingleID: c.single}, options: storage.StoreOptions{GraphDriverName: c.configured, GraphDriverOptions: c.options}}
		if got := strings.Join(e.driverOptions(c.driver), " "); got != c.want {
			t.Errorf("%q for %+v, want %q", got, c.driver, c.want)
		}
	}
}
