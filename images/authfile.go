package images

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.podman.io/buildah/pkg/parse"
	"go.podman.io/image/v5/docker/reference"
	dockerconfig "go.podman.io/image/v5/pkg/docker/config"
	"golang.org/x/sys/unix"
)

// authFile is an auth file that was read: in the form of dockerconfigjson, or the
// older one of dockercfg, which has the entries without "auths" around them.
type authFile struct {
	path    string
	entries map[string]authEntry // by registry, or registry and namespace
	// other are the members beside the entries, such as credsStore.
	other map[string]json.RawMessage
	// odd says what had to be put right for the library to understand the file.
	odd []string
}

// authEntry holds one credential.
type authEntry struct {
	user, password string
	identityToken  string
	registryToken  string
	auth           string // user and password in base64, as it stands in the file
	key            string // under which it stands there
}

// readAuthFile reads the file as it is now.
func readAuthFile(path string) (*authFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &authFile{path: path, entries: map[string]authEntry{}}
	data, marked := bytes.CutPrefix(data, []byte("\ufeff"))
	if marked {
		f.odd = append(f.odd, "it begins with a byte order mark")
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s is not an auth file: it is empty", path)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, fmt.Errorf("%s is not an auth file: %w", path, err)
	}
	f.other = members
	raw := members
	if auths, ok := members["auths"]; ok {
		raw = nil
		if err := json.Unmarshal(auths, &raw); err != nil {
			return nil, fmt.Errorf("%s is not an auth file: its \"auths\": %w", path, err)
		}
		delete(f.other, "auths")
	} else if raw["credHelpers"] == nil && raw["credsStore"] == nil {
		f.other = nil
		if len(raw) > 0 {
			f.odd = append(f.odd, "it has the form of dockercfg")
		}
	} else {
		raw = nil
	}
	for key, text := range raw {
		entry, odd, err := parseAuthEntry(text)
		if err != nil {
			return nil, fmt.Errorf("%s is not an auth file: its entry %s: %w", path, key, err)
		}
		entry.key = key
		if plain := withoutSlash(key); plain != key {
			if _, exact := raw[plain]; exact {
				continue // which is the one that the library reads
			}
			odd = append(odd, "a slash behind its name")
			f.entries[plain] = entry
		} else {
			f.entries[key] = entry
		}
		for _, o := range odd {
			f.odd = append(f.odd, fmt.Sprintf("its entry %s has %s", key, o))
		}
	}
	slices.Sort(f.odd)
	return f, nil
}

// withoutSlash is the key of an entry as the library looks for it: a name of a registry
// or a namespace without the slash behind it, and without the version of an interface
// that a URL would have there. Keys that are URLs it takes as they are.
func withoutSlash(key string) string {
	if strings.Contains(key, "://") || !strings.HasSuffix(key, "/") {
		return key
	}
	key = strings.TrimRight(key, "/")
	for _, version := range []string{"/v1", "/v2"} {
		if host, ok := strings.CutSuffix(key, version); ok && !strings.Contains(host, "/") {
			return host
		}
	}
	return key
}

func parseAuthEntry(text json.RawMessage) (entry authEntry, odd []string, err error) {
	var e struct {
		Auth, Username, Password, IdentityToken, RegistryToken string
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return entry, nil, err
	}
	entry = authEntry{user: e.Username, password: e.Password, identityToken: e.IdentityToken, registryToken: e.RegistryToken, auth: e.Auth}
	if auth := strings.TrimSpace(e.Auth); auth != "" {
		if auth != e.Auth {
			odd = append(odd, "white space around its base64")
		}
		if decoded, err := base64.StdEncoding.DecodeString(auth); err == nil {
			entry.user, entry.password, _ = strings.Cut(string(decoded), ":")
		}
	} else if e.Username != "" {
		odd = append(odd, "username and password in place of auth")
	}
	if trimmed := strings.TrimRight(entry.password, "\r\n"); trimmed != entry.password {
		odd = append(odd, "a line break behind its password")
		entry.password = trimmed
	}
	return entry, odd, nil
}

// normalized is the file in the form that the library understands.
func (f *authFile) normalized() ([]byte, error) {
	auths := map[string]map[string]string{}
	for key, e := range f.entries {
		a := map[string]string{}
		if e.user != "" || e.password != "" {
			a["auth"] = base64.StdEncoding.EncodeToString([]byte(e.user + ":" + e.password))
		} else if e.auth != "" {
			a["auth"] = e.auth
		}
		if e.identityToken != "" {
			a["identitytoken"] = e.identityToken
		}
		auths[key] = a
	}
	members := map[string]any{"auths": auths}
	for name, text := range f.other {
		members[name] = text
	}
	return json.Marshal(members)
}

