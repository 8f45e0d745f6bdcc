package images

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/docker/distribution/registry/api/errcode"
	"go.podman.io/image/v5/docker"
	"go.podman.io/image/v5/signature"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/regexp"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images/distribution"
)

// direction is which way an operation moves an image; a refusal has another
// reason for each.
type direction int

const (
	pulling direction = iota
	pushing
)

// verdict is what an error means.
type verdict struct {
	class  result.Class
	reason result.Reason
	status int // the HTTP status that a registry answered, 0 for none
	// retryAfter is how long the registry asked to be left alone, 0 for no wish.
	retryAfter time.Duration
}

// rule recognises one kind of error. Types and status codes decide; text decides
// only where the library has no type, and the test holds a sample of each.
type rule struct {
	name  string
	match func(error, direction) (verdict, bool)
}

// rules is the table of what errors mean; the first rule that matches decides.
var rules = []rule{
	{"proxy", func(err error, d direction) (verdict, bool) {
		p := proxyFaultOf(err)
		if p == nil || p.status == 0 { // one that was not reached is what the error says
			return verdict{}, false
		}
		v := statusVerdict(p.status, d)
		if p.status == http.StatusNotFound { // it is not the image that was not found
			v = statusVerdict(http.StatusBadRequest, d)
		}
		v.status = p.status
		var answer *distribution.Error
		if errors.As(err, &answer) {
			v.retryAfter = answer.RetryAfter
		}
		return v, true
	}},
	{"answer of a registry", func(err error, d direction) (verdict, bool) {
		var answer *distribution.Error
		if !errors.As(err, &answer) {
			return verdict{}, false
		}
		v, ok := codeVerdict(answer.Code, d)
		if !ok {
			v = statusVerdict(answer.Status, d)
		}
		if answer.TokenServer != "" && v.class == result.ClassInput { // of the image it knows nothing
			v = statusVerdict(http.StatusBadRequest, d)
		}
		v.status, v.retryAfter = answer.Status, answer.RetryAfter
		return v, true
	}},
	{"transfer that was cut", func(err error, _ direction) (verdict, bool) {
		found := errors.Is(err, distribution.ErrStalled) || errors.Is(err, distribution.ErrSentInPart) || errors.Is(err, distribution.ErrNoToken)
		return verdict{class: result.ClassTransient, reason: result.ReasonRegistryUnavailable}, found
	}},
	{"no space left", errnoRule(result.ClassResource, result.ReasonNoSpace, syscall.ENOSPC, syscall.EDQUOT)},
	{"no memory left", errnoRule(result.ClassResource, result.ReasonStepOutOfMemory, syscall.ENOMEM)},
	{"certificates of the system", func(err error, _ direction) (verdict, bool) {
		var unread x509.SystemRootsError
		return verdict{class: result.ClassSandbox, reason: result.ReasonSettingsInvalid}, errors.As(err, &unread)
	}},
	{"certificate", func(err error, _ direction) (verdict, bool) {
		var verification *tls.CertificateVerificationError
		var unknown x509.UnknownAuthorityError
		var host x509.HostnameError
		var invalid x509.CertificateInvalidError
		found := errors.As(err, &verification) || errors.As(err, &unknown) || errors.As(err, &host) ||
			errors.As(err, &invalid) || errors.Is(err, http.ErrSchemeMismatch)
		return verdict{class: result.ClassAuth, reason: result.ReasonCertificateUntrusted}, found
	}},
	{"signature policy", func(err error, _ direction) (verdict, bool) {
		var requirement signature.PolicyRequirementError
		var invalid signature.InvalidSignatureError
		found := errors.As(err, &requirement) || errors.As(err, &invalid)
		return verdict{class: result.ClassInput, reason: result.ReasonSignatureRejected}, found
	}},
	{"signature that cannot be kept", textRule(result.ClassSandbox, result.ReasonSettingsInvalid, "writing sigstore attachments is disabled by configuration")},
	{"digest", textRule(result.ClassTransient, result.ReasonDigestMismatch, "digest did not match", "does not match expected", "does not match provided manifest digest", "does not match selected manifest digest", "digest mismatch, expected", "digest_invalid")},
	{"architecture", textRule(result.ClassInput, result.ReasonWrongArchitecture,
		"no image found in image index for architecture", "no image found in manifest list for architecture")},
	{"manifest in every format", func(err error, d direction) (verdict, bool) {
		return statusVerdict(http.StatusBadRequest, d), strings.Contains(said(err), everyFormatRejected)
	}},
	{"registry error code", func(err error, d direction) (verdict, bool) {
		code, status := registryCode(err)
		v, ok := codeVerdict(code, d)
		if v.status == 0 {
			v.status = status
		}
		return v, ok
	}},
	{"http status", func(err error, d direction) (verdict, bool) {
		if status := httpStatus(err); status >= 400 {
			return statusVerdict(status, d), true
		}
		return verdict{}, false
	}},
	{"code of no specification", func(err error, d direction) (verdict, bool) {
		var e errcode.Error
		var coder errcode.ErrorCoder
		if !errors.As(err, &coder) {
			return verdict{}, false
		}
		if errors.As(err, &e) && d == pulling && strings.Contains(strings.ToLower(e.Message), "not found") {
			return statusVerdict(http.StatusNotFound, d), true
		}
		v := statusVerdict(http.StatusBadRequest, d)
		v.status = 0
		return v, true
	}},
	{"no space left, as text", textRule(result.ClassResource, result.ReasonNoSpace, syscall.ENOSPC.Error(), syscall.EDQUOT.Error())},
	{"no memory left, as text", textRule(result.ClassResource, result.ReasonStepOutOfMemory, syscall.ENOMEM.Error())},
	{"auth file", func(err error, d direction) (verdict, bool) {
		v := statusVerdict(http.StatusUnauthorized, d)
		v.status = 0
		return v, strings.Contains(err.Error(), "getting username and password: ")
	}},
	{"image not in the store", func(err error, d direction) (verdict, bool) {
		return verdict{class: result.ClassInput, reason: result.ReasonBaseImageNotFound}, d == pulling && errors.Is(err, storage.ErrImageUnknown)
	}},
	{"network", func(err error, _ direction) (verdict, bool) {
		return verdict{class: result.ClassTransient, reason: result.ReasonRegistryUnavailable}, isNetwork(err)
	}},
}

