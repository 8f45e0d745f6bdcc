package images

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.podman.io/storage/pkg/regexp"

	"github.com/strata-build/strata/agent/result"
)

// stepTracker follows a build through its steps. It prints each as buildah does,
// and knows at which step of the Containerfile a build that failed was.
type stepTracker struct {
	out io.Writer
	// remark is told of what a logger of buildah's says, at its level.
	remark func(level, message string)
	// untrue tells of a line of buildah's that it is not so, and not to be passed on.
	untrue func(line string) bool
	// begun is told of each step that begins.
	begun func(result.Step)
	// ended is told when a step has failed, before what it left is removed, where
	// buildah says so in time.
	ended func()
	tail  tail

	mu      sync.Mutex
	stages  []*stageProgress
	current *stageProgress
}

type stageProgress struct {
	stage
	index   int
	started bool
	next    int // the step of the Containerfile that comes next
	printed int // the steps that were printed, also those of no Containerfile
	last    result.Step
}

func newStepTracker(file *Containerfile, out io.Writer) *stepTracker {
	t := &stepTracker{out: out, remark: func(string, string) {}, untrue: func(string) bool { return false }, begun: func(result.Step) {}, ended: func() {}}
	for i, s := range file.stages {
		t.stages = append(t.stages, &stageProgress{stage: s, index: i})
	}
	return t
}

// log is the callback that buildah calls before each step: with "FROM %s" at the
// beginning of a stage, with "COMMIT ..." at the end of the last, and with the
// text of the instruction between.
func (t *stepTracker) log(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tail.reset()
	if strings.HasPrefix(format, "COMMIT") {
		fmt.Fprintf(t.out, "%s%s\n", t.prefix(), text)
		return
	}
	t.advance(format, text)
	t.begun(t.current.last)
	fmt.Fprintf(t.out, "%sSTEP %d/%d: %s\n", t.prefix(), t.current.last.Number, t.current.last.Of, text)
}

// advance finds out to which stage the step belongs. Stages run one after the
// other, or, with more than one job, mixed; the text of the next instruction
// of each tells which one it is.
func (t *stepTracker) advance(format, text string) {
	s := t.current
	switch {
	case strings.HasPrefix(format, "FROM "):
		s = t.begin(text)
	default:
		for _, candidate := range append([]*stageProgress{t.current}, t.stages...) {
			if candidate != nil && candidate.started && candidate.expects(text) {
				s = candidate
				break
			}
		}
	}
	if s == nil { // nothing is known of a stage that never began
		s = &stageProgress{stage: stage{name: "0"}}
	}
	t.current = s
	s.printed++
	s.last = result.Step{Stage: s.name, Number: s.printed, Of: max(len(s.steps), s.printed), Instruction: text}
	if s.next < len(s.steps) && (strings.HasPrefix(format, "FROM ") || s.expects(text)) {
		s.last.Line, s.last.Instruction = s.steps[s.next].Line, s.steps[s.next].Instruction
		s.next++
	}
}

// begin finds the stage whose FROM was printed: the one with that name, or the
// first that has none and has not begun.
func (t *stepTracker) begin(text string) *stageProgress {
	for _, s := range t.stages {
		if !s.started && s.named && strings.HasSuffix(text, " AS "+s.name) {
			s.started = true
			return s
		}
	}
	for _, s := range t.stages {
		if !s.started && !s.named {
			s.started = true
			return s
		}
	}
	return t.current
}

// expects tells whether text is the next instruction of the stage. What buildah
// prints has the heredocs of the instruction behind it.
func (s *stageProgress) expects(text string) bool {
	if s.next >= len(s.steps) {
		return false
	}
	instruction := s.steps[s.next].Instruction
	return text == instruction || strings.HasPrefix(text, instruction+" (")
}

// inFinal tells whether the step that was printed last is one of the image.
func (t *stepTracker) inFinal() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current != nil && t.current.final
}

func (t *stepTracker) prefix() string {
	if len(t.stages) > 1 && t.current != nil {
		return fmt.Sprintf("[%d/%d] ", t.current.index+1, len(t.stages))
	}
	return ""
}

// unresolved finds the line of an instruction whose variables cannot be resolved,
// which buildah notices before it prints the step.
var unresolved = regexp.Delayed(`resolving step \{.* StartLine:(\d+) `)

// failed returns the step at which the build was when it ended with err, nil
// when it never came to one.
func (t *stepTracker) failed(err error) *result.Step {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil {
		return nil
	}
	if m := unresolved.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		for _, s := range t.stages {
			for _, step := range s.steps {
				if step.Line == line && s.started {
					return &step
				}
			}
		}
	}
	for _, s := range t.stages { // with several jobs the last one printed need not be it
		if s.started && strings.Contains(squeeze(err.Error()), squeeze("STEP \""+s.last.Instruction+"\":")) {
			step := s.last
			return &step
		}
	}
	step := t.current.last
	return &step
}

