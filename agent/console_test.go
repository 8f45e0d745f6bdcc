package agent

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var formats = []string{formatText, formatJSON}

// testSecrets are a plain one, and one that every kind of quoting changes.
var testSecrets = []string{"correct-horse-battery", `pa"ss\w<o>&rd` + "\u2028é"}

// wantNoSecret looks for the secret in the lines as they are, and as whoever
// reads JSON or a quoted string gets them.
func wantNoSecret(t *testing.T, text, secret string) {
	t.Helper()
	seen := []string{text, strings.ReplaceAll(text, "\n", "")}
	for line := range strings.Lines(text) {
		var object map[string]any
		if json.Unmarshal([]byte(line), &object) == nil {
			seen = append(seen, fmt.Sprint(object))
		}
	}
	for _, s := range seen {
		for _, form := range []string{secret, strings.Trim(strconv.Quote(secret), `"`), base64.StdEncoding.EncodeToString([]byte(secret))} {
			if at := strings.Index(s, form); at >= 0 {
				t.Errorf("%q came out in …%q", form, s[max(at-100, 0):])
				return
			}
		}
	}
}

func TestTextOfARecord(t *testing.T) {
	tests := []struct {
		name string
		log  func(*slog.Logger)
		want string
	}{
		{"message alone", func(l *slog.Logger) { l.Info("Pushed") }, "Pushed"},
		{"attributes", func(l *slog.Logger) { l.Info("Pushed", "image", "r.example/a:1", "n", 3) }, "Pushed image=r.example/a:1 n=3"},
		{"quoted values", func(l *slog.Logger) { l.Info("x", "a", "two words", "b", "", "c", `a"b`, "d", "a\nb") }, `x a="two words" b="" c="a\"b" d="a\nb"`},
		{"an error", func(l *slog.Logger) { l.Info("x", "error", errors.New("it broke")) }, `x error="it broke"`},
		{"bytes", func(l *slog.Logger) { l.Info("x", "a", []byte("text")) }, "x a=text"},
		{"a duration", func(l *slog.Logger) { l.Info("x", "wait", 2345678*time.Microsecond) }, "x wait=2.346s"},
		{"with", func(l *slog.Logger) { l.With("a", 1).With("b", 2).Info("x", "c", 3) }, "x a=1 b=2 c=3"},
		{"a warning", func(l *slog.Logger) { l.Warn("slow") }, "Warning: slow"},
		{"an error message", func(l *slog.Logger) { l.Error("broken") }, "Error: broken"},
		{"debug", func(l *slog.Logger) { l.Debug("detail") }, "debug: detail"},
		{"a message that ends its line", func(l *slog.Logger) { l.Info("Pushed\n") }, "Pushed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, out := testConsole(t, nil, "--log-level=debug")
			tt.log(c.log)
			if got := out.String(); got != tt.want+"\n" {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestLoggersMadeFromOneShareNothing(t *testing.T) {
	c, out := testConsole(t, nil)
	base := c.log.With("a", 1).With("b", 2).With("c", 3)
	first, second := base.With("first", 1), base.With("second", 2)
	first.Info("first")
	second.Info("second")
	if got, want := out.String(), "first a=1 b=2 c=3 first=1\nsecond a=1 b=2 c=3 second=2\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestLogLevel(t *testing.T) {
	for _, format := range formats {
		for level, want := range map[string]int{"debug": 5, "info": 4, "warn": 3, "error": 2} {
			c, out := testConsole(t, nil, "--log-format="+format, "--log-level="+level)
			c.log.Debug("debug")
			c.log.Info("info")
			c.log.Warn("warn")
			c.log.Error("error")
			c.line("output of a step, which is no remark")
			if got := writtenLines(t, out); len(got) != want {
				t.Errorf("%s, level %s: %q, want %d lines", format, level, got, want)
			}
		}
	}
}

func TestEachLineOfJSONIsAnObject(t *testing.T) {
	for _, flag := range []string{"--log-format=json", "--progress=json"} {
		t.Run(flag, func(t *testing.T) {
			c, out := testConsole(t, nil, flag)
			c.log.Info("two\nlines", "wait", 2*time.Second, "error", errors.New("a\nb"), "n", 3)
			w := c.output().Lines()
			writeAll(t, w, "STEP 1/2: FROM \"scratch\"\n\x1b[31mred\xff\n{\"a\":1}\n\n")
			want := []string{"two\nlines", `STEP 1/2: FROM "scratch"`, "\x1b[31mred\ufffd", `{"a":1}`, ""}
			lines := writtenLines(t, out)
			if len(lines) != len(want) {
				t.Fatalf("%d lines, want %d: %q", len(lines), len(want), lines)
			}
			for i, line := range lines {
				var record struct {
					Time   time.Time
					Level  string
					Msg    string
					Source string
					Wait   string
					Error  string
					N      int
				}
				if err := json.Unmarshal([]byte(line), &record); err != nil {
					t.Fatalf("line %q: %v", line, err)
				}
				if record.Msg != want[i] || record.Level != "INFO" || record.Time.IsZero() {
					t.Errorf("line %q, want the message %q", line, want[i])
				}
				if fromBuild := record.Source == "build"; fromBuild != (i > 0) {
					t.Errorf("line %q has the source %q", line, record.Source)
				}
				if i == 0 && (record.Wait != "2s" || record.Error != "a\nb" || record.N != 3) {
					t.Errorf("attributes %+v of %q", record, line)
				}
			}
		})
	}
}

func writeAll(t *testing.T, w io.WriteCloser, writes ...string) {
	t.Helper()
	for _, s := range writes {
		if n, err := io.WriteString(w, s); err != nil || n != len(s) {
			t.Errorf("wrote %d of %d bytes: %v", n, len(s), err)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// The kinds of values in which a secret can reach a logger.
type (
	stringer string
	valuer   string
	record   struct{ Field string }
)

func (s stringer) String() string     { return "stringer " + string(s) }
func (v valuer) LogValue() slog.Value { return slog.StringValue("valuer " + string(v)) }

func TestNoSecretInTheLog(t *testing.T) {
	kinds := map[string]func(l *slog.Logger, secret string){
		"message":                func(l *slog.Logger, s string) { l.Info("user:" + s + "@host") },
		"debug message":          func(l *slog.Logger, s string) { l.Debug("user:" + s + "@host") },
		"message in base64":      func(l *slog.Logger, s string) { l.Info(base64.StdEncoding.EncodeToString([]byte(s))) },
		"string":                 func(l *slog.Logger, s string) { l.Info("x", "a", "with "+s+" inside") },
		"string in base64":       func(l *slog.Logger, s string) { l.Info("x", "a", base64.StdEncoding.EncodeToString([]byte(s))) },
		"error":                  func(l *slog.Logger, s string) { l.Info("x", "a", errors.New("with "+s)) },
		"wrapped error":          func(l *slog.Logger, s string) { l.Info("x", "a", fmt.Errorf("login: %w", errors.New(s))) },
		"joined error":           func(l *slog.Logger, s string) { l.Info("x", "a", errors.Join(errors.New("a"), errors.New(s))) },
		"stringer":               func(l *slog.Logger, s string) { l.Info("x", "a", stringer(s)) },
		"value that logs itself": func(l *slog.Logger, s string) { l.Info("x", "a", valuer(s)) },
		"attribute of a logger":  func(l *slog.Logger, s string) { l.With("a", s).Info("x") },
		"key":                    func(l *slog.Logger, s string) { l.Info("x", s, 1) },
		"list":                   func(l *slog.Logger, s string) { l.Info("x", "a", []string{"two words", s}) },
		"list of anything":       func(l *slog.Logger, s string) { l.Info("x", "a", []any{1, s}) },
		"bytes":                  func(l *slog.Logger, s string) { l.Info("x", "a", []byte(s)) },
		"map":                    func(l *slog.Logger, s string) { l.Info("x", "a", map[string]string{"password": s}) },
		"struct":                 func(l *slog.Logger, s string) { l.Info("x", "a", record{Field: s}) },
		"pointer":                func(l *slog.Logger, s string) { l.Info("x", "a", &record{Field: s}) },
		"group":                  func(l *slog.Logger, s string) { l.Info("x", slog.Group("g", "a", s, "b", errors.New(s))) },
	}
	for _, format := range formats {
		for kind, log := range kinds {
			t.Run(format+"/"+kind, func(t *testing.T) {
				for _, secret := range testSecrets {
					c, out := testConsole(t, testSecrets, "--log-format="+format, "--log-level=debug")
					log(c.log, secret)
					if len(writtenLines(t, out)) != 1 {
						t.Errorf("%q, want one line", out)
					}
					wantNoSecret(t, out.String(), secret)
				}
			})
		}
	}
}

func TestNoSecretInTheOutputOfSteps(t *testing.T) {
	secret := testSecrets[0]
	encoded := base64.StdEncoding.EncodeToString([]byte(secret))
	writes := map[string][]string{
		"in one write":              {"+ curl -u user:" + secret + " host\n"},
		"split over two writes":     {"+ curl -u user:" + secret[:9], secret[9:] + " host\n"},
		"byte by byte":              strings.Split("user:"+secret+" "+encoded+"\n", ""),
		"base64 split":              {"auth " + encoded[:5], encoded[5:] + "\n"},
		"in a line that never ends": {"user:", secret},
		"over the longest line":     {strings.Repeat("x", maxLine-10), secret[:10], secret[10:] + "\n"},
	}
	for _, format := range formats {
		for name, parts := range writes {
			t.Run(format+"/"+name, func(t *testing.T) {
				c, out := testConsole(t, testSecrets, "--log-format="+format)
				writeAll(t, c.output().Lines(), parts...)
				text := out.String()
				if format == formatJSON {
					text = strings.Join(messages(t, out), "\n")
				}
				wantNoSecret(t, text, secret)
				if !strings.Contains(text, redacted) {
					t.Errorf("…%q does not show that something was left out", text[max(len(text)-200, 0):])
				}
			})
		}
	}
}

// messages returns the messages of the lines of JSON.
func messages(t *testing.T, out fmt.Stringer) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(out.String()) {
		var record struct{ Msg string }
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
		all = append(all, record.Msg)
	}
	return all
}

func TestASecretThatBecomesKnownLaterIsHidden(t *testing.T) {
	c, out := testConsole(t, nil)
	log := c.log.With("rotated", "new-token")
	c.redact.add("new-token")
	log.Info("new-token")
	c.line("new-token")
	wantNoSecret(t, out.String(), "new-token")
}

func TestLineWriter(t *testing.T) {
	tests := []struct {
		name   string
		writes []string
		want   []string
	}{
		{"nothing", nil, nil},
		{"a line", []string{"a\n"}, []string{"a"}},
		{"several lines in one write", []string{"a\nb\nc\n"}, []string{"a", "b", "c"}},
		{"a line in several writes", []string{"a", "b", "", "c\nd", "\n"}, []string{"abc", "d"}},
		{"empty lines", []string{"\n\na\n\n"}, []string{"", "", "a", ""}},
		{"CR LF", []string{"a\r\nb\r\n"}, []string{"a", "b"}},
		{"CR LF over two writes", []string{"a\r", "\nb"}, []string{"a", "b"}},
		{"CR within a line", []string{"10%\r20%\n"}, []string{"10%\r20%"}},
		{"a last line that does not end", []string{"a\nb"}, []string{"a", "b"}},
		{"a long line in one write", []string{strings.Repeat("x", 3*maxLine) + "\ny\n"}, []string{strings.Repeat("x", 3*maxLine), "y"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, out := testConsole(t, nil)
			w := c.output().Lines()
			writeAll(t, w, tt.writes...)
			if err := w.Close(); err != nil { // a second one has nothing to add
				t.Error(err)
			}
			if got := writtenLines(t, out); !slices.Equal(got, tt.want) {
				t.Errorf("lines %.300q, want %.300q", got, tt.want)
			}
		})
	}
}

func TestALineThatNeverEndsIsWrittenInParts(t *testing.T) {
	const chunk, n = 1000, 300
	c, out := testConsole(t, nil)
	w := c.output().Lines()
	for i := range n {
		if _, err := io.WriteString(w, strings.Repeat("é", chunk/2)); err != nil {
			t.Fatal(err)
		}
		if i == n/2 && out.Len() == 0 {
			t.Error("nothing is shown of half of the line: it is all kept in memory")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	lines := writtenLines(t, out)
	for _, line := range lines {
		if len(line) > maxLine+chunk {
			t.Errorf("a line of %d bytes, want about %d", len(line), maxLine)
		}
	}
	if got := strings.Join(lines, ""); got != strings.Repeat("é", n*chunk/2) {
		t.Errorf("%d bytes came out, want the %d that went in", len(got), n*chunk)
	}
}

func TestNoSecretWhereALongLineIsDivided(t *testing.T) {
	secret := testSecrets[0]
	for _, text := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret))} {
		for before := range len(text) + 1 {
			c, out := testConsole(t, testSecrets)
			start := strings.Repeat("x", maxLine-before)
			writeAll(t, c.output().Lines(), start+text[:before], text[before:], " end\n")
			got := strings.ReplaceAll(out.String(), "\n", "")
			if want := start + redacted + " end"; got != want {
				t.Errorf("with %d bytes of it before the division: …%q, want …%q", before, got[maxLine-len(text):], want[maxLine-len(text):])
			}
		}
	}
}

func TestNoTokenInTheOutputOfSteps(t *testing.T) {
	token := "eyJ" + strings.Repeat("Zm9vYmFy", 100)
	for _, format := range formats {
		for _, header := range []string{"Authorization: Bearer ", "Bearer "} {
			for _, before := range []int{100, maxLine - len(header) - 400, maxLine - len(header), maxLine} {
				c, out := testConsole(t, testSecrets, "--log-format="+format)
				start := strings.Repeat("x ", before/2)
				writeAll(t, c.output().Lines(), start+header+token[:200], token[200:500], token[500:], " end\n")
				if text := out.String(); strings.Contains(text, token[100:120]) || strings.Contains(text, token[len(token)-20:]) || !strings.Contains(text, "[redacted] end") {
					t.Errorf("%s, %q after %d bytes: …%q", format, header, before, text[max(len(text)-300, 0):])
				}
			}
		}
	}
}

func TestBytesThatAreNoTextAreNotHeldBack(t *testing.T) {
	c, out := testConsole(t, testSecrets)
	w := c.output().Lines()
	for range 3 {
		if _, err := io.WriteString(w, strings.Repeat("\x80", maxLine)); err != nil {
			t.Fatal(err)
		}
	}
	if out.Len() == 0 {
		t.Errorf("nothing is shown of %d bytes without a line end: they are all kept in memory", 3*maxLine)
	}
}

func TestLinesOfTwoWritersDoNotMix(t *testing.T) {
	const lines = 300
	for _, format := range formats {
		t.Run(format, func(t *testing.T) {
			c, out := testConsole(t, nil, "--log-format="+format)
			var wg sync.WaitGroup
			for _, letter := range []string{"a", "b"} {
				wg.Go(func() {
					w := c.output().Lines()
					defer w.Close()
					for range lines {
						for range 20 {
							_, _ = io.WriteString(w, letter)
						}
						_, _ = io.WriteString(w, "\n")
						c.log.Info(strings.Repeat(letter, 20))
					}
				})
			}
			wg.Wait()
			got := writtenLines(t, out)
			if format == formatJSON {
				got = messages(t, out)
			}
			count := map[string]int{}
			for _, line := range got {
				count[line]++
			}
			if len(count) != 2 || count[strings.Repeat("a", 20)] != 2*lines || count[strings.Repeat("b", 20)] != 2*lines {
				t.Errorf("lines %v, want %d of each letter and no other", count, 2*lines)
			}
		})
	}
}

func TestBarsAreDrawnOnATerminalAlone(t *testing.T) {
	file, _ := errorsFile(t)
	for flags, drawn := range map[string]bool{
		"--progress=auto": false, "--progress=plain": false, "--progress=tty": true, "--progress=json": false,
		"--progress=tty --log-format=json": false,
	} {
		c := newConsole(file, parsed(t, strings.Fields(flags)...), newRedactor())
		if got := c.output().Terminal != nil; got != drawn {
			t.Errorf("%s to a file: bars %v, want %v", flags, got, drawn)
		}
	}
}
