package integration

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/klauspost/compress/zstd"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// inPod puts the tree below pod/ of the lab where a build pod has it mounted, over a
// machine whose own /tmp, /run and changes to /etc cannot be seen. What is in done/
// of the lab afterwards was left in /tmp/done, and what is in cache/, if that is there,
// in the volume for the store of the user whom the operator's script becomes.
const inPod = `set -e
lab=$1 project=$2; shift 2
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lab /mnt/project
mount --bind "$lab" /mnt/lab
mount --bind "$project" /mnt/project
mount -t tmpfs tmpfs /tmp
mkdir -p "$lab" "$project" /tmp/.upper /tmp/.work
mount --bind /mnt/lab "$lab"
mount --bind /mnt/project "$project"
mount -t overlay overlay -o lowerdir=/etc,upperdir=/tmp/.upper,workdir=/tmp/.work /etc
mount -t tmpfs tmpfs /run
if test -d "$lab/pod/etc/containers/policy.json"; then rm -rf /etc/containers; fi # it may have a file there
cp -a "$lab/pod/." /
if test -d "$lab/done"; then mkdir /tmp/done && mount --bind "$lab/done" /tmp/done; fi
if test -d "$lab/cache"; then mkdir -p "$HOME/.local/share/containers" && mount --bind "$lab/cache" "$HOME/.local/share/containers"; fi
exec "$@"`

const (
	podContainerfile = "pod/tmp/containerfile/Containerfile"
	podMachineConfig = "pod/tmp/machineconfig/machineconfig.json.gz"
	podBundle        = "pod/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt"
	podEntitlement   = "pod/etc/pki/entitlement"
)

// newPod is a lab whose agent runs in a build pod, without an argument.
func newPod(t *testing.T, opts ...registry.Option) *lab {
	t.Helper()
	l := newLab(t, opts...)
	l.bare = true
	project, err := filepath.Abs("../..") // which may be in /tmp
	if err != nil {
		t.Fatal(err)
	}
	l.wrap = []string{"unshare", "-m", "sh", "-c", inPod, "sh", l.dir, project}
	l.env = append(l.env, "TAG="+l.image("os/layered:1"), "STRATA_STORAGE_ROOT="+filepath.Join(l.dir, "store"),
		"STRATA_RESULT="+filepath.Join(l.dir, "result.json"), "STRATA_RETRY_DELAY=50ms", "STRATA_RETRY_ON=transient", "STRATA_TLS_VERIFY=false")
	l.mkdir("pod")
	l.mkdir("done")
	return l
}

// pod writes the Containerfile of the pod; HOST stands for the registry.
func (l *lab) pod(lines ...string) {
	l.t.Helper()
	l.file(podContainerfile, strings.ReplaceAll(strings.Join(lines, "\n")+"\n", "HOST", l.registry.Host()))
}

