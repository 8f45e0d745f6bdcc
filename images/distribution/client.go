// Package distribution talks to one repository of a registry in the words of the
// OCI distribution specification, as far as a pull and a push need them.
//
// containers/image does so too, but what a registry says of a failure does not come
// out of it: for how long it wants to be left alone, which status an answer had,
// how many bytes it took. Here each request is made once, and what goes wrong is an
// *Error with those facts; nothing is tried again, but a download that breaks off is
// taken up where it was.
package distribution

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	digest "github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry/remote/auth"
)

// Options say how a repository is reached.
type Options struct {
	// Host is the registry, with its port; Repository the name within it.
	Host, Repository string
	// TLS is the configuration for https.
	TLS *tls.Config
	// PlainHTTP allows http where https does not answer.
	PlainHTTP bool
	// User and Password, or IdentityToken, are the credentials; all empty for none.
	User, Password, IdentityToken string
	UserAgent                     string
	// ReadOnly asks a token server for a token that is good for pulls alone.
	ReadOnly bool
	// Namespace is the registry that a mirror stands for and wants to be told of, as
	// containerd does (namespace-proxy in containers-registries.conf(5)); else empty.
	Namespace string
	// Proxy finds the proxy for a request; nil uses none.
	Proxy func(*http.Request) (*url.URL, error)
	// Stall is how long a transfer may make no progress; 0 for ever.
	Stall time.Duration
}

// Client is a connection to one repository. It is safe for concurrent use.
type Client struct {
	options Options
	auth    *auth.Client
	base    url.URL // scheme and host
	sent    atomic.Int64
}

// idleConnections is how many connections are kept for the requests to come: of the blobs
// of an image, six are asked for at once (Engine.ImageParallelCopies in containers.conf(5)),
// and Go's two would have the others connect anew each time.
const idleConnections = 8

// uploaded are the statuses that say that something was taken: each has its own in
// the specification, but registries differ.
var uploaded = []int{http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent}

// ErrStalled is the cause of a transfer that made no progress for Options.Stall.
var ErrStalled = errors.New("the transfer made no progress")

// Connect finds out whether the registry speaks https or http. The error is an
// *Error, or one of the network.
func Connect(ctx context.Context, o Options) (*Client, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = o.TLS
	transport.Proxy = o.Proxy
	transport.OnProxyConnectResponse = refusedByProxy
	transport.MaxIdleConnsPerHost = idleConnections
	transport.DialContext = (&net.Dialer{Timeout: dialTime, Control: sendSteadily}).DialContext
	c := &Client{options: o}
	c.auth = &auth.Client{
		Client: &http.Client{Transport: answers{transport}},
		Header: http.Header{"User-Agent": {o.UserAgent}},
		Cache:  auth.NewCache(),

		BlockedRealmPrefixes: blockedRealms(ctx, o.Host),
		Credential: func(_ context.Context, host string) (auth.Credential, error) {
			if host != o.Host { // such as a store that an upload goes to
				return auth.EmptyCredential, nil
			}
			return auth.Credential{Username: o.User, Password: o.Password, RefreshToken: o.IdentityToken}, nil
		},
	}
	answer, err := c.ping(ctx, "https")
	if err != nil && o.PlainHTTP {
		plain, plainErr := c.ping(ctx, "http")
		switch {
		case ofProxy(err) && (plainErr != nil || plain.StatusCode == http.StatusProxyAuthRequired):
		case plainErr != nil:
			err = plainErr
		case plain.StatusCode == http.StatusProxyAuthRequired:
			err = answerError(plain, nil)
		case plain.StatusCode != http.StatusBadRequest: // with which a server of https answers http
			answer, err = plain, nil
		}
	}
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode >= http.StatusInternalServerError || answer.StatusCode == http.StatusTooManyRequests:
		return nil, answerError(answer, nil)
	}
	c.base = url.URL{Scheme: answer.Request.URL.Scheme, Host: o.Host}
	return c, nil
}

// ofProxy tells whether a request came no further than to a proxy.
func ofProxy(err error) bool {
	var answer *Error
	var op *net.OpError
	return errors.As(err, &answer) && answer.Method == http.MethodConnect || errors.As(err, &op) && op.Op == "proxyconnect"
}

// ping asks whether there is a registry. The body of the answer is closed.
func (c *Client) ping(ctx context.Context, scheme string) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := c.watch(cancel)
	defer watch.stop()
	target := url.URL{Scheme: scheme, Host: c.options.Host, Path: "/v2/"}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", c.options.UserAgent)
	resp, err := c.auth.Client.Do(req)
	if err != nil {
		if errors.Is(context.Cause(ctx), ErrStalled) {
			return nil, requestError(ctx, http.MethodGet, target.String(), err)
		}
		return nil, err
	}
	return resp, resp.Body.Close()
}

// blockedRealms are networks in which no token server may be, so that a registry
// cannot have credentials sent to the metadata service of a cloud, for example:
// those that the library names, but not one that the registry itself is in.
func blockedRealms(ctx context.Context, host string) []netip.Prefix {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return auth.DefaultBlockedRealmPrefixes() // who has no address will not be reached
	}
	return slices.DeleteFunc(auth.DefaultBlockedRealmPrefixes(), func(p netip.Prefix) bool {
		return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return p.Contains(a.Unmap()) })
	})
}

