package registry_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/strata-build/strata/test/registry"
)

func passwordFile(t *testing.T, lines string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "passwords")
	writePasswords(t, file, lines)
	return file
}

func writePasswords(t *testing.T, file, lines string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
}

func as(user, password string) remote.Option {
	return remote.WithAuth(&authn.Basic{Username: user, Password: password})
}

// getAs sends a GET with user and password, or without if the user is "".
func getAs(t *testing.T, c *http.Client, url, user, password string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		req.SetBasicAuth(user, password)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func TestTLS(t *testing.T) {
	r := registry.Start(t, registry.WithTLS())
	wantContains(t, r.URL(), "https://127.0.0.1:")

	_, err := try(t, &http.Client{}, http.MethodGet, r.URL()+"/v2/", nil)
	if unknown := new(x509.UnknownAuthorityError); !errors.As(err, unknown) {
		t.Errorf("error %v, want an unknown authority", err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	r.CA().WriteFile(t, file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode(text)
	if block == nil || len(rest) > 0 {
		t.Fatalf("the file is not one PEM block: %s", text)
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if ca.Subject.CommonName != registry.CAName || !ca.IsCA {
		t.Errorf("the authority is %s", ca.Subject)
	}
	eager := r.Transport()
	eager.ForceAttemptHTTP2 = true
	res := send(t, &http.Client{Transport: eager}, http.MethodGet, r.URL()+"/v2/", nil)
	wantStatus(t, res, http.StatusOK)
	if res.ProtoMajor != 1 {
		t.Errorf("the registry speaks %s", res.Proto)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	for _, host := range []string{"127.0.0.1", "::1", "localhost"} {
		if _, err := res.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: host}); err != nil {
			t.Errorf("the certificate is not good for %s: %v", host, err)
		}
	}
	if _, err := res.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: "example.com"}); err == nil {
		t.Error("the certificate is good for any name")
	}

	img := randomImage(t)
	push(t, r, "app:1", img)
	if got := r.Digest(t, "app", "1"); got != imageDigest(t, img) {
		t.Errorf("digest %s, want %s", got, imageDigest(t, img))
	}
	other := registry.Start(t, registry.WithTLS())
	if _, err := try(t, r.Client(), http.MethodGet, other.URL()+"/v2/", nil); err == nil {
		t.Error("one registry's authority signed for another")
	}
}

func TestSharedCA(t *testing.T) {
	ca := registry.NewCA(t)
	one, two := registry.Start(t, registry.WithCA(ca)), registry.Start(t, registry.WithCA(ca))
	c := one.Client()
	for _, r := range []*registry.Registry{one, two} {
		wantStatus(t, send(t, c, http.MethodGet, r.URL()+"/v2/", nil), http.StatusOK)
	}
	if two.CA() != ca {
		t.Error("the registry has another authority")
	}
	if plain := registry.New(t); plain.CA() != nil {
		t.Error("a registry of plain HTTP has an authority")
	}
}

func TestBasicAuth(t *testing.T) {
	file := passwordFile(t, "alice:one\nbob:with:colon\n")
	r := registry.Start(t, registry.WithBasicAuth(file))
	c := r.Client()
	for _, no := range [][2]string{{"", ""}, {"alice", "two"}, {"alice", ""}, {"carol", "one"}, {"alice:one", ""}} {
		res := getAs(t, c, r.URL()+"/v2/", no[0], no[1])
		wantStatus(t, res, http.StatusUnauthorized)
		wantContains(t, res.Header.Get("WWW-Authenticate"), `Basic realm="`)
		wantContains(t, string(read(t, res)), `"code":"UNAUTHORIZED"`)
	}
	wantStatus(t, getAs(t, c, r.URL()+"/v2/", "alice", "one"), http.StatusOK)
	wantStatus(t, getAs(t, c, r.URL()+"/v2/", "bob", "with:colon"), http.StatusOK)

	writePasswords(t, file, "alice:new")
	wantStatus(t, getAs(t, c, r.URL()+"/v2/", "alice", "one"), http.StatusUnauthorized)
	wantStatus(t, getAs(t, c, r.URL()+"/v2/", "alice", "new"), http.StatusOK)

	img := randomImage(t)
	push(t, r, "app:1", img, as("alice", "new"))
	if got := r.Digest(t, "app", "1"); got != imageDigest(t, img) {
		t.Errorf("digest %s, want %s", got, imageDigest(t, img))
	}
	_, err := remote.Head(reference(t, r, "app:1"), from(r, as("alice", "one"))...)
	wantCode(t, err, http.StatusUnauthorized)

	r.Fault(registry.Rule{Do: registry.Reply{Status: http.StatusBadGateway}})
	wantStatus(t, getAs(t, c, r.URL()+"/v2/", "", ""), http.StatusBadGateway) // faults come first
	r.ClearFaults()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, getAs(t, c, r.URL()+"/v2/", "alice", "new"), http.StatusInternalServerError)
}

func wantCode(t *testing.T, err error, status int) {
	t.Helper()
	failure := new(transport.Error)
	if !errors.As(err, &failure) || failure.StatusCode != status {
		t.Fatalf("error %v, want status %d", err, status)
	}
}

// askToken asks the token server and returns the token.
func askToken(t *testing.T, r *registry.Registry, query, user, password string) string {
	t.Helper()
	res := getAs(t, r.Tokens().Client(), r.Tokens().URL()+"/token"+query, user, password)
	wantStatus(t, res, http.StatusOK)
	var reply struct {
		Token       string
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"`
	}
	if err := json.Unmarshal(read(t, res), &reply); err != nil {
		t.Fatal(err)
	}
	if reply.Token == "" || reply.Token != reply.AccessToken || reply.ExpiresIn < 1 {
		t.Fatalf("the token server replied %+v", reply)
	}
	return reply.Token
}

func useToken(t *testing.T, r *registry.Registry, method, path, token string) *http.Response {
	t.Helper()
	return send(t, r.Client(), method, r.URL()+path, nil, "Authorization", "Bearer "+token)
}

func TestTokenAuth(t *testing.T) {
	for name, opts := range map[string][]registry.Option{"plain": nil, "tls": {registry.WithTLS()}} {
		t.Run(name, func(t *testing.T) {
			file := passwordFile(t, "alice:one\n")
			r := registry.Start(t, append(opts, registry.WithTokenAuth(registry.TokenAuth{PasswordFile: file}))...)

			res := send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil)
			wantStatus(t, res, http.StatusUnauthorized)
			wantContains(t, res.Header.Get("WWW-Authenticate"), `Bearer realm="`+strings.Replace(r.Tokens().URL(), "127.0.0.1", "localhost", 1)+`/token"`, `service="`+r.Host()+`"`)
			wantContains(t, string(read(t, res)), `"code":"UNAUTHORIZED"`)
			res = getAs(t, r.Client(), r.URL()+"/v2/app/tags/list", "alice", "one") // no way in
			wantStatus(t, res, http.StatusUnauthorized)
			wantContains(t, res.Header.Get("WWW-Authenticate"), `scope="repository:app:pull"`)

			for _, no := range [][2]string{{"", ""}, {"alice", "two"}} {
				wantStatus(t, getAs(t, r.Tokens().Client(), r.Tokens().URL()+"/token", no[0], no[1]), http.StatusUnauthorized)
			}
			wantStatus(t, send(t, r.Tokens().Client(), http.MethodPost, r.Tokens().URL()+"/token", nil), http.StatusMethodNotAllowed)
			wantStatus(t, send(t, r.Tokens().Client(), http.MethodGet, r.Tokens().URL()+"/else", nil), http.StatusNotFound)

			token := askToken(t, r, "", "alice", "one")
			wantStatus(t, useToken(t, r, http.MethodGet, "/v2/", token), http.StatusOK)
			res = useToken(t, r, http.MethodGet, "/v2/", "made-up")
			wantStatus(t, res, http.StatusUnauthorized)
			wantContains(t, res.Header.Get("WWW-Authenticate"), `error="invalid_token"`)

			img := randomImage(t)
			push(t, r, "some/app:1", img, as("alice", "one"))
			if got := r.Digest(t, "some/app", "1"); got != imageDigest(t, img) {
				t.Errorf("digest %s, want %s", got, imageDigest(t, img))
			}
			pulled, err := remote.Image(reference(t, r, "some/app:1"), from(r, as("alice", "one"))...)
			if err != nil {
				t.Fatal(err)
			}
			if err := readLayers(pulled); err != nil {
				t.Error(err)
			}
			writePasswords(t, file, "alice:new\n")
			_, err = remote.Head(reference(t, r, "some/app:1"), from(r, as("alice", "one"))...)
			wantCode(t, err, http.StatusUnauthorized)
		})
	}
}

