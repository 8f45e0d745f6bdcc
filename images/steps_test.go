package images

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/strata-build/strata/agent/result"
)

// call is one call of the callback that buildah makes before each step.
type call struct {
	format string
	args   []any
}

func from(image string) call { return call{"FROM %s", []any{image}} }
func step(text string) call  { return call{"%s", []any{text}} }
func commit(tag string) call { return call{"COMMIT " + tag, nil} }

// track plays the calls to a tracker for the Containerfile and returns it with
// the lines that it printed.
func track(t *testing.T, containerfile string, calls ...call) (*stepTracker, string) {
	t.Helper()
	file, err := source{text: containerfile}.parse()
	if err != nil {
		t.Fatal(err)
	}
	out := &record{}
	tracker := newStepTracker(file, out)
	for _, c := range calls {
		tracker.log(c.format, c.args...)
	}
	return tracker, out.String()
}

const stageImage = "9a42315b9a8b3366ca29ac42a2ddacdf57f27f9619d220732083f54ea4b3a084"

// The calls are those that buildah made of the Containerfiles.
func TestStepsArePrinted(t *testing.T) {
	for _, s := range []struct {
		name, containerfile string
		calls               []call
		want                string
	}{
		{
			"one stage", "FROM scratch\nCOPY bin /bin/\nRUN echo hello \"x\"\n",
			[]call{from("scratch"), step("COPY bin /bin/"), step(`RUN echo hello "x"`), commit("r.example/x:1")},
			"STEP 1/3: FROM scratch\nSTEP 2/3: COPY bin /bin/\nSTEP 3/3: RUN echo hello \"x\"\nCOMMIT r.example/x:1\n",
		},
		{
			"a label from a flag", "FROM scratch\nCOPY a /a\n",
			[]call{from("scratch"), step("COPY a /a"), step(`LABEL "l"="v"`), commit("r.example/x:1")},
			"STEP 1/2: FROM scratch\nSTEP 2/2: COPY a /a\nSTEP 3/3: LABEL \"l\"=\"v\"\nCOMMIT r.example/x:1\n",
		},
		{
			"heredoc", "FROM scratch\nRUN <<E\necho one\necho two\nE\n",
			[]call{from("scratch"), step("RUN <<E (echo one...)")},
			"STEP 1/2: FROM scratch\nSTEP 2/2: RUN <<E (echo one...)\n",
		},
		{
			"percent signs", "FROM scratch\nRUN printf '%s%d'\n",
			[]call{from("scratch"), step("RUN printf '%s%d'")},
			"STEP 1/2: FROM scratch\nSTEP 2/2: RUN printf '%s%d'\n",
		},
		{
			"three stages, and one that is skipped",
			"FROM scratch AS a\nCOPY a /a\nFROM scratch AS unused\nCOPY a /b\nFROM scratch\nCOPY a /c\nFROM a AS final\nCOPY --from=2 /c /c\n",
			[]call{
				from("scratch AS a"), step("COPY a /a"), from("scratch"), step("COPY a /c"),
				from(stageImage + " AS final"), step("COPY --from=2 /c /c"), commit("r.example/x:1"),
			},
			"[1/3] STEP 1/2: FROM scratch AS a\n[1/3] STEP 2/2: COPY a /a\n" +
				"[2/3] STEP 1/2: FROM scratch\n[2/3] STEP 2/2: COPY a /c\n" +
				"[3/3] STEP 1/2: FROM " + stageImage + " AS final\n[3/3] STEP 2/2: COPY --from=2 /c /c\n[3/3] COMMIT r.example/x:1\n",
		},
		{
			"three jobs", "FROM scratch AS a\nCOPY bin /bin/\nRUN a\nFROM scratch AS b\nCOPY bin /bin/\nRUN b\nFROM scratch\nCOPY --from=a /bin /a\nCOPY --from=b /bin /b\n",
			[]call{
				from("scratch AS a"), from("scratch"), from("scratch AS b"), step("COPY --from=a /bin /a"),
				step("COPY bin /bin/"), step("COPY bin /bin/"), step("RUN b"), step("RUN a"),
			},
			"[1/3] STEP 1/3: FROM scratch AS a\n[3/3] STEP 1/3: FROM scratch\n[2/3] STEP 1/3: FROM scratch AS b\n[3/3] STEP 2/3: COPY --from=a /bin /a\n" +
				"[1/3] STEP 2/3: COPY bin /bin/\n[2/3] STEP 2/3: COPY bin /bin/\n[2/3] STEP 3/3: RUN b\n[1/3] STEP 3/3: RUN a\n",
		},
		{
			"two jobs, where one instruction begins as the other", "FROM scratch AS a\nRUN make\nFROM scratch AS b\nRUN make install\nFROM scratch\nCOPY --from=a / /\nCOPY --from=b / /\n",
			[]call{from("scratch AS b"), from("scratch AS a"), step("RUN make install"), step("RUN make")},
			"[2/3] STEP 1/2: FROM scratch AS b\n[1/3] STEP 1/2: FROM scratch AS a\n[2/3] STEP 2/2: RUN make install\n[1/3] STEP 2/2: RUN make\n",
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			if _, got := track(t, s.containerfile, s.calls...); got != s.want {
				t.Errorf("printed\n%s\nwant\n%s", got, s.want)
			}
		})
	}
}

