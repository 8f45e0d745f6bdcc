package images

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.podman.io/image/v5/docker/reference"
	dockerconfig "go.podman.io/image/v5/pkg/docker/config"
)

func TestAuthSecrets(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte("robot:pass:word"))
	for _, s := range []struct {
		name, file string
		want       []string
	}{
		{"auth", fmt.Sprintf(`{"auths":{"r.example":{"auth":%q}}}`, encoded), []string{encoded, "pass:word"}},
		{"dockercfg", fmt.Sprintf(`{"r.example":{"auth":%q}}`, encoded), []string{encoded, "pass:word"}},
		{"dockercfg with user and password", `{"r.example":{"username":"robot","password":"word","email":"a@b"}}`, []string{"word"}},
		{"user and password", `{"auths":{"r.example":{"username":"robot","password":"word"}}}`, []string{"word"}},
		{"identity token", `{"auths":{"r.example":{"identitytoken":"token"}}}`, []string{"token"}},
		{"registry token", `{"auths":{"r.example":{"registrytoken":"token"}}}`, []string{"token"}},
		{"several", `{"auths":{"r.example":{"password":"one"},"s.example/team":{"password":"two"}},"credsStore":"x"}`, []string{"one", "two"}},
		{"a newline behind the base64", fmt.Sprintf(`{"auths":{"r.example":{"auth":"%s\n"}}}`, encoded), []string{encoded, "pass:word"}},
		{"a newline behind the password", fmt.Sprintf(`{"auths":{"r.example":{"auth":%q}}}`, base64.StdEncoding.EncodeToString([]byte("robot:word\n"))), []string{"word"}},
		{"not base64", `{"auths":{"r.example":{"auth":"???"}}}`, []string{"???"}},
		{"no auths", `{"auths":{}}`, nil},
		{"empty file", ``, nil},
		{"not JSON", `auths: none`, nil},
	} {
		t.Run(s.name, func(t *testing.T) {
			got := AuthSecrets(write(t, t.TempDir()+"/config.json", s.file))
			for _, want := range s.want {
				if !slices.Contains(got, want) {
					t.Errorf("secrets %q, want %q among them", got, want)
				}
			}
			if len(s.want) == 0 && len(got) > 0 {
				t.Errorf("secrets %q, want none", got)
			}
			for _, known := range []string{"robot", "r.example", "a@b"} {
				if slices.Contains(got, known) {
					t.Errorf("%q is called a secret", known)
				}
			}
		})
	}
	if got := AuthSecrets(t.TempDir() + "/none.json"); got != nil {
		t.Errorf("secrets %q of a file that is not there", got)
	}
}

func TestDescribeCredentials(t *testing.T) {
	b := open(t)
	ref, err := reference.ParseNormalizedNamed("r.example:5000/os/layered:1")
	if err != nil {
		t.Fatal(err)
	}
	encoded := base64.StdEncoding.EncodeToString([]byte("robot:word"))
	jwt := func(claims string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2lnbmF0dXJl"
	}
	withPassword := func(password string) string {
		return fmt.Sprintf(`{"auths":{"r.example:5000":{"auth":%q}}}`, base64.StdEncoding.EncodeToString([]byte("robot:"+password)))
	}
	for _, s := range []struct {
		name, file string
		want       []string
	}{
		{"auth", fmt.Sprintf(`{"auths":{"r.example:5000":{"auth":%q}}}`, encoded), []string{`user "robot"`}},
		{"with a path", fmt.Sprintf(`{"auths":{"r.example:5000/os":{"auth":%q}}}`, encoded), []string{`user "robot"`}},
		{"token", fmt.Sprintf(`{"auths":{"r.example:5000":{"auth":%q,"identitytoken":"word"}}}`, encoded), []string{"identity token"}},
		{"expired token", withPassword(jwt(`{"sub":"robot","exp":1700000000}`)), []string{`user "robot"`, "a token that expired at 2023-11-14T22:13:20Z"}},
		{"expired identity token", fmt.Sprintf(`{"auths":{"r.example:5000":{"auth":%q,"identitytoken":%q}}}`, encoded, jwt(`{"exp":1700000000.5}`)), []string{"identity token", "expired at 2023-11-14"}},
		{"token with its end as a string", withPassword(jwt(`{"exp":"1700000000"}`)), []string{"expired at 2023-11-14T22:13:20Z"}},
		{"token with its end as a large number", withPassword(jwt(`{"exp":1.7e9}`)), []string{"expired at 2023-11-14T22:13:20Z"}},
		{"a slash behind the host", fmt.Sprintf(`{"auths":{"r.example:5000/":{"auth":%q}}}`, encoded), []string{`user "robot"`, "entry r.example:5000/"}},
		{"a URL with a path", fmt.Sprintf(`{"auths":{"https://r.example:5000/v2/":{"auth":%q}}}`, encoded), []string{`user "robot"`, "entry https://r.example:5000/v2/"}},
		{"no entry for it, but with a slash", fmt.Sprintf(`{"auths":{"s.example/":{"auth":%q}}}`, encoded), []string{"no credentials for r.example:5000", "entries for s.example/"}},
		{"an entry without a credential", `{"auths":{"r.example:5000":{}}}`, []string{"entry r.example:5000", "holds no credential"}},
		{"a helper for the host", `{"credHelpers":{"r.example:5000":"vault"}}`, []string{"docker-credential-vault"}},
		{"a helper for another host", `{"auths":{},"credHelpers":{"s.example":"vault"}}`, []string{"no credentials for r.example:5000", "no entries"}},
		{"a store", `{"auths":{"r.example:5001":{}},"credsStore":"desktop"}`, []string{"no credentials for r.example:5000", `the credential store "desktop" that is not asked`}},
		{"a store alone", `{"credsStore":"desktop"}`, []string{"no credentials for r.example:5000", `"desktop"`}},
		{"empty", ``, []string{"cannot be read", "it is empty"}},
		{"another host", fmt.Sprintf(`{"auths":{"r.example:5001":{"auth":%q}}}`, encoded), []string{"no credentials for r.example:5000", "r.example:5001"}},
		{"not JSON", `word`, []string{"cannot be read"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			path := write(t, t.TempDir()+"/config.json", s.file)
			got := b.describeCredentials(path, ref)
			for _, want := range append(s.want, path) {
				if !strings.Contains(got, want) {
					t.Errorf("%q does not have %q", got, want)
				}
			}
			if strings.Contains(got, "word") || strings.Contains(got, encoded) {
				t.Errorf("%q gives the secret away", got)
			}
		})
	}
	hub, err := reference.ParseNormalizedNamed("busybox")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"https://index.docker.io/v1/", "index.docker.io", "index.docker.io/v1/", "docker.io", "docker.io/", "registry-1.docker.io", "https://registry-1.docker.io/v2/", "docker.io/library"} {
		path := write(t, t.TempDir()+"/config.json", fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, key, encoded))
		if got := b.describeCredentials(path, hub); got != `user "robot" from `+path+`, entry `+key {
			t.Errorf("Docker Hub under %s: %q", key, got)
		}
		auth, err := dockerconfig.GetCredentialsForRef(b.system(path), hub)
		if err != nil || auth.Password != "word" {
			t.Errorf("Docker Hub under %s: the library reads %q (%v)", key, auth.Username, err)
		}
	}
	valid := fmt.Sprintf(`{"exp":%d}`, time.Now().Add(time.Hour).Unix())
	for _, password := range []string{jwt(valid), jwt(`{}`), jwt(`no JSON`), jwt(`{"exp":"soon"}`), jwt(`{"exp":1e400}`), jwt(`{"exp":{}}`), jwt(`{"exp":null}`), "a.b.c", "word"} {
		path := write(t, t.TempDir()+"/config.json", withPassword(password))
		if got := b.describeCredentials(path, ref); strings.Contains(got, "expired") {
			t.Errorf("%q says that %q expired", got, password)
		}
	}
	if got := b.describeCredentials("", ref); got != "no credentials for r.example:5000 in the auth files of this user" {
		t.Errorf("without a file: %q", got)
	}
}