// everyFormatRejected is what a copy says when a registry took the manifest in none
// of the formats that it knows.
const everyFormatRejected = "Uploading manifest failed, attempted the following formats"

// classify says what an error of a transfer means. ctx is that of the build: an
// error after its end is an interruption, whatever the library made of it.
func classify(ctx context.Context, err error, d direction) verdict {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return verdict{class: result.ClassInterrupted, reason: result.ReasonDeadlineExceeded}
	case ctx.Err() != nil:
		return verdict{class: result.ClassInterrupted, reason: result.ReasonInterrupted}
	}
	for _, e := range leaves(err) {
		for _, r := range rules {
			if v, ok := r.match(e, d); ok {
				return v
			}
		}
	}
	if d == pushing {
		return verdict{class: result.ClassTransient, reason: result.ReasonPushFailed}
	}
	return verdict{class: result.ClassTransient, reason: result.ReasonPullFailed}
}

// leaves returns the error, or the members of a joined one: each endpoint that
// failed did so for a cause of its own, and the last is that of the registry
// itself, after its mirrors.
func leaves(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if joined, ok := e.(interface{ Unwrap() []error }); ok {
			var all []error
			members := joined.Unwrap()
			for i := len(members) - 1; i >= 0; i-- {
				all = append(all, leaves(members[i])...)
			}
			return append(all, err)
		}
	}
	return []error{err}
}

// forGood are the statuses of a server's own faults that time does not heal; others,
// such as those of proxies from 520 on, may pass.
var forGood = map[int]bool{
	http.StatusNotImplemented: true, http.StatusHTTPVersionNotSupported: true, http.StatusVariantAlsoNegotiates: true,
	http.StatusInsufficientStorage: true, http.StatusLoopDetected: true, http.StatusNotExtended: true, http.StatusNetworkAuthenticationRequired: true,
}

// statusVerdict is the table of HTTP statuses.
func statusVerdict(status int, d direction) verdict {
	v := verdict{class: result.ClassRejected, reason: result.ReasonPushRejected, status: status}
	switch {
	case status == http.StatusUnauthorized, status == http.StatusProxyAuthRequired:
		v.class, v.reason = result.ClassAuth, result.ReasonPushUnauthorized
	case status == http.StatusForbidden:
		v.class, v.reason = result.ClassAuth, result.ReasonPushDenied
	case status == http.StatusTooManyRequests:
		v.class, v.reason = result.ClassTransient, result.ReasonRateLimited
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= http.StatusInternalServerError && !forGood[status]:
		v.class, v.reason = result.ClassTransient, result.ReasonRegistryUnavailable
	}
	if d == pulling {
		switch v.class {
		case result.ClassAuth:
			v.reason = result.ReasonBaseImageUnauthorized
		case result.ClassRejected:
			v.reason = result.ReasonPullFailed
		}
		if status == http.StatusNotFound {
			v.class, v.reason = result.ClassInput, result.ReasonBaseImageNotFound
		}
	}
	return v
}