// output returns a writer for what a step writes: it passes it on to out, and keeps
// the end.
func (t *stepTracker) output(out io.Writer) *stepOutput {
	return &stepOutput{out: out, tracker: t}
}

// exitNotice is what buildah's helper processes write behind the output of a step
// that failed, each of them: its exit status, which is reported anyway, or the
// signal that ended it, which is known from nowhere else. The step may have left the
// line before without an end.
var exitNotice = regexp.Delayed(`(?:subprocess exited (?:with status \d+|on ([^:]+))|process exited with error: exec: not started)$`)

// stepEnd is what buildah writes after a step, behind a line that the step may
// have left without an end.
var stepEnd = regexp.Delayed(`--> ([0-9a-f]{12}|Using cache [0-9a-f]{64}|Pushing cache \[.*|Cache pulled from remote .*)$`)

// loggerLine is a line of a logger of buildah's own, between the output of steps.
var loggerLine = regexp.Delayed(`^time="[^"]*" level=(\w+) msg=("(?:[^"\\]|\\.)*"|\S+)`)

// maxOutputLine is the length in bytes at which a line that does not end is passed
// on.
const maxOutputLine = 64 << 10

// stepOutput is what one of the streams of the steps is written to.
type stepOutput struct {
	out     io.Writer
	tracker *stepTracker

	mu   sync.Mutex
	buf  []byte
	pass bytes.Buffer // what goes out with this write
	// held are lines that end in a notice; whether that is buildah's, or of the step
	// itself, shows when the step goes on or the build ends.
	held []string
}

// Write implements io.Writer.
func (o *stepOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, p...)
	for {
		i := bytes.IndexByte(o.buf, '\n')
		if i < 0 {
			break
		}
		o.take(string(o.buf[:i]))
		o.buf = o.buf[i+1:]
	}
	if len(o.buf) >= maxOutputLine { // what it is the beginning of is not known yet
		o.release()
		o.tracker.tail.add(string(o.buf))
		o.pass.Write(o.buf)
		o.buf = nil
	}
	return len(p), o.flush()
}

// take decides what becomes of a line.
func (o *stepOutput) take(line string) {
	if exitNotice.MatchString(line) {
		o.held = append(o.held, line)
		o.tracker.ended()
		return
	}
	o.release()
	if m := loggerLine.FindStringSubmatch(line); m != nil {
		o.tracker.remark(m[1], m[2])
		return
	}
	if end := stepEnd.FindStringIndex(line); end != nil && end[0] > 0 {
		o.line(line[:end[0]])
		line = line[end[0]:]
	}
	if o.tracker.untrue(line) {
		return
	}
	o.line(line)
}

// release passes on lines that turned out to be of the step.
func (o *stepOutput) release() {
	for _, line := range o.held {
		o.line(line)
	}
	o.held = nil
}

func (o *stepOutput) line(line string) {
	o.tracker.tail.add(line)
	o.pass.WriteString(line)
	o.pass.WriteByte('\n')
}

func (o *stepOutput) flush() error {
	defer o.pass.Reset()
	if o.pass.Len() == 0 {
		return nil
	}
	_, err := o.out.Write(o.pass.Bytes())
	return err
}

// end writes what was not written yet. When the build failed, notices at the end are
// buildah's, and signal is that which ended the step, empty for none.
func (o *stepOutput) end(failed bool) (signal string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.buf) > 0 {
		line := string(o.buf)
		o.buf = nil
		o.take(line)
	}
	if failed {
		for _, line := range o.held {
			m := exitNotice.FindStringSubmatchIndex(line)
			if m[2] >= 0 {
				signal = line[m[2]:m[3]]
			}
			if m[0] > 0 {
				o.line(line[:m[0]])
			}
		}
		o.held = nil
	}
	o.release()
	_ = o.flush()
	return signal
}

// How much of a step's output is kept for the report of its failure: lines, and
// bytes of each.
const (
	tailLines     = 20
	tailLineBytes = 1024
)

// tail keeps the last lines that are added to it.
type tail struct {
	mu    sync.Mutex
	lines []string
}

// add adds a line as it looks when it is complete: without what a carriage return
// made to be written over, and without the middle of one that is very long.
func (t *tail) add(line string) {
	line = strings.TrimRight(line, "\r")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	if over := len(line) - tailLineBytes; over > 0 {
		line = strings.ToValidUTF8(line[:tailLineBytes/2]+" … "+line[len(line)-tailLineBytes/2:], "")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line)
	if over := len(t.lines) - tailLines; over > 0 {
		t.lines = slices.Delete(t.lines, 0, over)
	}
}

func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = nil
}

// text returns the lines.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(strings.Join(t.lines, "\n"))
}

// last returns the last line that is not empty.
func (t *tail) last() string {
	text := t.text()
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

func squeeze(s string) string { return strings.ToLower(strings.Join(strings.Fields(s), " ")) }
