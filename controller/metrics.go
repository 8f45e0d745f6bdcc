package controller

import (
	"context"
	"strings"
	"time"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/strata-build/strata/agent/result"
)

// Metrics are what Prometheus reads. Durations, bytes and attempts are those that
// the agent measured. The names that begin with ocl_ and mco_ are those of the
// Machine Config Operator, for dashboards that have them.
type Metrics struct {
	builds, attempts, bytes                     *prometheus.CounterVec
	seconds, queue                              *prometheus.HistogramVec
	oclTotal, oclRetries, oclPushes, oclChanges *prometheus.CounterVec
	oclDuration, oclQueue, oclPush              *prometheus.HistogramVec
	oclStart, oclEnd                            *prometheus.GaugeVec
}

// Buckets in seconds, from a push that had nothing to send to a build of hours.
var (
	secondsBuckets = []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 2400, 3600, 7200}
	queueBuckets   = []float64{1, 5, 15, 30, 60, 120, 300, 600, 1800}
)

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	var all []prometheus.Collector
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		all = append(all, c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		c := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		all = append(all, c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		c := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		all = append(all, c)
		return c
	}
	m := &Metrics{
		builds:   counter("strata_builds_total", "Builds that ended, by outcome and reason.", "pool", "outcome", "reason"),
		attempts: counter("strata_failed_attempts_total", "Attempts of the agent that failed, by phase and class.", "pool", "phase", "class"),
		bytes:    counter("strata_transferred_bytes_total", "Compressed bytes that builds transferred, by phase.", "pool", "phase"),
		seconds:  histogram("strata_phase_seconds", "Seconds that a phase of a build took, waits between attempts included.", secondsBuckets, "pool", "phase"),
		queue:    histogram("strata_queue_seconds", "Seconds from the creation of a build until its first pod worked.", queueBuckets, "pool"),

		oclTotal:    counter("ocl_build_total", "Builds that ended, by final state.", "pool", "state"),
		oclRetries:  counter("ocl_build_retries_total", "Attempts of the agent that failed.", "pool"),
		oclPushes:   counter("ocl_image_push_total", "Pushes of images, by final state.", "pool", "state"),
		oclChanges:  counter("ocl_config_change_total", "Builds that were created because inputs changed or a rebuild was asked for.", "pool"),
		oclDuration: histogram("ocl_build_duration_seconds", "Seconds from start to end of a build.", secondsBuckets, "pool", "state"),
		oclQueue:    histogram("ocl_build_queue_duration_seconds", "Seconds from the creation of a build until its first pod worked.", queueBuckets, "pool"),
		oclPush:     histogram("ocl_image_push_duration_seconds", "Seconds that the push of an image took.", secondsBuckets, "pool", "state"),
		oclStart:    gauge("ocl_build_start_timestamp_seconds", "When the last build of a pool started.", "pool"),
		oclEnd:      gauge("ocl_build_end_timestamp_seconds", "When the last build of a pool ended.", "pool", "state"),
	}
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func poolOf(b *mcfgv1.MachineOSBuild) string { return b.Labels[labelPool] }

func (m *Metrics) created(config *mcfgv1.MachineOSConfig) {
	m.oclChanges.WithLabelValues(config.Spec.MachineConfigPool.Name).Inc()
}

// changed measures what a change of a build's status says.
func (m *Metrics) changed(before, b *mcfgv1.MachineOSBuild, v verdict) {
	pool := poolOf(b)
	if before.Status.BuildStart == nil && b.Status.BuildStart != nil {
		m.oclStart.WithLabelValues(pool).Set(float64(b.Status.BuildStart.Unix()))
	}
	works := func(b *mcfgv1.MachineOSBuild) bool {
		return apimeta.IsStatusConditionTrue(b.Status.Conditions, string(mcfgv1.MachineOSBuilding)) || (v.result != nil && ended(b) != "")
	}
	if !works(before) && works(b) && v.pods == 1 && !v.started.IsZero() {
		waited := max(v.started.Sub(b.CreationTimestamp.Time), 0).Seconds()
		m.queue.WithLabelValues(pool).Observe(waited)
		m.oclQueue.WithLabelValues(pool).Observe(waited)
	}
	if ended(before) != "" || ended(b) == "" {
		return
	}
	state := strings.ToLower(ended(b))
	m.builds.WithLabelValues(pool, ended(b), v.reason).Inc()
	m.oclTotal.WithLabelValues(pool, state).Inc()
	if start, end := b.Status.BuildStart, b.Status.BuildEnd; start != nil && end != nil {
		m.oclDuration.WithLabelValues(pool, state).Observe(end.Sub(start.Time).Seconds())
		m.oclEnd.WithLabelValues(pool, state).Set(float64(end.Unix()))
	}
	m.measured(pool, state, v.result)
}

// measured takes what the agent measured.
func (m *Metrics) measured(pool, state string, r *result.Result) {
	if r == nil {
		return
	}
	for phase, stats := range r.Phases {
		m.seconds.WithLabelValues(pool, string(phase)).Observe(stats.Seconds)
		if stats.Bytes != nil {
			m.bytes.WithLabelValues(pool, string(phase)).Add(float64(max(*stats.Bytes, 0))) // a pod may say anything
		}
	}
	for _, a := range r.Attempts {
		m.attempts.WithLabelValues(pool, string(a.Phase), string(a.Class)).Inc()
		m.oclRetries.WithLabelValues(pool).Inc()
	}
	if push, ok := r.Phases[result.Push]; ok {
		if r.Phase != result.Push {
			state = strings.ToLower(string(result.Succeeded)) // what failed came later
		}
		m.oclPushes.WithLabelValues(pool, state).Inc()
		m.oclPush.WithLabelValues(pool, state).Observe(push.Seconds)
	}
}

// cancelled counts a build that was deleted before it ended.
func (m *Metrics) cancelled(b *mcfgv1.MachineOSBuild) {
	m.builds.WithLabelValues(poolOf(b), string(result.Interrupted), reasonSuperseded).Inc()
	m.oclTotal.WithLabelValues(poolOf(b), strings.ToLower(string(result.Interrupted))).Inc()
}

// Collector counts builds and configs as they are when it is asked, so that
// nothing is counted up and down and a restart changes nothing.
type Collector struct{ Client client.Reader }

var (
	activeDesc    = prometheus.NewDesc("strata_active_builds", "Builds that have not ended, by state.", []string{"pool", "state"}, nil)
	oclActiveDesc = prometheus.NewDesc("ocl_active_builds", "Builds that have not ended.", []string{"pool"}, nil)
	oclStateDesc  = prometheus.NewDesc("ocl_build_state", "State of the newest build of a pool: 1.", []string{"pool", "state"}, nil)
	countDesc     = prometheus.NewDesc("mco_mosc_count", "MachineOSConfigs in the cluster.", nil, nil)
)

var _ prometheus.Collector = (*Collector)(nil)

// Describe names the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{activeDesc, oclActiveDesc, oclStateDesc, countDesc} {
		ch <- d
	}
}

