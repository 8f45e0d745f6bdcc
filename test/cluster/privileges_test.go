package cluster

import (
	"archive/tar"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// security builds the security context of a pod, word by word.
type security struct {
	corev1.SecurityContext
	// podUsers gives the pod a user namespace of its own (hostUsers: false).
	podUsers bool
	// image is what the agent's image needs to have beside the agent.
	image func(*testing.T) string
}

var (
	all   = []corev1.Capability{"ALL"}
	usual = []corev1.Capability{ // what containerd gives by default, less those that a build has no use for
		"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "MKNOD", "SETFCAP",
	}
	runtimeDefault = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	unconfined     = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
)

func caps(drop []corev1.Capability, add ...corev1.Capability) *corev1.Capabilities {
	return &corev1.Capabilities{Drop: drop, Add: add}
}

// TestPrivileges is the table of docs/privileges.md.
func TestPrivileges(t *testing.T) {
	no := new(bool)
	sysAdmin := append(slices.Clone(usual), "SYS_ADMIN")
	for _, tt := range []struct {
		name     string
		security security
		exit     result.ExitCode
		// userns is the kind of user namespace of a build that succeeds, text what
		// the message of another says.
		userns, text string
	}{
		{"privileged", security{SecurityContext: corev1.SecurityContext{Privileged: new(true)}}, result.ExitSucceeded, "none", ""},
		{"root-defaults-unconfined", security{SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined}}, result.ExitSucceeded, "own", ""},
		{"root-defaults", security{SecurityContext: corev1.SecurityContext{SeccompProfile: runtimeDefault}}, result.ExitSandbox, "", "the seccomp filter of this process refuses unshare"},
		{"root-sysadmin-unconfined", security{SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined, Capabilities: caps(nil, "SYS_ADMIN")}}, result.ExitSucceeded, "none", ""},
		{"root-sysadmin", security{SecurityContext: corev1.SecurityContext{SeccompProfile: runtimeDefault, Capabilities: caps(nil, "SYS_ADMIN")}}, result.ExitSucceeded, "none", ""},
		{"root-only-sysadmin", security{SecurityContext: corev1.SecurityContext{SeccompProfile: runtimeDefault, Capabilities: caps(all, "SYS_ADMIN")}}, result.ExitSandbox, "", "lacks other capabilities that steps need: CHOWN, DAC_OVERRIDE"},
		{"root-idcaps", security{SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined, AllowPrivilegeEscalation: no, Capabilities: caps(all, "SETUID", "SETGID", "SETFCAP")}}, result.ExitSucceeded, "own", ""},
		{"userns-idcaps", security{podUsers: true, SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined, AllowPrivilegeEscalation: no, Capabilities: caps(all, "SETUID", "SETGID", "SETFCAP")}}, result.ExitSucceeded, "own", ""},
		{"userns-idcaps-no-setfcap", security{podUsers: true, SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined, AllowPrivilegeEscalation: no, Capabilities: caps(all, "SETUID", "SETGID")}}, result.ExitSucceeded, "own", ""},
		{"root-idcaps-no-setfcap", security{SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined, AllowPrivilegeEscalation: no, Capabilities: caps(all, "SETUID", "SETGID")}}, result.ExitSucceeded, "own", ""},
		{"userns-setuid-alone", security{podUsers: true, SecurityContext: corev1.SecurityContext{SeccompProfile: unconfined, AllowPrivilegeEscalation: no, Capabilities: caps(all, "SETUID")}}, result.ExitSandbox, "", "without the capabilities SETGID, SETFCAP"},
		{"userns-sysadmin", security{podUsers: true, SecurityContext: corev1.SecurityContext{SeccompProfile: runtimeDefault, Capabilities: caps(all, sysAdmin...)}}, result.ExitSucceeded, "pod", ""},
		{"userns-defaults", security{podUsers: true, SecurityContext: corev1.SecurityContext{SeccompProfile: runtimeDefault}}, result.ExitSandbox, "", "the seccomp filter of this process refuses unshare"},
		{"user-defaults", security{SecurityContext: corev1.SecurityContext{RunAsUser: new(int64(1000)), SeccompProfile: runtimeDefault}}, result.ExitSandbox, "", "the seccomp filter of this process refuses unshare"},
		{"user-unconfined", security{SecurityContext: corev1.SecurityContext{RunAsUser: new(int64(1000)), SeccompProfile: unconfined}}, result.ExitSandbox, "", "newuidmap, which gives a user namespace more ids than one, is not installed"},
		{"user-setuid-helpers", security{image: setuidHelpers, SecurityContext: corev1.SecurityContext{RunAsUser: new(int64(1000)), SeccompProfile: unconfined}}, result.ExitSandbox, "", "is setuid root"},
		{"user-filecaps-helpers", security{image: filecapsHelpers, SecurityContext: corev1.SecurityContext{RunAsUser: new(int64(1000)), SeccompProfile: unconfined, Capabilities: caps(all, "SETUID", "SETGID")}}, result.ExitSucceeded, "own", ""},
		{"user-filecaps-userns", security{podUsers: true, image: filecapsHelpers, SecurityContext: corev1.SecurityContext{RunAsUser: new(int64(1000)), SeccompProfile: unconfined, Capabilities: caps(all, "SETUID", "SETGID")}}, result.ExitSucceeded, "own", ""},
		{"user-filecaps-no-escalation", security{image: filecapsHelpers, SecurityContext: corev1.SecurityContext{RunAsUser: new(int64(1000)), SeccompProfile: unconfined, AllowPrivilegeEscalation: no, Capabilities: caps(all, "SETUID", "SETGID")}}, result.ExitSandbox, "", "no_new_privs is set"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.build(tt.name, []string{
				"FROM HOST/base/busy:1",
				"RUN id && cat /proc/self/uid_map && touch /mine && chown 1234:4321 /mine && chmod u+s /mine",
				"COPY --chown=70:70 Containerfile /copied",
			}, pod(func(spec *corev1.PodSpec, c *corev1.Container) {
				spec.HostUsers = new(!tt.security.podUsers)
				c.SecurityContext = &tt.security.SecurityContext
				if tt.security.image != nil {
					c.Image = tt.security.image(t)
				}
				if user := c.SecurityContext.RunAsUser; user != nil {
					spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: user}
					c.SecurityContext.RunAsGroup = user
					// The context must belong to somebody whom the user namespace knows,
					// and a volume is root's.
					spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
					c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "own", MountPath: "/own"})
					copier := c.DeepCopy()
					copier.Name, copier.Image = "context", host+"/base/busy:1"
					copier.Command, copier.Args = []string{"sh", "-c", "mkdir /own/context && cp /in/Containerfile /own/context"}, nil
					spec.InitContainers = append(spec.InitContainers, *copier)
					c.Args[len(c.Args)-1] = "/own/context"
				}
				c.Args = append(c.Args, "--max-retries=1")
			}))
			_, condition := l.ended(tt.name)
			p := l.pods(tt.name)[0]
			end, r := l.left(&p)
			if r == nil {
				t.Fatalf("the Job is %s; exit %d, no result: %q", condition.Type, end.ExitCode, end.Message)
			}
			t.Logf("exit %d, %s, sandbox %+v: %s", end.ExitCode, r.Reason, r.Sandbox, r.Message)
			if int(end.ExitCode) != int(tt.exit) {
				t.Fatalf("exit %d, want %d", end.ExitCode, tt.exit)
			}
			if !strings.Contains(r.Message, tt.text) {
				t.Errorf("the message does not hold %q", tt.text)
			}
			if tt.exit != result.ExitSucceeded {
				if condition.Type != batchv1.JobFailed {
					t.Errorf("the Job is %s", condition.Type)
				}
				return
			}
			if r.Sandbox.UserNS != tt.userns || r.Sandbox.Storage != "overlay" {
				t.Errorf("sandbox %+v, want overlay in user namespace %q", r.Sandbox, tt.userns)
			}
			l.wantSuccess(tt.name)
			tree := bases.Flatten(t, bases.Pull(t, host, tag(tt.name), onRegistry()...))
			if _, mine := tree.File(t, "/mine"); mine.Uid != 1234 || mine.Gid != 4321 {
				t.Errorf("/mine is of %d:%d", mine.Uid, mine.Gid)
			}
			if _, copied := tree.File(t, "/copied"); copied.Uid != 70 {
				t.Errorf("/copied is of %d", copied.Uid)
			}
		})
	}
}