func TestTokenScopes(t *testing.T) {
	r := registry.Start(t, registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwordFile(t, "alice:one\n")}))
	push(t, r, "app:1", randomImage(t), as("alice", "one"))
	blob := content(10)
	seed(t, r, "else", blob)
	pull := askToken(t, r, "?scope=repository:app:pull", "alice", "one")
	both := askToken(t, r, "?scope=repository:app:pull,push&scope=repository:third:pull", "alice", "one")
	mount := askToken(t, r, "?scope=repository:app:pull,push+repository:else:pull", "alice", "one")
	none := askToken(t, r, "?scope=nonsense", "alice", "one")
	catalog := askToken(t, r, "?scope=registry:catalog:*", "alice", "one")
	mounting := "/v2/app/blobs/uploads/?mount=" + digestOf(blob) + "&from=else"
	for _, c := range []struct {
		method, path, token string
		want                int
		scope               string
	}{
		{"GET", "/v2/app/manifests/1", none, 401, "repository:app:pull"},
		{"GET", "/v2/app/manifests/1", pull, 200, ""},
		{"HEAD", "/v2/app/manifests/1", pull, 200, ""},
		{"GET", "/v2/other/tags/list", pull, 401, "repository:other:pull"},
		{"POST", "/v2/app/blobs/uploads/", pull, 401, "repository:app:pull,push"},
		{"POST", "/v2/app/blobs/uploads/", both, 202, ""},
		{"POST", mounting, both, 401, "repository:app:pull,push repository:else:pull"},
		{"POST", mounting, mount, 201, ""},
		{"DELETE", "/v2/app/manifests/1", both, 401, "repository:app:delete"},
		{"GET", "/v2/_catalog", both, 401, "registry:catalog:*"},
		{"GET", "/v2/_catalog", catalog, 200, ""},
	} {
		res := useToken(t, r, c.method, c.path, c.token)
		if res.StatusCode != c.want {
			t.Errorf("%s %s: status %d, want %d", c.method, c.path, res.StatusCode, c.want)
		}
		if c.scope != "" {
			wantContains(t, res.Header.Get("WWW-Authenticate"), `error="insufficient_scope"`, `scope="`+c.scope+`"`)
		}
	}
}

