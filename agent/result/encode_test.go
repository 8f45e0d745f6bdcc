package result_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/strata-build/strata/agent/result"
)

// checkEncoded checks what holds for every Result and budget, and returns what
// a reader gets.
func checkEncoded(t *testing.T, r *result.Result, budget int) *result.Result {
	t.Helper()
	data := r.Encode(budget)
	if most := max(budget, result.MinBytes); len(data) > most {
		t.Errorf("%d bytes, want at most %d: %s", len(data), most, data)
	}
	if !utf8.Valid(data) {
		t.Errorf("not valid UTF-8: %q", data)
	}
	if line := bytes.TrimSuffix(data, []byte("\n")); bytes.ContainsAny(line, "\n\r\u2028\u2029") {
		t.Errorf("more than one line: %q", data)
	}
	got, err := result.Parse(data)
	if err != nil {
		t.Fatalf("%v: %q", err, data)
	}
	if got.Schema != result.Schema || got.Outcome != r.Outcome || got.Reason != r.Reason || got.Phase != r.Phase ||
		got.ExitCode != r.ExitCode || got.RunExitCode != r.RunExitCode || got.Digest != r.Digest ||
		!got.StartedAt.Equal(r.StartedAt) || !got.FinishedAt.Equal(r.FinishedAt) {
		t.Errorf("the frame was changed: %s", data)
	}
	if n := len(r.Attempts); n > 0 {
		last := r.Attempts[n-1]
		if len(got.Attempts) == 0 {
			t.Errorf("the last attempt is gone: %s", data)
		} else if kept := got.Attempts[len(got.Attempts)-1]; kept.Class != last.Class || kept.N != last.N || kept.Of != last.Of || kept.Phase != last.Phase || kept.Status != last.Status {
			t.Errorf("the last attempt is %+v, want that of %+v", kept, last)
		}
	}
	return got
}

func TestEncodeFitsEveryBudget(t *testing.T) {
	hostile := strings.Repeat("\"\\\n\r\t\x00\x1b\xff\u2028<", 2000)
	separators := strings.Repeat("x\u2028", 10000) // each takes six bytes
	quotes := strings.Repeat(`"`, 20000)           // each takes two bytes
	everything := []func(*result.Result){sandbox, timings}
	tests := []struct {
		name    string
		reason  result.Reason
		changes []func(*result.Result)
	}{
		{"plain success", result.ReasonSucceeded, nil},
		{"success with everything", result.ReasonSucceeded, everything},
		{"message of multi-byte characters", result.ReasonStepFailed, []func(*result.Result){message(strings.Repeat("構築🦦", 2000))}},
		{"message of characters that are escaped", result.ReasonStepFailed, []func(*result.Result){message(hostile)}},
		{"message of invalid UTF-8", result.ReasonStepFailed, []func(*result.Result){message(strings.Repeat("\xff\xfe", 10000))}},
		{"many attempts with long errors", result.ReasonPushUnauthorized, []func(*result.Result){attempts(500, strings.Repeat("gone ", 400))}},
		{"many attempts with hostile errors", result.ReasonPushUnauthorized, []func(*result.Result){attempts(50, hostile), message(hostile)}},
		{"huge instruction", result.ReasonStepFailed, []func(*result.Result){step("final", "RUN "+strings.Repeat("a && ", 4000))}},
		{"huge stage", result.ReasonStepFailed, []func(*result.Result){step(strings.Repeat("stage", 4000), "RUN true")}},
		{"huge image", result.ReasonPushFailed, []func(*result.Result){func(r *result.Result) { r.Image = "registry.example/" + strings.Repeat("a/", 10000) }}},
		{"huge host", result.ReasonPushFailed, []func(*result.Result){attempts(3, "refused"), func(r *result.Result) {
			for i := range r.Attempts {
				r.Attempts[i].Host = strings.Repeat("host.", 4000)
			}
		}}},
		{"digest and everything huge", result.ReasonSucceeded, []func(*result.Result){
			attempts(50, hostile), step(hostile, hostile), message(hostile), sandbox, timings,
			func(r *result.Result) {
				r.Image, r.Attempts[49].Host, r.Attempts[49].Waited = hostile, hostile, hostile
			},
		}},
		{"digest and everything of quotes", result.ReasonSucceeded, []func(*result.Result){
			attempts(3, quotes), step(quotes, quotes), message(quotes), sandbox, timings,
			func(r *result.Result) { r.Image, r.Attempts[2].Host = quotes, quotes },
		}},
		{"digest and everything of line separators", result.ReasonSucceeded, []func(*result.Result){
			attempts(3, separators), step(separators, separators), message(separators), sandbox, timings,
			func(r *result.Result) { r.Image, r.Attempts[2].Host = separators, separators },
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newResult(tt.reason, tt.changes...)
			for _, budget := range []int{result.MinBytes, 1024, result.MaxBytes} {
				checkEncoded(t, r, budget)
			}
		})
	}
}