// mounted makes a directory as a kubelet mounts a ConfigMap or Secret: each entry is a
// link to one in a directory that a link names.
func (l *lab) mounted(dir string, files map[string]string) {
	l.t.Helper()
	for name, text := range files {
		l.file(filepath.Join(dir, "..2026_01_01", name), text)
		link(l.t, filepath.Join("..data", name), filepath.Join(l.dir, dir, name))
	}
	link(l.t, "..2026_01_01", filepath.Join(l.dir, dir, "..data"))
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// files are the regular files of an image in the registry, by their paths.
func (l *lab) files(name string) map[string]string {
	l.t.Helper()
	files := map[string]string{}
	for path, entry := range bases.Flatten(l.t, bases.Pull(l.t, l.registry.Host(), name, remote.WithTransport(l.registry.Inside()))) {
		if entry.Typeflag == tar.TypeReg {
			files[strings.TrimPrefix(path, "/")] = string(entry.Body)
		}
	}
	return files
}

const machineConfig = `{"apiVersion":"machineconfiguration.openshift.io/v1","kind":"MachineConfig","metadata":{"name":"rendered-worker-1"}}`

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

func TestPodNeedsNoArgument(t *testing.T) {
	l := newPod(t).withBusy()
	l.mounted("pod/tmp/containerfile", map[string]string{"Containerfile": strings.ReplaceAll(`FROM HOST/base/busy:1
COPY ./machineconfig/machineconfig.json.gz /mc.gz
RUN base64 -d /mc.gz | gunzip > /currentconfig
COPY openshift-config-user-ca-bundle.crt Containerfile /in/
`, "HOST", l.registry.Host())})
	l.mounted("pod/tmp/machineconfig", map[string]string{"machineconfig.json.gz": encoded(gzipped(t, machineConfig))})
	l.mounted("pod/etc/pki/ca-trust/source/anchors", map[string]string{"openshift-config-user-ca-bundle.crt": string(registry.NewCA(t).PEM())})
	o := l.build()
	o.wantSuccess(t)
	if o.result.Image != l.image("os/layered:1") {
		t.Errorf("image %s", o.result.Image)
	}
	files := l.files("os/layered:1")
	if got := files["currentconfig"]; got != machineConfig {
		t.Errorf("the MachineConfig is %q", got)
	}
	if files["in/openshift-config-user-ca-bundle.crt"] == "" || files["in/Containerfile"] == "" {
		t.Error("the trust bundle or the Containerfile is not in the context")
	}
	if digest, err := os.ReadFile(filepath.Join(l.dir, "done/digestfile")); err != nil || string(digest) != o.result.Digest || o.result.Digest == "" {
		t.Errorf("the digest file has %q (%v), want %s", digest, err, o.result.Digest)
	}
	head, _, _ := strings.Cut(o.stderr, "Trying to pull")
	if n := strings.Count(head, "\n"); n > 15 {
		t.Errorf("the head has %d lines, want 15 at most:\n%s", n, head)
	}
	for _, want := range []string{
		"Containerfile: /tmp/containerfile/Containerfile (4 lines); MachineConfig: /tmp/machineconfig/machineconfig.json.gz",
		"Image: " + l.image("os/layered:1"), "Signature policy: ", "Registries: ",
		"Authorities: /etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt, ", "Mounts for steps: none", "Proxies: none", "Store: " + l.dir,
	} {
		if !strings.Contains(head, want) {
			t.Errorf("the head does not have %q:\n%s", want, head)
		}
	}
}

func TestFlagsWinOverThePod(t *testing.T) {
	l := newPod(t)
	l.pod("FROM scratch", "COPY Containerfile /pod")
	l.file("context/Containerfile", "FROM scratch\nCOPY Containerfile /own\n")
	// A context of one's own is not that of the pod, nor is its Containerfile.
	l.build("--tag", l.image("os/other:1"), "--push", l.context).wantSuccess(t)
	if files := l.files("os/other:1"); files["own"] == "" || files["pod"] != "" {
		t.Errorf("files %v", files)
	}
	// A tag of one's own is not pushed unasked.
	requests := len(l.registry.Requests())
	l.build("--tag", "localhost/mine:1").wantSuccess(t)
	if n := len(l.registry.Requests()) - requests; n != 0 {
		t.Errorf("%d requests reached the registry", n)
	}
	l.build("--push=false").wantSuccess(t)
	if n := len(l.registry.Requests()) - requests; n != 0 {
		t.Errorf("%d requests reached the registry", n)
	}
	standard, other := filepath.Join(l.dir, "done/digestfile"), filepath.Join(l.dir, "digest")
	if len(l.lines(standard)) != 1 {
		t.Error("the push by a flag left no digest")
	}
	if err := os.Remove(standard); err != nil {
		t.Fatal(err)
	}
	l.build("--digestfile", other).wantSuccess(t)
	if len(l.lines(other)) != 1 || len(l.lines(standard)) != 0 {
		t.Error("the digest is not where the flag says")
	}
}

func TestTagThatCannotBePushedTo(t *testing.T) {
	l := newPod(t)
	l.pod("FROM scratch", "COPY Containerfile /")
	l.env = append(l.env, "TAG=layered")
	o := l.build()
	o.wantFailure(t, result.ReasonSettingsInvalid, `TAG: "layered" does not say which registry to push to`)
	for name, want := range map[string]string{
		l.image("os/Upper:1"):                             "repository name must be lowercase",
		l.image("os/x@sha256:" + strings.Repeat("0", 64)): "has a digest",
	} {
		l.env = append(l.env, "TAG="+name, "MAX_RETRIES=0")
		o := l.build()
		o.wantFailure(t, result.ReasonSettingsInvalid, name, want, "MAX_RETRIES 0: it must be at least 1")
		if strings.Contains(o.result.Message, "digestfile") {
			t.Errorf("the message has more than what was said: %s", o.result.Message)
		}
	}
}

func TestCredentialsOfThePod(t *testing.T) {
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("puller:pull-word\npusher:push-word\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, format := range map[string]string{"dockerconfigjson": `{"auths":{%q:{"auth":%q}}}`, "dockercfg": `{%q:{"auth":%q}}`} {
		t.Run(name, func(t *testing.T) {
			l := newPod(t, registry.WithBasicAuth(passwords))
			l.pushInside("base/busy:1")
			l.secrets = append(l.secrets, "pull-word", "push-word")
			for which, user := range map[string]string{"base-image-pull-creds": "puller:pull-word", "final-image-push-creds": "pusher:push-word"} {
				l.mounted("pod/tmp/"+which, map[string]string{"config.json": fmt.Sprintf(format, l.registry.Host(), encoded(user))})
			}
			l.env = append(l.env, "BASE_IMAGE_PULL_CREDS=/tmp/base-image-pull-creds/config.json", "FINAL_IMAGE_PUSH_CREDS=/tmp/final-image-push-creds/config.json")
			l.pod("FROM HOST/base/busy:1", "RUN true")
			o := l.build()
			o.wantSuccess(t)
			for _, want := range []string{
				`with user "puller" from /tmp/base-image-pull-creds/config.json, entry ` + l.registry.Host(),
				`Push: with user "pusher" from /tmp/final-image-push-creds/config.json, entry ` + l.registry.Host(),
			} {
				if !strings.Contains(o.stderr, want) {
					t.Errorf("the head does not have %q", want)
				}
			}
		})
	}
}

// TestFormsOfTheMachineConfig: whatever form it has, steps find gzip in base64.
func TestFormsOfTheMachineConfig(t *testing.T) {
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	zipped := z.EncodeAll([]byte(machineConfig), nil)
	whole := encoded(gzipped(t, machineConfig))
	raw := gzipped(t, machineConfig)
	for name, files := range map[string]map[string]string{
		"gzip in base64":          {"": whole},
		"folded base64":           {"": whole[:40] + "\n" + whole[40:] + "\n"},
		"gzip":                    {"": raw},
		"zstd":                    {"": string(zipped)},
		"zstd in base64":          {"": encoded(string(zipped))},
		"parts":                   {".0": raw[:20], ".1": raw[20:50], ".2": raw[50:]},
		"parts that count from 1": {".1": whole[:20], ".2": whole[20:]},
		"more than ten parts":     {".0": whole[:1], ".1": whole[1:2], ".2": whole[2:3], ".3": whole[3:4], ".4": whole[4:5], ".5": whole[5:6], ".6": whole[6:7], ".7": whole[7:8], ".8": whole[8:9], ".9": whole[9:10], ".10": whole[10:]},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPod(t).withBusy()
			for suffix, text := range files {
				l.file(podMachineConfig+suffix, text)
			}
			l.pod("FROM HOST/base/busy:1", "COPY machineconfig/machineconfig.json.gz /mc", "RUN base64 -d /mc | gunzip > /currentconfig")
			l.build().wantSuccess(t)
			if got := l.files("os/layered:1")["currentconfig"]; got != machineConfig {
				t.Errorf("the MachineConfig is %q", got)
			}
		})
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"empty":                  {map[string]string{"": ""}, "/tmp/machineconfig/machineconfig.json.gz is not a MachineConfig that is compressed with gzip or zstd, in base64 or not: it is empty"},
		"plain":                  {map[string]string{"": machineConfig}, "illegal base64 data"},
		"base64 of plain":        {map[string]string{"": encoded(machineConfig)}, "compressed with neither"},
		"cut":                    {map[string]string{"": raw[:len(raw)-9]}, "unexpected EOF"},
		"not JSON":               {map[string]string{"": gzipped(t, "kind: MachineConfig")}, "not JSON"},
		"a part that is missing": {map[string]string{".0": raw[:20], ".2": raw[50:]}, "the part before /tmp/machineconfig/machineconfig.json.gz.2 is not there"},
		"no first part":          {map[string]string{".2": raw[:20], ".3": raw[20:]}, "the part before /tmp/machineconfig/machineconfig.json.gz.2 is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPod(t)
			for suffix, text := range tt.files {
				l.file(podMachineConfig+suffix, text)
			}
			l.pod("FROM HOST/base/busy:1", "COPY machineconfig/machineconfig.json.gz /mc")
			o := l.build()
			o.wantFailure(t, result.ReasonSettingsInvalid, tt.want)
			if n := len(l.registry.Requests()); n != 0 {
				t.Errorf("%d requests reached the registry", n)
			}
		})
	}
}