// Close closes idle connections.
func (c *Client) Close() { c.auth.Client.CloseIdleConnections() }

// Sent is how many bytes of blobs and manifests were sent.
func (c *Client) Sent() int64 { return c.sent.Load() }

// url returns the URL of something in the repository.
func (c *Client) url(path string) string {
	target := c.base.String() + "/v2/" + c.options.Repository + path
	if c.options.Namespace != "" {
		target += "?" + url.Values{"ns": {c.options.Namespace}}.Encode()
	}
	return target
}

// do makes one request and returns the answer when it has one of the statuses.
func (c *Client) do(ctx context.Context, method, target string, header http.Header, body io.Reader, size int64, accepted ...int) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watch := c.watch(cancel)
	ctx, wish := withWish(ctx)
	actions := []string{auth.ActionPull, auth.ActionPush}
	if c.options.ReadOnly {
		actions = actions[:1]
	}
	ctx = auth.WithScopesForHost(ctx, c.options.Host, auth.ScopeRepository(c.options.Repository, actions...))
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	if body != nil {
		metered := &meteredReader{reader: body, client: c, watch: watch}
		req.Body, req.GetBody, req.ContentLength = io.NopCloser(metered), metered.again, size
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := c.auth.Do(req)
	if err != nil {
		watch.stop()
		err = requestError(ctx, method, target, err)
		var refused *Error
		if errors.As(err, &refused) && refused.RetryAfter == 0 {
			refused.RetryAfter = wish.retryAfter
		}
		cancel(nil)
		return nil, err
	}
	watch.stop()
	resp.Body = &answerBody{ReadCloser: resp.Body, ctx: ctx, watch: watch, cancel: cancel}
	for _, status := range accepted {
		if resp.StatusCode == status {
			return resp, nil
		}
	}
	defer resp.Body.Close()
	// The status is what counts: the rest is not waited for.
	defer time.AfterFunc(answerTime, func() { _ = resp.Body.Close() }).Stop()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return nil, answerError(resp, text)
}

// location is where an answer says to go on. A registry behind a proxy that speaks
// https for it may say http, which is not followed, and one may name the port that
// goes without saying: it is the registry all the same, and gets its credentials.
func (c *Client) location(resp *http.Response) (*url.URL, error) {
	target, err := resp.Location()
	if err != nil {
		return nil, err
	}
	if target.Host == c.base.Host && c.base.Scheme == "https" {
		target.Scheme = c.base.Scheme
	}
	if target.Scheme == c.base.Scheme && target.Hostname() == c.base.Hostname() && port(target) == port(&c.base) {
		target.Host = c.base.Host
	}
	return target, nil
}

// port is the port of a URL, also where it goes without saying.
func port(u *url.URL) string {
	if u.Scheme == "https" {
		return cmp.Or(u.Port(), "443")
	}
	return cmp.Or(u.Port(), "80")
}

// HasBlob tells whether the repository has a blob, and its size in bytes.
func (c *Client) HasBlob(ctx context.Context, d digest.Digest) (size int64, ok bool, err error) {
	resp, err := c.do(ctx, http.MethodHead, c.url("/blobs/"+d.String()), nil, nil, 0, http.StatusOK, http.StatusNotFound)
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	return resp.ContentLength, resp.StatusCode == http.StatusOK, nil
}

// Mount asks the registry to take a blob over from another of its repositories.
// A registry that does not begins an upload instead, which is given up.
func (c *Client) Mount(ctx context.Context, d digest.Digest, from string) (ok bool, err error) {
	query := url.Values{"mount": {d.String()}, "from": {from}}
	resp, err := c.do(ctx, http.MethodPost, c.url("/blobs/uploads/?"+query.Encode()), nil, nil, 0, http.StatusCreated, http.StatusAccepted)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusCreated {
		return true, nil
	}
	c.abandon(ctx, resp)
	return false, nil
}

// ErrWrongDigest is the error of an upload of a blob that is not the one it should be.
var ErrWrongDigest = errors.New("the digest did not match")