func TestEncodeUsesTheBudget(t *testing.T) {
	for _, text := range []string{"a", "é", "\"", "x\u2028"} {
		r := newResult(result.ReasonStepFailed, message(strings.Repeat(text, 10000)))
		for _, budget := range []int{result.MinBytes, 1024, result.MaxBytes} {
			if n := len(r.Encode(budget)); n < budget-16 {
				t.Errorf("message of %q: %d of %d bytes are used, though there is more to say", text, n, budget)
			}
		}
	}
}

func TestBudgetBelowTheMinimumCountsAsTheMinimum(t *testing.T) {
	r := newResult(result.ReasonStepFailed, message(strings.Repeat("long ", 1000)), attempts(9, "refused"))
	want := r.Encode(result.MinBytes)
	for _, budget := range []int{-1, 0, 10, result.MinBytes - 1} {
		if got := r.Encode(budget); !bytes.Equal(got, want) {
			t.Errorf("budget %d: %s\nwant %s", budget, got, want)
		}
	}
}

func TestEncodeLeavesTheResultAlone(t *testing.T) {
	changes := []func(*result.Result){
		attempts(20, strings.Repeat("e\n", 900)), step("final\t", strings.Repeat("RUN\n", 900)), sandbox, timings, message(strings.Repeat("m\n", 9000)),
	}
	r := newResult(result.ReasonPushUnauthorized, changes...)
	r.Encode(result.MinBytes)
	if !reflect.DeepEqual(r, newResult(result.ReasonPushUnauthorized, changes...)) {
		t.Error("encoding changed the Result")
	}
}

func TestAResultThatFitsIsUnchanged(t *testing.T) {
	tests := map[string]*result.Result{
		"success":              newResult(result.ReasonSucceeded),
		"complete":             complete(),
		"message up to budget": newResult(result.ReasonStepFailed, message(strings.Repeat("m", 3000))),
		"error of 600 bytes":   newResult(result.ReasonPushUnauthorized, attempts(1, strings.Repeat("e", 600))),
		"instruction of 1 kB":  newResult(result.ReasonStepFailed, step("final", "RUN "+strings.Repeat("i", 1000))),
		"image of 600 bytes": newResult(result.ReasonSucceeded, func(r *result.Result) {
			r.Image = "registry.example/" + strings.Repeat("n", 600)
		}),
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			if got := checkEncoded(t, r, result.MaxBytes); !reflect.DeepEqual(got, r) {
				t.Errorf("it fits and was changed to\n%+v", got)
			}
		})
	}
}

// TestWhatIsShedFirst makes the budget smaller byte by byte and looks at what is
// gone: nothing may go while something that goes before it is there.
func TestWhatIsShedFirst(t *testing.T) {
	const of = 5
	errorText := "begin " + strings.Repeat("e", 280) + " end"
	r := newResult(result.ReasonPushUnauthorized, attempts(of, errorText),
		step("final", "RUN "+strings.Repeat("i", 280)+" end"), sandbox, timings,
		message("begin "+strings.Repeat("m", 700)+" end"),
		func(r *result.Result) { r.Image = "begin.example/" + strings.Repeat("n", 180) + ":end" })
	full := len(r.Encode(1 << 20))

	seen := map[string]bool{}
	for budget := full; budget >= result.MinBytes; budget-- {
		got := checkEncoded(t, r, budget)
		if len(got.Attempts) == 0 {
			t.Fatalf("budget %d: no attempt is left", budget)
		}
		last := got.Attempts[len(got.Attempts)-1]
		gone := []struct {
			what string
			gone bool // something of it
			all  bool // as much of it as goes before the next
		}{
			{"timings", got.Phases == nil, got.Phases == nil},
			{"older attempts", len(got.Attempts) < of, len(got.Attempts) == 1},
			{"length of the error and the instruction", last.Error != errorText, len(last.Error) <= 100},
			{"middle of the message", got.Message != r.Message, len(got.Message) < 100},
			{"middle of the image's name", got.Image != r.Image, len(got.Image) < 100},
		}
		for i, g := range gone {
			seen[g.what] = seen[g.what] || g.gone
			if i > 0 && g.gone && !gone[i-1].all {
				t.Errorf("budget %d: %s went before %s", budget, g.what, gone[i-1].what)
			}
		}
		for i, a := range got.Attempts {
			if want := of - len(got.Attempts) + 1 + i; a.N != want {
				t.Errorf("budget %d: attempt %d is there, want the newest: %d", budget, a.N, want)
			}
		}
		for _, text := range []string{last.Error, got.Message, got.Image} {
			if text != "" && (!strings.HasPrefix(text, "begin") || !strings.HasSuffix(text, "end")) {
				t.Errorf("budget %d: %q has lost its beginning or its end", budget, text)
			}
		}
		if budget == full && !reflect.DeepEqual(got, r) {
			t.Errorf("budget %d is that of the whole Result, which was changed", budget)
		}
		if budget == full-1 && (got.Phases != nil || len(got.Attempts) != of || got.Message != r.Message) {
			t.Errorf("budget %d: one byte too little costs more than the timings", budget)
		}
	}
	for _, what := range []string{"timings", "older attempts", "length of the error and the instruction", "middle of the message"} {
		if !seen[what] {
			t.Errorf("no budget was small enough to shed the %s", what)
		}
	}
}

