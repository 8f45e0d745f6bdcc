package integration

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/test/registry"
)

// tokenLab has a registry with a token server, and a credential that is right.
func tokenLab(t *testing.T) *passwordLab {
	t.Helper()
	passwords := filepath.Join(t.TempDir(), "passwords")
	if err := os.WriteFile(passwords, []byte("robot:tok-pass\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newPasswordLab(t, "tok-pass", "tok-pass", registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwords, Lifetime: time.Minute}))
	l.pushInside("base/busy:1")
	return l
}

// TestTokenServerThatFails is not the registry, and what it says is not of the image.
func TestTokenServerThatFails(t *testing.T) {
	const page = "<html><body>Sorry</body></html>"
	unavailable := [2]result.Reason{result.ReasonRegistryUnavailable, result.ReasonRegistryUnavailable}
	rejected := [2]result.Reason{result.ReasonPullFailed, result.ReasonPushRejected}
	limited := [2]result.Reason{result.ReasonRateLimited, result.ReasonRateLimited}
	l := tokenLab(t)
	server := strings.Replace(l.registry.Tokens().Host(), "127.0.0.1", "localhost", 1)
	for name, tt := range map[string]struct {
		do    registry.Action
		want  [2]result.Reason // of a pull and of a push
		class result.Class
	}{
		"500 with a page":  {registry.Reply{Status: 500, Body: page}, unavailable, result.ClassTransient},
		"503":              {registry.Reply{Status: 503}, unavailable, result.ClassTransient},
		"429":              {registry.Reply{Status: 429}, limited, result.ClassTransient},
		"a page":           {registry.Reply{Status: 200, Body: page}, unavailable, result.ClassTransient},
		"an empty object":  {registry.Reply{Status: 200, Body: "{}"}, unavailable, result.ClassTransient},
		"nothing":          {registry.Reply{Status: 200}, unavailable, result.ClassTransient},
		"half an object":   {registry.Reply{Status: 200, Body: `{"token":"abc`}, unavailable, result.ClassTransient},
		"it closes":        {registry.Close{}, unavailable, result.ClassTransient},
		"it stalls":        {registry.Stall{}, unavailable, result.ClassTransient},
		"404":              {registry.Reply{Status: 404, Body: page}, rejected, result.ClassRejected},
		"400":              {registry.Reply{Status: 400, Body: `{"details":"no such service"}`}, rejected, result.ClassRejected},
		"401":              {registry.Reply{Status: 401}, [2]result.Reason{result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized}, result.ClassAuth},
		"403":              {registry.Reply{Status: 403, Body: page}, [2]result.Reason{result.ReasonBaseImageUnauthorized, result.ReasonPushDenied}, result.ClassAuth},
		"an expired token": {registry.Reply{Status: 200, Body: `{"token":"old","expires_in":60,"issued_at":"2001-01-01T00:00:00Z"}`}, [2]result.Reason{result.ReasonBaseImageUnauthorized, result.ReasonPushUnauthorized}, result.ClassAuth},
	} {
		t.Run(name, func(t *testing.T) {
			l.t = t
			fault := l.registry.Tokens().Fault(registry.Rule{Do: tt.do})
			defer fault.Remove()
			for i, phase := range []result.Phase{result.Pull, result.Push} {
				l.containerfile("FROM HOST/base/busy:1", "RUN true")
				args := []string{"--pull-authfile", l.auth}
				if phase == result.Push {
					l.containerfile("FROM scratch", "COPY Containerfile /")
					args = l.pushArgs()
				}
				o := l.build(append(args, "--retry-on", "transient", "--stall-timeout", "1s", "--max-retries", "2")...)
				if o.result.Reason != tt.want[i] || o.result.Attempts[0].Class != tt.class {
					t.Errorf("%s: %s, %s; want %s, %s", phase, o.result.Reason, o.result.Attempts[0].Class, tt.want[i], tt.class)
				}
				want, code := 1, 1
				if tt.class == result.ClassTransient {
					want, code = 2, 5
				}
				o.wantAttempts(t, phase, want)
				if o.code != code {
					t.Errorf("%s: exit code %d, want %d", phase, o.code, code)
				}
				for _, text := range []string{l.registry.Host(), "token server"} {
					if name != "it closes" && name != "it stalls" && name != "an expired token" && !strings.Contains(o.result.Message, text) {
						t.Errorf("%s: the message %q does not hold %q", phase, o.result.Message, text)
					}
				}
				if strings.Contains(o.result.Message, "<html") {
					t.Errorf("%s: the message holds a page: %s", phase, o.result.Message)
				}
				if reply, ok := tt.do.(registry.Reply); ok && reply.Status != http.StatusOK && !strings.Contains(o.result.Message, server) {
					t.Errorf("%s: the message %q does not name %s", phase, o.result.Message, server)
				}
			}
		})
	}
}
