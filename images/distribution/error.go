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
	// Host is who answered, with its port: a registry, for itself or for its token server, or with the
	// Method CONNECT a proxy.
	Host string
	// TokenServer is the host of the registry's token server where it is that which
	// refused, else empty.
	TokenServer string
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
	if e.TokenServer != "" {
		text = fmt.Sprintf("%s, the token server of %s, answered %d %s", e.TokenServer, e.Host, e.Status, http.StatusText(e.Status))
	}
	if e.Code != "" {
		text += ", " + e.Code
	}
	if e.Status < http.StatusBadRequest {
		text += ", which is not what a registry answers"
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// IsNotFound tells whether a registry answered that there is nothing.
func IsNotFound(err error) bool {
	var answer *Error
	return errors.As(err, &answer) && answer.Status == http.StatusNotFound && answer.TokenServer == ""
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

// ErrNoToken is the error of a token server whose answer holds no token.
var ErrNoToken = errors.New("there was no token in what was answered by the token server")

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

// rootCause is the error that all others are about.
func rootCause(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
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
		e := &Error{Method: method, Host: host, TokenServer: "a server that has no name", Status: token.StatusCode}
		if token.URL != nil {
			e.TokenServer = token.URL.Host
		}
		if len(token.Errors) > 0 {
			e.Code, e.Detail = token.Errors[0].Code, token.Errors[0].Message
		}
		return e
	case strings.Contains(err.Error(), "failed to decode response: "), strings.Contains(err.Error(), "empty token returned"): // which have no type
		return fmt.Errorf("%w of %s: %w", ErrNoToken, host, err)
	case strings.Contains(err.Error(), "bearer realm "), strings.Contains(err.Error(), `unsupported protocol scheme ""`): // which have no type
		return &Error{Method: method, Host: host, Status: http.StatusUnauthorized, Detail: "it names no token server that can be asked: " + rootCause(err).Error()}
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return &Error{Method: method, Host: host, Status: http.StatusUnauthorized, Detail: "credentials are required"}
	case strings.Contains(err.Error(), "missing username or password"): // which has no type
		return &Error{Method: method, Host: host, Status: http.StatusUnauthorized, Detail: "it wants a user name and a password, and the credentials have not both"}
	}
	return fmt.Errorf("%s to %s: %w", method, host, err)
}
