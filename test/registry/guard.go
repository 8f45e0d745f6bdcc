package registry

import (
	"net/http"

	"github.com/distribution/distribution/v3/registry/api/errcode"
	v2 "github.com/distribution/distribution/v3/registry/api/v2"
	"github.com/distribution/distribution/v3/registry/auth"
	"github.com/gorilla/mux"
)

// authority decides which requests reach the registry.
type authority interface {
	// admit tells whether the request may do what it needs; if not, it has
	// answered it.
	admit(w http.ResponseWriter, r *http.Request, needs []auth.Access) bool
}

// guard puts an authority in front of the registry.
func guard(a authority, registry http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.admit(w, r, needs(r)) {
			registry.ServeHTTP(w, r)
		}
	})
}

// needs returns the rights that a request takes, by the rules of distribution.
func needs(r *http.Request) []auth.Access {
	var match mux.RouteMatch
	if !v2.Router().Match(r, &match) || match.Route == nil {
		return nil
	}
	if match.Route.GetName() == v2.RouteNameCatalog {
		return []auth.Access{{Resource: auth.Resource{Type: "registry", Name: "catalog"}, Action: "*"}}
	}
	name := match.Vars["name"]
	if name == "" {
		return nil
	}
	var actions []string
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		actions = []string{"pull"}
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		actions = []string{"pull", "push"}
	case http.MethodDelete:
		actions = []string{"delete"}
	}
	var all []auth.Access
	for _, action := range actions {
		all = append(all, repositoryAccess(name, action))
	}
	if from := r.URL.Query().Get("from"); from != "" {
		all = append(all, repositoryAccess(from, "pull"))
	}
	return all
}

func repositoryAccess(name, action string) auth.Access {
	return auth.Access{Resource: auth.Resource{Type: "repository", Name: name}, Action: action}
}

// unauthorized answers 401 with a challenge.
func unauthorized(w http.ResponseWriter, challenge string, needs []auth.Access) {
	w.Header().Set("WWW-Authenticate", challenge)
	serveError(w, errcode.ErrorCodeUnauthorized.WithDetail(needs))
}

// serveError answers with distribution's status and JSON for an error. A client
// that is gone by then is no error of the test.
func serveError(w http.ResponseWriter, err errcode.Error) {
	_ = errcode.ServeJSON(w, err)
}

// basicAuth admits the users of a password file to everything.
type basicAuth struct{ file string }

const basicChallenge = `Basic realm="registry"`

func (b basicAuth) admit(w http.ResponseWriter, r *http.Request, needs []auth.Access) bool {
	user, password, _ := r.BasicAuth()
	ok, err := passwordOK(b.file, user, password)
	switch {
	case err != nil:
		serveError(w, errcode.ErrorCodeUnknown.WithDetail(err.Error()))
	case !ok:
		unauthorized(w, basicChallenge, needs)
	}
	return ok
}
