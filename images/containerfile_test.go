package images

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.podman.io/buildah/define"

	"github.com/strata-build/strata/agent/result"
)

// source is what ParseContainerfile is given.
type source struct {
	text             string
	args             map[string]string
	target, platform string
	contexts         map[string]*define.AdditionalBuildContext
}

func (s source) parse() (*Containerfile, error) {
	return ParseContainerfile("dir/Containerfile", []byte(s.text), s.args, s.target, s.platform, s.contexts)
}

// names lists the bases as NAME:LINE, with the platform and "from" behind where
// they are given.
func names(file *Containerfile) []string {
	all := []string{}
	for _, b := range file.Bases {
		name := fmt.Sprintf("%s@%d", b.Name, b.Line)
		if b.Platform != "" {
			name += " " + b.Platform
		}
		if b.From {
			name += " from"
		}
		all = append(all, name)
	}
	return all
}

func TestBases(t *testing.T) {
	image := func(name string) *define.AdditionalBuildContext {
		return &define.AdditionalBuildContext{IsImage: true, Value: name}
	}
	directory := &define.AdditionalBuildContext{Value: "/srv/data"}
	for _, s := range []struct {
		name string
		in   source
		want []string
	}{
		{"one stage", source{text: "FROM r.example/a:1\nRUN true\n"}, []string{"r.example/a:1@1 from"}},
		{"comments and blank lines before it", source{text: "# a\n\n# b\nFROM r.example/a:1\n"}, []string{"r.example/a:1@4 from"}},
		{"no newline at the end", source{text: "FROM r.example/a:1"}, []string{"r.example/a:1@1 from"}},
		{"CRLF", source{text: "# a\r\nFROM r.example/a:1\r\nRUN true\r\n"}, []string{"r.example/a:1@2 from"}},
		{"BOM", source{text: "\ufeffFROM r.example/a:1\n"}, []string{"r.example/a:1@1 from"}},
		{"parser directives", source{text: "# escape=`\n# syntax=docker/dockerfile:1\nFROM `\n r.example/a:1\nRUN a `\n b\n"}, []string{"r.example/a:1@3 from"}},
		{"lower case", source{text: "from r.example/a:1 as b\nrun true\nfrom b\ncopy --from=r.example/c:1 / /\n"}, []string{"r.example/a:1@1 from", "r.example/c:1@4"}},
		{"mixed case", source{text: "From r.example/a:1\nCopy --from=r.example/c:1 / /\nRun --mount=type=bind,from=r.example/d:1,target=/d true\n"}, []string{"r.example/a:1@1 from", "r.example/c:1@2", "r.example/d:1@3"}},
		{"scratch", source{text: "FROM scratch\nCOPY a /\n"}, []string{}},
		{"docker transport", source{text: "FROM docker://r.example/a:1\n"}, []string{"docker://r.example/a:1@1 from"}},
		{"files are read by the build", source{text: "FROM oci:/srv/a AS a\nFROM docker-archive:/srv/b.tar AS b\nFROM dir:/srv/c AS c\nFROM oci-archive:/srv/d.tar\nCOPY --from=a / /\nCOPY --from=b / /\nCOPY --from=c / /\n"}, []string{}},
		{"a host with a port is no transport", source{text: "FROM oci:5000/a:1\nCOPY --from=dir.example:5000/b / /\n"}, []string{"dir.example:5000/b@2"}},
		{"a digest", source{text: "FROM r.example/a@sha256:" + strings.Repeat("0", 64) + "\n"}, []string{"r.example/a@sha256:" + strings.Repeat("0", 64) + "@1 from"}},

		{"ARG before FROM", source{text: "ARG TAG=1\nFROM r.example/a:${TAG}\n"}, []string{"r.example/a:1@2 from"}},
		{"ARG without braces", source{text: "ARG BASE=r.example/a:1\nFROM $BASE\n"}, []string{"r.example/a:1@2 from"}},
		{"a default in the name", source{text: "ARG TAG\nFROM r.example/a:${TAG:-9}\n"}, []string{"r.example/a:9@2 from"}},
		{"build argument before the default", source{text: "ARG TAG=1\nFROM r.example/a:${TAG}\n", args: map[string]string{"TAG": "2"}}, []string{"r.example/a:2@2 from"}},
		{"build argument without a default", source{text: "ARG TAG\nFROM r.example/a:${TAG}\n", args: map[string]string{"TAG": "2"}}, []string{"r.example/a:2@2 from"}},
		{"build argument without an ARG", source{text: "FROM r.example/a${TAG}\n", args: map[string]string{"TAG": "2"}}, []string{"r.example/a@1 from"}},
		{"ARG that names another", source{text: "ARG HOST=r.example\nARG BASE=${HOST}/a\nARG TAG=1\nFROM ${BASE}:${TAG}\n"}, []string{"r.example/a:1@4 from"}},
		{"ARG that names one which is overridden", source{text: "ARG HOST=r.example\nARG BASE=${HOST}/a\nFROM ${BASE}:1\n", args: map[string]string{"HOST": "s.example"}}, []string{"s.example/a:1@3 from"}},
		{"two ARGs in one line", source{text: "ARG HOST=r.example TAG=1\nFROM ${HOST}/a:${TAG}\n"}, []string{"r.example/a:1@2 from"}},
		{"ARG before FROM, in a later stage", source{text: "ARG TAG=1\nFROM scratch AS a\nFROM r.example/b:${TAG}\nCOPY --from=a / /\n"}, []string{"r.example/b:1@3 from"}},
		{"ARG within a stage, in COPY", source{text: "FROM scratch\nARG TAG=1\nCOPY --from=r.example/a:${TAG} / /\n"}, []string{"r.example/a:1@3"}},
		{"ARG within a stage, overridden", source{text: "FROM scratch\nARG TAG=1\nCOPY --from=r.example/a:${TAG} / /\n", args: map[string]string{"TAG": "2"}}, []string{"r.example/a:2@3"}},
		{"ARG within a stage names one before FROM", source{text: "ARG TAG=1\nFROM scratch\nARG TAG\nCOPY --from=r.example/a:${TAG} / /\n"}, []string{"r.example/a:1@4"}},
		{"ARG within a stage names another of it", source{text: "FROM scratch\nARG HOST=r.example\nARG BASE=${HOST}/a\nCOPY --from=${BASE}:1 / /\n"}, []string{"r.example/a:1@4"}},
		{"ARG within a stage names an ENV", source{text: "FROM scratch\nENV HOST=r.example A=${NONE}\nENV BASE=$HOST/a\nARG X=${BASE}:1\nCOPY --from=$X / /\n"}, []string{"r.example/a:1@5"}},
		{"ARG of one stage does not reach the next", source{text: "ARG TAG=1\nFROM scratch AS a\nARG TAG=2\nFROM r.example/b:${TAG}\nCOPY --from=a / /\n"}, []string{"r.example/b:1@4 from"}},
		{"TARGETARCH of this machine", source{text: "FROM r.example/a:$TARGETARCH\n"}, []string{"r.example/a:" + runtime.GOARCH + "@1 from"}},
		{"TARGETARCH of the platform", source{text: "FROM r.example/a:$TARGETARCH-$TARGETOS\n", platform: "linux/s390x"}, []string{"r.example/a:s390x-linux@1 from"}},

		{"stage by name", source{text: "FROM r.example/a:1 AS a\nFROM a\n"}, []string{"r.example/a:1@1 from"}},
		{"stage by a name in upper case", source{text: "FROM r.example/a:1 AS A\nFROM A\n"}, []string{"r.example/a:1@1 from"}},
		{"stage by an argument", source{text: "ARG S=a\nFROM r.example/a:1 AS a\nFROM r.example/b:1 AS b\nFROM ${S}\n"}, []string{"r.example/a:1@2 from"}},
		{"stage by number", source{text: "FROM r.example/a:1\nFROM 0\n"}, []string{"r.example/a:1@1 from"}},
		{"stage that has a name, by number", source{text: "FROM r.example/a:1 AS a\nFROM 0\n"}, []string{"r.example/a:1@1 from"}},
		{"stage after another", source{text: "FROM r.example/a:1 AS a\nFROM --after=a r.example/b:1\n"}, []string{"r.example/a:1@1 from", "r.example/b:1@2 from"}},
		{"a later stage is an image", source{text: "FROM b AS a\nFROM scratch AS b\nCOPY --from=a / /\n"}, []string{"b@1 from"}},
		{"COPY from a stage by name", source{text: "FROM r.example/a:1 AS a\nFROM r.example/b:1\nCOPY --from=a /x /x\n"}, []string{"r.example/b:1@2 from", "r.example/a:1@1 from"}},
		{"COPY from a stage by number", source{text: "FROM r.example/a:1\nFROM r.example/b:1\nCOPY --from=0 /x /x\n"}, []string{"r.example/b:1@2 from", "r.example/a:1@1 from"}},
		{"COPY from an image", source{text: "FROM scratch\nCOPY --chown=1:1 --from=r.example/c:1 /x /x\n"}, []string{"r.example/c:1@2"}},
		{"mount of a stage", source{text: "FROM r.example/a:1 AS a\nFROM r.example/b:1\nRUN --mount=type=bind,from=a,source=/x,target=/x true\n"}, []string{"r.example/b:1@2 from", "r.example/a:1@1 from"}},
		{"mount of an image", source{text: "FROM r.example/b:1\nRUN --mount=type=cache,target=/c --mount=type=bind,target=/x,from=r.example/d:1 true\n"}, []string{"r.example/b:1@1 from", "r.example/d:1@2"}},
		{"the word --from in a command", source{text: "FROM r.example/b:1\nRUN cp --from=r.example/x:1 a b\nENV from=r.example/y:1\n"}, []string{"r.example/b:1@1 from"}},

		{"unused stages", source{text: "FROM r.example/a:1 AS a\nCOPY --from=r.example/x:1 / /\nFROM r.example/b:1 AS b\nFROM r.example/c:1\n"}, []string{"r.example/c:1@4 from"}},
		{"stages after the target", source{text: "FROM r.example/a:1 AS a\nFROM r.example/b:1 AS b\nCOPY --from=a / /\nFROM r.example/c:1\n", target: "b"}, []string{"r.example/b:1@2 from", "r.example/a:1@1 from"}},
		{"target by number", source{text: "FROM r.example/a:1\nFROM r.example/b:1\n", target: "0"}, []string{"r.example/a:1@1 from"}},
		{"the last of two stages of one name", source{text: "FROM r.example/a:1 AS a\nFROM r.example/b:1 AS a\nFROM a\n"}, []string{"r.example/b:1@2 from"}},

		{"the same base twice", source{text: "FROM r.example/a:1 AS a\nFROM r.example/a:1\nCOPY --from=a / /\nCOPY --from=r.example/a:1 / /\n"}, []string{"r.example/a:1@2 from"}},
		{"first copied from, then built on", source{text: "FROM scratch AS a\nCOPY --from=r.example/a:1 / /\nFROM r.example/a:1\nCOPY --from=a / /\n"}, []string{"r.example/a:1@3 from"}},
		{"the same base for two platforms", source{text: "FROM --platform=linux/s390x r.example/a:1 AS a\nFROM r.example/a:1\nCOPY --from=a / /\n"}, []string{"r.example/a:1@2 from", "r.example/a:1@1 linux/s390x from"}},
		{"platform", source{text: "FROM --platform=linux/s390x r.example/a:1\n"}, []string{"r.example/a:1@1 linux/s390x from"}},
		{"platform of this machine", source{text: "FROM --platform=$BUILDPLATFORM r.example/a:1\n", platform: "linux/s390x"}, []string{"r.example/a:1@1 linux/" + runtime.GOARCH + " from"}},
		{"platform that is being built", source{text: "FROM --platform=${TARGETPLATFORM} r.example/a:1\n", platform: "linux/arm/v7"}, []string{"r.example/a:1@1 linux/arm/v7 from"}},
		{"platform by an argument", source{text: "ARG P=linux/s390x\nFROM --platform=$P r.example/a:1\n"}, []string{"r.example/a:1@2 linux/s390x from"}},

		{"build context that is an image", source{text: "FROM base\nCOPY --from=data / /\n", contexts: map[string]*define.AdditionalBuildContext{"base": image("r.example/a:1"), "data": image("r.example/b:1")}}, []string{"r.example/a:1@1 from", "r.example/b:1@2"}},
		{"build context that is a directory", source{text: "FROM r.example/a:1\nCOPY --from=data / /\n", contexts: map[string]*define.AdditionalBuildContext{"data": directory}}, []string{"r.example/a:1@1 from"}},
		{"build context in place of a stage", source{text: "FROM r.example/a:1 AS a\nFROM r.example/b:1\nCOPY --from=a / /\n", contexts: map[string]*define.AdditionalBuildContext{"a": directory}}, []string{"r.example/b:1@2 from"}},
		{"build context that nobody uses", source{text: "FROM r.example/a:1\n", contexts: map[string]*define.AdditionalBuildContext{"b": image("r.example/b:1")}}, []string{"r.example/a:1@1 from"}},

		{"ONBUILD is for those who build on it", source{text: "FROM r.example/a:1\nONBUILD COPY --from=r.example/b:1 / /\nONBUILD RUN --mount=type=bind,from=r.example/c:1,target=/c true\n"}, []string{"r.example/a:1@1 from"}},
		{"FROM in a heredoc", source{text: "FROM r.example/a:1\nRUN <<EOF\nFROM r.example/b:1\nEOF\n"}, []string{"r.example/a:1@1 from"}},
		{"FROM in a continued line", source{text: "FROM r.example/a:1\nRUN echo \\\n# a comment\nFROM r.example/b:1\n"}, []string{"r.example/a:1@1 from"}},
	} {
		t.Run(s.name, func(t *testing.T) {
			file, err := s.in.parse()
			if err != nil {
				t.Fatal(err)
			}
			if got := names(file); !slices.Equal(got, s.want) {
				t.Errorf("bases %q, want %q", got, s.want)
			}
		})
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, s := range []struct {
		name, text string
		line       int
		message    string
	}{
		{"unknown instruction", "FROM r.example/a:1\nRUNN true\n", 2, "RUNN"},
		{"unknown instruction in lower case", "FROM r.example/a:1\nrunn true\n", 2, "RUNN"},
		{"unknown instruction with a variable", "FROM r.example/a:1\nRUNN $X\n", 2, "RUNN"},
		{"unknown instruction first", "FORM r.example/a:1\n", 1, "FORM"},
		{"unknown instruction in a stage that is not needed", "FROM r.example/a:1 AS a\nRUNN true\nFROM r.example/b:1\n", 2, "RUNN"},
		{"after comments", "# a\n# b\nFROM r.example/a:1\n# c\n\nRUNN true\n", 6, "RUNN"},
		{"after a continuation", "FROM r.example/a:1\nRUN a \\\n  b \\\n  # c\n  d\nRUNN true\n", 6, "RUNN"},
		{"that is itself continued", "FROM r.example/a:1\nRUNN a \\\n  b\nRUN true\n", 2, "RUNN"},
		{"after a heredoc", "FROM r.example/a:1\nRUN <<EOF\na\nb\nEOF\nRUNN true\n", 6, "RUNN"},
		{"after two heredocs", "FROM r.example/a:1\nCOPY <<A <<B /\na\nA\nb\nB\nRUNN true\n", 7, "RUNN"},
		{"CRLF", "# a\r\nFROM r.example/a:1\r\nRUN a \\\r\n  b\r\nRUNN true\r\n", 5, "RUNN"},
		{"BOM", "\ufeffFROM r.example/a:1\nRUNN true\n", 2, "RUNN"},
		{"BOM before the error", "\ufeffRUNN true\n", 1, "RUNN"},
		{"parser directives", "# escape=`\n# syntax=docker/dockerfile:1\nFROM r.example/a:1\nRUN a `\n b\nRUNN true\n", 6, "RUNN"},

		{"FROM without an argument", "FROM\n", 1, "FROM"},
		{"second FROM without an argument", "FROM scratch\nFROM\n", 2, "FROM"},
		{"FROM with two arguments", "FROM r.example/a:1 b\n", 1, "FROM"},
		{"FROM AS without a name", "FROM r.example/a:1 AS\n", 1, "FROM"},
		{"FROM with an unknown flag", "FROM --plattform=linux/amd64 r.example/a:1\n", 1, "--plat"},
		{"COPY with one argument", "FROM scratch\nCOPY a\n", 2, "COPY"},
		{"ADD with one argument", "FROM scratch\nADD a\n", 2, "ADD"},
		{"COPY with an unknown flag", "FROM scratch\nCOPY --form=a b c\n", 2, "COPY"},
		{"COPY without arguments", "FROM scratch\nCOPY\n", 2, "COPY"},
		{"ENV without a value", "FROM scratch\nENV a\n", 2, "ENV"},
		{"LABEL without a value", "FROM scratch\nRUN true\nLABEL\n", 3, "LABEL"},
		{"WORKDIR without a directory", "FROM scratch\nWORKDIR\n", 2, "WORKDIR"},
		{"SHELL that is no JSON array", "FROM scratch\nSHELL /bin/sh -c\n", 2, "JSON"},
		{"SHELL with an array that does not end", "FROM scratch\nSHELL [\"/bin/sh\"\n", 2, "JSON"},
		{"array of what are no words", "FROM scratch\nCMD [1, 2]\n", 2, ""},
		{"ONBUILD of ONBUILD", "FROM scratch\nONBUILD ONBUILD RUN true\n", 2, "ONBUILD"},
		{"ONBUILD FROM", "FROM scratch\nONBUILD FROM a\n", 2, "FROM"},
		{"HEALTHCHECK that says nothing", "FROM scratch\nHEALTHCHECK\n", 2, "HEALTHCHECK"},

		{"COPY from an ENV", "FROM scratch\nENV X=r.example/a:1\nCOPY --from=$X / /\n", 3, "only those of ARG"},
		{"mount from an ARG without a value", "FROM scratch\nARG X\nRUN --mount=type=bind,from=$X,target=/x true\n", 3, "are empty"},
		{"FROM an ARG without a value", "ARG X\nFROM $X\n", 2, "are empty"},
		{"mount of a stage by a variable", "FROM r.example/a:1 AS a\nFROM r.example/a:1\nARG X=a\nRUN --mount=type=bind,from=$X,target=/x true\n", 4, "write from=a"},

		{"a variable that no program can get", "FROM scratch\nENV B=" + strings.Repeat("x", 1<<20) + "\n", 2, "ENV B has"},
		{"an argument that no program can get", "FROM scratch\n\narg A=" + strings.Repeat("x", 128<<10) + "\nRUN true\n", 3, "arg A has"},
		{"a line that the parser does not take", "FROM scratch\nRUN true " + strings.Repeat("x", 2<<20) + "\n", 2, "longer than the parser takes"},

		{"unterminated heredoc", "FROM r.example/a:1\nRUN true\nRUN <<EOF\na\nb\n", 3, "EOF"},
		{"unterminated heredoc after one that ends", "FROM r.example/a:1\nRUN <<EOF\na\nEOF\nRUN <<EOF\nb\n", 5, "EOF"},
		{"the second heredoc of an instruction", "FROM r.example/a:1\nCOPY <<A <<B /\na\nA\nb\n", 2, "B"},

		{"instruction before FROM", "RUN true\nFROM scratch\n", 1, "FROM"},
		{"no FROM", "RUN true\n", 1, "FROM"},
		{"empty", "", 0, "no instruction"},
		{"blank lines", "\n\n \n", 0, "no instruction"},
		{"comments", "# FROM scratch\n# RUN true\n", 0, "no instruction"},
		{"ARG and nothing else", "ARG A=1\n", 0, "FROM"},
	} {
		t.Run(s.name, func(t *testing.T) {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v", p)
				}
			}()
			_, err := source{text: s.text}.parse()
			e := mustFail(t, err)
			if e.Class != result.ClassInput || e.Reason != result.ReasonContainerfileInvalid {
				t.Errorf("%s, %s; want Input, ContainerfileInvalid", e.Class, e.Reason)
			}
			at := "dir/Containerfile: "
			if s.line > 0 {
				at = fmt.Sprintf("dir/Containerfile, line %d: ", s.line)
			}
			if !strings.HasPrefix(e.Message, at) || !strings.Contains(e.Message[len(at):], s.message) {
				t.Errorf("message %q, want %q and then %q", e.Message, at, s.message)
			}
			if strings.Contains(e.Message, "\n") {
				t.Errorf("the message has more than one line: %q", e.Message)
			}
		})
	}
}