// TestTrustBundleOfThePod: registry and file server have certificates of the bundle.
func TestTrustBundleOfThePod(t *testing.T) {
	l := newPod(t, registry.WithTLS())
	l.env = append(l.env, "STRATA_TLS_VERIFY=true")
	l.pod("FROM scratch", "ADD "+l.registry.URL()+"/v2/ /answer")
	o := l.build()
	o.wantFailure(t, result.ReasonCertificateUntrusted, registry.CAName)
	for name, path := range map[string]string{"the trust bundle": podBundle, "the service account": "pod/run/secrets/kubernetes.io/serviceaccount/service-ca.crt"} {
		t.Run(name, func(t *testing.T) {
			l.file(path, string(l.registry.CA().PEM()))
			defer os.Remove(filepath.Join(l.dir, path))
			l.build().wantSuccess(t)
		})
	}
	l.file(podBundle, string(l.registry.CA().PEM()))
	l.addBase("base/busy:1", bases.Busy(t))
	l.newStore()
	l.pod("FROM HOST/base/busy:1", "RUN true")
	l.build().wantSuccess(t)
}

// TestStoreOfThePod: the volume for the store of a user whom the agent does not become is
// used, and by doctor too, unless another place is named.
func TestStoreOfThePod(t *testing.T) {
	l := newPod(t).withBusy()
	l.env = slices.DeleteFunc(l.env, func(v string) bool { return strings.HasPrefix(v, "STRATA_STORAGE_ROOT=") })
	l.mkdir("cache")
	l.pod("FROM HOST/base/busy:1", "RUN true")
	o := l.build()
	o.wantSuccess(t)
	volume := filepath.Join(l.dir, "home/.local/share/containers/storage")
	if want := "Store: " + volume + ", "; !strings.Contains(o.stderr, want) {
		t.Errorf("the head does not have %q", want)
	}
	if entries, err := os.ReadDir(filepath.Join(l.dir, "cache/storage")); err != nil || len(entries) == 0 {
		t.Errorf("the volume has no store: %v", err)
	}
	doctor := exec.Command(l.wrap[0], append(l.wrap[1:len(l.wrap):len(l.wrap)], agentBinary, "doctor")...)
	doctor.Env = l.env
	if out, err := doctor.CombinedOutput(); err != nil || !strings.Contains(string(out), volume) {
		t.Errorf("doctor does not look at the volume (%v):\n%s", err, out)
	}
	l.env = append(l.env, "STRATA_STORAGE_ROOT="+filepath.Join(l.dir, "store"))
	o = l.build()
	o.wantSuccess(t)
	if want := "Store: " + filepath.Join(l.dir, "store") + ", "; !strings.Contains(o.stderr, want) {
		t.Errorf("the head does not have %q", want)
	}
}

