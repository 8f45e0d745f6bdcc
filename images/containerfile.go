package images

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/openshift/imagebuilder"
	"github.com/openshift/imagebuilder/dockerfile/command"
	"github.com/openshift/imagebuilder/dockerfile/parser"
	"go.podman.io/buildah"
	"go.podman.io/buildah/define"
	"go.podman.io/common/pkg/config"
	"go.podman.io/image/v5/transports"
	"go.podman.io/storage/pkg/regexp"

	"github.com/strata-build/strata/agent/result"
)

// Containerfile is a Containerfile that was understood: what will be run, and
// which images it needs.
type Containerfile struct {
	// Bases are the images that must be pulled, each once, in the order in which
	// they are needed.
	Bases []Base

	stages []stage
	// mounted are the images that a mount names by a variable: from the text with the
	// variable to the name.
	mounted map[string]string
	// sources are the files that COPY and ADD name literally, secrets those that a RUN
	// cannot do without, and scripts the interpreters of heredocs that are scripts.
	sources, secrets, scripts []needed
}

// needed is something that a step needs from outside.
type needed struct {
	step result.Step
	name string
}

// Base is an image that a Containerfile builds on or copies from.
type Base struct {
	// Name is the name as the Containerfile has it, with its arguments resolved.
	Name string
	// Line is where it is named first.
	Line int
	// Platform is that of FROM --platform, empty for that of the build.
	Platform string
	// From tells that the image is the base of a stage, whose steps run in it.
	From bool
	// Final tells that the image which is built is made of its layers, and of those of
	// the steps.
	Final bool
}

// runs tells whether the Containerfile has a RUN step.
func (c *Containerfile) runs() bool {
	return c.has(command.Run, func(string) bool { return true })
}

// caches tells whether the Containerfile has a RUN --mount=type=cache.
func (c *Containerfile) caches() bool {
	return c.has(command.Run, func(arguments string) bool { return strings.Contains(arguments, "type=cache") })
}

// fetches tells whether the Containerfile has an ADD that may be from a server.
func (c *Containerfile) fetches() bool {
	return c.has(command.Add, func(arguments string) bool {
		return strings.Contains(arguments, "://") || strings.Contains(arguments, "$")
	})
}

// has tells whether there is an instruction with arguments of a certain kind.
func (c *Containerfile) has(instruction string, of func(arguments string) bool) bool {
	for _, s := range c.stages {
		for _, step := range s.steps {
			if word, arguments, _ := strings.Cut(step.Instruction, " "); strings.EqualFold(word, instruction) && of(arguments) {
				return true
			}
		}
	}
	return false
}

// stage is one stage that will be built.
type stage struct {
	name  string
	named bool // with AS
	final bool // the image is made of its layers
	steps []result.Step
}

// syntaxError is an error in the text of a Containerfile.
func syntaxError(path string, line int, err error) *Error {
	at := path
	if line > 0 {
		at = fmt.Sprintf("%s, line %d", path, line)
	}
	return &Error{
		Reason: result.ReasonContainerfileInvalid, Class: result.ClassInput, Err: err,
		Message: fmt.Sprintf("%s: %s", at, oneLine(err.Error())),
	}
}