// failedAt is the error of a build that failed at a step, as buildah makes it.
func failedAt(message string) error {
	return fmt.Errorf("building at STEP \"%s\": %w", message, errors.New("exit status 3"))
}

func TestStepThatFailed(t *testing.T) {
	jobs := []call{from("scratch AS a"), from("scratch AS b"), step("COPY bin /bin/"), step("COPY bin /bin/")}
	two := func(a, b string) string {
		return "FROM scratch AS a\nCOPY bin /bin/\n" + a + "\nFROM scratch AS b\nCOPY bin /bin/\n" + b + "\nFROM scratch\nCOPY --from=a / /\nCOPY --from=b / /\n"
	}
	for _, s := range []struct {
		name, containerfile string
		calls               []call
		err                 error
		want                *result.Step
	}{
		{"before the first", "FROM scratch\n", nil, errors.New("no"), nil},
		{
			"at FROM", "FROM r.example/a:1\n",
			[]call{from("r.example/a:1")},
			errors.New("pulling"),
			&result.Step{Stage: "0", Number: 1, Of: 1, Line: 1, Instruction: "FROM r.example/a:1"},
		},
		{
			"the last one", "FROM scratch\n# a comment\nCOPY bin /bin/\nRUN exit 3\nRUN true\n",
			[]call{from("scratch"), step("COPY bin /bin/"), step("RUN exit 3")},
			failedAt("RUN exit 3"),
			&result.Step{Stage: "0", Number: 3, Of: 4, Line: 4, Instruction: "RUN exit 3"},
		},
		{
			"of several lines", "FROM scratch\nRUN a \\\n  b; \\\n  exit 3\n",
			[]call{from("scratch"), step("RUN a   b;   exit 3")},
			failedAt("RUN a   b;   exit 3"),
			&result.Step{Stage: "0", Number: 2, Of: 2, Line: 2, Instruction: "RUN a   b;   exit 3"},
		},
		{
			"a heredoc", "FROM scratch\nRUN <<E\nexit 3\nE\n",
			[]call{from("scratch"), step("RUN <<E (exit 3)")},
			failedAt("RUN <<E"),
			&result.Step{Stage: "0", Number: 2, Of: 2, Line: 2, Instruction: "RUN <<E"},
		},
		{
			"a label from a flag", "FROM scratch\nCOPY a /a\n",
			[]call{from("scratch"), step("COPY a /a"), step(`LABEL "l"="v"`)},
			failedAt(`LABEL "l"="v"`),
			&result.Step{Stage: "0", Number: 3, Of: 3, Instruction: `LABEL "l"="v"`},
		},
		{
			"behind what the base asks for with ONBUILD", "FROM r.example/a:1\nCOPY a /a\n",
			[]call{from("r.example/a:1"), step("RUN trigger"), step("COPY a /a")},
			failedAt("COPY a /a"),
			&result.Step{Stage: "0", Number: 3, Of: 3, Line: 2, Instruction: "COPY a /a"},
		},
		{
			"in what the base asks for with ONBUILD", "FROM r.example/a:1\nCOPY a /a\n",
			[]call{from("r.example/a:1"), step("RUN trigger")},
			failedAt("RUN trigger"),
			&result.Step{Stage: "0", Number: 2, Of: 2, Instruction: "RUN trigger"},
		},
		{
			"of another job than the last one printed", two("RUN a", "RUN b"),
			append(jobs, step("RUN a"), step("RUN b")), failedAt("RUN a"),
			&result.Step{Stage: "a", Number: 3, Of: 3, Line: 3, Instruction: "RUN a"},
		},
		{
			"of another job, with quotes", two(`RUN echo "a"; exit 3`, "RUN b"),
			append(jobs, step(`RUN echo "a"; exit 3`), step("RUN b")), failedAt(`RUN echo "a"; exit 3`),
			&result.Step{Stage: "a", Number: 3, Of: 3, Line: 3, Instruction: `RUN echo "a"; exit 3`},
		},
		{
			"of another job, with a backslash", two(`RUN printf 'a\n'; exit 3`, "RUN b"),
			append(jobs, step(`RUN printf 'a\n'; exit 3`), step("RUN b")), failedAt(`RUN printf 'a\n'; exit 3`),
			&result.Step{Stage: "a", Number: 3, Of: 3, Line: 3, Instruction: `RUN printf 'a\n'; exit 3`},
		},
		{
			"of another job, in lower case", two("run a", "RUN b"),
			append(jobs, step("run a"), step("RUN b")), failedAt("RUN a"),
			&result.Step{Stage: "a", Number: 3, Of: 3, Line: 3, Instruction: "run a"},
		},
		{
			"of another job, with spaces", two("COPY  a   /a", "RUN b"),
			append(jobs, step("COPY  a   /a"), step("RUN b")), failedAt("COPY a /a"),
			&result.Step{Stage: "a", Number: 3, Of: 3, Line: 3, Instruction: "COPY  a   /a"},
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			tracker, _ := track(t, s.containerfile, s.calls...)
			got := tracker.failed(s.err)
			switch {
			case (got == nil) != (s.want == nil):
				t.Errorf("step %+v, want %+v", got, s.want)
			case got != nil && *got != *s.want:
				t.Errorf("step %+v, want %+v", *got, *s.want)
			}
		})
	}
}

