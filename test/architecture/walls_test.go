// Package architecture keeps the house as CONTRIBUTING.md draws it: a test fails
// when an import crosses a wall.
package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/strata-build/strata"

// wall says what the packages of a room may import beside the standard library.
// An entry ending in /... stands for a module or folder and all below it.
type wall struct {
	room    string // a folder of the module, with all below it unless another wall names it
	allowed []string
	// tests may also import these.
	tests []string
}

var walls = []wall{
	{room: "agent/result"},
	{room: "retry", allowed: []string{"github.com/avast/retry-go/v4"}},
	{room: "images", allowed: []string{module + "/agent/result", module + "/images/isal", module + "/images/prefault", module + "/images/standby", "..."}},
	{room: "agent", allowed: []string{
		module + "/agent/result", module + "/images", module + "/retry",
		"github.com/spf13/pflag", "golang.org/x/sys/unix", "golang.org/x/term",
		"github.com/klauspost/compress/zstd", // a MachineConfig may come in it
	}},
	{room: "cmd/agent", allowed: []string{
		module + "/agent", module + "/agent/result", module + "/images",
		"github.com/spf13/cobra", "github.com/spf13/pflag",
	}},
	{room: "controller", allowed: append([]string{module + "/controller/...", module + "/agent/result", "github.com/go-logr/logr", "github.com/prometheus/client_golang/..."}, kubernetes...)},
	{room: "cmd/controller", allowed: append([]string{
		module + "/controller/...", "github.com/go-logr/logr", "github.com/spf13/cobra", "github.com/spf13/pflag",
	}, kubernetes...)},
	// Distribution logs through logrus, and its noise is turned off there.
	{room: "test/registry", allowed: []string{"github.com/sirupsen/logrus", "..."}},
	{room: "test", allowed: []string{module + "/agent/result", module + "/test/...", "..."}},
	// The limit reads gzip as fast as the agent does.
	{room: "test/bench/peers", allowed: []string{module + "/images/isal", module + "/test/...", "..."}},
	{room: "test/controller", allowed: []string{module + "/controller/...", module + "/agent/result", module + "/test/...", "..."}},
}

// kubernetes lists the modules that are the business of the controller and of tests.
var kubernetes = []string{"k8s.io/...", "sigs.k8s.io/...", "github.com/openshift/api/..."}

// foreign lists the modules that are the business of images alone.
var foreign = []string{
	"go.podman.io/...", "github.com/openshift/imagebuilder/...", "github.com/containers/...",
	"github.com/opencontainers/...", "github.com/sirupsen/logrus", "github.com/docker/distribution/...",
}

// banned are names of packages that say nothing.
var banned = []string{"util", "utils", "common", "helpers", "helper", "misc"}

// pkg is what `go list -json` says of a package.
type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestImportsStayInsideTheWalls(t *testing.T) {
	packages := list(t)
	if len(packages) < 6 {
		t.Fatalf("only %d packages were found", len(packages))
	}
	for _, p := range packages {
		for _, v := range violations(p) {
			t.Error(v)
		}
	}
}

// violations lists the imports of a package that cross a wall.
func violations(p pkg) (found []string) {
	folder := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
	if slices.Contains(banned, path.Base(folder)) {
		found = append(found, p.ImportPath+" has a name that says nothing")
	}
	w := wallOf(folder)
	if w == nil {
		return append(found, p.ImportPath+" is in a room that no wall is known of")
	}
	check := func(imports, allowed []string) {
		for _, imported := range imports {
			switch {
			case strings.HasPrefix(imported, p.ImportPath), standard(imported):
			case !matches(imported, allowed),
				w.room != "images" && matches(imported, foreign) && !slices.Contains(allowed, imported),
				w.room == "images" && matches(imported, kubernetes),
				strings.HasPrefix(imported, module) && slices.Contains(allowed, "...") && !matches(imported, without(allowed, "...")):
				found = append(found, p.ImportPath+" imports "+imported)
			}
		}
	}
	check(p.Imports, w.allowed)
	check(slices.Concat(p.TestImports, p.XTestImports), slices.Concat(w.allowed, w.tests, []string{module + "/" + folder}))
	return found
}

