package integration

import (
	"archive/tar"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// calls is where the stand-ins for a node's programs write how they were called.
const calls = "/usr/share/calls"

// node is an image with the programs of a cluster node that the rendered Containerfile
// calls: those that need more than a container to work record their calls.
func node(t *testing.T) v1.Image {
	t.Helper()
	record := func(more string) []byte {
		return []byte("#!/bin/bash\necho \"${0##*/} ${*//63/FD}\" >> " + calls + "\n" + more)
	}
	return bases.Append(t, bases.Debian(t),
		bases.Symlink("/usr/bin/sh", "bash"), // as on a node
		bases.Regular(calls, 0o644, nil),
		bases.Dir("/usr/lib/dracut/modules.d/30ignition", 0o755),
		// It applies the configuration: here, by a copy of it. A script does not see the
		// name that it was given by exec -a.
		bases.Regular("/usr/lib/dracut/modules.d/30ignition/ignition", 0o755, record(`cat "$2" > /usr/share/applied`+"\n")),
		bases.Regular("/usr/bin/ostree", 0o755, record("")),
		bases.Regular("/usr/bin/rpm-ostree", 0o755, record("cp /etc/yum.repos.d/coreos-extensions.repo /usr/share/repository\n")),
		bases.Regular("/usr/bin/update-ca-trust", 0o755, record("cat /etc/pki/ca-trust/source/anchors/* > /usr/share/anchors\n")),
		bases.Dir("/etc/yum.repos.d", 0o755),
	)
}

// TestAsTheBashScript builds what the operator renders with the agent and with the
// script around buildah, from the same inputs, and compares the images: the same files
// with the same modes and owners, the same config, the same history.
func TestAsTheBashScript(t *testing.T) {
	buildah := os.Getenv("BUILDAH_BINARY")
	if _, err := os.Stat(buildah); err != nil {
		t.Fatalf("BUILDAH_BINARY does not name buildah's command line, which `make peer` builds: %v", err)
	}
	script, err := filepath.Abs("testdata/mco/build.sh")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/mco/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	l := newPod(t)
	l.addBase("os/node:1", node(t))
	l.addBase("os/extensions:1", bases.Append(t, bases.Busy(t), bases.Regular("/usr/share/rpm-ostree/extensions/usbguard", 0o644, []byte("usbguard-1"))))
	l.pod(strings.NewReplacer("BASE", l.image("os/node:1"), "EXTENSIONS", l.image("os/extensions:1"), "NAME", "rendered-worker-1").Replace(string(text)))
	l.mounted("pod/tmp/machineconfig", map[string]string{"machineconfig.json.gz": encoded(gzipped(t, `{"kind":"MachineConfig","spec":{"config":{"ignition":{"version":"3.4.0"}}}}`))})
	l.file(podBundle, string(registry.NewCA(t).PEM()))
	l.mounted(podEntitlement, map[string]string{"7.pem": "certificate\n"})
	l.mounted("pod/etc/yum.repos.d", map[string]string{"own.repo": "[own]\n"})
	auth := l.authFile("auth.json", "robot", "word-of-the-robot")
	l.env = append(l.env, "ETC_PKI_ENTITLEMENT_MOUNTPOINT=/etc/pki/entitlement", "ETC_YUM_REPOS_D_MOUNTPOINT=/etc/yum.repos.d",
		"BASE_IMAGE_PULL_CREDS="+auth, "FINAL_IMAGE_PUSH_CREDS="+auth, "TMPDIR="+l.mkdir("tmp"))

	l.build().wantSuccess(t)
	ours := bases.Pull(t, l.registry.Host(), "os/layered:1")

	cmd := exec.Command(l.wrap[0], append(l.wrap[1:len(l.wrap):len(l.wrap)], "bash", script)...)
	cmd.Env = append(slices.Clone(l.env), "BUILDAH_BINARY="+buildah, "TAG="+l.image("os/script:1"), "STRATA_STORAGE_ROOT="+filepath.Join(l.dir, "other-store"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the script: %v\n%s", err, out)
	}
	theirs := bases.Pull(t, l.registry.Host(), "os/script:1")

	wanted := bases.Flatten(t, theirs)
	if len(wanted) < 1000 {
		t.Errorf("there are only %d files to compare", len(wanted))
	}
	wantSameFiles(t, bases.Flatten(t, ours), wanted)
	wantSameConfig(t, bases.Config(t, ours), bases.Config(t, theirs))
	recorded, _ := bases.File(t, ours, calls)
	if got, want := string(recorded), `ignition --ignore-unsupported /dev/fd/FD
update-ca-trust 
ostree container commit
rpm-ostree install usbguard --from usbguard-1
ostree container commit
`; got != want {
		t.Errorf("the programs of the node were called so:\n%swant:\n%s", got, want)
	}
	applied, _ := bases.File(t, ours, "/usr/share/applied")
	if got := strings.Join(strings.Fields(string(applied)), ""); got != `{"ignition":{"version":"3.4.0"}}` {
		t.Errorf("the configuration that was applied is %s", got)
	}
	made, _ := bases.File(t, ours, "/opt/admin/one/file")
	if got := string(made); !strings.HasSuffix(got, " in oci\n") {
		t.Errorf("the admin's file has %q", got)
	}
}

func wantSameFiles(t *testing.T, got, want bases.Tree) {
	t.Helper()
	describe := func(tree bases.Tree, path string) string {
		e, ok := tree[path]
		if !ok {
			return "nothing"
		}
		text := fmt.Sprintf("type %c, mode %o, owner %d:%d", e.Typeflag, e.Mode, e.Uid, e.Gid)
		switch e.Typeflag {
		case tar.TypeReg:
			text += fmt.Sprintf(", %q", short(string(e.Body)))
		case tar.TypeSymlink, tar.TypeLink:
			text += " to " + e.Linkname
		}
		for _, name := range slices.Sorted(maps.Keys(e.PAXRecords)) {
			if strings.HasPrefix(name, "SCHILY.xattr.") {
				text += fmt.Sprintf(", %s=%q", name, e.PAXRecords[name])
			}
		}
		return text
	}
	paths := append(got.Paths(), want.Paths()...)
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		ours, theirs := describe(got, path), describe(want, path)
		if ours != theirs || string(got[path].Body) != string(want[path].Body) {
			t.Errorf("%s:\n  has %s\n want %s", path, ours, theirs)
		}
	}
}

func short(s string) string { return s[:min(len(s), 60)] }

func wantSameConfig(t *testing.T, got, want *v1.ConfigFile) {
	t.Helper()
	if !reflect.DeepEqual(got.Config, want.Config) {
		t.Errorf("config\n%+v\nwant\n%+v", got.Config, want.Config)
	}
	if got.Architecture != want.Architecture || got.OS != want.OS {
		t.Errorf("for %s/%s, want %s/%s", got.OS, got.Architecture, want.OS, want.Architecture)
	}
	history := func(c *v1.ConfigFile) (lines []string) {
		for _, h := range c.History {
			lines = append(lines, h.CreatedBy)
		}
		return lines
	}
	if ours, theirs := history(got), history(want); !slices.Equal(ours, theirs) {
		t.Errorf("history\n%s\nwant\n%s", strings.Join(ours, "\n"), strings.Join(theirs, "\n"))
	}
}