func TestTextIsMadeOneLine(t *testing.T) {
	r := newResult(result.ReasonStepFailed, message("  first\nsecond\tthird\x1b[31m \xff end\r\n"), attempts(1, "a\nb"), step("s\n1", "RUN a \\\n  b"))
	got := checkEncoded(t, r, result.MaxBytes)
	if want := "first second third[31m � end"; got.Message != want {
		t.Errorf("message %q, want %q", got.Message, want)
	}
	if want := "a b"; got.Attempts[0].Error != want {
		t.Errorf("error %q, want %q", got.Attempts[0].Error, want)
	}
	if want := "RUN a \\   b"; got.Step.Instruction != want {
		t.Errorf("instruction %q, want %q", got.Step.Instruction, want)
	}
}

func TestALongNameOfAStageCostsNotTheStep(t *testing.T) {
	r := newResult(result.ReasonStepFailed, step(strings.Repeat("stage", 1000), "RUN true"))
	if got := checkEncoded(t, r, 1024).Step; got == nil || got.Line != 12 || got.Instruction != "RUN true" || !strings.HasPrefix(got.Stage, "stage") {
		t.Errorf("the step is %+v, want all of it but the middle of its stage", got)
	}
}

func TestCharactersStayWhole(t *testing.T) {
	text := strings.Repeat("構築🦦é", 300)
	r := newResult(result.ReasonStepFailed, message(text), attempts(2, text), step(text, text))
	for budget := result.MinBytes; budget < result.MinBytes+64; budget++ {
		if data := r.Encode(budget); bytes.ContainsRune(data, utf8.RuneError) {
			t.Errorf("budget %d: a character was cut in two: %s", budget, data)
		}
	}
}

func FuzzEncode(f *testing.F) {
	hostile := "\"\\\n\r\t\x00\x7f\xff\xc3\u2028\u0085<é構🦦"
	f.Add("built", testImage, "registry.example:5000", "final", "RUN true", "refused", uint16(3), uint16(1), result.MaxBytes)
	f.Add(hostile, hostile, hostile, hostile, hostile, hostile, uint16(24), uint16(300), result.MinBytes)
	f.Add("", "", "", "", "", "", uint16(0), uint16(1), 0)
	f.Add("🦦", "é", "構", "é", "\xff", "\u2028", uint16(7), uint16(5000), 1024)
	f.Add("\"", "\"", "\"", "\"", "\"", "\\", uint16(25), uint16(5000), result.MinBytes)
	f.Fuzz(func(t *testing.T, text, image, host, stage, instruction, cause string, n, times uint16, budget int) {
		long := func(s string) string { return strings.Repeat(s, min(int(times), 5000/(len(s)+1))) }
		entries := result.Entries()
		r := newResult(entries[int(n)%len(entries)].Reason, message(long(text)), attempts(int(n)%8, long(cause)), sandbox, timings)
		r.Image = long(image)
		for i := range r.Attempts {
			r.Attempts[i].Host = long(host)
		}
		if stage != "" {
			step(long(stage), long(instruction))(r)
		}
		checkEncoded(t, r, min(budget, 1<<16))
	})
}