// codeVerdict is the table of the error codes of the distribution specification
// whose meaning is not that of their HTTP status.
func codeVerdict(code string, d direction) (verdict, bool) {
	switch code {
	case "UNAUTHORIZED":
		return statusVerdict(http.StatusUnauthorized, d), true
	case "DENIED":
		return statusVerdict(http.StatusForbidden, d), true
	case "TOOMANYREQUESTS":
		return statusVerdict(http.StatusTooManyRequests, d), true
	case "UNAVAILABLE":
		return statusVerdict(http.StatusServiceUnavailable, d), true
	case "BLOB_UPLOAD_UNKNOWN", "BLOB_UPLOAD_INVALID":
		// The upload session was lost, as when the registry restarts.
		return verdict{class: result.ClassTransient, reason: result.ReasonRegistryUnavailable}, true
	case "DIGEST_INVALID":
		return verdict{class: result.ClassTransient, reason: result.ReasonDigestMismatch}, true
	case "MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN":
		// A blob that was taken is gone; it is sent again.
		return verdict{class: result.ClassTransient, reason: result.ReasonRegistryUnavailable}, d == pushing
	case "MANIFEST_UNKNOWN", "NAME_UNKNOWN":
		return statusVerdict(http.StatusNotFound, d), true
	}
	return verdict{}, false
}

// registryCode returns the code of the distribution specification that err
// carries, and the HTTP status that belongs to it.
func registryCode(err error) (code string, status int) {
	var many errcode.Errors
	if errors.As(err, &many) && len(many) > 0 {
		err = many[0]
	}
	var coder errcode.ErrorCoder
	if !errors.As(err, &coder) {
		return "", 0
	}
	d := coder.ErrorCode().Descriptor()
	if d.Value == errcode.ErrorCodeUnknown.Descriptor().Value {
		return "", 0
	}
	return d.Value, d.HTTPStatusCode
}

// statusText finds the status in the errors that containers/image makes of an
// answer it cannot parse; their type is not exported.
var statusText = regexp.Delayed(`(?:StatusCode: |error parsing HTTP |unexpected HTTP status: |status code |invalid response status )(\d{3})\b`)

// httpStatus returns the status of the answer that err is about, 0 for none.
func httpStatus(err error) int {
	var unexpected docker.UnexpectedHTTPStatusError
	var unauthorized docker.ErrUnauthorizedForCredentials
	switch {
	case errors.As(err, &unexpected):
		return unexpected.StatusCode
	case errors.As(err, &unauthorized):
		return http.StatusUnauthorized
	case errors.Is(err, docker.ErrTooManyRequests):
		return http.StatusTooManyRequests
	}
	if _, status := registryCode(err); status != 0 {
		return status
	}
	if m := statusText.FindStringSubmatch(said(err)); m != nil {
		status, _ := strconv.Atoi(m[1])
		return status
	}
	return 0
}

// said is the text of err without that of the mirrors.
func said(err error) string {
	text := err.Error()
	i := strings.Index(text, "(Mirrors also failed: ")
	if i < 0 {
		return text
	}
	if j := strings.LastIndex(text, "]): "); j > i {
		return text[:i] + text[j+len("]): "):]
	}
	return text
}

func errnoRule(class result.Class, reason result.Reason, errnos ...syscall.Errno) func(error, direction) (verdict, bool) {
	return func(err error, _ direction) (verdict, bool) {
		for _, errno := range errnos {
			if errors.Is(err, errno) {
				return verdict{class: class, reason: reason}, true
			}
		}
		return verdict{}, false
	}
}

func textRule(class result.Class, reason result.Reason, texts ...string) func(error, direction) (verdict, bool) {
	return func(err error, _ direction) (verdict, bool) {
		lower := strings.ToLower(said(err))
		for _, text := range texts {
			if strings.Contains(lower, text) {
				return verdict{class: class, reason: reason}, true
			}
		}
		return verdict{}, false
	}
}

// isNetwork tells whether err came from the network: an address that was not
// found, a connection that was refused or broke, an answer that did not come.
func isNetwork(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var timeout net.Error
	var request *url.Error
	switch {
	case errors.As(err, &op), errors.As(err, &dns), errors.Is(err, net.ErrClosed),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF),
		errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH),
		errors.As(err, &timeout) && timeout.Timeout(),
		errors.As(err, &request):
		return true
	}
	return false
}

