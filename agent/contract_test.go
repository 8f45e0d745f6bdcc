package agent

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/strata-build/strata/agent/result"
)

func TestContractIsCurrent(t *testing.T) {
	file, err := os.ReadFile("../docs/contract.md")
	if err != nil {
		t.Fatalf("%v: run make docs", err)
	}
	got, want := strings.Split(string(file), "\n"), strings.Split(Contract(), "\n")
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Fatalf("docs/contract.md ends before line %d, %q: run make docs", i+1, want[i])
		case i >= len(want):
			t.Fatalf("docs/contract.md goes on in line %d with %q: run make docs", i+1, got[i])
		case got[i] != want[i]:
			t.Fatalf("docs/contract.md, line %d:\n%s\nwant\n%s\nrun make docs", i+1, got[i], want[i])
		}
	}
}

func TestContractHasEverything(t *testing.T) {
	contract := Contract()
	newSettings().flags.VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(contract, "--"+f.Name) || !strings.Contains(contract, "`"+Variable(f.Name)+"`") {
			t.Errorf("--%s or its variable is missing", f.Name)
		}
	})
	for _, other := range otherVariables {
		if !strings.Contains(contract, "`"+other.variable+"`") {
			t.Errorf("%s is missing", other.variable)
		}
	}
	for _, e := range result.Entries() {
		if !strings.Contains(contract, fmt.Sprintf("| `%s` | %s | %d |", e.Reason, e.Class, e.Exit)) {
			t.Errorf("the reason %s is missing", e.Reason)
		}
	}
	for _, c := range result.ExitCodes() {
		if !strings.Contains(contract, fmt.Sprintf("| %d | %s |", c.Code, c.Meaning)) {
			t.Errorf("the exit code %d is missing", c.Code)
		}
	}
}

func TestContractHasRowsOfOneWidth(t *testing.T) {
	width := 0
	for i, line := range strings.Split(Contract(), "\n") {
		if !strings.HasPrefix(line, "|") {
			width = 0
			continue
		}
		columns := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
		if width != 0 && columns != width {
			t.Errorf("line %d has %d columns, want %d: %s", i+1, columns-1, width-1, line)
		}
		width = columns
	}
}

func TestEveryFlagIsDescribed(t *testing.T) {
	newSettings().flags.VisitAll(func(f *pflag.Flag) {
		if value, usage := pflag.UnquoteUsage(f); usage == "" || strings.HasSuffix(usage, ".") || value == "string" || value == "strings" || value == "int" {
			t.Errorf("--%s has the value %q and the meaning %q", f.Name, value, usage)
		}
	})
}

func TestExplain(t *testing.T) {
	tests := map[result.Reason]string{
		result.ReasonPushUnauthorized: `PushUnauthorized

The registry refused the push credentials.

Class:      Auth
Exit code:  1
What to do: ` + result.ReasonPushUnauthorized.Entry().Remedy + "\n",
		result.ReasonSucceeded: `Succeeded

` + result.ReasonSucceeded.Entry().Sentence + `

Exit code:  0
What to do: Nothing is left to do.
`,
	}
	for reason, want := range tests {
		if got := Explain(reason.Entry()); got != want {
			t.Errorf("%s is explained as\n%s\nwant\n%s", reason, got, want)
		}
	}
}
