package agent

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// withProxies sets the given variables and no other proxy.
func withProxies(t *testing.T, set map[string]string) *redactor {
	t.Helper()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"} {
		for _, name := range []string{name, strings.ToLower(name)} {
			t.Setenv(name, set[name])
		}
	}
	return newRedactor()
}

func TestPasswordsOfProxiesAreHidden(t *testing.T) {
	tests := []struct {
		name, variable, value string
		hidden                []string
	}{
		{"HTTP_PROXY", "HTTP_PROXY", "http://robot:s3cr3t-a@proxy:3128", []string{"s3cr3t-a", base64.StdEncoding.EncodeToString([]byte("s3cr3t-a"))}},
		{"https_proxy", "https_proxy", "http://robot:s3cr3t-b@proxy:3128/", []string{"s3cr3t-b"}},
		{"ALL_PROXY", "ALL_PROXY", "socks5://robot:s3cr3t-c@proxy", []string{"s3cr3t-c"}},
		{"ftp_proxy", "ftp_proxy", "http://robot:s3cr3t-d@proxy", []string{"s3cr3t-d"}},
		{"percent-encoded", "HTTP_PROXY", "http://robot:p%40ss%2Fword@proxy", []string{"p@ss/word", "p%40ss%2Fword"}},
		{"percent-encoded where nobody had to", "HTTP_PROXY", "http://robot:p%61ss%2dword@proxy", []string{"pass-word", "p%61ss%2dword"}},
		{"a user with a colon", "HTTP_PROXY", "http://ro%3Abot:s3cr3t-e@proxy", []string{"s3cr3t-e"}},
		{"an at sign that nobody encoded", "HTTP_PROXY", "http://robot:p@ss-word@proxy", []string{"p@ss-word"}},
		{"no scheme", "HTTP_PROXY", "robot:s3cr3t-f@proxy:3128", []string{"s3cr3t-f"}},
		{"a token in the place of the user", "HTTPS_PROXY", "http://t0k3n-of-the-proxy@proxy:3128", []string{"t0k3n-of-the-proxy"}},
		{
			"the header that a client sends", "HTTP_PROXY", "http://builder:s3cr3t-g@proxy",
			[]string{base64.StdEncoding.EncodeToString([]byte("builder:s3cr3t-g"))},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := withProxies(t, map[string]string{tt.variable: tt.value})
			for _, text := range append(tt.hidden, tt.value) {
				got := r.text("proxy is " + text + ", says curl")
				for _, h := range tt.hidden {
					if strings.Contains(got, h) {
						t.Errorf("%q came out in %q", h, got)
					}
				}
				if !strings.HasPrefix(got, "proxy is ") || !strings.HasSuffix(got, ", says curl") || !strings.Contains(got, redacted) {
					t.Errorf("%q became %q", text, got)
				}
			}
		})
	}
}

// TestUserOfAProxyIsHidden together with the password, however that is written.
func TestUserOfAProxyIsHidden(t *testing.T) {
	for _, proxy := range []string{"http://robot:s3cr3t@proxy:3128", "http://robot:p%40ss%2Fword@proxy:3128"} {
		r := withProxies(t, map[string]string{"HTTP_PROXY": proxy})
		if got, want := r.text("HTTP_PROXY="+proxy), "HTTP_PROXY=http://"+redacted+"@proxy:3128"; got != want {
			t.Errorf("%s became %s, want %s", proxy, got, want)
		}
	}
}

func TestProxiesWithoutAPasswordHideNothing(t *testing.T) {
	r := withProxies(t, map[string]string{
		"HTTP_PROXY": "http://proxy:3128", "HTTPS_PROXY": "proxy:3128", "ALL_PROXY": "http://robot:@proxy", "FTP_PROXY": "::",
	})
	const text = "http://proxy:3128 is used by robot: nothing"
	if got := r.text(text); got != text {
		t.Errorf("%q became %q", text, got)
	}
}

func TestTheLongestSecretIsHiddenFirst(t *testing.T) {
	for _, order := range [][]string{{"pass", "password-long"}, {"password-long", "pass"}} {
		r := &redactor{}
		for _, s := range order {
			r.add(s)
		}
		if got, want := r.text("a password-long, a pass"), "a [redacted], a [redacted]"; got != want {
			t.Errorf("added as %q: %q, want %q", order, got, want)
		}
	}
}

func TestEveryMentionOfASecretIsHidden(t *testing.T) {
	r := &redactor{}
	r.add("token-1", "token-2", "token-1")
	if got, want := r.text("token-1token-1 token-2,token-1"), "[redacted][redacted] [redacted],[redacted]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if n := len(r.secrets); n != 4 {
		t.Errorf("%d strings are looked for, want two secrets and their base64", n)
	}
}