// transfer is what was being done when an error came.
type transfer struct {
	direction direction
	doing     string // such as "pushing the image"
	what      string // the image
	host      string
	// credentials says whose credentials were used.
	credentials string
}

// transferError makes the Error of a transfer.
func (e *Engine) transferError(ctx context.Context, err error, t transfer) *Error {
	var known *Error
	if errors.As(err, &known) && ctx.Err() == nil {
		return known // such as of a setting that cannot be used
	}
	v := classify(ctx, err, t.direction)
	host := t.host
	if named := requestHost(err); named != "" {
		host = named
	}
	if host != t.host && host != serviceHost(t.host) {
		t.credentials = "to which no credentials are sent, as it is not " + t.host
	}
	who := host
	var answer *distribution.Error
	if errors.As(err, &answer) && answer.TokenServer != "" {
		who = fmt.Sprintf("the token server %s of %s", answer.TokenServer, host)
	}
	doing := t.doing + " " + t.what
	if p := proxyFaultOf(err); p != nil && v.class != result.ClassInterrupted {
		return &Error{
			Reason: v.reason, Class: v.class, Host: p.host, Status: v.status, RetryAfter: v.retryAfter, Err: err,
			Message: fmt.Sprintf("%s failed: %s", doing, p.describe()),
		}
	}
	var b strings.Builder
	switch {
	case v.class == result.ClassInterrupted:
		fmt.Fprintf(&b, "stopped while %s", doing)
	case v.reason == result.ReasonPushDenied:
		fmt.Fprintf(&b, "%s denied %s", who, doing)
	case v.class == result.ClassAuth && v.status != 0:
		fmt.Fprintf(&b, "%s refused the credentials while %s", who, doing)
	case v.reason == result.ReasonRateLimited:
		fmt.Fprintf(&b, "rate limited: %s answered %s while %s", who, statusName(v.status), doing)
	case v.status != 0:
		fmt.Fprintf(&b, "%s answered %s while %s", who, statusName(v.status), doing)
	default:
		fmt.Fprintf(&b, "%s failed", doing)
	}
	if v.class == result.ClassAuth && v.status != 0 {
		fmt.Fprintf(&b, " (%d, %s)", v.status, t.credentials)
	}
	fmt.Fprintf(&b, ": %s", withoutPages(oneLine(err.Error())))
	if v.retryAfter > 0 {
		fmt.Fprintf(&b, " (it asks to come back in %v)", v.retryAfter.Round(time.Second))
	}
	switch v.reason {
	case result.ReasonSettingsInvalid:
		fmt.Fprintf(&b, ": a file in registries.d has to say use-sigstore-attachments: true for %s", t.host)
	case result.ReasonSignatureRejected:
		fmt.Fprintf(&b, " (the signature policy is %s)", e.policy)
	case result.ReasonCertificateUntrusted:
		b.WriteString(e.describeTrust(err, host))
	}
	return e.withSpace(&Error{Reason: v.reason, Class: v.class, Message: b.String(), Host: host, Status: v.status, RetryAfter: v.retryAfter, Err: err})
}

// statusName is a status with its name, where it has one.
func statusName(status int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
}

// page is the beginning of a page of HTML that containers/image quotes behind a
// status; it tells a reader nothing that the status does not.
var page = regexp.Delayed(`, "\s*<(?:[^"\\]|\\.)*"`)

func withoutPages(text string) string { return page.ReplaceAllString(text, "") }

// requestHost is the host of the request that err is about, when it names one.
func requestHost(err error) string {
	var answer *distribution.Error
	if errors.As(err, &answer) {
		return answer.Host
	}
	var request *url.Error
	if errors.As(err, &request) {
		if u, parseErr := url.Parse(request.URL); parseErr == nil {
			return u.Host
		}
	}
	return ""
}

// address finds what a URL has beside the place: who asks, and what he may.
var address = regexp.Delayed(`(https?://)(?:[^/\s"'@]*@)?([^\s"'?]*)(\?[^\s"']*)?`)

// oneLine makes one sentence of an error: white space is folded, what would steer a
// terminal is left out, and so is what a URL has beside its place, where registries
// put signatures and passwords.
func oneLine(s string) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && !unicode.IsSpace(c) {
			return -1
		}
		return c
	}, s)
	return address.ReplaceAllString(strings.Join(strings.Fields(s), " "), "$1$2")
}

// commandStatus is the exit status of the command that err is about, 0 when it
// is about none.
func commandStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	}
	return 0
}