// ParseContainerfile reads a Containerfile with the parser that builds it and
// finds the images that it needs for the target. The error is an *Error with the
// reason ContainerfileInvalid that names the line.
func ParseContainerfile(path string, text []byte, args map[string]string, target, platform string, contexts map[string]*define.AdditionalBuildContext) (*Containerfile, error) {
	if line, err := checkLength(text); err != nil {
		return nil, syntaxError(path, line, err)
	}
	root, err := imagebuilder.ParseDockerfile(bytes.NewReader(text))
	if errors.Is(err, bufio.ErrTooLong) {
		err = errors.New("the line is longer than the parser takes")
	}
	if err != nil {
		return nil, syntaxError(path, errorLine(text), err)
	}
	if len(root.Children) == 0 {
		return nil, syntaxError(path, 0, errors.New("it has no instruction"))
	}
	for _, node := range root.Children {
		if err := checkInstruction(node); err != nil {
			err := syntaxError(path, node.StartLine, err)
			err.Step = &result.Step{Line: node.StartLine, Instruction: node.Original}
			return nil, err
		}
	}
	first := 0
	for first < len(root.Children) && root.Children[first].Value == command.Arg {
		first++
	}
	if first == len(root.Children) {
		return nil, syntaxError(path, 0, errors.New("it has no FROM"))
	}
	if node := root.Children[first]; node.Value != command.From {
		return nil, syntaxError(path, node.StartLine, errors.New("FROM must come first"))
	}
	builder := imagebuilder.NewBuilder(args)
	if platform != "" {
		builder.BuiltinArgDefaults = maps.Clone(builder.BuiltinArgDefaults)
		maps.Copy(builder.BuiltinArgDefaults, platformArgs(platform))
	}
	defaults, err := config.Default()
	if err != nil {
		return nil, invalid("containers.conf cannot be read", err)
	}
	builder.Env = append(defaults.GetDefaultEnv(), builder.Env...)
	stages, err := imagebuilder.NewStages(root, builder)
	if err != nil {
		return nil, syntaxError(path, 0, err)
	}
	if target != "" {
		through, ok := stages.ThroughTarget(target)
		if !ok {
			names := make([]string, len(stages))
			for i, s := range stages {
				names[i] = s.Name
			}
			return nil, syntaxError(path, 0, fmt.Errorf("it has no stage %q for --target; its stages are %s", target, strings.Join(names, ", ")))
		}
		stages = through
	}
	c := &collector{path: path, stages: stages, contexts: contexts, needed: map[int]bool{}, final: map[int]bool{len(stages) - 1: true}, seen: map[string]int{}, mounted: map[string]string{}}
	if err := c.need(len(stages) - 1); err != nil {
		return nil, err
	}
	file := &Containerfile{Bases: c.bases, mounted: c.mounted}
	for i, s := range stages {
		if c.needed[i] {
			described := describeStage(s)
			described.final = c.final[i]
			file.stages = append(file.stages, described)
			for n, node := range s.Node.Children {
				for _, source := range literalSources(node) {
					file.sources = append(file.sources, needed{described.steps[n], source})
				}
				for _, secret := range requiredSecrets(node) {
					file.secrets = append(file.secrets, needed{described.steps[n], secret})
				}
				if interpreter := interpreterOf(node); interpreter != "" {
					file.scripts = append(file.scripts, needed{described.steps[n], interpreter})
				}
			}
		}
	}
	return file, nil
}

// longVariable is an ENV or ARG on one line with a single variable.
var longVariable = regexp.Delayed(`(?i)^\s*(?:ENV|ARG)\s+\w+=\S+\s*$`)

// checkLength finds the line of a variable that is too long for any program, before the
// parser, for which that takes minutes: its time grows with the square of the length.
func checkLength(text []byte) (line int, err error) {
	for n, l := range bytes.Split(text, []byte("\n")) {
		if len(l) > maxArgument && longVariable.Match(l) {
			return n + 1, tooLong(string(bytes.TrimSpace(l[:bytes.IndexByte(l, '=')])), len(l))
		}
	}
	return 0, nil
}

func tooLong(what string, size int) error {
	return fmt.Errorf("%s has %d bytes, but the kernel takes at most %d: put the value into a file", what, size, maxArgument)
}

// checkInstruction finds what the parser lets pass and the build refuses:
// instructions that do not exist and arguments that are wrong whatever the
// variables in them are.
func checkInstruction(node *parser.Node) error {
	if _, known := command.Commands[strings.ToLower(node.Value)]; !known {
		return fmt.Errorf("unknown instruction %s", strings.ToUpper(node.Value))
	}
	if strings.EqualFold(node.Value, command.From) && node.Next == nil {
		return errors.New("FROM needs the name of an image")
	}
	if strings.EqualFold(node.Value, command.Run) {
		if size := commandSize(node); size > maxArgument {
			return fmt.Errorf("the command has %d bytes, but the kernel takes at most %d: put it into a file of the build context", size, maxArgument)
		}
	}
	if name, size := longestVariable(node); size > maxArgument {
		return tooLong("the variable "+name, size)
	}
	if strings.Contains(node.Original, "$") {
		return nil
	}
	b := imagebuilder.NewBuilder(nil)
	b.RunConfig.Image = buildah.BaseImageFakeName // RUN wants to come after a FROM
	step := b.Step()
	if err := step.Resolve(node); err != nil {
		return err
	}
	return b.Run(step, imagebuilder.NoopExecutor, true)
}

// maxArgument is how long an argument of a program may be, in bytes (execve(2),
// MAX_ARG_STRLEN, less the NUL behind it). A longer one makes buildah wait for ever.
const maxArgument = 128<<10 - 1

// longestVariable is the longest variable that an ENV or ARG sets, and its length as
// programs get it.
func longestVariable(node *parser.Node) (name string, size int) {
	take := func(n, value string) {
		if length := len(n) + len("=") + len(value); length > size {
			name, size = n, length
		}
	}
	switch strings.ToLower(node.Value) {
	case command.Env:
		for n := node.Next; n != nil && n.Next != nil; n = n.Next.Next {
			take(n.Value, n.Next.Value)
		}
	case command.Arg:
		for n := node.Next; n != nil; n = n.Next {
			argument, value, _ := strings.Cut(n.Value, "=")
			take(argument, value)
		}
	}
	return name, size
}

