package podman

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
	"github.com/strata-build/strata/test/registry"
)

// containerfile is a build with files of several users, steps as several users, two
// stages and a file capability.
const containerfile = `FROM HOST/base/owner:1 AS tools
RUN echo tool > /tool && chown 65000:65000 /tool && chmod 2755 /tool
FROM HOST/base/owner:1
COPY --from=tools /tool /tool
COPY --chown=33:33 page /srv/page
RUN mkdir -m 0750 /spool && chown 8:12 /spool && rm /owner/group
USER 1000:1000
RUN test "$(id -u):$(id -g)" = 1000:1000 && test -r /srv/page && ! touch /etc/no
USER 0
RUN echo 1000 > /home-of-1000 && chown 1000:1000 /home-of-1000
LABEL made=here
`

// lab is what one build in podman needs.
type lab struct {
	t        *testing.T
	registry *registry.Registry
	context  string
	volume   string
}

// newLab starts a registry with the base image, and makes a volume and a context.
func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, registry: registry.Start(t)}
	bases.Push(t, l.registry.Host(), "base/owner:1", bases.Owner(t))
	l.registry.Reset()
	l.context = filepath.Join(podman.home, "context-"+strings.ReplaceAll(t.Name(), "/", "-"))
	if err := os.Mkdir(l.context, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"Containerfile": strings.ReplaceAll(containerfile, "HOST", l.registry.Host()), "page": "page\n"} {
		if err := os.WriteFile(filepath.Join(l.context, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	created := podman.run("volume", "create")
	if created.code != 0 {
		t.Fatalf("podman volume create: exit %d: %s", created.code, created.stderr)
	}
	l.volume = strings.TrimSpace(created.stdout)
	t.Cleanup(func() {
		if o := podman.run("volume", "rm", "--force", l.volume); o.code != 0 {
			t.Errorf("podman volume rm: exit %d: %s", o.code, o.stderr)
		}
	})
	return l
}

// agent runs the product in podman: its image, its entrypoint, with options for podman
// before and words for the agent behind.
func (l *lab) agent(options []string, words ...string) outcome {
	l.t.Helper()
	line := []string{
		"run", "--rm", "--cgroups=disabled", "--network=host", "--volume", l.volume + ":/var/lib/containers",
		"--volume", l.context + ":/context:ro",
	}
	o := podman.run(append(append(append(line, options...), podman.image), words...)...)
	l.t.Cleanup(func() {
		if l.t.Failed() {
			l.t.Logf("exit %d\nstandard output:\n%s\nstandard error:\n%s", o.code, o.stdout, o.stderr)
		}
	})
	return o
}

// build builds and pushes, and returns the result.
func (l *lab) build(options []string, flags ...string) (outcome, *result.Result) {
	l.t.Helper()
	words := append([]string{
		"build", "--tag", l.registry.Host() + "/os/podman:1", "--push", "--tls-verify=false",
		"--retry-delay", "50ms", "--result", "-",
	}, flags...)
	o := l.agent(options, append(words, "/context")...)
	r, err := result.Parse([]byte(o.stdout))
	if err != nil {
		l.t.Fatalf("exit %d, no result: %v\n%s\n%s", o.code, err, o.stdout, o.stderr)
	}
	if r.ExitCode != o.code {
		l.t.Errorf("the result says exit code %d, the process exited %d", r.ExitCode, o.code)
	}
	return o, r
}

// wantImage checks what arrived in the registry.
func (l *lab) wantImage(r *result.Result) {
	l.t.Helper()
	if r.Reason != result.ReasonSucceeded {
		l.t.Fatalf("the build did not succeed: %s: %s", r.Reason, r.Message)
	}
	if want := l.registry.Digest(l.t, "os/podman", "1"); r.Digest != want {
		l.t.Errorf("digest %s, want %s", r.Digest, want)
	}
	img := bases.Pull(l.t, l.registry.Host(), "os/podman:1")
	for path, want := range map[string]string{
		"/tool": "65000:65000 2755 tool\n", "/srv/page": "33:33 644 page\n", "/home-of-1000": "1000:1000 644 1000\n",
		"/owner/user": "70000:70000 600 user\n", "/spool": "8:12 750 ",
	} {
		body, header := bases.File(l.t, img, path)
		if got := fmt.Sprintf("%d:%d %o %s", header.Uid, header.Gid, header.Mode&0o7777, body); got != want {
			l.t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if _, found := bases.Flatten(l.t, img)["/owner/group"]; found {
		l.t.Error("a file that a step removed is in the image")
	}
}

// TestBuildInRootlessPodman builds in the sandboxes that podman makes of its options.
func TestBuildInRootlessPodman(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []string
		userns  string
	}{
		{"no option", nil, "own"},
		{"least capabilities", []string{"--cap-drop=all", "--cap-add=setuid,setgid,setfcap,sys_chroot", "--security-opt=no-new-privileges"}, "own"},
		{"least capabilities without the filter", []string{"--cap-drop=all", "--cap-add=setuid,setgid,setfcap", "--security-opt=seccomp=unconfined"}, "own"},
		{"SYS_ADMIN", []string{"--cap-add=sys_admin"}, "pod"},
		{"privileged", []string{"--privileged"}, "pod"},
		{"read-only root", []string{"--read-only", "--read-only-tmpfs=false"}, "own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			o, r := l.build(c.options)
			l.wantImage(r)
			if r.Sandbox == nil || r.Sandbox.UserNS != c.userns || r.Sandbox.Storage != "overlay" || r.Sandbox.Isolation != "chroot" {
				t.Errorf("sandbox %+v, want userns %s, storage overlay, isolation chroot", r.Sandbox, c.userns)
			}
			if !strings.Contains(o.stderr, "Storage: native overlay on ") {
				t.Error("the log does not say how images are stored")
			}
			// The volume keeps what was built.
			again, _ := l.build(c.options)
			if !strings.Contains(again.stderr, "--> Using cache ") {
				t.Error("the second build did not find the steps of the first")
			}
		})
	}
}

// TestPodmanThatCannotBuild says at once which option is missing.
func TestPodmanThatCannotBuild(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []string
		want    []string
	}{
		{"no capability", []string{"--cap-drop=all"}, []string{"SETUID, SETGID, SETFCAP"}},
		{"capabilities that the filter of podman does not do with", []string{"--cap-drop=all", "--cap-add=setuid,setgid,setfcap"}, []string{"chroot(2)", "SYS_CHROOT"}},
		{"ordinary user", []string{"--user=1000"}, []string{"uid 1000", "newuidmap"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			o, r := l.build(c.options)
			if r.Reason != result.ReasonUserNamespaceUnavailable || o.code != 3 {
				t.Errorf("%s, exit %d: %s", r.Reason, o.code, r.Message)
			}
			for _, text := range c.want {
				if !strings.Contains(r.Message, text) {
					t.Errorf("the message %q does not hold %q", r.Message, text)
				}
			}
			if n := len(l.registry.Requests()); n != 0 {
				t.Errorf("%d requests reached the registry", n)
			}
			if o := l.agent(c.options, "doctor"); o.code != 3 || !strings.Contains(o.stdout, "FAIL  user namespace") {
				t.Errorf("agent doctor: exit %d:\n%s", o.code, o.stdout)
			}
			if o := l.agent(c.options, "version"); o.code != 0 {
				t.Errorf("agent version: exit %d", o.code)
			}
		})
	}
}

func TestDoctorInRootlessPodman(t *testing.T) {
	l := newLab(t)
	if o := l.agent(nil, "doctor"); o.code != 0 || !strings.Contains(o.stdout, "A build would work here.") || strings.Contains(o.stdout, "FAIL") {
		t.Errorf("exit %d:\n%s", o.code, o.stdout)
	}
}
