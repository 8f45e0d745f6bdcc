package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/strata-build/strata/agent/result"
	"github.com/strata-build/strata/images"
)

// DoctorSchema names the form of what `agent doctor --json` prints.
const DoctorSchema = "strata.build/doctor/v1"

// DoctorFlags are the flags of a build that change what a sandbox needs, and which
// `agent doctor` takes too.
var DoctorFlags = []string{"storage-root", "storage-driver", "isolation", "security-opt", "single-id", "ulimit", "registries-conf", "signature-policy"}

// examinerName is the name of a worker that makes the checks of a build, and no build.
const examinerName = "strata-examiner"

// Diagnosis is what `agent doctor` found out.
type Diagnosis struct {
	Schema string `json:"schema"`
	// WouldBuild tells whether a build would work here.
	WouldBuild bool `json:"wouldBuild"`
	// Reason is that of the build that fails, empty where it would work.
	Reason result.Reason `json:"reason,omitempty"`
	// ExitCode is that of this process: 0, or 3 where a build would not work.
	ExitCode result.ExitCode  `json:"exitCode"`
	Checks   []images.Finding `json:"checks"`
	Agent    string           `json:"agent"`
}

// Doctor makes the checks that a build makes before it begins, and writes what these
// found: a table for people, or JSON. The exit code is 0 where a build would work, and 3
// where it would not. The settings need no check.
func Doctor(s *Settings, asJSON bool, streams Streams) result.ExitCode {
	if err := images.EnsureRuntimeDir(s.StorageRoot); err != nil {
		fmt.Fprintf(streams.Err, "Error: %v\n", err)
		return result.ExitSandbox
	}
	if os.Args[0] == examinerName {
		return examine(s, streams)
	}
	d := diagnose(s)
	write := writeTable
	if asJSON {
		write = writeJSON
	}
	if err := write(streams.Out, d); err != nil {
		fmt.Fprintf(streams.Err, "Error: writing what was found: %v\n", err)
		return result.ExitFailed
	}
	return d.ExitCode
}

// diagnose makes the checks: that of the user namespace here, the others in a worker.
func diagnose(s *Settings) Diagnosis {
	runtime.LockOSThread() // the worker is killed when the thread ends
	defer runtime.UnlockOSThread()
	w, err := images.NewWorker(s.needs(), append([]string{examinerName}, os.Args[1:]...)...)
	findings := []images.Finding{w.Finding}
	var more []images.Finding
	if err != nil {
		more = images.Examine(engineConfig(s, newConsole(io.Discard, s, newRedactor())), images.CheckUserNS)
	} else if more, err = examineInWorker(w); err != nil {
		more = []images.Finding{{
			Check: "worker", Severity: images.SeverityFailure, Reason: result.ReasonUserNamespaceUnavailable,
			Found: fmt.Sprintf("the process that looks at the rest failed: %v", err),
		}}
	}
	return conclude(append(findings, more...))
}

// conclude decides what the findings mean for a build.
func conclude(findings []images.Finding) Diagnosis {
	d := Diagnosis{Schema: DoctorSchema, WouldBuild: true, Checks: findings, Agent: Version()}
	for _, f := range findings {
		if f.Severity == images.SeverityFailure && d.WouldBuild {
			d.WouldBuild, d.Reason, d.ExitCode = false, f.Reason, result.ExitSandbox
		}
	}
	return d
}

func examineInWorker(w *images.Worker) ([]images.Finding, error) {
	var stdout, stderr bytes.Buffer
	w.Cmd.Stdout, w.Cmd.Stderr = &stdout, &stderr
	if w.Cmd.Env == nil {
		w.Cmd.Env = os.Environ()
	}
	w.Cmd.Env = append(w.Cmd.Env, userNSVariable+"="+w.UserNS)
	if err := w.Start(); err != nil {
		return nil, err
	}
	err := w.Wait()
	var findings []images.Finding
	if jsonErr := json.Unmarshal(stdout.Bytes(), &findings); jsonErr != nil {
		return nil, fmt.Errorf("%w: %s", firstError(err, jsonErr), oneLine(stderr.String()))
	}
	return findings, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// examine makes the checks in a worker and hands them on.
func examine(s *Settings, streams Streams) result.ExitCode {
	c := newConsole(io.Discard, s, newRedactor())
	images.RouteLogs(c.log)
	config := engineConfig(s, c)
	config.SingleID = os.Getenv(userNSVariable) == images.UserNSSingle
	if err := json.NewEncoder(streams.Out).Encode(images.Examine(config)); err != nil {
		return result.ExitFailed
	}
	return result.ExitSucceeded
}

func writeJSON(w io.Writer, d Diagnosis) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(d)
}

// marks are how the severities look in the table.
var marks = map[images.Severity]string{
	images.SeverityOK: "ok", images.SeverityWarning: "WARN", images.SeverityFailure: "FAIL", images.SeverityUnknown: "-",
}

// writeTable writes a row for each check, what to change behind those that found
// something wrong, and the conclusion.
func writeTable(w io.Writer, d Diagnosis) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range d.Checks {
		fmt.Fprintf(table, "%s\t%s\t%s\n", marks[f.Severity], f.Check, f.Found)
		if f.Hint != "" && f.Severity != images.SeverityOK {
			fmt.Fprintf(table, "\t\t-> %s\n", f.Hint)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var b strings.Builder
	switch {
	case d.WouldBuild:
		b.WriteString("\nA build would work here.\n")
	default:
		fmt.Fprintf(&b, "\nA build would not work here: %s. Change what the arrow behind the first FAIL says, and look again.\n", d.Reason)
		b.WriteString("What other pods and machines need is in docs/privileges.md.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