// commandSize is the length of the longest argument of a RUN step.
func commandSize(node *parser.Node) int {
	size := 0
	for arg := node.Next; arg != nil; arg = arg.Next {
		size = max(size, len(arg.Value))
	}
	for _, doc := range node.Heredocs {
		if !strings.HasPrefix(strings.TrimLeft(doc.Content, "\n"), "#!") { // else it is a file
			size = max(size, len(doc.Content))
		}
	}
	return size
}

// errorLine finds the line at which the instruction begins that the parser stopped
// at, which it does not say: it follows the longest beginning of the text that can
// be parsed.
func errorLine(text []byte) int {
	lines := bytes.SplitAfter(text, []byte("\n"))
	for n := len(lines) - 1; n >= 0; n-- {
		if _, err := imagebuilder.ParseDockerfile(bytes.NewReader(bytes.Join(lines[:n], nil))); err == nil {
			return n + 1
		}
	}
	return 0
}

func platformArgs(platform string) map[string]string {
	parts := append(strings.Split(platform, "/"), "", "")
	return map[string]string{"TARGETPLATFORM": platform, "TARGETOS": parts[0], "TARGETARCH": parts[1], "TARGETVARIANT": parts[2]}
}

// collector finds the stages that the target needs, and the images that these do.
type collector struct {
	path     string
	stages   imagebuilder.Stages
	contexts map[string]*define.AdditionalBuildContext
	needed   map[int]bool
	final    map[int]bool   // the last stage, and those it is built on
	seen     map[string]int // name and platform of a base to its index
	bases    []Base
	mounted  map[string]string
}

// need marks a stage, and first those it depends on, as ones that will be built.
func (c *collector) need(index int) error {
	if c.needed[index] {
		return nil
	}
	c.needed[index] = true
	s := c.stages[index]
	local := map[string]string{}
	var env []string // which count in the value of an ARG alone
	for _, node := range s.Node.Children {
		for _, name := range imagesNamedBy(node) {
			resolved, err := imagebuilder.ProcessWord(name, resolveArgs(s, node, local))
			if err != nil {
				return syntaxError(c.path, node.StartLine, err)
			}
			if resolved == "" {
				return syntaxError(c.path, node.StartLine, fmt.Errorf("%s names no image or stage: its variables are empty (only those of ARG count here)", node.Original))
			}
			final := c.final[index] && strings.EqualFold(node.Value, command.From) && name == node.Next.Value
			stage, err := c.use(index, node, resolved, final)
			if err != nil {
				return err
			}
			if resolved == name || !strings.EqualFold(node.Value, command.Run) {
				continue
			}
			if stage { // buildah looks for the text
				return syntaxError(c.path, node.StartLine, fmt.Errorf("the mount names the stage %q by a variable, which is not possible: write from=%s", resolved, resolved))
			}
			c.mounted[name] = resolved
		}
		switch strings.ToLower(node.Value) {
		case command.Arg:
			for arg := node.Next; arg != nil; arg = arg.Next {
				if name, value, ok := strings.Cut(arg.Value, "="); ok {
					if v, err := imagebuilder.ProcessWord(value, append(slices.Clone(env), resolveArgs(s, node, local)...)); err == nil {
						local[name] = v
					}
				}
			}
		case command.Env:
			known := append(slices.Clone(env), resolveArgs(s, node, local)...)
			for name := node.Next; name != nil && name.Next != nil; name = name.Next.Next {
				if v, err := imagebuilder.ProcessWord(name.Next.Value, known); err == nil {
					env = append([]string{name.Value + "=" + v}, env...)
				}
			}
		}
	}
	return nil
}

// use follows a name to the stage or the image that it means. final tells that the
// image which is built is made of its layers.
func (c *collector) use(index int, node *parser.Node, name string, final bool) (stage bool, err error) {
	from := strings.EqualFold(node.Value, command.From)
	if extra, ok := c.contexts[name]; ok {
		if !extra.IsImage {
			return false, nil
		}
		name = extra.Value
	} else {
		for i := index - 1; i >= 0; i-- {
			if c.stages[i].Name == name || strconv.Itoa(i) == name {
				c.final[i] = c.final[i] || final
				return true, c.need(i)
			}
		}
	}
	if name == buildah.BaseImageFakeName {
		return false, nil
	}
	if transport, _, ok := strings.Cut(name, ":"); ok && transport != "docker" && transports.Get(transport) != nil {
		return false, nil // a file or a local store, which the build reads itself
	}
	platform := ""
	if from {
		for _, flag := range node.Flags {
			if p, ok := strings.CutPrefix(flag, "--platform="); ok {
				if resolved, err := imagebuilder.ProcessWord(p, resolveArgs(c.stages[index], node, nil)); err == nil {
					platform = resolved
				}
			}
		}
	}
	key := name + " " + platform
	if i, ok := c.seen[key]; ok {
		c.bases[i].From = c.bases[i].From || from
		c.bases[i].Final = c.bases[i].Final || final
		return false, nil
	}
	c.seen[key] = len(c.bases)
	c.bases = append(c.bases, Base{Name: name, Line: node.StartLine, Platform: platform, From: from, Final: final})
	return false, nil
}