// What the build takes is not refused here.
func TestSyntaxThatIsTaken(t *testing.T) {
	for name, text := range map[string]string{
		"a variable in place of arguments": "FROM scratch\nARG WHAT=\"a b\"\nCOPY $WHAT\n",
		"a variable in WORKDIR":            "FROM scratch\nWORKDIR $HERE\n",
		"a variable in EXPOSE":             "FROM scratch\nEXPOSE $PORT\n",
		"a variable in STOPSIGNAL":         "FROM scratch\nSTOPSIGNAL $SIGNAL\n",
		"an array that does not end":       "FROM scratch\nCMD [\"a\", \"b\"\n",
		"a heredoc as the source":          "FROM scratch\nCOPY <<EOF /a\nx\nEOF\n",
		"all instructions": "FROM scratch\nADD a /a\nARG X=1\nCMD a\nCOPY a /b\nENTRYPOINT [\"/a\"]\nENV A=1 B=2\nEXPOSE 80/tcp\nHEALTHCHECK --interval=5s CMD a\n" +
			"LABEL a=b\nMAINTAINER me\nONBUILD RUN true\nRUN --network=none true\nSHELL [\"/bin/sh\", \"-c\"]\nSTOPSIGNAL SIGTERM\nUSER 1:1\nVOLUME /v\nWORKDIR /w\n",
		"an old ENV":                       "FROM scratch\nENV a b c\n",
		"RUN before which only ARG stands": "ARG A=1\nFROM r.example/a:1\nRUN true\n",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := (source{text: text}).parse(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUnknownTargetListsTheStages(t *testing.T) {
	_, err := source{text: "FROM scratch AS build\nFROM scratch\nFROM scratch AS final\n", target: "biuld"}.parse()
	e := mustFail(t, err)
	if e.Class != result.ClassInput || e.Reason != result.ReasonContainerfileInvalid {
		t.Errorf("%s, %s; want Input, ContainerfileInvalid", e.Class, e.Reason)
	}
	for _, want := range []string{`"biuld"`, "--target", "build, 1, final"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the message does not have %q: %s", want, e.Message)
		}
	}
}

func TestStepOfASyntaxError(t *testing.T) {
	_, err := source{text: "FROM scratch\n\nRUNN true\n"}.parse()
	step := mustFail(t, err).Step
	if step == nil || step.Line != 3 || step.Instruction != "RUNN true" {
		t.Errorf("step %+v, want RUNN true of line 3", step)
	}
	if errors.Unwrap(err) == nil {
		t.Error("the error has no cause")
	}
}

func TestStages(t *testing.T) {
	file, err := source{text: "FROM r.example/a:1 AS unused\nRUN u\nFROM r.example/b:1\n# a comment\nRUN b1 \\\n  b2\nFROM scratch AS final\nCOPY --from=1 /x /x\nRUN <<E\nFROM not-a-stage\nE\nLABEL a=b\n"}.parse()
	if err != nil {
		t.Fatal(err)
	}
	want := [][]result.Step{
		{
			{Stage: "1", Number: 1, Of: 2, Line: 3, Instruction: "FROM r.example/b:1"},
			{Stage: "1", Number: 2, Of: 2, Line: 5, Instruction: "RUN b1   b2"},
		},
		{
			{Stage: "final", Number: 1, Of: 4, Line: 7, Instruction: "FROM scratch AS final"},
			{Stage: "final", Number: 2, Of: 4, Line: 8, Instruction: "COPY --from=1 /x /x"},
			{Stage: "final", Number: 3, Of: 4, Line: 9, Instruction: "RUN <<E"},
			{Stage: "final", Number: 4, Of: 4, Line: 12, Instruction: "LABEL a=b"},
		},
	}
	if len(file.stages) != len(want) {
		t.Fatalf("%d stages, want %d: the first is not needed", len(file.stages), len(want))
	}
	for i, s := range file.stages {
		if !slices.Equal(s.steps, want[i]) {
			t.Errorf("stage %d has the steps\n%+v, want\n%+v", i, s.steps, want[i])
		}
	}
	if file.stages[0].named || !file.stages[1].named {
		t.Error("the last of the two stages has a name, the first has none")
	}
}

// heredocs has each kind of heredoc that there is; the line "FROM not-a-stage"
// is one of a file.
const heredocs = `FROM r.example/busy:1
ARG X=expanded
RUN <<E
echo one > /one
E
RUN cat > /f <<'E'
$X and * and # and

FROM not-a-stage
E
COPY <<E /a
$X *
# no comment
E
COPY <<-E /b
	tabs go
	E
COPY <<ONE <<TWO /dir/
first
ONE
second
TWO
`

func TestHeredocs(t *testing.T) {
	file, err := source{text: heredocs}.parse()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(file), []string{"r.example/busy:1@1 from"}; !slices.Equal(got, want) {
		t.Errorf("bases %q, want %q", got, want)
	}
	lines := []int{}
	for _, step := range file.stages[0].steps {
		lines = append(lines, step.Line)
	}
	if want := []int{1, 2, 3, 6, 11, 15, 18}; len(file.stages) != 1 || !slices.Equal(lines, want) {
		t.Errorf("%d stages, steps at the lines %v; want one stage with %v", len(file.stages), lines, want)
	}
}
