package distribution

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"
)

// Error is an answer that a registry, or its token server, refused a request with.
type Error struct {
	Method string
	// Host is who answered, with its port: a registry, its token server, or with the
	// Method CONNECT a proxy.
	Host string
	// Status is the HTTP status.
	Status int
	// Code is the error code of the distribution specification, empty for none.
	Code string
	// Detail is what the answer says beside, on one line; never a page of HTML.
	Detail string
	// RetryAfter is how long the registry asked to be left alone, 0 for no wish
	// (RFC 9110, section 10.2.3).
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s answered %d %s to a %s", e.Host, e.Status, http.StatusText(e.Status), e.Method)
	if e.Code != "" {
		text += ", " + e.Code
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// IsNotFound tells whether a registry answered that there is nothing.
func IsNotFound(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && answer.Status == http.StatusNotFound
}

// maxAnswer is how much of an error's body is read, in bytes; maxDetail how much of
// it is shown, and maxCode how much of the code; answerTime is how long a body is
// waited for.
const (
	maxAnswer  = 64 << 10
	maxDetail  = 300
	maxCode    = 64 // the longest of the specification has 20
	answerTime = 5 * time.Second
)

// answerError makes the Error of an answer with the body text.
func answerError(resp *http.Response, text []byte) *Error {
	e := &Error{
		Method: resp.Request.Method, Host: resp.Request.URL.Host, Status: resp.StatusCode,
		RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	var body struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
		Details string `json:"details"`
		Message string `json:"message"`
	}
	switch err := json.Unmarshal(text, &body); {
	case err == nil && len(body.Errors) > 0:
		e.Code, e.Detail = body.Errors[0].Code, body.Errors[0].Message
	case err == nil:
		e.Detail = cmp.Or(body.Details, body.Message)
	case strings.HasPrefix(strings.TrimSpace(string(text)), "<"):
	default:
		e.Detail = string(text)
	}
	e.Code = e.Code[:min(len(e.Code), maxCode)]
	if challenge := resp.Header.Get("WWW-Authenticate"); strings.Contains(challenge, `error="insufficient_scope"`) {
		e.Code = "DENIED"
	}
	e.Detail = strings.Join(strings.Fields(strings.ToValidUTF8(e.Detail, "")), " ")
	if len(e.Detail) > maxDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:maxDetail], "") + " …"
	}
	return e
}

// retryAfter reads the header: seconds, or a date.
func retryAfter(value string, now time.Time) time.Duration {
	if value == "" {
		return 0
	}
	seconds, err := strconv.ParseInt(value, 10, 32)
	if err == nil || errors.Is(err, strconv.ErrRange) { // which leaves the nearest that is in it
		return max(time.Duration(seconds)*time.Second, 0)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// refusedByProxy makes an Error of the answer of a proxy that opens no connection; it
// is http.Transport.OnProxyConnectResponse, which has the status where the error that
// it stands in for has but its text. The answer is that of the proxy: Host is the
// proxy, and Method is CONNECT.
func refusedByProxy(_ context.Context, proxy *url.URL, _ *http.Request, resp *http.Response) error {
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	return &Error{
		Method: http.MethodConnect, Host: proxy.Host, Status: resp.StatusCode,
		RetryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
}

// requestError is the error of a request that has no answer.
func requestError(ctx context.Context, method, target string, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrStalled) {
		err = cause
	}
	host := target
	if u, parseErr := url.Parse(target); parseErr == nil {
		host = u.Host
	}
	var token *errcode.ErrorResponse
	switch {
	case errors.As(err, &token): // the token server refused
		e := &Error{Method: method, Host: host, Status: token.StatusCode, Detail: "this is what its token server says"}
		if token.URL != nil {
			e.Detail += ", " + token.URL.Host
		}
		if len(token.Errors) > 0 {
			e.Code = token.Errors[0].Code
			e.Detail += ": " + token.Errors[0].Message
		}
		return e
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return &Error{Method: method, Host: host, Status: http.StatusUnauthorized, Detail: "credentials are required"}
	case strings.Contains(err.Error(), "missing username or password"): // which has no type
		return &Error{Method: method, Host: host, Status: http.StatusUnauthorized, Detail: "it wants a user name and a password, and the credentials have not both"}
	}
	return fmt.Errorf("%s to %s: %w", method, host, err)
}