// imagesNamedBy returns the names of stages or images in an instruction.
func imagesNamedBy(node *parser.Node) []string {
	var names []string
	switch strings.ToLower(node.Value) {
	case command.From:
		for _, flag := range node.Flags {
			if name, ok := strings.CutPrefix(flag, "--after="); ok {
				names = append(names, name)
			}
		}
		names = append(names, node.Next.Value)
	case command.Copy, command.Add:
		for _, flag := range node.Flags {
			if name, ok := strings.CutPrefix(flag, "--from="); ok {
				names = append(names, name)
			}
		}
	case command.Run:
		for _, flag := range node.Flags {
			mount, ok := strings.CutPrefix(flag, "--mount=")
			if !ok {
				continue
			}
			for field := range strings.SplitSeq(mount, ",") {
				if name, ok := strings.CutPrefix(field, "from="); ok {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// literalSources returns the sources of a COPY or ADD from the build context that
// stand there as they are: no pattern, no variable, no URL.
func literalSources(node *parser.Node) (sources []string) {
	word := strings.ToLower(node.Value)
	if (word != command.Copy && word != command.Add) || len(node.Heredocs) > 0 || strings.Contains(node.Original, "$") {
		return nil
	}
	for _, flag := range node.Flags {
		if strings.HasPrefix(flag, "--from=") || strings.HasPrefix(flag, "--exclude=") || flag == "--parents" || strings.HasPrefix(flag, "--parents=") {
			return nil
		}
	}
	for arg := node.Next; arg != nil && arg.Next != nil; arg = arg.Next {
		if !strings.ContainsAny(arg.Value, `*?[\`) && !strings.Contains(arg.Value, "://") && !strings.HasPrefix(arg.Value, "git@") {
			sources = append(sources, arg.Value)
		}
	}
	return sources
}

// requiredSecrets returns the ids of secrets that a RUN asks for as required.
func requiredSecrets(node *parser.Node) (ids []string) {
	if !strings.EqualFold(node.Value, command.Run) {
		return nil
	}
	for _, flag := range node.Flags {
		mount, ok := strings.CutPrefix(flag, "--mount=")
		if !ok {
			continue
		}
		id, secret, required := "", false, false
		for field := range strings.SplitSeq(mount, ",") {
			name, value, _ := strings.Cut(field, "=")
			switch name {
			case "type":
				secret = value == "secret"
			case "id":
				id = value
			case "required":
				required = value == "" || value == "true"
			}
		}
		if secret && required && id != "" && !strings.Contains(id, "$") {
			ids = append(ids, id)
		}
	}
	return ids
}

// onlyHeredoc is a command that is nothing but a heredoc.
var onlyHeredoc = regexp.Delayed(`^\s*\d*<<-?\s*["']?[^\s"'<]+["']?\s*$`)

// interpreterOf returns the program that a RUN's heredoc names by #!, when the heredoc
// is all that there is to run.
func interpreterOf(node *parser.Node) string {
	if !strings.EqualFold(node.Value, command.Run) || len(node.Heredocs) == 0 || node.Next == nil || !onlyHeredoc.MatchString(node.Next.Value) {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(node.Heredocs[0].Content, "\n"), "\n")
	interpreter, _ := strings.CutPrefix(first, "#!")
	if interpreter == first {
		return ""
	}
	return strings.TrimSpace(interpreter)
}

// resolveArgs lists the arguments that a name in the instruction may use; the first
// match counts. FROM knows only those that an ARG before the first FROM declares.
func resolveArgs(s imagebuilder.Stage, node *parser.Node, local map[string]string) []string {
	given := s.Builder.Args
	if strings.EqualFold(node.Value, command.From) {
		given = maps.Clone(given)
		maps.DeleteFunc(given, func(name, _ string) bool { _, declared := s.Builder.HeadingArgs[name]; return !declared })
	}
	var args []string
	for _, m := range []map[string]string{given, local, s.Builder.BuiltinArgDefaults, s.Builder.HeadingArgs} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			args = append(args, k+"="+m[k])
		}
	}
	return args
}

func describeStage(s imagebuilder.Stage) stage {
	described := stage{name: s.Name, named: s.Name != strconv.Itoa(s.Position)}
	for _, node := range s.Node.Children {
		described.steps = append(described.steps, result.Step{
			Stage: s.Name, Number: len(described.steps) + 1, Of: len(s.Node.Children),
			Line: node.StartLine, Instruction: node.Original,
		})
	}
	return described
}
