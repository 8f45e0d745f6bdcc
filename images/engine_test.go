package images

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.podman.io/image/v5/types"
	"golang.org/x/sys/unix"

	"github.com/strata-build/strata/agent/result"
)

func TestOpen(t *testing.T) {
	config, b := configured(t)
	t.Setenv("TMPDIR", "")
	e, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	if e.Storage() != "vfs" || e.StorageRoot() != config.StorageRoot || e.Isolation() != "chroot" {
		t.Errorf("storage %q in %q, isolation %q; want vfs in %q, chroot", e.Storage(), e.StorageRoot(), e.Isolation(), config.StorageRoot)
	}
	if filepath.Dir(e.TempDir()) != filepath.Join(config.StorageRoot, "tmp") {
		t.Errorf("temporary files in %q, want a directory beside the store", e.TempDir())
	}
	if got := os.Getenv("TMPDIR"); got != e.TempDir() {
		t.Errorf("TMPDIR is %q, want %q", got, e.TempDir())
	}
	for _, want := range []string{"level=WARN msg=\"the store uses vfs", "level=INFO msg=\"No signature policy is configured"} {
		if strings.Count(b.log.String(), want) != 1 {
			t.Errorf("the log does not have one line with %q:\n%s", want, b.log)
		}
	}
}

func TestOpenOfTheSameStoreTwice(t *testing.T) {
	first := open(t)
	t.Setenv("TMPDIR", "")
	config, _ := configured(t, func(c *Config) { c.StorageRoot = first.StorageRoot() })
	second, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if first.TempDir() == second.TempDir() {
		t.Errorf("both builds have their temporary files in %q", first.TempDir())
	}
	second.Close()
	if _, err := os.Stat(first.TempDir()); err != nil {
		t.Errorf("the end of one build took the temporary files of the other: %v", err)
	}
}

func TestOpenMakesTMPDIR(t *testing.T) {
	parent := t.TempDir() + "/no/such"
	config, _ := configured(t)
	t.Setenv("TMPDIR", parent)
	e, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if filepath.Dir(e.TempDir()) != parent {
		t.Errorf("temporary files in %q, want a directory in %q", e.TempDir(), parent)
	}
}

