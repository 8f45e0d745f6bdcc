package registry

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	"github.com/distribution/distribution/v3/registry/auth"
)

// TokenAuth says to whom a token server hands out which tokens.
type TokenAuth struct {
	// PasswordFile has one user:password a line and is read anew for each request
	// for a token.
	PasswordFile string
	// Lifetime is how long a token is good for; 0 stands for five minutes. The
	// client is told in whole seconds, rounded up.
	Lifetime time.Duration
	// Grant is what users get of the actions that they ask for ("pull", "push",
	// "delete"); nil stands for all of them.
	Grant []string
	// Anonymous is the same for requests without credentials; nil turns them away.
	Anonymous []string
	// Challenge makes the registry answer 401 with insufficient_scope, as
	// distribution does, where a token was granted less than it asked for.
	// Otherwise it answers 403 DENIED. In any case it answers 401 where the token
	// did not ask.
	Challenge bool
	// CA signs the token server's certificate; nil stands for the registry's. It
	// counts only where the registry has TLS.
	CA *CA
}

// TokenServer hands out bearer tokens at /token: random strings that mean
// something to its registry alone. It has a record and faults of its own, and
// listens from the registry's New on until the test ends, whatever the registry
// does.
type TokenServer struct {
	*Server
	rules   TokenAuth
	service string

	mu     sync.Mutex
	issued map[string]token
}

type token struct {
	ends           time.Time
	asked, granted []auth.Access
}

const defaultLifetime = 5 * time.Minute

func newTokenServer(t testing.TB, rules TokenAuth, service string, secure *tls.Config, ca *CA) *TokenServer {
	t.Helper()
	if rules.Lifetime == 0 {
		rules.Lifetime = defaultLifetime
	}
	if secure != nil && rules.CA != nil {
		ca, secure = rules.CA, rules.CA.serverConfig(t)
	}
	s := &TokenServer{rules: rules, service: service, issued: make(map[string]token)}
	s.Server = newServer(t, "token server", "127.0.0.1:0", secure, ca)
	s.handler = http.HandlerFunc(s.hand)
	s.Listen()
	return s
}

// realm returns the address that clients are told. It has the name localhost
// because some clients follow no registry to another private IP address.
func (s *TokenServer) realm() string {
	return strings.Replace(s.URL(), "127.0.0.1", "localhost", 1) + "/token"
}

// Revoke makes all tokens that were handed out so far invalid.
func (s *TokenServer) Revoke() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.issued)
}

// hand answers a request for a token.
func (s *TokenServer) hand(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/token" {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		serveError(w, errcode.ErrorCodeUnsupported.WithDetail(nil))
		return
	}
	var asked []auth.Access
	for _, scopes := range r.URL.Query()["scope"] {
		for _, scope := range strings.Fields(scopes) {
			asked = append(asked, parseScope(scope)...)
		}
	}
	grant := s.rules.Anonymous
	if user, password, ok := r.BasicAuth(); ok {
		good, err := passwordOK(s.rules.PasswordFile, user, password)
		if err != nil {
			serveError(w, errcode.ErrorCodeUnknown.WithDetail(err.Error()))
			return
		}
		if !good {
			unauthorized(w, basicChallenge, asked)
			return
		}
		grant = s.rules.Grant
		if grant == nil {
			grant = []string{"*"}
		}
	} else if grant == nil {
		unauthorized(w, basicChallenge, asked)
		return
	}
	now := time.Now()
	text := rand.Text()
	s.mu.Lock()
	s.issued[text] = token{ends: now.Add(s.rules.Lifetime), asked: asked, granted: restrict(asked, grant)}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // fails only if the client is gone
		"token":        text,
		"access_token": text,
		"expires_in":   int((s.rules.Lifetime + time.Second - 1) / time.Second),
		"issued_at":    now.UTC().Format(time.RFC3339),
	})
}

// admit lets a request through that has a token with all the rights it needs.
func (s *TokenServer) admit(w http.ResponseWriter, r *http.Request, needs []auth.Access) bool {
	challenge := fmt.Sprintf("Bearer realm=%q,service=%q", s.realm(), s.service)
	if len(needs) > 0 {
		challenge += fmt.Sprintf(",scope=%q", formatScopes(needs))
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		unauthorized(w, challenge, needs)
		return false
	}
	s.mu.Lock()
	tok, known := s.issued[text]
	s.mu.Unlock()
	switch {
	case !known || time.Now().After(tok.ends):
		unauthorized(w, challenge+`,error="invalid_token"`, needs)
	case covers(tok.granted, needs):
		return true
	case covers(tok.asked, needs) && !s.rules.Challenge:
		serveError(w, errcode.ErrorCodeDenied.WithDetail(needs))
	default:
		unauthorized(w, challenge+`,error="insufficient_scope"`, needs)
	}
	return false
}

// parseScope reads type:name:action,action; it returns nil for anything else.
func parseScope(scope string) []auth.Access {
	typ, rest, _ := strings.Cut(scope, ":")
	colon := strings.LastIndex(rest, ":")
	if colon < 0 {
		return nil
	}
	var all []auth.Access
	for action := range strings.SplitSeq(rest[colon+1:], ",") {
		all = append(all, auth.Access{Resource: auth.Resource{Type: typ, Name: rest[:colon]}, Action: action})
	}
	return all
}

// formatScopes is the inverse of parseScope, with one scope for each resource.
func formatScopes(all []auth.Access) string {
	var order []auth.Resource
	actions := make(map[auth.Resource][]string)
	for _, a := range all {
		if !slices.Contains(order, a.Resource) {
			order = append(order, a.Resource)
		}
		if !slices.Contains(actions[a.Resource], a.Action) {
			actions[a.Resource] = append(actions[a.Resource], a.Action)
		}
	}
	scopes := make([]string, len(order))
	for i, resource := range order {
		scopes[i] = resource.Type + ":" + resource.Name + ":" + strings.Join(actions[resource], ",")
	}
	return strings.Join(scopes, " ")
}

// restrict returns what is left of the rights asked for when only these actions
// are granted. "*" stands for all actions on either side.
func restrict(asked []auth.Access, actions []string) []auth.Access {
	var granted []auth.Access
	for _, a := range asked {
		switch {
		case slices.Contains(actions, "*") || slices.Contains(actions, a.Action):
			granted = append(granted, a)
		case a.Action == "*":
			for _, action := range actions {
				granted = append(granted, auth.Access{Resource: a.Resource, Action: action})
			}
		}
	}
	return granted
}

// covers tells whether the rights held include all those needed.
func covers(held, needs []auth.Access) bool {
	for _, need := range needs {
		if !slices.ContainsFunc(held, func(h auth.Access) bool {
			return h.Resource == need.Resource && (h.Action == need.Action || h.Action == "*")
		}) {
			return false
		}
	}
	return true
}
