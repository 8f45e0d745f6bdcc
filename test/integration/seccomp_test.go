package integration

import (
	"path/filepath"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// forbidden makes a program for RUN steps that makes a system call which the profile
// of buildah refuses, and which needs no privilege: it asks for addresses that are not
// random (personality(2), ADDR_NO_RANDOMIZE).
func (l *lab) forbidden() {
	l.t.Helper()
	install(l.t, "gcc", "libc6-dev")
	source := l.file("forbidden.c", "#include <sys/personality.h>\nint main(void) { return personality(ADDR_NO_RANDOMIZE) == -1 ? 42 : 0; }\n")
	command(l.t, "gcc", "-static", "-o", filepath.Join(l.context, "forbidden"), source)
}

func TestStepsGetASeccompProfile(t *testing.T) {
	_, uid := user(t, "700000-765535")
	for _, as := range []string{"root", "user"} {
		t.Run(as, func(t *testing.T) {
			l := newLab(t).withBusy()
			l.forbidden()
			l.containerfile("FROM HOST/base/busy:1", "COPY forbidden /", "RUN grep -x 'Seccomp:.2' /proc/self/status", "RUN /forbidden")
			if as == "user" {
				l.wrap = l.hand(uid)
			}
			o := l.build("--retry-on", "transient")
			o.wantFailure(t, result.ReasonStepFailed, "line 4", "exited 42")
			if o.result.RunExitCode != 42 {
				t.Errorf("run exit code %d", o.result.RunExitCode)
			}
			o.wantLine(t, "Seccomp: RUN steps get the ")

			l.containerfile("FROM HOST/base/busy:1", "COPY forbidden /", "RUN grep -x 'Seccomp:.0' /proc/self/status", "RUN /forbidden")
			o = l.build("--security-opt", "seccomp=unconfined", "--no-cache")
			o.wantSuccess(t)
			o.wantLine(t, "Seccomp: RUN steps are unconfined, as asked for")
		})
	}
}

func TestStepsGetTheSeccompProfileOfAFile(t *testing.T) {
	l := newLab(t).withBusy()
	l.containerfile("FROM HOST/base/busy:1", "RUN touch /a", "RUN mkdir /b")
	profile := l.file("profile.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO","errnoRet":1}]}`)
	o := l.build("--security-opt", "seccomp="+profile, "--retry-on", "transient")
	o.wantFailure(t, result.ReasonStepFailed, "line 3", "Operation not permitted")
	o.wantLine(t, "Seccomp: RUN steps get the profile "+profile)
	conf := l.file("containers.conf", "[containers]\nseccomp_profile = \""+profile+"\"\n")
	l.env = append(l.env, "CONTAINERS_CONF="+conf)
	l.build("--retry-on", "transient").wantFailure(t, result.ReasonStepFailed, "line 3", "Operation not permitted")
	l.build("--security-opt", "seccomp=unconfined").wantSuccess(t)
}