// match finds the entry for an image: the most specific one, of the repository,
// its namespaces, its registry, then those that are written as URLs or with another
// name of Docker Hub, as the library does. The key is as it stands in the file.
func (f *authFile) match(ref reference.Named) (key string, entry authEntry, ok bool) {
	for name := ref.Name(); ; {
		if e, ok := f.entries[name]; ok {
			return e.key, e, true
		}
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			break
		}
		name = name[:i]
	}
	for _, key := range slices.Sorted(maps.Keys(f.entries)) {
		host := key
		if _, rest, ok := strings.Cut(key, "://"); ok {
			host, _, _ = strings.Cut(rest, "/")
		}
		if hubName(host) == hubName(reference.Domain(ref)) {
			return f.entries[key].key, f.entries[key], true
		}
	}
	return "", authEntry{}, false
}

// hubName makes the names of Docker Hub one.
func hubName(host string) string {
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// helper is the program that the file names for the credentials of a registry, empty
// for none, and store that which it names for all of them, which is not asked.
func (f *authFile) helper(registry string) (helper, store string) {
	helpers := map[string]string{}
	_ = json.Unmarshal(f.other["credHelpers"], &helpers) // what is none of them is nothing
	_ = json.Unmarshal(f.other["credsStore"], &store)
	return helpers[registry], store
}

// describe says in a message whose credentials were used, never the secret.
func (f *authFile) describe(ref reference.Named) string {
	key, e, ok := f.match(ref)
	registry := reference.Domain(ref)
	helper, store := f.helper(registry)
	switch {
	case helper != "":
		return fmt.Sprintf("the credential for %s from the program docker-credential-%s, which %s names", registry, helper, f.path)
	case !ok && store != "":
		return fmt.Sprintf("no credentials for %s in %s, which leaves them to the credential store %q that is not asked: put the credential into the file", registry, f.path, store)
	case !ok && len(f.entries) == 0:
		return fmt.Sprintf("no credentials for %s in %s, which has no entries", registry, f.path)
	case !ok:
		return fmt.Sprintf("no credentials for %s in %s, which has entries for %s", registry, f.path, strings.Join(f.keys(), ", "))
	case e == authEntry{key: e.key}:
		return fmt.Sprintf("the entry %s of %s, which holds no credential", key, f.path)
	case e.identityToken != "":
		return fmt.Sprintf("identity token from %s, entry %s%s", f.path, key, expired(e.identityToken))
	}
	return fmt.Sprintf("user %q from %s, entry %s%s", e.user, f.path, key, expired(e.password))
}

// keys are those of the entries, as they stand in the file.
func (f *authFile) keys() []string {
	var keys []string
	for _, e := range f.entries {
		keys = append(keys, e.key)
	}
	slices.Sort(keys)
	return keys
}

// expired says since when a token is not valid any more, where it says so itself,
// as a JSON Web Token does (RFC 7519, section 4.1.4); otherwise it says nothing.
func expired(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return ""
	}
	var claims struct {
		Expires json.RawMessage `json:"exp"` // in seconds since 1970: a number, which some write as a string
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	seconds, err := strconv.ParseFloat(strings.Trim(string(claims.Expires), `"`), 64)
	if err != nil || seconds <= 0 || seconds > math.MaxInt32*float64(1000) { // in a time that is not ours
		return ""
	}
	if at := time.Unix(int64(seconds), 0); time.Now().After(at) {
		return fmt.Sprintf(", a token that expired at %s", at.UTC().Format(time.RFC3339))
	}
	return ""
}

// secrets lists what must not be shown of the file.
func (f *authFile) secrets() []string {
	var all []string
	for _, e := range f.entries {
		for _, s := range []string{e.password, e.identityToken, e.registryToken, e.auth, strings.TrimSpace(e.auth)} {
			if s != "" {
				all = append(all, s)
			}
		}
		if e.password != "" {
			all = append(all, e.user+":"+e.password)
		}
	}
	return all
}

// CheckAuthFile says why a file is not an auth file.
func CheckAuthFile(path string) error {
	_, err := readAuthFile(path)
	return err
}

// DefaultAuthFiles are where containers/image looks for credentials when nothing
// else is said (containers-auth.json(5)).
func DefaultAuthFiles() []string {
	var files []string
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		files = append(files, filepath.Join(dir, "containers/auth.json"))
	}
	if dir := os.Getenv("DOCKER_CONFIG"); dir != "" {
		files = append(files, filepath.Join(dir, "config.json"))
	}
	home := os.Getenv("HOME")
	return append(files, fmt.Sprintf("/run/containers/%d/auth.json", os.Geteuid()), filepath.Join(home, ".config/containers/auth.json"),
		filepath.Join(home, ".docker/config.json"), filepath.Join(home, ".dockercfg"))
}