// TestProgramsStayApart looks at everything that is linked: the agent has nothing of
// Kubernetes, and the controller nothing of images and no cgo.
func TestProgramsStayApart(t *testing.T) {
	for program, never := range map[string][]string{
		"cmd/agent":      {"k8s.io/client-go/...", "k8s.io/api/...", "k8s.io/apimachinery/...", "sigs.k8s.io/controller-runtime/...", "github.com/openshift/api/..."},
		"cmd/controller": append([]string{module + "/images/...", module + "/agent", module + "/retry", "runtime/cgo"}, foreign...),
	} {
		list := exec.Command("go", "list", "-deps", module+"/"+program)
		if program == "cmd/controller" {
			list.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		imports := strings.Fields(string(out))
		if len(imports) < 50 {
			t.Fatalf("%s has only %d packages", program, len(imports))
		}
		for _, imported := range imports {
			if matches(imported, never) {
				t.Errorf("%s has %s in it", program, imported)
			}
		}
	}
}

func wallOf(folder string) *wall {
	var best *wall
	for i, w := range walls {
		if (folder == w.room || strings.HasPrefix(folder, w.room+"/")) && (best == nil || len(w.room) > len(best.room)) {
			best = &walls[i]
		}
	}
	return best
}

func without(list []string, item string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == item })
}

func matches(imported string, patterns []string) bool {
	for _, p := range patterns {
		prefix, tree := strings.CutSuffix(p, "...")
		if imported == p || (tree && strings.HasPrefix(imported+"/", prefix)) {
			return true
		}
	}
	return false
}

// standard tells whether the import is of the standard library, whose paths have
// no dot in their first part.
func standard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

func list(t *testing.T) (packages []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// TestWallsHold shows that the check finds what it is for.
func TestWallsHold(t *testing.T) {
	for _, tt := range []struct {
		room, imported string
		ok             bool
	}{
		{"agent/result", "encoding/json", true},
		{"agent/result", "github.com/spf13/pflag", false},
		{"agent/result", module + "/images", false},
		{"retry", "github.com/avast/retry-go/v4", true},
		{"retry", module + "/agent/result", false},
		{"images", "go.podman.io/buildah", true},
		{"images", module + "/agent/result", true},
		{"images", module + "/agent", false},
		{"images", module + "/retry", false},
		{"agent", module + "/images", true},
		{"agent", "go.podman.io/storage", false},
		{"agent", "github.com/spf13/cobra", false},
		{"cmd/agent", "github.com/sirupsen/logrus", false},
		{"test/integration", "go.podman.io/image/v5/copy", false},
		{"test/integration", module + "/images", false},
		{"test/integration", "github.com/google/go-containerregistry/pkg/v1", true},
		{"controller", module + "/agent/result", true},
		{"controller", "k8s.io/api/core/v1", true},
		{"controller/render", "sigs.k8s.io/yaml", true},
		{"controller", module + "/images", false},
		{"controller", module + "/agent", false},
		{"controller", "go.podman.io/image/v5/docker/reference", false},
		{"cmd/controller", module + "/controller/manifests", true},
		{"agent", "k8s.io/api/core/v1", false},
		{"agent", module + "/controller", false},
		{"images", "k8s.io/apimachinery/pkg/api/resource", false},
		{"test/controller", module + "/controller", true},
		{"test/integration", module + "/controller", false},
		{"agent/util", "os", false},
		{"elsewhere", "os", false},
	} {
		found := violations(pkg{ImportPath: module + "/" + tt.room, Imports: []string{tt.imported}})
		if (len(found) == 0) != tt.ok {
			t.Errorf("%s importing %s: %v", tt.room, tt.imported, found)
		}
	}
}