// Collect counts. What cannot be listed is left out.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var configs mcfgv1.MachineOSConfigList
	var builds mcfgv1.MachineOSBuildList
	if c.Client.List(ctx, &configs) != nil || c.Client.List(ctx, &builds) != nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(countDesc, prometheus.GaugeValue, float64(len(configs.Items)))
	type key struct{ pool, state string }
	active, perPool, newest := map[key]int{}, map[string]int{}, map[string]*mcfgv1.MachineOSBuild{}
	for i := range builds.Items {
		b := &builds.Items[i]
		pool := poolOf(b)
		if n := newest[pool]; n == nil || n.CreationTimestamp.Before(&b.CreationTimestamp) {
			newest[pool] = b
		}
		if ended(b) == "" {
			active[key{pool, stateName(b)}]++
			perPool[pool]++
		}
	}
	for k, n := range active {
		ch <- prometheus.MustNewConstMetric(activeDesc, prometheus.GaugeValue, float64(n), k.pool, k.state)
	}
	for pool, b := range newest {
		ch <- prometheus.MustNewConstMetric(oclActiveDesc, prometheus.GaugeValue, float64(perPool[pool]), pool)
		ch <- prometheus.MustNewConstMetric(oclStateDesc, prometheus.GaugeValue, 1, pool, stateName(b))
	}
}

func stateName(b *mcfgv1.MachineOSBuild) string {
	switch {
	case ended(b) != "":
		return strings.ToLower(ended(b))
	case apimeta.IsStatusConditionTrue(b.Status.Conditions, string(mcfgv1.MachineOSBuilding)):
		return "building"
	}
	return "pending"
}