func TestTokenGrants(t *testing.T) {
	rules := registry.TokenAuth{
		PasswordFile: passwordFile(t, "alice:one\n"),
		Grant:        []string{"pull"},
		Anonymous:    []string{},
	}
	const scope = "?scope=repository:app:pull,push"
	const upload = "/v2/app/blobs/uploads/"
	r := registry.Start(t, registry.WithTokenAuth(rules))
	token := askToken(t, r, scope, "alice", "one")
	res := useToken(t, r, http.MethodPost, upload, token)
	wantStatus(t, res, http.StatusForbidden)
	wantContains(t, string(read(t, res)), `"code":"DENIED"`)
	wantStatus(t, useToken(t, r, http.MethodGet, "/v2/app/tags/list", token), http.StatusNotFound) // let in
	err := remote.Write(reference(t, r, "app:1"), randomImage(t), from(r, as("alice", "one"))...)
	wantCode(t, err, http.StatusForbidden)
	// Anonymous clients get a token that is good for nothing.
	token = askToken(t, r, scope, "", "")
	wantStatus(t, useToken(t, r, http.MethodGet, "/v2/", token), http.StatusOK)
	wantStatus(t, useToken(t, r, http.MethodGet, "/v2/app/tags/list", token), http.StatusForbidden)

	rules.Challenge = true
	r = registry.Start(t, registry.WithTokenAuth(rules))
	res = useToken(t, r, http.MethodPost, upload, askToken(t, r, scope, "alice", "one"))
	wantStatus(t, res, http.StatusUnauthorized)
	wantContains(t, res.Header.Get("WWW-Authenticate"), `error="insufficient_scope"`)
	wantContains(t, string(read(t, res)), `"code":"UNAUTHORIZED"`)
}

