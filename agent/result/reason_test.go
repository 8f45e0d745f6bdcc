package result_test

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/strata-build/strata/agent/result"
)

func TestReasonsAreTheDocumentedList(t *testing.T) {
	want := []result.Reason{
		"Succeeded", "ContainerfileInvalid", "BaseImageNotFound", "BaseImageUnauthorized", "SignatureRejected",
		"WrongArchitecture", "PullFailed", "StepFailed", "StepOutOfMemory", "ContextFileMissing", "PushUnauthorized", "PushDenied",
		"PushRejected", "PushFailed", "DigestMismatch", "RegistryUnavailable", "RateLimited", "CertificateUntrusted",
		"UserNamespaceUnavailable", "StorageUnavailable", "NoSpace", "SettingsInvalid", "Interrupted", "DeadlineExceeded", "InternalError",
	}
	var got []result.Reason
	for _, e := range result.Entries() {
		got = append(got, e.Reason)
		if !e.Reason.Known() || e.Reason.Entry() != e {
			t.Errorf("%s is not found by its name", e.Reason)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("reasons\n%q, want\n%q", got, want)
	}
}

func TestTheTableOfReasonsCannotBeChanged(t *testing.T) {
	result.Entries()[0].Reason = "Changed"
	if got := result.Entries()[0].Reason; got != result.ReasonSucceeded {
		t.Errorf("the first reason is %q after a caller changed its copy", got)
	}
}

func TestUnknownReasonIsAnInternalError(t *testing.T) {
	for _, r := range []result.Reason{"", "succeeded", "Nonsense"} {
		if r.Known() {
			t.Errorf("%q is known", r)
		}
		if got := r.Entry().Reason; got != result.ReasonInternalError {
			t.Errorf("%q is documented as %s, want InternalError", r, got)
		}
	}
}

func TestEveryReasonIsDocumented(t *testing.T) {
	exits := map[result.Class]result.ExitCode{
		result.ClassInput: 1, result.ClassAuth: 1, result.ClassRejected: 1, result.ClassSandbox: 3,
		result.ClassResource: 4, result.ClassTransient: 5, result.ClassInterrupted: 143,
	}
	exceptions := map[result.Reason]result.ExitCode{
		result.ReasonSettingsInvalid: 2, result.ReasonSucceeded: 0, result.ReasonInternalError: 1,
	}
	for _, e := range result.Entries() {
		t.Run(string(e.Reason), func(t *testing.T) {
			want, known := exits[e.Class]
			if none := e.Reason == result.ReasonSucceeded || e.Reason == result.ReasonInternalError; none && e.Class != "" {
				t.Errorf("it has the class %q, want none", e.Class)
			} else if !none && !known {
				t.Errorf("it has the class %q, which is none", e.Class)
			}
			if exit, ok := exceptions[e.Reason]; ok {
				want = exit
			}
			if e.Exit != want {
				t.Errorf("exit code %d, want %d", e.Exit, want)
			}
			checkSentence(t, "sentence", e.Sentence)
			checkSentence(t, "remedy", e.Remedy)
			if e.Sentence == e.Remedy {
				t.Error("the remedy repeats the sentence")
			}
		})
	}
}

// checkSentence wants what can stand in a condition and in a row of a table.
func checkSentence(t *testing.T, what, s string) {
	t.Helper()
	switch {
	case len(strings.Fields(s)) < 3:
		t.Errorf("the %s %q is too short to say something", what, s)
	case !unicode.IsUpper([]rune(s)[0]) || !strings.HasSuffix(s, ".") || strings.HasSuffix(s, ".."):
		t.Errorf("the %s %q is no sentence", what, s)
	case strings.ContainsAny(s, "\n\r\t|") || s != strings.Join(strings.Fields(s), " "):
		t.Errorf("the %s %q cannot stand in a row of a table", what, s)
	case strings.Count(s, "`")%2 != 0:
		t.Errorf("the %s %q leaves a quotation open", what, s)
	}
}

func TestSentencesDiffer(t *testing.T) {
	seen := map[string]result.Reason{}
	for _, e := range result.Entries() {
		if other, ok := seen[e.Sentence]; ok {
			t.Errorf("%s says the same as %s", e.Reason, other)
		}
		seen[e.Sentence] = e.Reason
	}
}

func TestEveryExitCodeIsDocumented(t *testing.T) {
	job := map[result.ExitCode]string{
		0: "complete", 1: "FailJob", 2: "FailJob", 3: "FailJob", 4: "Count", 5: "Count",
		143: "Count; Ignore under DisruptionTarget",
	}
	var documented []result.ExitCode
	for _, d := range result.ExitCodes() {
		documented = append(documented, d.Code)
		if d.Meaning == "" || d.Job != job[d.Code] {
			t.Errorf("exit code %d means %q and the Job should %q, want %q", d.Code, d.Meaning, d.Job, job[d.Code])
		}
	}
	if want := []result.ExitCode{0, 1, 2, 3, 4, 5, 143}; !slices.Equal(documented, want) {
		t.Errorf("documented are %v, want %v", documented, want)
	}
	used := map[result.ExitCode]bool{}
	for _, e := range result.Entries() {
		used[e.Exit] = true
		if !slices.Contains(documented, e.Exit) {
			t.Errorf("%s exits %d, which is not documented", e.Reason, e.Exit)
		}
	}
	for _, code := range documented {
		if !used[code] {
			t.Errorf("exit code %d is documented, but no reason has it", code)
		}
	}
}

func TestConclude(t *testing.T) {
	outcomes := map[result.Reason]result.Outcome{
		result.ReasonSucceeded: result.Succeeded, result.ReasonInterrupted: result.Interrupted,
		result.ReasonDeadlineExceeded: result.Interrupted,
	}
	for _, e := range result.Entries() {
		t.Run(string(e.Reason), func(t *testing.T) {
			r := &result.Result{Digest: testDigest, ExitCode: 77, Outcome: "Nonsense"}
			r.Conclude(e.Reason)
			want, ok := outcomes[e.Reason]
			if !ok {
				want = result.Failed
			}
			if r.Outcome != want || r.Reason != e.Reason || r.ExitCode != int(e.Exit) || r.Schema != result.Schema {
				t.Errorf("outcome %s, reason %s, exit code %d, schema %q; want %s, %s, %d, %q",
					r.Outcome, r.Reason, r.ExitCode, r.Schema, want, e.Reason, e.Exit, result.Schema)
			}
			if kept := r.Digest == testDigest; kept != (want == result.Succeeded) {
				t.Errorf("digest %q after %s", r.Digest, want)
			}
		})
	}
}

func TestTheLastConclusionCounts(t *testing.T) {
	r := &result.Result{}
	r.Conclude(result.ReasonPushFailed)
	r.Conclude(result.ReasonSucceeded)
	if r.Outcome != result.Succeeded || r.ExitCode != 0 {
		t.Errorf("outcome %s, exit code %d; want Succeeded and 0", r.Outcome, r.ExitCode)
	}
}
