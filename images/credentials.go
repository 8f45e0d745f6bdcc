package images

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"go.podman.io/image/v5/docker/reference"
	dockerconfig "go.podman.io/image/v5/pkg/docker/config"
)

// describeCredentials says whose credentials an operation on ref used, for a
// message; never the password.
func (e *Engine) describeCredentials(authFile string, ref reference.Named) string {
	where := authFile
	if where == "" {
		where = "the auth files of this user"
	}
	auth, err := dockerconfig.GetCredentialsForRef(e.system(authFile), ref)
	switch {
	case err != nil:
		return fmt.Sprintf("%s cannot be read: %v", where, err)
	case auth.IdentityToken != "":
		return fmt.Sprintf("identity token from %s", where)
	case auth.Username == "":
		return fmt.Sprintf("no credentials for %s in %s", reference.Domain(ref), where)
	}
	return fmt.Sprintf("user %q from %s", auth.Username, where)
}

// AuthSecrets returns the secret strings in an auth file: passwords, tokens and
// the entries that hold them. A file that cannot be read has none.
func AuthSecrets(path string) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	type entry struct {
		Auth          string `json:"auth"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	}
	var file struct {
		Auths map[string]entry `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil {
		return nil
	}
	if file.Auths == nil { // the older dockercfg form has no "auths"
		_ = json.Unmarshal(data, &file.Auths)
	}
	var secrets []string
	for _, a := range file.Auths {
		secrets = append(secrets, a.Auth, a.Password, a.IdentityToken, a.RegistryToken)
		if decoded, err := base64.StdEncoding.DecodeString(a.Auth); err == nil {
			if _, password, ok := strings.Cut(string(decoded), ":"); ok {
				secrets = append(secrets, password)
			}
		}
	}
	return secrets
}