func TestAnonymousTokens(t *testing.T) {
	r := registry.Start(t, registry.WithTokenAuth(registry.TokenAuth{
		PasswordFile: passwordFile(t, "alice:one\n"),
		Anonymous:    []string{"pull"},
	}))
	img := randomImage(t)
	push(t, r, "app:1", img, as("alice", "one"))
	if _, err := remote.Image(reference(t, r, "app:1"), from(r)...); err != nil {
		t.Errorf("pulling without a user: %v", err)
	}
	err := remote.Write(reference(t, r, "app:2"), img, from(r)...)
	wantCode(t, err, http.StatusForbidden)
}

func TestTokensEnd(t *testing.T) {
	const lifetime = 100 * time.Millisecond
	r := registry.Start(t, registry.WithTokenAuth(registry.TokenAuth{
		PasswordFile: passwordFile(t, "alice:one\n"),
		Lifetime:     lifetime,
	}))
	asked := time.Now()
	token := askToken(t, r, "", "alice", "one")
	eventually(t, "the token ends", func() bool {
		sent := time.Now()
		status := useToken(t, r, http.MethodGet, "/v2/", token).StatusCode
		if status != http.StatusOK && time.Since(asked) < lifetime {
			t.Fatalf("the token ended before its time, status %d", status)
		}
		if status == http.StatusOK && sent.Sub(asked) > lifetime+patience/2 {
			t.Fatal("the token does not end")
		}
		return status == http.StatusUnauthorized
	})

	r = registry.Start(t, registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwordFile(t, "alice:one\n")}))
	token = askToken(t, r, "", "alice", "one")
	wantStatus(t, useToken(t, r, http.MethodGet, "/v2/", token), http.StatusOK)
	r.Tokens().Revoke()
	wantStatus(t, useToken(t, r, http.MethodGet, "/v2/", token), http.StatusUnauthorized)
	wantStatus(t, useToken(t, r, http.MethodGet, "/v2/", askToken(t, r, "", "alice", "one")), http.StatusOK)
}

func TestTokenServerHasRecordAndFaults(t *testing.T) {
	r := registry.Start(t, registry.WithTokenAuth(registry.TokenAuth{PasswordFile: passwordFile(t, "alice:one\n")}))
	r.Stop()
	askToken(t, r, "?scope=repository:app:pull", "alice", "one") // it listens by itself
	got := last(t, r.Tokens().Server)
	if got.Path != "/token" || got.Query != "scope=repository:app:pull" || got.Auth != "basic" || got.Status != http.StatusOK {
		t.Errorf("record is %v", got)
	}
	if n := len(r.Requests()); n != 0 {
		t.Errorf("%d requests on the registry's record", n)
	}
	r.Tokens().Fault(registry.Rule{To: 1, Do: registry.Reply{Status: http.StatusServiceUnavailable}})
	wantStatus(t, getAs(t, r.Tokens().Client(), r.Tokens().URL()+"/token", "alice", "one"), http.StatusServiceUnavailable)
	r.Listen()
	r.Tokens().Stop()
	if _, err := try(t, r.Tokens().Client(), http.MethodGet, r.Tokens().URL()+"/token", nil); err == nil {
		t.Error("the token server answers though it stopped")
	}
	res := send(t, r.Client(), http.MethodGet, r.URL()+"/v2/", nil)
	wantStatus(t, res, http.StatusUnauthorized)
	io.Copy(io.Discard, res.Body)
}