// TestKeysThatTheirConfigMapsLack: policy.json and registries.conf are mounted with
// subPath from ConfigMaps that are optional. A kubelet makes an empty directory of what
// is not there, and the operator's trust bundle is empty where the user has none.
func TestKeysThatTheirConfigMapsLack(t *testing.T) {
	l := newPod(t).withBusy()
	l.mkdir("pod/etc/containers/policy.json")
	l.mkdir("pod/etc/containers/registries.conf")
	l.file(podBundle, "")
	l.pod("FROM HOST/base/busy:1", "COPY openshift-config-user-ca-bundle.crt /bundle")
	o := l.build()
	o.wantSuccess(t)
	for _, file := range []string{"policy.json", "registries.conf"} {
		o.wantLine(t, "Warning: /etc/containers/"+file+" is an empty directory, as a kubelet mounts a key that its ConfigMap lacks")
	}
	for _, want := range []string{"Signature policy: the built-in one, which accepts any image\n", "Registries: no configuration\n"} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("the head does not have %q", want)
		}
	}
	if bundle, ok := l.files("os/layered:1")["bundle"]; !ok || bundle != "" {
		t.Errorf("the trust bundle in the image is %q, there: %v", bundle, ok)
	}
	l.file("pod/etc/containers/policy.json/file", "a directory that is no mount of a kubelet's")
	o = l.build()
	o.wantFailure(t, result.ReasonSettingsInvalid, "the signature policy cannot be used", "/etc/containers/policy.json")
}

