// Package result is the contract between a build and whoever waits for it: one
// JSON object of at most 4096 bytes, which is what a kubelet keeps of a
// container's termination message (terminationMessagePath in the Kubernetes
// API), and an exit code that a Job's podFailurePolicy can act on.
//
// The package is a leaf: it knows nothing of images or of Kubernetes, so that
// both the agent, which writes a Result, and the controller, which reads it,
// can import it.
package result

import (
	"encoding/json"
	"fmt"
	"time"
)

// Schema names the format of a Result. It changes only when a reader of the
// old format would misunderstand the new one.
const Schema = "strata.build/v1"

// MaxBytes is the default budget of an encoded Result: a kubelet truncates a
// termination message at 4096 bytes.
const MaxBytes = 4096

// MinBytes is the smallest budget in which the frame, the reason, a digest and
// the class of the last attempt always fit.
const MinBytes = 768

// Outcome says how a build ended.
type Outcome string

// The outcomes, a closed list.
const (
	Succeeded   Outcome = "Succeeded"
	Failed      Outcome = "Failed"
	Interrupted Outcome = "Interrupted"
)

// Phase is a part of a build with a result of its own.
type Phase string

// The phases in the order in which they run.
const (
	Prepare Phase = "Prepare"
	Pull    Phase = "Pull"
	Build   Phase = "Build"
	Push    Phase = "Push"
	Verify  Phase = "Verify"
)

// Step is the instruction of the Containerfile at which a build failed.
type Step struct {
	// Stage is the name of the stage, or its position, from 0, when it has none.
	Stage string `json:"stage"`
	// Number counts the instructions of the stage from 1 (its FROM); Of is how many there are.
	Number int `json:"number"`
	Of     int `json:"of"`
	// Line is the line, from 1, on which the instruction begins; 0 when it stands
	// in no file (a label given as a flag, an ONBUILD trigger of the base image).
	Line int `json:"line"`
	// Instruction is the text of the instruction.
	Instruction string `json:"instruction"`
}

// Attempt is one attempt that failed.
type Attempt struct {
	Phase Phase `json:"phase"`
	// N counts from 1; Of is how many attempts the phase had in all.
	N  int `json:"n"`
	Of int `json:"of"`
	// Class decides whether another attempt can help.
	Class Class `json:"class"`
	// Host is the registry that was talked to, with its port.
	Host string `json:"host,omitempty"`
	// Status is the HTTP status that the registry answered, 0 for none.
	Status int    `json:"status,omitempty"`
	Error  string `json:"error"`
	// Waited is how long the agent waited after this attempt, as a Go duration.
	Waited string `json:"waited,omitempty"`
}

// PhaseStats is what a phase cost.
type PhaseStats struct {
	// Seconds is wall time, waits between attempts included.
	Seconds float64 `json:"seconds"`
	// Attempts counts every attempt, also the one that succeeded.
	Attempts int `json:"attempts"`
	// Bytes is the size of the compressed blobs that were transferred by the
	// attempt that succeeded; a blob that was there already is not counted.
	Bytes *int64 `json:"bytes,omitempty"`
}

// Sandbox is what the agent found to build with.
type Sandbox struct {
	// Storage is the driver of containers/storage.
	Storage string `json:"storage"`
	// Isolation is buildah's isolation of RUN steps.
	Isolation string `json:"isolation"`
	// UserNS is "none" (already privileged), "pod" (a namespace that the agent
	// found itself in), "own" (one that it made) or "single" (one with a single id).
	UserNS string `json:"userns"`
}

// Result is everything that a build leaves behind.
type Result struct {
	Schema  string  `json:"schema"`
	Outcome Outcome `json:"outcome"`
	Reason  Reason  `json:"reason"`
	// Phase is the last phase that ran.
	Phase Phase `json:"phase"`
	// Message is one sentence for a person.
	Message string `json:"message"`
	// Image is the name that the image was to have.
	Image string `json:"image"`
	// Digest is set only after the destination has confirmed it.
	Digest   string `json:"digest"`
	ExitCode int    `json:"exitCode"`
	// RunExitCode is the exit status of the RUN step that failed, else 0.
	RunExitCode int                  `json:"runExitCode"`
	Step        *Step                `json:"step,omitempty"`
	Attempts    []Attempt            `json:"attempts,omitempty"`
	Phases      map[Phase]PhaseStats `json:"phases,omitempty"`
	Sandbox     *Sandbox             `json:"sandbox,omitempty"`
	StartedAt   time.Time            `json:"startedAt"`
	FinishedAt  time.Time            `json:"finishedAt"`
	// Agent is the version of the agent.
	Agent string `json:"agent"`
}

// Conclude sets the reason and everything that follows from it: the outcome
// and the exit code.
func (r *Result) Conclude(reason Reason) {
	r.Schema = Schema
	r.Reason = reason
	r.ExitCode = int(reason.Entry().Exit)
	switch {
	case reason == ReasonSucceeded:
		r.Outcome = Succeeded
	case reason.Entry().Class == ClassInterrupted:
		r.Outcome = Interrupted
	default:
		r.Outcome = Failed
	}
	if r.Outcome != Succeeded {
		r.Digest = ""
	}
}

// Parse reads a Result. It refuses text that is not a Result of this schema,
// such as the end of a log that a kubelet put in its place.
func Parse(data []byte) (*Result, error) {
	var r Result
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("the text is not a result: %w", err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("the text is not a result: its schema is %q, not %q", r.Schema, Schema)
	}
	return &r, nil
}
