package main

import (
	"fmt"
	"time"

	"github.com/strata-build/strata/test/bench/measure"
)

// record is one run. Sizes are in bytes, times in seconds.
type record struct {
	// Started is when the benchmark began: rounds of different ones differ.
	Started time.Time `json:"started"`
	Case    string    `json:"case"`
	Title   string    `json:"title"`
	Row     string    `json:"row"`
	// Peer tells that the row is one of those with which agents are compared.
	Peer  bool `json:"peer,omitempty"`
	Round int  `json:"round"`

	Wall float64 `json:"wall"`
	// CPU is that of all processes of the builder, its daemon's included.
	CPU float64 `json:"cpu"`
	// Peak is the resident memory of the largest process.
	Peak int64 `json:"peak"`
	// Written is what was written into files, temporary ones included.
	Written int64 `json:"written"`
	// Sent is what the registry received on the wire, Grown how much larger its
	// content is, Store how large the builder's own directory is in the end.
	Sent  int64 `json:"sent"`
	Grown int64 `json:"grown"`
	Store int64 `json:"store"`
	// Cuts is how often connections were cut.
	Cuts int `json:"cuts,omitempty"`
	// Parts are the seconds that the parts of the physical limit took.
	Parts map[string]float64 `json:"parts,omitempty"`

	// Others is the CPU time of the rest of the machine during the run, less the
	// registries, Steal what the hypervisor took. Noisy tells that it was much.
	Others float64 `json:"others"`
	Steal  float64 `json:"steal"`
	Noisy  bool    `json:"noisy,omitempty"`
	// Error is why the run failed; it then has no times.
	Error string `json:"error,omitempty"`
}

// add writes a cost into the record.
func (r *record) add(c measure.Cost, spent load) {
	others := max(0, spent.busy-spent.own-c.CPU)
	r.Wall, r.CPU, r.Peak, r.Written = c.Wall.Seconds(), c.CPU.Seconds(), c.Peak<<10, c.Written
	r.Others, r.Steal = others.Seconds(), spent.steal.Seconds()
	r.Noisy = noisy(c.Wall, others, spent.steal)
}

func (r *record) fail(err error) {
	if err != nil {
		r.Error = err.Error()
	}
}

// String is a line for who waits.
func (r record) String() string {
	line := fmt.Sprintf("case %s, round %d, %s: ", r.Case, r.Round+1, r.Row)
	if r.Error != "" {
		return line + "FAILED: " + r.Error
	}
	line += fmt.Sprintf("%.2f s, %.1f s of CPU, peak %d MiB, %.2f GB written, %.1f MB sent", r.Wall, r.CPU, r.Peak>>20, float64(r.Written)/1e9, float64(r.Sent)/1e6)
	if r.Noisy {
		line += fmt.Sprintf(" (noisy: others had %.1f s of CPU, the hypervisor %.1f)", r.Others, r.Steal)
	}
	return line
}
