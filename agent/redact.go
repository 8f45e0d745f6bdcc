package agent

import (
	"encoding/base64"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// redacted stands where a secret was.
const redacted = "[redacted]"

// minSecret is the length in bytes below which a string is not taken for a
// secret: replacing every "a" would hide the text, not the password.
const minSecret = 3

// maxToken is the length in bytes up to which a token, with the name of its scheme,
// is hidden also in a line that is written in parts.
const maxToken = 8 << 10

// redactor removes secrets from text: those that it knows, and what a header that
// authorizes holds, since registries echo these and issue tokens that nobody else
// has seen. Everything that leaves the program
// as text passes through one: lines of the log and of RUN steps, and the Result.
type redactor struct {
	mu      sync.RWMutex
	secrets []string // longest first, so that no part of a longer one is left
}

// newRedactor knows the passwords in the proxies that the environment names.
func newRedactor() *redactor {
	r := &redactor{}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY"} {
		r.addProxy(os.Getenv(name))
		r.addProxy(os.Getenv(strings.ToLower(name)))
	}
	return r
}

// addProxy makes the user information of a proxy's URL known: the password, as it
// is written and as it is meant, and what a client sends in a header; the user
// alone where there is no password, since then it is a token. The text is taken
// apart by hand, as it need not be a URL that can be parsed.
func (r *redactor) addProxy(proxy string) {
	if _, rest, ok := strings.Cut(proxy, "://"); ok {
		proxy = rest
	}
	at := strings.LastIndexByte(proxy, '@')
	if at < 0 {
		return
	}
	user, password, ok := strings.Cut(proxy[:at], ":")
	if !ok {
		r.add(user, unescaped(user))
		return
	}
	if password != "" {
		r.add(password, unescaped(password), user+":"+password, unescaped(user)+":"+unescaped(password))
	}
}

func unescaped(s string) string {
	if text, err := url.PathUnescape(s); err == nil {
		return text
	}
	return s
}

// add makes secrets known, their base64, and how they look on one line, where white
// space is folded.
func (r *redactor) add(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range secrets {
		if len(s) < minSecret || slices.Contains(r.secrets, s) {
			continue
		}
		r.secrets = append(r.secrets, s, base64.StdEncoding.EncodeToString([]byte(s)))
		if folded := strings.Join(strings.Fields(s), " "); len(folded) >= minSecret && !slices.Contains(r.secrets, folded) {
			r.secrets = append(r.secrets, folded)
		}
	}
	slices.SortFunc(r.secrets, func(a, b string) int { return len(b) - len(a) })
}

// longest is the length in bytes of the longest text that is hidden.
func (r *redactor) longest() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.secrets) == 0 {
		return maxToken
	}
	return max(len(r.secrets[0]), maxToken)
}

// text returns s without secrets. What is left of a secret in a text that was cut
// counts as one, too.
func (r *redactor) text(s string) string {
	s = r.begun(s)
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, secret := range r.secrets {
		s = withoutPieces(s, secret)
	}
	return s
}

// begun returns a text that may go on without its secrets; its end may be the
// beginning of one and stays as it is.
func (r *redactor) begun(s string) string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, secret := range r.secrets {
		if strings.Contains(s, secret) {
			s = strings.ReplaceAll(s, secret, redacted)
		}
	}
	return withoutCredentials(s)
}

// minPiece is the length in bytes from which the beginning or the end of a secret
// is hidden where a text was cut: shorter ones are in many words.
const minPiece = 6

// cutMarks are what stands where text was left out.
var cutMarks = regexp.MustCompile(`…|\.\.\.`)

// withoutPieces hides what is left of a secret that was cut: its beginning before a
// mark or at the end of the text, and its end behind a mark.
func withoutPieces(s, secret string) string {
	if len(secret) <= minPiece || !strings.Contains(s, secret[:minPiece]) && !strings.Contains(s, secret[len(secret)-minPiece:]) {
		return s
	}
	var b strings.Builder
	from := 0
	for _, mark := range append(cutMarks.FindAllStringIndex(s, -1), []int{len(s), len(s)}) {
		piece := s[from:mark[0]]
		if from > 0 {
			piece = withoutEnd(piece, secret)
		}
		b.WriteString(withoutBeginning(piece, secret) + s[mark[0]:mark[1]])
		from = mark[1]
	}
	return b.String()
}

// withoutBeginning hides the longest beginning of the secret with which s ends.
func withoutBeginning(s, secret string) string {
	text := strings.TrimRight(s, " ")
	for at := max(len(text)-len(secret), 0); ; at++ {
		next := strings.Index(text[at:], secret[:minPiece])
		if next < 0 {
			return s
		}
		if at += next; strings.HasPrefix(secret, text[at:]) {
			return text[:at] + redacted + s[len(text):]
		}
	}
}

// withoutEnd hides the longest end of the secret with which s begins.
func withoutEnd(s, secret string) string {
	text := strings.TrimLeft(s, " ")
	for end := min(len(text), len(secret)); ; end-- {
		last := strings.LastIndex(text[:end], secret[len(secret)-minPiece:])
		if last < 0 {
			return s
		}
		if end = last + minPiece; strings.HasSuffix(secret, text[:end]) {
			return s[:len(s)-len(text)] + redacted + text[end:]
		}
	}
}

// What a header that authorizes holds, and what a scheme alone is followed by. A text
// may pass through here again, with more of a credential behind what was hidden.
var (
	headerScheme     = regexp.MustCompile(`(?i)(authorization["'\\]*\s*[:=]\s*["'\\\[]*(?:bearer|basic|digest|negotiate|token)\s+)(?:\[redacted\]|[^\s"'\\<>,;)\]}\[$])(?:\[redacted\]|[^\s"'\\<>,;)\]}\[])*`)
	headerCredential = regexp.MustCompile(`(?i)(authorization["'\\]*\s*[:=]\s*["'\\]*)(?:\[redacted\]|\[?[a-z0-9._~+/=-]{8,})+`)
	schemeCredential = regexp.MustCompile(`(?i)(\b(?:bearer|basic)(?:\s+|%20|["'\\]*\s*[:=]\s*["'\\]*))((?:\[redacted\])*)([a-z0-9._~+/=-]+)`)
)

// withoutCredentials hides what authorizes a request, whoever issued it.
func withoutCredentials(s string) string {
	lower := strings.ToLower(s)
	if strings.Contains(lower, "authorization") {
		s = headerScheme.ReplaceAllString(s, "${1}"+redacted)
		s = headerCredential.ReplaceAllString(s, "${1}"+redacted)
	}
	if strings.Contains(lower, "bearer") || strings.Contains(lower, "basic") {
		s = schemeCredential.ReplaceAllStringFunc(s, func(found string) string {
			part := schemeCredential.FindStringSubmatch(found)
			if part[2] == "" && !looksLikeToken(part[3]) {
				return found
			}
			return part[1] + redacted
		})
	}
	return s
}

// looksLikeToken tells a token from the prose that follows a word such as "basic":
// it is long, and has a digit or a capital letter within.
func looksLikeToken(s string) bool {
	const minToken = 16
	return len(s) >= minToken && (strings.ContainsAny(s, "0123456789") || strings.ToLower(s[1:]) != s[1:])
}