// minSecretLine is the length in bytes below which a line of a build secret is not
// taken for a secret by itself.
const minSecretLine = 6

// SecretValues returns what is in the secrets of a build, each as a whole and each
// line of it, and the lines of the private keys that ssh, as in BuildSpec, names.
func SecretValues(specs, ssh []string) (values []string) {
	secrets, err := parse.Secrets(specs)
	if err != nil {
		secrets = nil
	}
	for _, secret := range secrets {
		if data, err := secret.ResolveValue(); err == nil {
			values = append(values, strings.TrimSpace(string(data)))
			values = append(values, secretLines(data)...)
		}
	}
	for _, spec := range ssh {
		_, paths, _ := strings.Cut(spec, "=")
		for path := range strings.SplitSeq(paths, ",") {
			if data, err := os.ReadFile(path); err == nil { // else it is a socket
				values = append(values, secretLines(data)...)
			}
		}
	}
	return values
}

func secretLines(data []byte) (lines []string) {
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); len(line) >= minSecretLine {
			lines = append(lines, line)
		}
	}
	return lines
}

// AuthSecrets returns the secret strings in an auth file: passwords, tokens and
// the entries that hold them. A file that cannot be read has none.
func AuthSecrets(path string) []string {
	f, err := readAuthFile(path)
	if err != nil {
		return nil
	}
	return f.secrets()
}

// describeCredentials says whose credentials an operation on ref used, for a
// message.
func (e *Engine) describeCredentials(path string, ref reference.Named) string {
	if path != "" {
		f, err := readAuthFile(path)
		if err != nil {
			return fmt.Sprintf("the auth file %s cannot be read: %v", path, err)
		}
		return f.describe(ref)
	}
	auth, err := dockerconfig.GetCredentialsForRef(&e.sys, ref)
	switch {
	case err != nil:
		return fmt.Sprintf("the auth files of this user cannot be read: %v", err)
	case auth.Username == "" && auth.IdentityToken == "":
		return fmt.Sprintf("no credentials for %s in the auth files of this user", reference.Domain(ref))
	}
	return fmt.Sprintf("user %q from the auth files of this user", auth.Username)
}

// mergedAuthFile returns the path of an auth file that has the entries of both files,
// those of second where both have one.
func (e *Engine) mergedAuthFile(first, second string) string {
	if first == second || second == "" {
		return first
	}
	if first == "" {
		return second
	}
	f, err := readAuthFile(first)
	if err != nil {
		return second
	}
	s, err := readAuthFile(second)
	if err != nil {
		return first
	}
	maps.Copy(f.entries, s.entries)
	data, err := f.normalized()
	if err != nil {
		return first
	}
	return e.inMemory(first+" "+second, data, first)
}

// authFilePath returns the path of an auth file as the library is to read it: the
// file itself, or where the library would not understand it, a copy in memory that
// is gone with the process.
func (e *Engine) authFilePath(path string) string {
	if path == "" {
		return ""
	}
	f, err := readAuthFile(path)
	if err != nil || len(f.odd) == 0 {
		return path // what is wrong with it is reported by whoever needs it
	}
	data, err := f.normalized()
	if err != nil {
		return path
	}
	if _, told := e.authCopies[path]; !told {
		e.log.Warn(fmt.Sprintf("The auth file %s is understood, although %s", path, strings.Join(f.odd, ", and ")))
	}
	return e.inMemory(path, data, path)
}

// inMemory returns the path of a file in memory with the data, which is kept under a
// name; the fallback where there is none to be had.
func (e *Engine) inMemory(name string, data []byte, fallback string) string {
	if known, ok := e.authCopies[name]; ok && bytes.Equal(known.data, data) {
		return known.file.Name()
	}
	fd, err := unix.MemfdCreate("auth", unix.MFD_CLOEXEC)
	if err != nil {
		e.log.Debug("no memory for a copy of the auth file", "error", err)
		return fallback
	}
	copied := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	if _, err := copied.Write(data); err != nil {
		_ = copied.Close()
		return fallback
	}
	if old, ok := e.authCopies[name]; ok {
		_ = old.file.Close()
	}
	if e.authCopies == nil {
		e.authCopies = map[string]authCopy{}
	}
	e.authCopies[name] = authCopy{file: copied, data: data}
	return copied.Name()
}

// authCopy is a normalized auth file in memory.
type authCopy struct {
	file *os.File
	data []byte
}