// TestAuthFileForms pushes with each form of an auth file that users have.
func TestAuthFileForms(t *testing.T) {
	c := newCourier(t, insecure)
	plain := base64.StdEncoding.EncodeToString([]byte("robot:word"))
	newline := base64.StdEncoding.EncodeToString([]byte("robot:word\n"))
	c.hub.guard("robot", "word")
	for _, s := range []struct{ name, file string }{
		{"host", `{"auths":{"HOST":{"auth":"` + plain + `"}}}`},
		{"http URL", `{"auths":{"http://HOST":{"auth":"` + plain + `"}}}`},
		{"https URL with v1", `{"auths":{"https://HOST/v1/":{"auth":"` + plain + `"}}}`},
		{"path before host", `{"auths":{"HOST":{"auth":"d3Jvbmc6d3Jvbmc="},"HOST/os":{"auth":"` + plain + `"}}}`},
		{"a slash behind the host", `{"auths":{"HOST/":{"auth":"` + plain + `"}}}`},
		{"a version behind the host", `{"auths":{"HOST/v1/":{"auth":"` + plain + `"}}}`},
		{"a slash behind a path", `{"auths":{"HOST/os/":{"auth":"` + plain + `"}}}`},
		{"a slash behind the host of another entry", `{"auths":{"HOST/":{"auth":"d3Jvbmc6d3Jvbmc="},"HOST":{"auth":"` + plain + `"}}}`},
		{"a byte order mark", "\ufeff" + `{"auths":{"HOST":{"auth":"` + plain + `"}}}`},
		{"dockercfg", `{"HOST":{"auth":"` + plain + `"}}`},
		{"dockercfg with a slash", `{"HOST/":{"auth":"` + plain + `"}}`},
		{"user and password", `{"auths":{"HOST":{"username":"robot","password":"word"}}}`},
		{"newline behind the password", `{"auths":{"HOST":{"auth":"` + newline + `"}}}`},
		{"newline behind the base64", `{"auths":{"HOST":{"auth":"` + plain + `\n"}}}`},
	} {
		t.Run(s.name, func(t *testing.T) {
			path := write(t, t.TempDir()+"/config.json", strings.ReplaceAll(s.file, "HOST", c.hub.host))
			if _, _, err := c.Push(t.Context(), c.id, destination(t, c.hub.host+"/os/layered:1"), Compression{}, path); err != nil {
				t.Errorf("pushing: %v", err)
			}
		})
	}
	t.Run("another port", func(t *testing.T) {
		path := write(t, t.TempDir()+"/config.json", `{"auths":{"127.0.0.1:1":{"auth":"`+plain+`"}}}`)
		_, _, err := c.Push(t.Context(), c.id, destination(t, c.hub.host+"/os/layered:1"), Compression{}, path)
		e := mustFail(t, err)
		for _, want := range []string{c.hub.host, path, "127.0.0.1:1"} {
			if !strings.Contains(e.Message, want) {
				t.Errorf("the message does not have %q: %s", want, e.Message)
			}
		}
	})
}
