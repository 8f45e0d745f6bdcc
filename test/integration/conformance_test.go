package integration

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
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

// leftOut are the inputs that cannot be built here, with what they need.
var leftOut = map[string]string{
	"add":                      "a server in the Internet",
	"header-builtin":           "a base image by its digest",
	"shell-test":               "bash",
	"quoted-and-inherited-arg": "bash",
	"stage-container-as-source-plus-hardlinks": "a base image by its digest",
	"copy-from-symlink-source":                 "a symbolic link, which no module has",
	"copy-empty-1":                             "an empty directory, which no module has",
	"copy-empty-2":                             "an empty directory, which no module has",
	"mount-targets-new":                        "a program that is not in the module",
	"mount-targets-old":                        "a program that is not in the module",
	"mount-targets-mount":                      "a program that is not in the module",
}

// TestConformanceInputs builds the inputs of buildah's conformance tests, which its
// module ships, with the agent and with buildah's own command line: the images are the
// same. The images that they are based on are made here, and the inputs that a
// function of the tests changes are not among them.
func TestConformanceInputs(t *testing.T) {
	dir := filepath.Join(buildahModule(t), "tests", "conformance")
	cases := slices.DeleteFunc(conformanceCases(t, filepath.Join(dir, "conformance_test.go")), func(c conformanceCase) bool { return leftOut[c.name] != "" })
	if len(cases) < 140 {
		t.Errorf("there are %d inputs, want 140 at least", len(cases))
	}
	for _, half := range [][]conformanceCase{cases[:len(cases)/2], cases[len(cases)/2:]} {
		t.Run("from "+half[0].name, func(t *testing.T) {
			t.Parallel()
			p := newPeers(t)
			for _, c := range half {
				t.Run(c.name, func(t *testing.T) { p.compare(t, c.name, c.input(t, p.l, filepath.Join(dir, "testdata"))) })
			}
		})
	}
}

// input copies a case to where it can be built.
func (c conformanceCase) input(t *testing.T, l *lab, testdata string) input {
	t.Helper()
	in := input{args: c.buildArgs, fails: c.shouldFail, context: l.mkdir(filepath.Join("conformance", c.name))}
	switch {
	case c.contextDir != "":
		copyWritable(t, filepath.Join(testdata, c.contextDir)+"/.", in.context)
	case c.dockerfile != "":
		copyWritable(t, filepath.Join(testdata, c.dockerfile), in.context)
	}
	in.file = filepath.Join(in.context, cmp.Or(c.dockerfile, "Dockerfile"))
	if c.contents != "" {
		in.file = l.file(filepath.Join("conformance-files", c.name), c.contents)
	}
	return in
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
func copyWritable(t *testing.T, from, to string) {
	t.Helper()
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