func TestStepsOfAStageThatIsNotKnown(t *testing.T) {
	tracker := newStepTracker(&Containerfile{}, &record{})
	tracker.log("FROM %s", "scratch")
	tracker.log("%s", "RUN exit 3")
	got := tracker.failed(errors.New("no"))
	if want := (result.Step{Stage: "0", Number: 2, Of: 2, Instruction: "RUN exit 3"}); got == nil || *got != want {
		t.Errorf("step %+v, want %+v", got, want)
	}
}

// stepWriter returns where a step writes, what is passed on of it, and the
// tracker that keeps the end.
func stepWriter() (*stepTracker, *stepOutput, *record) {
	tracker := newStepTracker(&Containerfile{}, &record{})
	out := &record{}
	return tracker, tracker.output(out), out
}

func TestOutputOfAStep(t *testing.T) {
	for _, s := range []struct {
		name      string
		writes    []string
		out, last string
	}{
		{"lines", []string{"one\ntwo\n"}, "one\ntwo\n", "two"},
		{"a line in pieces", []string{"o", "ne", "\nt", "wo\n"}, "one\ntwo\n", "two"},
		{"a line that does not end", []string{"one\ntwo"}, "one\ntwo\n", "two"},
		{"nothing", nil, "", ""},
		{"blank lines", []string{"one\n\n \n"}, "one\n\n \n", "one"},
		{"the exit status behind an unfinished line", []string{"disk on fire", "subprocess exited with status 42\nsubprocess exited with status 42\n"}, "disk on fire\n", "disk on fire"},
		{"the exit status on a line of its own", []string{"two\nsubprocess exited with status 3\n"}, "two\n", "two"},
		{"a status that comes in pieces", []string{"two\nsubprocess exi", "ted with status 3\n"}, "two\n", "two"},
		{"a status without a newline", []string{"two\nsubprocess exited with status 3"}, "two\n", "two"},
		{"killed", []string{"two\nsubprocess exited on killed\nsubprocess exited with status 1\n"}, "two\n", "two"},
		{"segmentation fault", []string{"twosubprocess exited on segmentation fault\n"}, "two\n", "two"},
		{"a signal with a number", []string{"two\nsubprocess exited on user defined signal 1\n"}, "two\n", "two"},
		{"a signal with a slash", []string{"two\nsubprocess exited on trace/breakpoint trap\n"}, "two\n", "two"},
		{"a status in the middle of a line", []string{"subprocess exited with status 3, says make\n"}, "subprocess exited with status 3, says make\n", "subprocess exited with status 3, says make"},
		{"the id of the image behind an unfinished line", []string{"done", "--> 73f51343fc67\n"}, "done\n--> 73f51343fc67\n", "--> 73f51343fc67"},
		{"the cache behind an unfinished line", []string{"done--> Using cache " + stageImage + "\n"}, "done\n--> Using cache " + stageImage + "\n", "--> Using cache " + stageImage},
		{"the id of the image on a line of its own", []string{"--> 73f51343fc67\n"}, "--> 73f51343fc67\n", "--> 73f51343fc67"},
		{"an arrow that is not buildah's", []string{"a--> b\n"}, "a--> b\n", "a--> b"},
		{"no UTF-8", []string{"\xff\xfe\n"}, "\xff\xfe\n", "\xff\xfe"},
	} {
		t.Run(s.name, func(t *testing.T) {
			tracker, w, out := stepWriter()
			for _, text := range s.writes {
				if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
					t.Fatalf("wrote %d of %d bytes: %v", n, len(text), err)
				}
			}
			w.end(true)
			if out.String() != s.out {
				t.Errorf("passed on %q, want %q", out.String(), s.out)
			}
			if got := tracker.tail.last(); got != s.last {
				t.Errorf("last line %q, want %q", got, s.last)
			}
		})
	}
}

