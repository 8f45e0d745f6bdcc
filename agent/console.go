package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/strata-build/strata/images"
)

// console is the one place from which text leaves the program while it builds.
// Everything goes to standard error, line by line and without secrets: as it is
// with the log format text, as one JSON object a line with json. Standard output
// is left to the image's id and to the Result.
type console struct {
	log      *slog.Logger
	redact   *redactor
	json     bool
	terminal *os.File // where progress bars are drawn, nil for none

	mu  sync.Mutex
	out io.Writer
}

// The values of --log-format and --progress.
const (
	formatText = "text"
	formatJSON = "json"

	progressAuto  = "auto"
	progressPlain = "plain"
	progressTTY   = "tty"
	progressJSON  = "json"
)

func newConsole(out io.Writer, s *Settings, r *redactor) *console {
	c := &console{redact: r, out: out, json: s.LogFormat == formatJSON || s.Progress == progressJSON}
	file, ok := out.(*os.File)
	if ok && !c.json && (s.Progress == progressTTY || s.Progress == progressAuto && term.IsTerminal(int(file.Fd()))) {
		c.terminal = file
	}
	options := &slog.HandlerOptions{Level: s.logLevel(), ReplaceAttr: c.redactAttr}
	if c.json {
		c.log = slog.New(slog.NewJSONHandler(lockedWriter{c}, options))
	} else {
		c.log = slog.New(&textHandler{console: c, options: options})
	}
	return c
}

// output is how the images package writes to this console.
func (c *console) output() images.Output {
	return images.Output{
		Log:      c.log,
		Lines:    func() io.WriteCloser { return &lineWriter{console: c} },
		Terminal: c.terminal,
	}
}

// line writes one line of a build, whatever the log level is: it is the output,
// not a remark about it.
func (c *console) line(text string) {
	if c.json {
		record := slog.NewRecord(time.Now(), slog.LevelInfo, text, 0)
		record.AddAttrs(slog.String("source", "build"))
		_ = c.log.Handler().Handle(context.Background(), record)
		return
	}
	c.text(text)
}

// text writes a line as it is, without secrets.
func (c *console) text(line string) {
	_, _ = io.WriteString(lockedWriter{c}, c.redact.text(line)+"\n") // there is no other place to complain
}

// redactAttr removes secrets from an attribute, whatever it is: what is not plain
// is made text first. Times and levels of records stay as they are.
func (c *console) redactAttr(_ []string, a slog.Attr) slog.Attr {
	a.Key, a.Value = c.redact.text(a.Key), a.Value.Resolve()
	text := ""
	switch v := a.Value.Any().(type) {
	case time.Time, slog.Level:
		return a
	case error:
		text = v.Error()
	case time.Duration:
		text = v.Round(time.Millisecond).String()
	case []byte:
		text = string(v)
	default:
		text = fmt.Sprint(v)
	}
	clean := c.redact.text(text)
	switch a.Value.Kind() {
	case slog.KindBool, slog.KindInt64, slog.KindUint64, slog.KindFloat64:
		if clean == text {
			return a
		}
	}
	return slog.String(a.Key, clean)
}

type lockedWriter struct{ console *console }

// Write implements io.Writer.
func (w lockedWriter) Write(p []byte) (int, error) {
	w.console.mu.Lock()
	defer w.console.mu.Unlock()
	return w.console.out.Write(p)
}

// maxLine is the length in bytes at which a line that does not end is written.
const maxLine = 64 << 10

// lineWriter passes on whole lines, so that lines of several writers do not mix
// and a secret is not split over two writes.
type lineWriter struct {
	console *console

	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	for {
		i := bytes.IndexByte(w.buf, '\n')
		if i < 0 {
			break
		}
		w.console.line(strings.TrimSuffix(string(w.buf[:i]), "\r"))
		w.buf = w.buf[i+1:]
	}
	if len(w.buf) >= maxLine {
		w.flushPart()
	}
	return len(p), nil
}

// flushPart writes a line that does not end, up to where a secret may have begun
// that is not there in full yet.
func (w *lineWriter) flushPart() {
	text := w.console.redact.begun(string(w.buf))
	end := max(len(text)-w.console.redact.longest(), 0)
	for i := end; i > max(end-utf8.UTFMax, 0) && i < len(text); i-- {
		if utf8.RuneStart(text[i]) { // else these bytes are no text
			end = i
			break
		}
	}
	if end > 0 {
		w.console.line(text[:end])
		w.buf = []byte(text[end:])
	}
}

// Close writes a line that did not end.
func (w *lineWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flush()
	return nil
}

func (w *lineWriter) flush() {
	if len(w.buf) > 0 {
		w.console.line(string(w.buf))
		w.buf = nil
	}
}

// textHandler is the slog.Handler for people. A record is its message and then
// key=value; the message comes first on its line, without a time, since whoever
// runs the agent on a cluster has times from there already.
type textHandler struct {
	console *console
	options *slog.HandlerOptions
	attrs   []slog.Attr
}

var _ slog.Handler = (*textHandler)(nil)

// Enabled implements slog.Handler.
func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.options.Level.Level()
}

// Handle implements slog.Handler.
func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	switch {
	case r.Level >= slog.LevelError:
		b.WriteString("Error: ")
	case r.Level >= slog.LevelWarn:
		b.WriteString("Warning: ")
	case r.Level < slog.LevelInfo:
		b.WriteString("debug: ")
	}
	b.WriteString(strings.TrimRight(r.Message, "\n"))
	add := func(a slog.Attr) bool {
		text := h.options.ReplaceAttr(nil, a).Value.String()
		if strings.ContainsAny(text, " \t\n\"") || text == "" {
			text = strconv.Quote(text)
		}
		fmt.Fprintf(&b, " %s=%s", a.Key, text)
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	h.console.text(b.String())
	return nil
}

// WithAttrs implements slog.Handler.
func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &with
}

// WithGroup implements slog.Handler. Nothing here uses groups.
func (h *textHandler) WithGroup(string) slog.Handler { return h }
