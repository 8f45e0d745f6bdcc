package result

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// cut marks where text was left out of a Result.
const cut = " … "

// The lengths to which texts are cut, in encoded bytes, when a Result does not fit.
const (
	longBytes  = 512
	shortBytes = 96
	leastBytes = 64
)

// Encode renders the Result as one line of JSON, valid UTF-8, of at most budget
// bytes. What does not fit is shed in this order: timings, older attempts, the
// length of the last attempt's error and of the instruction, the middle of the
// message, and last the middle of names. The frame, the reason, the digest and
// the class of the last attempt always stay. A budget below MinBytes counts as
// MinBytes.
func (r *Result) Encode(budget int) []byte {
	budget = max(budget, MinBytes)
	e := r.cleaned()
	shorten := func(n int) {
		for i := range e.Attempts {
			e.Attempts[i].Error = middle(e.Attempts[i].Error, n)
		}
		if e.Step != nil {
			e.Step.Instruction = middle(e.Step.Instruction, n)
		}
	}
	// Each step is taken as long as the Result does not fit; one that returns true
	// can be taken again.
	shed := []func() (again bool){
		func() bool { e.Phases = nil; return false },
		func() bool { e.Attempts = dropOldest(e.Attempts, len(marshal(&e))-budget); return false },
		func() bool { shorten(longBytes); return false },
		func() bool { shorten(shortBytes); return false },
		func() bool {
			over := len(marshal(&e)) - budget
			e.Message = middle(e.Message, max(encodedLen(e.Message)-over, leastBytes))
			return false
		},
		func() bool {
			e.Image = middle(e.Image, leastBytes)
			for i := range e.Attempts {
				e.Attempts[i].Host = middle(e.Attempts[i].Host, leastBytes)
			}
			if e.Step != nil {
				e.Step.Stage = middle(e.Step.Stage, leastBytes)
			}
			return false
		},
		func() bool { e.Step, e.Sandbox = nil, nil; return false },
		func() bool {
			for i := range e.Attempts {
				e.Attempts[i].Error, e.Attempts[i].Waited = "", ""
			}
			return false
		},
	}
	data := marshal(&e)
	for i := 0; len(data) > budget && i < len(shed); {
		if again := shed[i](); !again {
			i++
		}
		data = marshal(&e)
	}
	return data
}

// cleaned returns a copy, of which everything may be changed, with texts that can
// be encoded.
func (r *Result) cleaned() Result {
	e := *r
	e.Schema = Schema
	e.Message, e.Image = clean(e.Message), clean(e.Image)
	e.Attempts = append([]Attempt(nil), r.Attempts...)
	for i := range e.Attempts {
		e.Attempts[i].Error, e.Attempts[i].Host = clean(e.Attempts[i].Error), clean(e.Attempts[i].Host)
	}
	if r.Step != nil {
		step := *r.Step
		step.Stage, step.Instruction = clean(step.Stage), clean(step.Instruction)
		e.Step = &step
	}
	return e
}

// dropOldest drops attempts from the front, as many as take over bytes, but not
// the last one.
func dropOldest(a []Attempt, over int) []Attempt {
	for len(a) > 1 && over > 0 {
		over -= len(marshal(a[0])) // with a newline in place of the comma
		a = a[1:]
	}
	return a
}

func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// A Result holds only strings, numbers and times; a year outside
		// [0,9999] is all that could be refused.
		panic(err)
	}
	return b.Bytes()
}

// clean makes text that JSON can carry without growing: valid UTF-8 on one
// line, with no control characters, each of which would be encoded in six bytes.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "�")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return ' '
		case c < ' ' || c == 0x7f:
			return -1
		}
		return c
	}, s))
}

// middle shortens s to at most n encoded bytes by leaving out its middle, where n
// is at least the length of the mark that is put there. Runes stay whole.
func middle(s string, n int) string {
	if encodedLen(s) <= n {
		return s
	}
	n -= len(cut)
	head, size := 0, 0
	for i, c := range s {
		if size += encodedRune(c); size > n/2 {
			head = i
			break
		}
	}
	tail := len(s)
	for size = 0; tail > head; {
		c, width := utf8.DecodeLastRuneInString(s[:tail])
		if size += encodedRune(c); size > n-n/2 {
			break
		}
		tail -= width
	}
	return s[:head] + cut + s[tail:]
}

// encodedLen is how many bytes text that is clean takes inside a JSON string.
func encodedLen(s string) (n int) {
	for _, c := range s {
		n += encodedRune(c)
	}
	return n
}

func encodedRune(c rune) int {
	switch c {
	case '"', '\\':
		return 2
	case '\u2028', '\u2029': // encoding/json writes these as \u2028
		return 6
	}
	return utf8.RuneLen(c)
}
