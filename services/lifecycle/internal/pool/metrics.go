package pool

import "github.com/prometheus/client_golang/prometheus"

// counts are since the start of the process.
type counts struct{ hits, misses, failures uint64 }

func (p *Pool) count(f func(*counts)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.counts)
}

var (
	warm     = prometheus.NewDesc("sandtrail_warm_sandboxes", "Sandboxes of this worker that are nobody's yet: ready to be taken, or being made.", []string{"state"}, nil)
	wanted   = prometheus.NewDesc("sandtrail_warm_sandboxes_wanted", "How many there are to be, by the policy and the demand.", nil, nil)
	hits     = prometheus.NewDesc("sandtrail_warm_hits_total", "Creates that this process served with a warm sandbox.", nil, nil)
	misses   = prometheus.NewDesc("sandtrail_warm_misses_total", "Creates for which no warm sandbox of their kind was ready.", nil, nil)
	failures = prometheus.NewDesc("sandtrail_warm_refill_failures_total", "Warm sandboxes that could not be made.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *Pool) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{warm, wanted, hits, misses, failures} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (p *Pool) Collect(to chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready, coming, want := 0, 0, 0
	for _, c := range p.classes {
		ready, coming = ready+len(c.ready), coming+c.coming
	}
	for _, n := range p.targets() {
		want += n
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(warm, ready, "ready")
	gauge(warm, coming, "making")
	gauge(wanted, want)
	for d, n := range map[*prometheus.Desc]uint64{hits: p.counts.hits, misses: p.counts.misses, failures: p.counts.failures} {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
}