func TestOpenThatFails(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir+"/file", "")
	for _, s := range []struct {
		name   string
		change func(*Config)
		tmpdir string
		reason result.Reason
		texts  []string
	}{
		{"TMPDIR below a file", nil, file + "/tmp", result.ReasonStorageUnavailable, []string{"TMPDIR", file}},
		{"TMPDIR is a file", nil, file, result.ReasonStorageUnavailable, []string{"TMPDIR", file}},
		{"TMPDIR that cannot be written to", nil, "/proc/self", result.ReasonStorageUnavailable, []string{"TMPDIR", "/proc/self"}},
		{"root below a file", func(c *Config) { c.StorageRoot = file + "/store" }, "", result.ReasonStorageUnavailable, []string{"store", file}},
		{"root below a file, with TMPDIR", func(c *Config) { c.StorageRoot = file + "/store" }, dir, result.ReasonStorageUnavailable, []string{file + "/store"}},
		{"unknown driver", func(c *Config) { c.StorageDriver = "floppy" }, "", result.ReasonStorageUnavailable, []string{"floppy"}},
		{"unknown isolation", func(c *Config) { c.Isolation = "hope" }, "", result.ReasonSettingsInvalid, []string{"--isolation", "hope", "chroot, oci and rootless"}},
		{"unknown platform", func(c *Config) { c.Platform = "linux/amd64/v1/x" }, "", result.ReasonSettingsInvalid, []string{"--platform", "linux/amd64/v1/x"}},
		{"no such policy", func(c *Config) { c.SignaturePolicy = dir + "/none.json" }, "", result.ReasonSettingsInvalid, []string{"policy", dir + "/none.json"}},
		{"a policy that is none", func(c *Config) { c.SignaturePolicy = write(t, dir+"/policy.json", `{"default":`) }, "", result.ReasonSettingsInvalid, []string{"policy", dir + "/policy.json"}},
		{"a policy of nothing", func(c *Config) { c.SignaturePolicy = write(t, dir+"/empty.json", `{}`) }, "", result.ReasonSettingsInvalid, []string{"policy", dir + "/empty.json"}},
		{"a policy that is a directory", func(c *Config) { c.SignaturePolicy = dir }, "", result.ReasonSettingsInvalid, []string{"policy", dir}},
		{"no such registries.conf", func(c *Config) { c.RegistriesConf = dir + "/none.conf" }, "", result.ReasonSettingsInvalid, []string{"registries", dir + "/none.conf"}},
		{"a registries.conf that is none", func(c *Config) { c.RegistriesConf = write(t, dir+"/registries.conf", "[[registry]\n") }, "", result.ReasonSettingsInvalid, []string{"registries", dir + "/registries.conf"}},
		{"a registries.conf that is a directory", func(c *Config) { c.RegistriesConf = dir }, "", result.ReasonSettingsInvalid, []string{"registries", dir}},
	} {
		t.Run(s.name, func(t *testing.T) {
			change := s.change
			if change == nil {
				change = func(*Config) {}
			}
			config, _ := configured(t, change)
			t.Setenv("TMPDIR", s.tmpdir)
			opened, err := Open(config)
			if err == nil {
				opened.Close()
			}
			e := mustFail(t, err)
			if e.Class != result.ClassSandbox || e.Reason != s.reason {
				t.Errorf("%s, %s; want Sandbox, %s", e.Class, e.Reason, s.reason)
			}
			for _, want := range s.texts {
				if !strings.Contains(e.Message, want) {
					t.Errorf("the message does not have %q: %s", want, e.Message)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(config.StorageRoot, "tmp", "*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestOpenHonoursThePolicyOfTheUser(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	path := home + "/.config/containers/policy.json"
	write(t, path, `{"default": [{"type": "reject"}]}`)
	b := open(t)
	if b.sys.SignaturePolicyPath != "" || strings.Contains(b.log.String(), "No signature policy") {
		t.Errorf("the policy %q is used, want that of the user; log:\n%s", b.sys.SignaturePolicyPath, b.log)
	}
	write(t, path, `nonsense`)
	config, _ := configured(t)
	opened, err := Open(config)
	if err == nil {
		opened.Close()
	}
	if e := mustFail(t, err); e.Reason != result.ReasonSettingsInvalid || !strings.Contains(e.Message, path) {
		t.Errorf("%s, %q; want SettingsInvalid that names %s", e.Reason, e.Message, path)
	}
}

func TestBuiltInPolicyAcceptsAnything(t *testing.T) {
	b := open(t)
	data, err := os.ReadFile(b.sys.SignaturePolicyPath)
	if err != nil {
		t.Fatal(err)
	}
	var policy struct{ Default []struct{ Type string } }
	if err := json.Unmarshal(data, &policy); err != nil || len(policy.Default) != 1 || policy.Default[0].Type != "insecureAcceptAnything" {
		t.Errorf("the policy is %s (%v)", data, err)
	}
	if filepath.Dir(b.sys.SignaturePolicyPath) != b.TempDir() {
		t.Errorf("the policy is at %s, want it among the temporary files", b.sys.SignaturePolicyPath)
	}
}

func TestOpenTakesPlatformAndTLS(t *testing.T) {
	b := open(t, insecure, func(c *Config) {
		c.Platform, c.CertDir, c.UserAgent = "linux/arm/v7", "/certs", "strata/test"
	})
	if b.sys.OSChoice != "linux" || b.sys.ArchitectureChoice != "arm" || b.sys.VariantChoice != "v7" {
		t.Errorf("platform %s/%s/%s, want linux/arm/v7", b.sys.OSChoice, b.sys.ArchitectureChoice, b.sys.VariantChoice)
	}
	if b.sys.DockerInsecureSkipTLSVerify != types.OptionalBoolTrue || b.sys.DockerCertPath != "/certs" || b.sys.DockerRegistryUserAgent != "strata/test" {
		t.Errorf("system context %+v", b.sys)
	}
	if sys := b.system("/auth.json"); sys.AuthFilePath != "/auth.json" || b.sys.AuthFilePath != "" {
		t.Errorf("auth file %q, and %q in the template; want only the copy to have it", sys.AuthFilePath, b.sys.AuthFilePath)
	}
	if b := open(t); b.sys.DockerInsecureSkipTLSVerify != types.OptionalBoolUndefined {
		t.Errorf("without --tls-verify: %v, want registries.conf to decide", b.sys.DockerInsecureSkipTLSVerify)
	}
	verify := true
	if b := open(t, func(c *Config) { c.TLSVerify = &verify }); b.sys.DockerInsecureSkipTLSVerify != types.OptionalBoolFalse {
		t.Errorf("with --tls-verify: %v", b.sys.DockerInsecureSkipTLSVerify)
	}
}

func TestClose(t *testing.T) {
	b := open(t)
	tmp := b.TempDir()
	write(t, tmp+"/layer/file", "")
	b.Close()
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary files at %s are left: %v", tmp, err)
	}
	b.Close()
	if strings.Contains(b.log.String(), "left behind") {
		t.Errorf("the second time says:\n%s", b.log)
	}
}

// A build that ended early leaves mounts behind; what they show is not to be deleted.
func TestCloseDeletesNothingThroughAMount(t *testing.T) {
	b := open(t)
	outside := t.TempDir()
	kept := write(t, outside+"/file", "")
	for _, name := range []string{"/a", "/a/b"} {
		at := b.TempDir() + name
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(outside+"/b", 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(outside, at, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	tmp := b.TempDir()
	b.Close()
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("a file that was mounted into the temporary files is gone: %v", err)
	}
	if _, err := os.Stat(tmp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary files at %s are left: %v", tmp, err)
	}
}

// refusal is what Open says in a process of its own.
type refusal struct {
	Class   result.Class
	Reason  result.Reason
	Message string
}

func init() {
	processes["open"] = func() any {
		e, err := Open(Config{StorageRoot: os.Getenv("STRATA_TEST_ROOT"), StorageDriver: os.Getenv("STRATA_TEST_DRIVER"), Output: silent()})
		if err != nil {
			failed := AsError(err)
			return refusal{failed.Class, failed.Reason, failed.Message}
		}
		defer e.Close()
		return refusal{Message: e.Storage() + " in " + e.StorageRoot()}
	}
}

func TestOpenReadsStorageConf(t *testing.T) {
	dir := t.TempDir()
	conf := write(t, dir+"/storage.conf", "[storage]\ndriver = \"vfs\"\ngraphroot = \""+dir+"/graph\"\nrunroot = \""+dir+"/run\"\n")
	for _, s := range []struct {
		name string
		env  []string
		want refusal
	}{
		{"as it says", nil, refusal{Message: "vfs in " + dir + "/graph"}},
		{"but for the root", []string{"STRATA_TEST_ROOT=" + dir + "/other"}, refusal{Message: "vfs in " + dir + "/other"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			var got refusal
			inProcess(t, "open", nil, &got, append(s.env, "TMPDIR=", "CONTAINERS_STORAGE_CONF="+conf)...)
			if got != s.want {
				t.Errorf("%+v, want %+v", got, s.want)
			}
		})
	}
	broken := write(t, dir+"/broken.conf", "[storage\n")
	for name, path := range map[string]string{"not there": dir + "/none.conf", "broken": broken} {
		t.Run(name, func(t *testing.T) {
			var got refusal
			inProcess(t, "open", nil, &got, "TMPDIR=", "CONTAINERS_STORAGE_CONF="+path, "STRATA_TEST_ROOT="+dir+"/third")
			if got.Class != result.ClassSandbox || got.Reason != result.ReasonSettingsInvalid || !strings.Contains(got.Message, path) {
				t.Errorf("%+v, want Sandbox, SettingsInvalid that names %s", got, path)
			}
		})
	}
}

func TestEnsureHome(t *testing.T) {
	t.Setenv("HOME", "/somewhere")
	if err := EnsureHome(); err != nil || os.Getenv("HOME") != "/somewhere" {
		t.Errorf("HOME is %q (%v), want it left alone", os.Getenv("HOME"), err)
	}
	t.Setenv("HOME", "")
	if err := EnsureHome(); err != nil || !filepath.IsAbs(os.Getenv("HOME")) {
		t.Errorf("HOME is %q (%v), want a directory", os.Getenv("HOME"), err)
	}
}

func TestCheckPlatform(t *testing.T) {
	for _, platform := range []string{"linux/amd64", "linux/arm/v7"} {
		if err := CheckPlatform(platform); err != nil {
			t.Errorf("%q: %v", platform, err)
		}
	}
	for platform, text := range map[string]string{"linux/amd64,linux/arm64": "several platforms", "linux/amd64/v1/x": "OS/ARCH"} {
		if err := CheckPlatform(platform); err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), platform) {
			t.Errorf("%q: error %v, want one that names it and says %q", platform, err, text)
		}
	}
}