func TestOutputIsPassedOnAtOnce(t *testing.T) {
	_, w, out := stepWriter()
	_, _ = w.Write([]byte("one\ntw"))
	if got := out.String(); got != "one\n" {
		t.Errorf("passed on %q before the end, want the whole line", got)
	}
}

// Both streams of a step, and steps of several jobs, write at once.
func TestOutputOfSeveralWriters(t *testing.T) {
	tracker := newStepTracker(&Containerfile{}, &record{})
	out := &record{}
	var writers sync.WaitGroup
	const writersCount, lines = 4, 200
	for i := range writersCount {
		w := tracker.output(out)
		writers.Go(func() {
			for n := range lines {
				text := fmt.Sprintf("writer %d line %d\n", i, n)
				_, _ = w.Write([]byte(text[:8]))
				_, _ = w.Write([]byte(text[8:]))
			}
			w.end(false)
		})
	}
	writers.Wait()
	next := map[int]int{}
	for line := range strings.Lines(out.String()) {
		var i, n int
		if _, err := fmt.Sscanf(line, "writer %d line %d\n", &i, &n); err != nil || n != next[i] {
			t.Fatalf("line %q of writer %d, want its line %d", line, i, next[i])
		}
		next[i]++
	}
	for i := range writersCount {
		if next[i] != lines {
			t.Errorf("%d lines of writer %d, want %d", next[i], i, lines)
		}
	}
	if got := strings.Count(tracker.tail.text(), "\n") + 1; got != tailLines {
		t.Errorf("%d lines are kept, want %d", got, tailLines)
	}
}

func TestTailKeepsTheLastLines(t *testing.T) {
	tracker, w, _ := stepWriter()
	want := []string{}
	for n := range 100 {
		_, _ = fmt.Fprintf(w, "line %d\n", n)
		if n >= 100-tailLines {
			want = append(want, fmt.Sprintf("line %d", n))
		}
	}
	if got := tracker.tail.text(); got != strings.Join(want, "\n") {
		t.Errorf("kept %q, want the last %d lines", got, tailLines)
	}
	if got := tracker.tail.last(); got != "line 99" {
		t.Errorf("last line %q, want line 99", got)
	}
}

func TestTailIsOfOneStep(t *testing.T) {
	tracker, w, _ := stepWriter()
	_, _ = fmt.Fprintln(w, "of the first step")
	tracker.log("%s", "RUN second")
	if got := tracker.tail.text(); got != "" {
		t.Errorf("the second step begins with %q", got)
	}
}

// A step may write megabytes without a newline.
func TestTailIsBoundedInBytes(t *testing.T) {
	tracker, w, _ := stepWriter()
	for range 1 << 10 {
		_, _ = w.Write([]byte(strings.Repeat("x", 1<<10)))
	}
	if held := len(w.buf); held > 64<<10 {
		t.Errorf("%d bytes of an unfinished line are held back", held)
	}
	w.end(false)
	if kept := len(tracker.tail.text()); kept > 64<<10 {
		t.Errorf("%d bytes are kept for a message", kept)
	}
}