// TestMountsOfThePod: RUN steps see the directories at their paths, for root alone;
// nothing of them is in the image, nothing is left, the originals are as they were.
func TestMountsOfThePod(t *testing.T) {
	l := newPod(t).withBusy()
	const key = "-----BEGIN PRIVATE KEY-----\nthe-key-itself\n-----END PRIVATE KEY-----\n"
	l.mounted(podEntitlement, map[string]string{"1-key.pem": key, "1.pem": "certificate"})
	l.mounted("pod/etc/yum.repos.d", map[string]string{"own.repo": "[own]\n"})
	l.file("pod/etc/pki/rpm-gpg/deep/KEY", "public\n")
	l.mounted("pod/run/secrets/rhsm", map[string]string{"rhsm.conf": "conf\n"})
	original := filepath.Join(l.dir, podEntitlement, "..2026_01_01/1-key.pem")
	chown(t, original, 4242, 0o600)
	l.env = append(l.env, "ETC_PKI_ENTITLEMENT_MOUNTPOINT=/etc/pki/entitlement", "ETC_YUM_REPOS_D_MOUNTPOINT=/etc/yum.repos.d", "ETC_PKI_RPM_GPG_MOUNTPOINT=/etc/pki/rpm-gpg")
	l.pod("FROM HOST/base/busy:1",
		"RUN grep the-key.itself /etc/pki/entitlement/1-key.pem && cat /etc/yum.repos.d/own.repo /etc/pki/rpm-gpg/deep/KEY /run/secrets/rhsm/rhsm.conf",
		"RUN stat -c '%n %a %u:%g' /etc/pki/entitlement /etc/pki/entitlement/* /etc/pki/rpm-gpg/deep /run/secrets/rhsm/rhsm.conf",
		"RUN echo more > /etc/yum.repos.d/more.repo",
		"RUN cat /etc/yum.repos.d/more.repo")
	o := l.build()
	o.wantSuccess(t)
	for _, want := range []string{
		"/etc/pki/entitlement 700 0:0", "/etc/pki/entitlement/1-key.pem 600 0:0", "/etc/pki/entitlement/1.pem 600 0:0",
		"/etc/pki/rpm-gpg/deep 700 0:0", "/run/secrets/rhsm/rhsm.conf 600 0:0",
		"Mounts for steps: entitlement certificates at /etc/pki/entitlement, package repositories at /etc/yum.repos.d, keys of packages at /etc/pki/rpm-gpg, subscription manager's configuration at /run/secrets/rhsm",
	} {
		if !strings.Contains(o.stderr, want) {
			t.Errorf("%q is not in the output", want)
		}
	}
	for name, content := range l.files("os/layered:1") {
		if strings.Contains(content, "the-key-itself") || strings.HasSuffix(name, ".pem") || strings.HasSuffix(name, ".repo") || strings.HasSuffix(name, "rhsm.conf") {
			t.Errorf("%s is in the image", name)
		}
	}
	if found := l.grep("the-key-itself"); len(found) != 1 || found[0] != original {
		t.Errorf("the key is in %v", found)
	}
	if uid, mode := owner(t, original); uid != 4242 || mode != 0o600 {
		t.Errorf("the original belongs to %d with the mode %v", uid, mode)
	}
	if len(l.lines(filepath.Join(l.dir, "pod/etc/yum.repos.d/more.repo"))) != 0 {
		t.Error("a step wrote into the original")
	}
}

