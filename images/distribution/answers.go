package distribution

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.podman.io/storage/pkg/regexp"
)

// wish is for how long a server asked to be left alone while a request was made,
// which the error of a token server does not tell.
type wish struct{ retryAfter time.Duration }

type wishKey struct{}

func withWish(ctx context.Context) (context.Context, *wish) {
	w := &wish{}
	return context.WithValue(ctx, wishKey{}, w), w
}

// answers makes requests and reads of the answers what the client that authenticates
// does not: Retry-After, and challenges beside the first.
type answers struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := a.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if w, ok := req.Context().Value(wishKey{}).(*wish); ok && resp.StatusCode >= http.StatusBadRequest {
		w.retryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	}
	if challenges := resp.Header.Values("Www-Authenticate"); len(challenges) > 0 {
		resp.Header.Set("Www-Authenticate", challenge(strings.Join(challenges, ", ")))
	}
	return resp, nil
}

// scheme finds where a challenge begins that can be answered.
var scheme = regexp.Delayed(`(?i)(?:^|,\s*)(bearer|basic)\s`)

// challenge returns of several challenges (RFC 9110, section 11.6.1) the one that can
// be answered: that of a token server rather than one for a password.
func challenge(all string) string {
	best := all
	found := scheme.FindAllStringSubmatchIndex(all, -1)
	for i, at := range found {
		end := len(all)
		if i+1 < len(found) {
			end = found[i+1][0]
		}
		best = all[at[2]:end]
		if strings.EqualFold(all[at[2]:at[3]], "bearer") {
			break
		}
	}
	return best
}