// setuidHelpers is the agent's image with Debian's newuidmap and newgidmap,
// which are setuid root.
var setuidHelpers = helpers("setuid", func(e *bases.Entry, _ string) { e.Mode = 0o4755 })

// filecapsHelpers is the same with file capabilities in place of the setuid bit.
var filecapsHelpers = helpers("filecaps", func(e *bases.Entry, name string) {
	// struct vfs_cap_data, revision 2, effective: CAP_SETUID is 7, CAP_SETGID 6.
	bit := byte(1 << 7)
	if name == "newgidmap" {
		bit = 1 << 6
	}
	value := []byte{1, 0, 0, 2, bit, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	e.Format = tar.FormatPAX
	e.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": string(value)}
})

// helpers returns a function that pushes, once, the agent's image with newuidmap
// and newgidmap to the registry, and returns its name.
func helpers(kind string, privilege func(*bases.Entry, string)) func(*testing.T) string {
	var once sync.Once
	return func(t *testing.T) string {
		name := "e2e/agent:" + kind
		once.Do(func() {
			t.Helper()
			bases.Push(t, host, name, bases.Append(t, agentImage(t), helperEntries(t, privilege)...), onRegistry()...)
		})
		return host + "/" + name
	}
}

// agentImage reads the product's image.
func agentImage(t *testing.T) v1.Image {
	t.Helper()
	layout := t.TempDir()
	if out, err := exec.Command("tar", "-xf", "../../dist/strata.tar", "-C", layout).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bases.Layout(t, layout, "")
}

func helperEntries(t *testing.T, privilege func(*bases.Entry, string)) []bases.Entry {
	t.Helper()
	if _, err := exec.LookPath("newuidmap"); err != nil {
		install := exec.CommandContext(context.Background(), "apt-get", "-o", "DPkg::Lock::Timeout=120", "install", "-y", "uidmap")
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("installing uidmap: %v\n%s", err, out)
		}
	}
	file := func(path string) []byte {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	entries := []bases.Entry{
		bases.Dir("/etc", 0o755), bases.Dir("/usr", 0o755), bases.Dir("/usr/bin", 0o755), bases.Dir("/lib", 0o755), bases.Dir("/lib64", 0o755),
		bases.Regular("/etc/passwd", 0o644, []byte("root:x:0:0::/:/\nbuilder:x:1000:1000::/store:/\n")),
		bases.Regular("/etc/group", 0o644, []byte("root:x:0:\nbuilder:x:1000:\n")),
		bases.Regular("/etc/subuid", 0o644, []byte("builder:2000:60000\n")),
		bases.Regular("/etc/subgid", 0o644, []byte("builder:2000:60000\n")),
	}
	libraries := map[string]bool{}
	for _, name := range []string{"newuidmap", "newgidmap"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		e := bases.Regular("/usr/bin/"+name, 0o755, file(path))
		privilege(&e, name)
		entries = append(entries, e)
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.FieldsSeq(string(out)) {
			if filepath.IsAbs(word) && !libraries[word] {
				libraries[word] = true
				entries = append(entries, bases.Regular(word, 0o755, file(word)))
			}
		}
	}
	return entries
}
