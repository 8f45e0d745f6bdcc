package registry

import (
	"net/http"
	"regexp"
	"slices"
)

// Rule says which requests go wrong, and how.
type Rule struct {
	// Method is the request's method; "" stands for any.
	Method string
	// Path is a regular expression that has to match somewhere in the URL's path;
	// "" stands for any path.
	Path string
	// When, if set, has to accept the request as well. It must not change it.
	When func(*http.Request) bool
	// From and To are the first and the last of the matching requests that go
	// wrong, counted from 1. From 0 stands for 1, To 0 for no end.
	From, To int
	// Do is what happens to them.
	Do Action
}

// Fault is a Rule in force.
type Fault struct {
	server *Server
	rule   Rule
	path   *regexp.Regexp

	seen, fired int // guarded by server.mu
}

// Fault puts a rule in force from the next request on. If a request meets
// several rules, they act one inside the other, the oldest outermost; one that
// does not pass the request on keeps it from the younger ones, which count it
// all the same.
func (s *Server) Fault(rule Rule) *Fault {
	s.t.Helper()
	path, err := regexp.Compile(rule.Path)
	if err != nil {
		s.t.Fatalf("%s: path of a fault: %v", s.what, err)
	}
	if rule.Do == nil {
		s.t.Fatalf("%s: a fault without an action", s.what)
	}
	if reply, ok := rule.Do.(Reply); ok && reply.Status < http.StatusOK {
		s.t.Fatalf("%s: a fault that replies with status %d", s.what, reply.Status)
	}
	f := &Fault{server: s, rule: rule, path: path}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return f
}

// ClearFaults removes all faults.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Remove ends the rule. Requests that it already holds stay with it.
func (f *Fault) Remove() {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.faults = slices.DeleteFunc(f.server.faults, func(other *Fault) bool { return other == f })
}

// Seen returns how many requests have matched the rule, in its range or not.
func (f *Fault) Seen() int {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	return f.seen
}

// Fired returns on how many requests the rule has acted.
func (f *Fault) Fired() int {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	return f.fired
}

// met returns the faults that are to act on a request, and counts it.
func (s *Server) met(r *http.Request) []*Fault {
	s.mu.Lock()
	matching := slices.Clone(s.faults)
	s.mu.Unlock()
	matching = slices.DeleteFunc(matching, func(f *Fault) bool { return !f.matches(r) })
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(matching, func(f *Fault) bool {
		f.seen++
		return f.seen < f.rule.From || f.rule.To > 0 && f.seen > f.rule.To
	})
}

func (f *Fault) matches(r *http.Request) bool {
	return (f.rule.Method == "" || f.rule.Method == r.Method) &&
		f.path.MatchString(r.URL.Path) &&
		(f.rule.When == nil || f.rule.When(r))
}

func (f *Fault) fire() {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.fired++
}