// PutBlob uploads a blob of size bytes, -1 when that is not known, and returns its
// digest and size; with an error, how much of it was sent. An upload of a blob whose
// digest is not the wanted one, where one is wanted, is given up with ErrWrongDigest.
func (c *Client) PutBlob(ctx context.Context, blob io.Reader, want digest.Digest, size int64) (digest.Digest, int64, error) {
	resp, err := c.do(ctx, http.MethodPost, c.url("/blobs/uploads/"), nil, nil, 0, http.StatusAccepted)
	if err != nil {
		return "", 0, err
	}
	_ = resp.Body.Close()
	target, err := c.location(resp)
	if err != nil {
		return "", 0, fmt.Errorf("the registry began an upload without saying where: %w", err)
	}
	algorithm := digest.Canonical
	if want != "" {
		algorithm = want.Algorithm()
	}
	if !algorithm.Available() {
		return "", 0, fmt.Errorf("%w: there is no way to make %s", ErrWrongDigest, want)
	}
	digester := algorithm.Digester()
	counted := &counter{}
	stream := io.TeeReader(blob, io.MultiWriter(digester.Hash(), counted))
	header := http.Header{"Content-Type": {"application/octet-stream"}}
	// A token that ended just now is noticed before the stream, which cannot be sent
	// again, is touched.
	waiting := http.Header{"Content-Type": {"application/octet-stream"}, "Expect": {"100-continue"}}
	resp, err = c.do(ctx, http.MethodPatch, target.String(), waiting, stream, size, uploaded...)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusExpectationFailed && counted.n == 0 {
		resp, err = c.do(ctx, http.MethodPatch, target.String(), header, stream, size, uploaded...)
	}
	if err != nil {
		return "", counted.n, lostUpload(err)
	}
	_ = resp.Body.Close()
	got := digester.Digest()
	if want != "" && got != want {
		c.abandon(ctx, resp)
		return "", counted.n, fmt.Errorf("%w: what was to be sent as %s is %s", ErrWrongDigest, want, got)
	}
	if next, err := c.location(resp); err == nil {
		target = next
	}
	query := target.Query()
	query.Set("digest", got.String())
	target.RawQuery = query.Encode()
	if resp, err = c.do(ctx, http.MethodPut, target.String(), header, nil, 0, uploaded...); err != nil {
		return "", counted.n, lostUpload(err)
	}
	return got, counted.n, resp.Body.Close()
}

// lostUpload gives an answer that means that an upload is not known any more, and
// does not say so in the words of the specification, the code that does.
func lostUpload(err error) error {
	var answer *Error
	if errors.As(err, &answer) && answer.Code == "" &&
		(answer.Status == http.StatusNotFound || answer.Status == http.StatusRequestedRangeNotSatisfiable) {
		answer.Code = "BLOB_UPLOAD_UNKNOWN"
	}
	return err
}

// PutManifest puts a manifest under a tag or digest.
func (c *Client) PutManifest(ctx context.Context, reference, mediaType string, manifest []byte) error {
	header := http.Header{"Content-Type": {mediaType}}
	resp, err := c.do(ctx, http.MethodPut, c.url("/manifests/"+reference), header, strings.NewReader(string(manifest)), int64(len(manifest)), uploaded...)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ManifestDigest asks for the digest of what is under a tag or digest; it is empty
// when there is nothing.
func (c *Client) ManifestDigest(ctx context.Context, reference string, accept []string) (digest.Digest, error) {
	resp, err := c.do(ctx, http.MethodHead, c.url("/manifests/"+reference), http.Header{"Accept": accept}, nil, 0, http.StatusOK, http.StatusNotFound, http.StatusMethodNotAllowed)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return "", nil
	}
	if d := digest.Digest(resp.Header.Get("Docker-Content-Digest")); d.Validate() == nil {
		return d, nil
	}
	// The header is optional (OCI distribution specification, "Pulling manifests"), some
	// write what is no digest, and some take no HEAD.
	_, text, err := c.Manifest(ctx, reference, accept)
	switch {
	case IsNotFound(err):
		return "", nil
	case err != nil:
		return "", err
	}
	return digest.FromBytes(text), nil
}

// Manifest returns what is under a tag or digest, and the Content-Type that it was
// sent with. When there is nothing, IsNotFound is true of the error.
func (c *Client) Manifest(ctx context.Context, reference string, accept []string) (contentType string, manifest []byte, err error) {
	resp, err := c.do(ctx, http.MethodGet, c.url("/manifests/"+reference), http.Header{"Accept": accept}, nil, 0, http.StatusOK)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	manifest, err = io.ReadAll(io.LimitReader(resp.Body, maxManifest+1))
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("reading the manifest %s from %s: %w", reference, c.options.Host, err)
	case len(manifest) > maxManifest:
		return "", nil, fmt.Errorf("the manifest %s of %s has more than %d bytes", reference, c.options.Host, maxManifest)
	}
	return resp.Header.Get("Content-Type"), manifest, nil
}

// CheckPush finds out whether a push would be let in: it begins an upload, as the
// push will, and gives it up.
func (c *Client) CheckPush(ctx context.Context) error {
	resp, err := c.do(ctx, http.MethodPost, c.url("/blobs/uploads/"), nil, nil, 0, http.StatusAccepted, http.StatusCreated)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	c.abandon(ctx, resp)
	return nil
}

// abandon ends an upload that was begun. What is left of one that is not ended a
// registry collects by itself.
func (c *Client) abandon(ctx context.Context, begun *http.Response) {
	target, err := c.location(begun)
	if err != nil {
		return
	}
	if resp, err := c.do(ctx, http.MethodDelete, target.String(), nil, nil, 0, http.StatusNoContent, http.StatusOK, http.StatusAccepted); err == nil {
		_ = resp.Body.Close()
	}
}

// maxManifest is the size in bytes that registries must take a manifest of (OCI
// distribution specification, "Pushing manifests"); a larger one is not read.
const maxManifest = 4 << 20
