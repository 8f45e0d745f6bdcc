// Package manifests prints what a cluster needs to run the controller.
package manifests

import (
	_ "embed"
	"io"
	"strings"
	"text/template"

	"github.com/strata-build/strata/controller"
)

//go:embed manifests.yaml
var text string

var manifests = template.Must(template.New("manifests").Option("missingkey=error").Parse(text))

// Settings say what is printed.
type Settings struct {
	Namespace, Image, BuildServiceAccount string
	Privilege                             controller.Privilege
	Replicas                              int
	// CreateNamespace adds the namespace, SCC what OpenShift allows build pods, and
	// PodMonitor what the Prometheus operator watches, with a NetworkPolicy that lets it
	// in. Each needs its kind in the cluster. With SCC the controller's user is OpenShift's choice.
	CreateNamespace, SCC, PodMonitor bool
}

// Write prints the manifests as YAML that `kubectl apply` takes.
func Write(w io.Writer, s Settings) error {
	capabilities, seccomp := s.Privilege.Allowed()
	return manifests.Execute(w, struct {
		Settings
		Privilege, Capabilities, Seccomp string
	}{s, string(s.Privilege), strings.Join(capabilities, ", "), seccomp})
}
