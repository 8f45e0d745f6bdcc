package controller

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/strata-build/strata/agent/result"
)

// TestHostileResultsAreCounted: a counter that is asked to go down panics.
func TestHostileResultsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	less, more := int64(-5), int64(7)
	r := &result.Result{Phases: map[result.Phase]result.PhaseStats{result.Push: {Seconds: -1, Bytes: &less}, result.Pull: {Bytes: &more}}, Attempts: []result.Attempt{{}}}
	m.measured("worker", "failed", r)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "strata_transferred_bytes_total" {
			for _, x := range f.GetMetric() {
				got[x.GetLabel()[0].GetValue()] = x.GetCounter().GetValue()
			}
		}
	}
	if got["Push"] != 0 || got["Pull"] != 7 {
		t.Errorf("the bytes are %v, want 0 for Push and 7 for Pull", got)
	}
}
