package manifests

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/strata-build/strata/controller"
)

func TestWhatIsPrinted(t *testing.T) {
	always := []string{"ServiceAccount", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment"}
	for _, tt := range []struct {
		name string
		s    Settings
		more []string
	}{
		{"least", Settings{Privilege: controller.PrivilegeUserNamespace}, nil},
		{"everything", Settings{Privilege: controller.PrivilegeNested, CreateNamespace: true, SCC: true, PodMonitor: true}, []string{"Namespace", "NetworkPolicy", "PodMonitor", "SecurityContextConstraints"}},
		{"privileged", Settings{Privilege: controller.PrivilegePrivileged, SCC: true}, []string{"SecurityContextConstraints"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.s.Namespace, tt.s.Image, tt.s.BuildServiceAccount, tt.s.Replicas = "images", "registry.example/strata:1", "builder", 2
			var b bytes.Buffer
			if err := Write(&b, tt.s); err != nil {
				t.Fatal(err)
			}
			var kinds []string
			for _, text := range strings.Split(b.String(), "\n---\n") {
				var o struct {
					Kind     string
					Metadata struct{ Name, Namespace string }
				}
				if err := yaml.Unmarshal([]byte(text), &o); err != nil || o.Kind == "" || o.Metadata.Name == "" {
					t.Fatalf("%v in\n%s", err, text)
				}
				if o.Metadata.Namespace != "" && o.Metadata.Namespace != "images" {
					t.Errorf("%s is in %s", o.Kind, o.Metadata.Namespace)
				}
				kinds = append(kinds, o.Kind)
			}
			want := slices.Concat(always, tt.more)
			slices.Sort(kinds)
			slices.Sort(want)
			if fmt.Sprint(kinds) != fmt.Sprint(want) {
				t.Errorf("kinds %v, want %v", kinds, want)
			}
			if !strings.Contains(b.String(), "--build-privilege="+string(tt.s.Privilege)) {
				t.Error("the controller is not told the mode")
			}
			// The SCC restricted-v2 takes no user of one's own; without SCCs there has to be one.
			if strings.Contains(b.String(), "runAsUser: 65532") == tt.s.SCC {
				t.Errorf("the controller's user is given: %v", !tt.s.SCC)
			}
			if strings.Contains(b.String(), "container_engine_t") != (tt.s.SCC && tt.s.Privilege != controller.PrivilegePrivileged) {
				t.Error("the SELinux type of build pods is not the one that may mount")
			}
		})
	}
}
