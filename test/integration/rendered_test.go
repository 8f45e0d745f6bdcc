package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// TestAsTheControllerRenders builds what the controller renders, with a MachineConfig
// in two parts as the controller mounts one that is large.
func TestAsTheControllerRenders(t *testing.T) {
	text, err := os.ReadFile("../../controller/render/testdata/Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	l := newPod(t)
	l.addBase("os/node:1", node(t))
	l.addBase("os/extensions:1", bases.Append(t, bases.Busy(t), bases.Regular("/usr/share/rpm-ostree/extensions/usbguard", 0o644, []byte("usbguard-1"))))
	l.pod(strings.NewReplacer("BASE", l.image("os/node:1"), "EXTENSIONS", l.image("os/extensions:1")).Replace(string(text)))
	const config = `{"kind":"MachineConfig","spec":{"config":{"ignition":{"version":"3.4.0"}}}}`
	stream := gzipped(t, config)
	l.mounted("pod/tmp/machineconfig", map[string]string{"machineconfig.json.gz.0": stream[:20], "machineconfig.json.gz.1": stream[20:]})
	bundle := string(registry.NewCA(t).PEM())
	l.file(podBundle, bundle)
	auth := l.authFile("auth.json", "robot", "word-of-the-robot")
	l.env = append(l.env, "BASE_IMAGE_PULL_CREDS="+auth, "FINAL_IMAGE_PUSH_CREDS="+auth, "TMPDIR="+l.mkdir("tmp"))

	l.build().wantSuccess(t)
	image := bases.Pull(t, l.registry.Host(), "os/layered:1")
	for path, want := range map[string]string{
		"/etc/machine-config-daemon/currentconfig":                             config,
		"/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt": bundle,
		"/usr/share/anchors":    bundle,
		"/usr/share/admin":      "admin\n",
		"/usr/share/repository": "[coreos-extensions]\nenabled=1\nmetadata_expire=1m\nbaseurl=file:///tmp/extensions/usr/share/rpm-ostree/extensions/\ngpgcheck=0\nskip_if_unavailable=False\n",
		calls: `ignition --ignore-unsupported /tmp/ignition.json
ostree container commit
rpm-ostree override remove kernel kernel-core kernel-modules kernel-modules-core kernel-modules-extra --install kernel-rt-core --install kernel-rt-modules --install kernel-rt-modules-core --install kernel-rt-modules-extra --install kernel-rt-kvm --install usbguard
ostree container commit
update-ca-trust ` + "\n",
	} {
		if got, _ := bases.File(t, image, path); string(got) != want {
			t.Errorf("%s has %q, want %q", path, short(string(got)), want)
		}
	}
	applied, _ := bases.File(t, image, "/usr/share/applied")
	if got := strings.Join(strings.Fields(string(applied)), ""); got != `{"ignition":{"version":"3.4.0"}}` {
		t.Errorf("the configuration that was applied is %s", got)
	}
	tree := bases.Flatten(t, image)
	for _, gone := range []string{"/tmp/ignition.json", "/tmp/machineconfig.json.gz", "/etc/yum.repos.d/coreos-extensions.repo", "/tmp/extensions/usr"} {
		if _, there := tree[gone]; there {
			t.Errorf("%s is in the image", gone)
		}
	}
	labels := bases.Config(t, image).Config.Labels
	for name, want := range map[string]string{"machineconfig": "rendered-worker-1", "machineconfigpool": "worker", "releaseversion": "4.20.1", "baseOSContainerImage": l.image("os/node:1")} {
		if labels[name] != want {
			t.Errorf("label %s is %q, want %q", name, labels[name], want)
		}
	}
}
