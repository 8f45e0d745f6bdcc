package result

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// cut marks where text was left out of a Result.
const cut = " … "

// The shares of text that a full Result may spend, in bytes. An error text or
// an instruction of many kilobytes would otherwise push out everything else.
const (
	attemptErrorBytes = 512
	instructionBytes  = 512
	nameBytes         = 512
	shortErrorBytes   = 96
	shortTextBytes    = 64
)

// Encode renders the Result as one line of JSON, valid UTF-8, of at most budget
// bytes. What does not fit is shed in this order: timings, older attempts, the
// length of the last attempt's error and of the instruction, the middle of the
// message, and last the middle of the image's name. The frame, the reason, the
// digest and the class of the last attempt always stay. A budget below MinBytes
// counts as MinBytes.
func (r *Result) Encode(budget int) []byte {
	budget = max(budget, MinBytes)
	e := *r
	e.Schema = Schema
	e.Message = clean(e.Message)
	e.Image = middle(clean(e.Image), nameBytes)
	e.Attempts = append([]Attempt(nil), r.Attempts...)
	for i := range e.Attempts {
		e.Attempts[i].Error = middle(clean(e.Attempts[i].Error), attemptErrorBytes)
		e.Attempts[i].Host = middle(clean(e.Attempts[i].Host), nameBytes)
	}
	if r.Step != nil {
		step := *r.Step
		step.Stage = middle(clean(step.Stage), shortTextBytes)
		step.Instruction = middle(clean(step.Instruction), instructionBytes)
		e.Step = &step
	}

	shed := []func() bool{
		func() bool { e.Phases = nil; return false },
		func() bool { e.Attempts = dropOldest(e.Attempts); return len(e.Attempts) > 1 },
		func() bool {
			for i := range e.Attempts {
				e.Attempts[i].Error = middle(e.Attempts[i].Error, shortErrorBytes)
			}
			if e.Step != nil {
				e.Step.Instruction = middle(e.Step.Instruction, shortErrorBytes)
			}
			return false
		},
		func() bool {
			over := len(marshal(&e)) - budget
			e.Message = middle(e.Message, max(len(e.Message)-over, shortTextBytes))
			return len(e.Message) > shortTextBytes+len(cut)
		},
		func() bool {
			e.Image = middle(e.Image, shortTextBytes)
			for i := range e.Attempts {
				e.Attempts[i].Host = middle(e.Attempts[i].Host, shortTextBytes)
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

func dropOldest(a []Attempt) []Attempt {
	if len(a) > 1 {
		return a[1:]
	}
	return a
}

func marshal(r *Result) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
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

// middle shortens s to at most n bytes by leaving out its middle, where n is at
// least the length of the mark that is put there. Runes stay whole.
func middle(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len(cut)
	head, tail := n/2, len(s)-(n-n/2)
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return s[:head] + cut + s[tail:]
}
