package distribution

import (
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, time.March, 1, 10, 0, 0, 0, time.UTC)
	for value, want := range map[string]time.Duration{
		"":                              0,
		"4":                             4 * time.Second,
		"0":                             0,
		"-3":                            0,
		"86400":                         24 * time.Hour,
		"soon":                          0,
		"1.5":                           0,
		"99999999999999999999":          math.MaxInt32 * time.Second,
		"Sun, 01 Mar 2026 10:01:00 GMT": time.Minute,
		"Sun, 01 Mar 2026 09:00:00 GMT": 0,
	} {
		if got := retryAfter(value, now); got != want {
			t.Errorf("%q means %v, want %v", value, got, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	request := &http.Request{Method: http.MethodPatch, URL: &url.URL{Scheme: "https", Host: "r.example:5000"}}
	for name, tt := range map[string]struct {
		body, challenge string
		code, detail    string
	}{
		"nothing":          {},
		"specification":    {body: `{"errors":[{"code":"DENIED","message":"no  right"},{"code":"OTHER"}]}`, code: "DENIED", detail: "no right"},
		"details":          {body: `{"details":"no right"}`, detail: "no right"},
		"message":          {body: `{"message":"quota"}`, detail: "quota"},
		"other JSON":       {body: `{"word":"no"}`},
		"long code":        {body: `{"errors":[{"code":"` + strings.Repeat("X", 5000) + `"}]}`, code: strings.Repeat("X", maxCode)},
		"page":             {body: "  <html>no</html>"},
		"text":             {body: "no\nright", detail: "no right"},
		"no text":          {body: "no \xff right", detail: "no right"},
		"long":             {body: strings.Repeat("x", 5000), detail: strings.Repeat("x", maxDetail) + " …"},
		"scope too narrow": {body: `{"errors":[{"code":"UNAUTHORIZED"}]}`, challenge: `Bearer realm="x",error="insufficient_scope"`, code: "DENIED"},
	} {
		t.Run(name, func(t *testing.T) {
			e := answerError(&http.Response{
				Request: request, StatusCode: http.StatusForbidden, Header: http.Header{"Www-Authenticate": {tt.challenge}, "Retry-After": {"7"}},
			}, []byte(tt.body))
			if e.Code != tt.code || e.Detail != tt.detail || e.Host != "r.example:5000" || e.Status != 403 || e.RetryAfter != 7*time.Second {
				t.Errorf("%+v", e)
			}
			if text := e.Error(); strings.ContainsAny(text, "\n\r") || !strings.HasPrefix(text, "r.example:5000 answered 403 Forbidden to a PATCH") {
				t.Errorf("text %q", text)
			}
		})
	}
}