func TestWhatIsTooShortIsNoSecret(t *testing.T) {
	r := &redactor{}
	r.add("", "a", "ab", "abc")
	if got, want := r.text("a ab abc"), "a ab [redacted]"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNoSecretInTheResult(t *testing.T) {
	const secret = "correct-horse"
	text := "curl -u robot:" + secret
	r := &result.Result{
		Message: text, Attempts: []result.Attempt{{Error: text}, {Error: text}},
		Step: &result.Step{Stage: "final", Number: 2, Of: 3, Instruction: "RUN " + text},
	}
	redact := &redactor{}
	redact.add(secret)
	redactResult(r, redact)
	wantNoSecret(t, string(r.Encode(result.MaxBytes)), secret)
	if want := "curl -u robot:" + redacted; r.Message != want || r.Attempts[1].Error != want || r.Step.Instruction != "RUN "+want {
		t.Errorf("message %q, error %q, instruction %q; want %q", r.Message, r.Attempts[1].Error, r.Step.Instruction, want)
	}
	redactResult(&result.Result{}, redact)
}

func TestWhatAuthorizesARequestIsHidden(t *testing.T) {
	const jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJyb2JvdCJ9.c2lnbmF0dXJl-_x"
	tests := []struct{ text, want string }{
		{"bad header Authorization: Bearer " + jwt, "bad header Authorization: Bearer [redacted]"},
		{"authorization: bearer short, says the proxy", "authorization: bearer [redacted], says the proxy"},
		{"PROXY-AUTHORIZATION: BASIC cm9ib3Q6cGFzcw== HTTP/1.1", "PROXY-AUTHORIZATION: BASIC [redacted] HTTP/1.1"},
		{"Authorization: opaquetoken", "Authorization: [redacted]"},
		{`{"Authorization":"Bearer ` + jwt + `"}`, `{"Authorization":"Bearer [redacted]"}`},
		{`"{\"Authorization\": \"Bearer ` + jwt + `\"}"`, `"{\"Authorization\": \"Bearer [redacted]\"}"`},
		{"map[Accept:[a/b] Authorization:[Bearer " + jwt + "]]", "map[Accept:[a/b] Authorization:[Bearer [redacted]]]"},
		{"Authorization: Bearer " + jwt + " and Authorization: Basic YTpi", "Authorization: Bearer [redacted] and Authorization: Basic [redacted]"},
		{"invalid token: Bearer " + jwt + ".", "invalid token: Bearer [redacted]"},
		{"basic 0123456789abcdef0123", "basic [redacted]"},
		{"Basic cm9ib3Q6cGFzc3dvcmQ=", "Basic [redacted]"},
		{"Bearer " + jwt[:20] + " …", "Bearer [redacted] …"},
	}
	for _, tt := range tests {
		r := &redactor{}
		got := r.text(tt.text)
		if got != tt.want {
			t.Errorf("%q became %q, want %q", tt.text, got, tt.want)
		}
		if again := r.text(got); again != got {
			t.Errorf("%q became %q the second time", got, again)
		}
	}
}

func TestWhatOnlyMentionsAuthorizationIsShown(t *testing.T) {
	for _, text := range []string{
		"Basic authentication is required", "Basic Authentication-required", "basic auth: no", "the bearer token has expired",
		`WWW-Authenticate: Bearer realm="https://auth.example/token",service="registry"`, "authorization failed",
		"no Authorization header", `RUN curl -H "Authorization: Bearer $TOKEN" registry.example`, "Bearer: none", "a basically unauthorized 401",
	} {
		if got := (&redactor{}).text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestASecretIsHiddenWhereWhiteSpaceWasFolded(t *testing.T) {
	r := &redactor{}
	r.add("two  spaces", " a\ttab\nand lines\n")
	for text, want := range map[string]string{
		"password two  spaces":            "password [redacted]",
		"password two spaces is wrong":    "password [redacted] is wrong",
		"the file is a tab and lines now": "the file is [redacted] now",
	} {
		if got := r.text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

func TestAPieceOfASecretIsHiddenWhereATextWasCut(t *testing.T) {
	const secret = "correct  horse battery"
	const folded = "correct horse battery"
	r := &redactor{}
	r.add(secret, "another-one")
	encoded := base64.StdEncoding.EncodeToString([]byte(secret))
	for _, form := range []string{secret, folded, encoded} {
		for n := minPiece; n < len(form); n++ {
			begin, end := form[:n], form[len(form)-n:]
			for _, tt := range []struct{ before, piece, after string }{
				{"password ", begin, ""},
				{"password ", begin, " …"},
				{"password ", begin, "…, and more"},
				{"password ", begin, "..."},
				{"a … b ", begin, " … c"},
				{"password … ", end, " is wrong"},
				{"password …", end, ""},
			} {
				text := tt.before + tt.piece + tt.after
				got := r.text(text)
				if squeezed := strings.ReplaceAll(got, " ", ""); squeezed != strings.ReplaceAll(tt.before+redacted+tt.after, " ", "") {
					t.Errorf("%q became %q", text, got)
				}
				if again := r.text(got); again != got {
					t.Errorf("%q became %q the second time", got, again)
				}
			}
		}
	}
	for _, text := range []string{"it is correct that the battery", "corre …", "correct horses …", "… a battery", "batter …"} {
		if got := r.text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}