// TestOddMountsOfThePod: what a directory may have besides files breaks no build.
func TestOddMountsOfThePod(t *testing.T) {
	l := newPod(t).withBusy()
	l.file(podEntitlement+"/sub dir/a b.pem", "deep")
	l.file(podEntitlement+"/-rf,ü:*.pem", "odd")
	link(t, "/etc/passwd-of-the-image", filepath.Join(l.dir, podEntitlement, "link.pem"))
	if err := syscall.Mkfifo(filepath.Join(l.dir, podEntitlement, "pipe.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.file("pod/run/secrets/rhsm", "no directory")
	l.env = append(l.env, "ETC_PKI_ENTITLEMENT_MOUNTPOINT=/etc/pki/entitlement")
	l.pod("FROM HOST/base/busy:1", "RUN echo there > /etc/passwd-of-the-image",
		"RUN cd /etc/pki/entitlement && cat 'sub dir/a b.pem' './-rf,ü:*.pem' link.pem && test ! -e pipe.pem")
	o := l.build()
	o.wantSuccess(t)
	o.wantLine(t, "deepoddthere")
	o.wantLine(t, "Warning: /var/run/secrets/rhsm is not a directory that can be read: steps get no subscription manager's configuration")
}

// TestPodWithoutAContainerfile says where it is missing.
func TestPodWithoutAContainerfile(t *testing.T) {
	l := newPod(t)
	l.file(podMachineConfig, encoded(gzipped(t, machineConfig)))
	o := l.build()
	o.wantFailure(t, result.ReasonSettingsInvalid, "/tmp/containerfile/Containerfile")
}

func TestMountsThatAreNotThere(t *testing.T) {
	l := newPod(t).withBusy()
	l.env = append(l.env, "ETC_PKI_ENTITLEMENT_MOUNTPOINT=/no/such", "ETC_YUM_REPOS_D_MOUNTPOINT=")
	l.pod("FROM HOST/base/busy:1", "RUN true")
	o := l.build()
	o.wantSuccess(t)
	o.wantLine(t, `Warning: ETC_PKI_ENTITLEMENT_MOUNTPOINT is "/no/such", which is not the absolute path of a directory here: steps get no entitlement certificates`)
}
