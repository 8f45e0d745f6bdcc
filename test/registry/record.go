package registry

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Request is what happened to one request.
type Request struct {
	// Time is when it arrived; Took how long it was handled, 0 while it still is.
	Time time.Time
	Took time.Duration

	Method, Path, Query string

	// Auth is the kind of credentials that came along: "basic", "bearer",
	// "other", or "" for none. The credentials themselves are not kept.
	Auth string
	// Header is the header as it arrived (Range, User-Agent, Content-Range and
	// so on), less the credentials.
	Header http.Header

	// Status is the status that was answered, 0 if none was.
	Status int
	// Received is how many bytes of the request's body were read, Sent how many
	// bytes of body the reply got.
	Received, Sent int64
	// Cut tells that a fault reset the connection.
	Cut bool
}

// String returns a line for messages of tests. It leaves out distribution's long
// state of uploads.
func (r Request) String() string {
	target := r.Path
	if query, err := url.ParseQuery(r.Query); err == nil && r.Query != "" {
		query.Del("_state")
		target += "?" + query.Encode()
	}
	end := strconv.Itoa(r.Status)
	if r.Cut {
		end += " cut"
	}
	return fmt.Sprintf("%s %s -> %s (received %d, sent %d)", r.Method, target, end, r.Received, r.Sent)
}

// record is a Request in the making, guarded by its server's mu.
type record struct{ Request }

// Requests returns the requests since the start or the last Reset, in the order
// in which they arrived, those that are still being handled included.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Request, len(s.records))
	for i, rec := range s.records {
		all[i] = rec.Request
	}
	return all
}

// Count returns how many of the Requests have the method ("" stands for any) and
// a path that the regular expression matches somewhere.
func (s *Server) Count(method, path string) int {
	re := regexp.MustCompile(path)
	n := 0
	for _, r := range s.Requests() {
		if (method == "" || method == r.Method) && re.MatchString(r.Path) {
			n++
		}
	}
	return n
}

// Totals returns how many bytes of bodies all the Requests received and sent.
func (s *Server) Totals() (received, sent int64) {
	for _, r := range s.Requests() {
		received += r.Received
		sent += r.Sent
	}
	return received, sent
}

// Reset forgets the Requests. Faults and their counts stay.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = nil
}

func (s *Server) arrived(r *http.Request) *record {
	rec := &record{Request{
		Time:   time.Now(),
		Method: r.Method,
		Path:   r.URL.Path,
		Query:  r.URL.RawQuery,
		Auth:   authKind(r),
		Header: r.Header.Clone(),
	}}
	for _, secret := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
		rec.Header.Del(secret)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, rec)
	return rec
}

func authKind(r *http.Request) string {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch kind := strings.ToLower(scheme); kind {
	case "", "basic", "bearer":
		return kind
	}
	return "other"
}

func (x *exchange) note(change func(*Request)) {
	x.server.mu.Lock()
	defer x.server.mu.Unlock()
	change(&x.record.Request)
}

func (x *exchange) replied(status int) {
	x.note(func(r *Request) {
		if r.Status == 0 {
			r.Status = status
		}
	})
}

func (x *exchange) sent(n int) {
	if !x.head {
		x.note(func(r *Request) { r.Sent += int64(n) })
	}
}

func (x *exchange) received(n int) { x.note(func(r *Request) { r.Received += int64(n) }) }

func (x *exchange) wasCut() { x.note(func(r *Request) { r.Cut = true }) }

func (x *exchange) end() {
	x.note(func(r *Request) { r.Took = max(time.Since(r.Time), 1) })
}
