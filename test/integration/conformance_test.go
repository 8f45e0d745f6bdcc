package integration

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// conformanceCase is an input of buildah's own conformance tests, as far as it is data.
type conformanceCase struct {
	name                   string
	contextDir, dockerfile string // as there
	contents               string // in place of a file
	shouldFail             bool
	buildArgs              []string
}

// leftOut are the inputs that cannot be built here, with a piece of their names.
var leftOut = map[string]string{}

// TestConformanceInputs builds the inputs of buildah's conformance tests, which its
// module ships, with the agent and with buildah's own command line: the images are the
// same. The images that they are based on are made here, and the inputs that a
// function of the tests changes are not among them.
func TestConformanceInputs(t *testing.T) {
	dir := filepath.Join(buildahModule(t), "tests", "conformance")
	cases := conformanceCases(t, filepath.Join(dir, "conformance_test.go"))
	p := newPeers(t)
	ran := 0
	for _, c := range cases {
		if _, left := leftOut[c.name]; left {
			continue
		}
		ran++
		t.Run(c.name, func(t *testing.T) {
			in := input{args: c.buildArgs, fails: c.shouldFail}
			in.context = p.l.mkdir(filepath.Join("conformance", c.name))
			for _, source := range []string{c.contextDir, c.dockerfile} {
				if source != "" {
					copyWritable(t, filepath.Join(dir, "testdata", source), in.context, c.contextDir == source)
					break
				}
			}
			in.file = filepath.Join(in.context, "Dockerfile")
			if c.dockerfile != "" {
				in.file = filepath.Join(in.context, c.dockerfile)
			}
			if c.contents != "" {
				in.file = p.l.file(filepath.Join("conformance-files", c.name), c.contents)
			}
			p.compare(t, c.name, in)
		})
	}
	if ran < 200 {
		t.Errorf("%d inputs were built, want 200 at least", ran)
	}
}

// buildahModule is where the source of the embedded buildah is.
func buildahModule(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "go.podman.io/buildah").Output()
	dir := strings.TrimSpace(string(out))
	if err != nil || dir == "" {
		t.Fatalf("the source of buildah is not found: %v", err)
	}
	return dir
}

// copyWritable copies what is in a directory, or a file, from the module cache, in
// which nothing may be written to.
func copyWritable(t *testing.T, from, to string, content bool) {
	t.Helper()
	if content {
		from += "/."
	}
	if out, err := exec.Command("cp", "-r", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := exec.Command("chmod", "-R", "u+w", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// conformanceCases reads the table of the tests. A case of which a field that matters
// is more than a literal is left out.
func conformanceCases(t *testing.T, path string) (cases []conformanceCase) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != "internalTestCases" {
			return true
		}
		table, ok := spec.Values[0].(*ast.CompositeLit)
		if !ok {
			return false
		}
		for _, element := range table.Elts {
			c, err := conformanceCaseOf(element)
			if err != nil {
				t.Logf("left out: %s: %v", c.name, err)
				continue
			}
			if seen[c.name]++; seen[c.name] > 1 {
				c.name += "-" + itoa(seen[c.name])
			}
			cases = append(cases, c)
		}
		return false
	})
	return cases
}

func conformanceCaseOf(element ast.Expr) (c conformanceCase, err error) {
	literal, ok := element.(*ast.CompositeLit)
	if !ok {
		return c, errors.New("not a literal")
	}
	for _, field := range literal.Elts {
		pair, ok := field.(*ast.KeyValueExpr)
		if !ok {
			return c, errors.New("a field without a name")
		}
		name := fmt.Sprint(pair.Key)
		var fieldErr error
		switch name {
		case "name":
			c.name, fieldErr = text(pair.Value)
			c.name = strings.ReplaceAll(c.name, " ", "-")
		case "contextDir":
			c.contextDir, fieldErr = text(pair.Value)
		case "dockerfile":
			c.dockerfile, fieldErr = text(pair.Value)
		case "dockerfileContents":
			c.contents, fieldErr = text(pair.Value)
		case "shouldFailAt":
			c.shouldFail = true
		case "buildArgs":
			c.buildArgs, fieldErr = buildArgs(pair.Value)
		case "tweakContextDir", "transientMounts":
			fieldErr = errors.New("a function of the tests makes a part of it")
		}
		if fieldErr != nil {
			err = fmt.Errorf("%s: %w", name, fieldErr)
		}
	}
	return c, err
}

// text is the value of a string: a literal, or literals that are joined.
func text(e ast.Expr) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.CallExpr: // strings.Join([]string{…}, "\n")
		if len(e.Args) != 2 {
			break
		}
		lines, ok := e.Args[0].(*ast.CompositeLit)
		separator, err := text(e.Args[1])
		if !ok || err != nil {
			break
		}
		var all []string
		for _, l := range lines.Elts {
			line, err := text(l)
			if err != nil {
				return "", err
			}
			all = append(all, line)
		}
		return strings.Join(all, separator), nil
	}
	return "", fmt.Errorf("a %T and not text", e)
}

func buildArgs(e ast.Expr) (args []string, err error) {
	literal, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil, errors.New("not a literal")
	}
	found := map[string]string{}
	for _, field := range literal.Elts {
		pair, ok := field.(*ast.KeyValueExpr)
		if !ok {
			return nil, errors.New("not a pair")
		}
		name, err := text(pair.Key)
		if err != nil {
			return nil, err
		}
		if found[name], err = text(pair.Value); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		args = append(args, "--build-arg", name+"="+found[name])
	}
	return args, nil
}

var _ = os.Getenv
