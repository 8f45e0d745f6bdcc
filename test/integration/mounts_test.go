package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/bases"
)

// TestSSHInAStep lets a step use the keys of an agent, or keys by themselves.
func TestSSHInAStep(t *testing.T) {
	l := newLab(t)
	l.addBase("base/ssh:1", bases.Append(t, bases.Busy(t), withLibraries(t, "/usr/bin/ssh-add")...))
	key := filepath.Join(l.dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "own-key", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	private := strings.Split(strings.TrimSpace(readText(t, key)), "\n")
	l.secrets = append(l.secrets, private[1])
	socket := filepath.Join(l.dir, "agent")
	agent := exec.Command("ssh-agent", "-D", "-a", socket)
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
	}()
	waitFor(t, func() bool { _, err := os.Stat(socket); return err == nil })
	add := exec.Command("ssh-add", "-q", key)
	add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	public := strings.Join(strings.Fields(readText(t, key+".pub"))[:2], " ")
	env := l.env
	for name, tt := range map[string]struct{ env, ssh, id string }{
		"the agent of the environment": {"SSH_AUTH_SOCK=" + socket, "default", "default"},
		"an agent by its socket":       {"A=b", "git=" + socket, "git"},
		"a key":                        {"A=b", "key=" + key, "key"},
	} {
		t.Run(name, func(t *testing.T) {
			l.t = t
			l.env = append(env[:len(env):len(env)], tt.env)
			l.containerfile("FROM HOST/base/ssh:1",
				"RUN --mount=type=ssh,id="+tt.id+",required=true ssh-add -L > /keys",
				"RUN --mount=type=ssh,id="+tt.id+",target=/own,uid=7,gid=8,mode=0640 stat -c '%a %u:%g' /own > /socket",
				"RUN test -z \"$SSH_AUTH_SOCK\" && ! test -S /own && ! test -S /run/buildkit/ssh_agent.0")
			l.build("--ssh", tt.ssh, "--no-cache", "--tag", l.image("os/ssh:1"), "--push").wantSuccess(t)
			files := l.files("os/ssh:1")
			if got := files["keys"]; !strings.HasPrefix(got, public) {
				t.Errorf("the step sees the keys %q, want %q", got, public)
			}
			if got := files["socket"]; got != "640 7:8\n" {
				t.Errorf("the socket is %q", got)
			}
		})
	}
	l.t, l.env = t, env
	l.containerfile("FROM HOST/base/ssh:1", "RUN --mount=type=ssh,required=true ssh-add -L")
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonStepFailed, "ssh required but no ssh with id default found")
	l.build("--retry-on", "transient", "--ssh", "default").wantFailure(t, result.ReasonSettingsInvalid, "--ssh: SSH_AUTH_SOCK not set")
	// What a step shows of a key is not shown.
	l.containerfile("FROM HOST/base/ssh:1", "RUN echo "+private[1])
	l.build("--ssh", "key="+key).wantSuccess(t)
}

// TestHeredocThatIsAScript is found before anything is pulled, with what to write.
func TestHeredocThatIsAScript(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN <<E", "#!/bin/sh -e", "true", "E")
	o := l.build("--retry-on", "transient")
	o.wantFailure(t, result.ReasonContainerfileInvalid, "line 2", "begins with #!", "write RUN /bin/sh -e <<E")
	if n := len(l.registry.Requests()); n != 0 {
		t.Errorf("%d requests reached the registry", n)
	}
	l.containerfile("FROM HOST/base/busy:1", "RUN /bin/sh -e <<E", "#!/bin/sh -e", "true", "E", "RUN cat <<E >/x", "#!/no/such", "E")
	l.build("--retry-on", "transient").wantSuccess(t)
}

// TestCacheMountsOutliveABuild keeps what RUN --mount=type=cache has from build to
// build, until it is pruned.
func TestCacheMountsOutliveABuild(t *testing.T) {
	for _, name := range []string{"beside the store", "in TMPDIR"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t).withBusy()
			if name == "in TMPDIR" {
				l.env = append(l.env, "TMPDIR="+l.mkdir("tmp"))
			}
			l.containerfile("FROM HOST/base/busy:1", "RUN --mount=type=cache,target=/cache,id=own echo x >> /cache/runs && wc -l < /cache/runs > /runs")
			runs := func() string {
				l.build("--no-cache", "--tag", l.image("os/cached:1"), "--push").wantSuccess(t)
				return strings.TrimSpace(l.files("os/cached:1")["runs"])
			}
			if first, second := runs(), runs(); first != "1" || second != "2" {
				t.Errorf("the first build finds %q, the second one %q", first, second)
			}
			cmd := exec.Command(agentBinary, "prune", "--storage-root", l.store)
			cmd.Env = l.env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if third := runs(); third != "1" {
				t.Errorf("after a prune a build finds %q", third)
			}
		})
	}
}
