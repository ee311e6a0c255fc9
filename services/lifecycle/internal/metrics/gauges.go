// Package metrics shows what a lifecycle process knows of its worker: the sandboxes in the views, what the reconciler found on
// the host, and how sandboxes start.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// states are those of a sandbox that is not destroyed.
var states = []string{
	sandbox.Requested, sandbox.Scheduled, sandbox.Starting, sandbox.Ready, sandbox.Failed, sandbox.Stopping, sandbox.Stopped,
	sandbox.Destroying,
}

var (
	sandboxes   = prometheus.NewDesc("sandtrail_sandboxes", "Sandboxes of this worker by state, as the views have them; destroyed ones are left out.", []string{"state"}, nil)
	places      = prometheus.NewDesc("sandtrail_sandbox_places", "Sandboxes that this worker takes at most.", nil, nil)
	keepers     = prometheus.NewDesc("sandtrail_keepers", "Sandboxes on this host by whether their keeper answers and says that they live, as of the last look.", []string{"state"}, nil)
	looked      = prometheus.NewDesc("sandtrail_reconcile_age_seconds", "Time since this worker last compared its host with the log.", nil, nil)
	failures    = prometheus.NewDesc("sandtrail_reconcile_failures_total", "Comparisons of host and log that did not put everything right.", nil, nil)
	freeBytes   = prometheus.NewDesc("sandtrail_state_free_bytes", "Bytes that may still be written to the file system of the state directory.", nil, nil)
	workersDesc = prometheus.NewDesc("sandtrail_workers", "Workers that this scheduler gives sandboxes to: those heard of lately.", nil, nil)
)

// Views are the views of sandboxes that are not destroyed.
type Views interface {
	// Ready is closed once All has what stood in the bucket.
	Ready() <-chan struct{}
	All() []*commandsv1.SandboxView
}

// Looks are a reconciler's.
type Looks interface {
	// Found is how many sandboxes the last look found on this host, how many of them live, and when it was; a zero time before
	// the first. Failures counts the looks that were incomplete.
	Found() (exist, alive int, at time.Time)
	Failures() uint64
}

// Worker collects what is known of one worker. Metrics that are not known yet are left out.
type Worker struct {
	Name string
	// Places is how many sandboxes it takes.
	Places int
	// StateDir is a directory of the file system whose free space counts.
	StateDir string
	Views    Views
	Looks    Looks
	Now      func() time.Time
}

// Describe implements prometheus.Collector.
func (w *Worker) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxes, places, keepers, looked, failures, freeBytes} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (w *Worker) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(places, float64(w.Places))
	select {
	case <-w.Views.Ready():
		count := w.count()
		for _, state := range states {
			gauge(sandboxes, float64(count[state]), state)
		}
	default:
	}
	if exist, alive, at := w.Looks.Found(); !at.IsZero() {
		gauge(keepers, float64(alive), "alive")
		gauge(keepers, float64(exist-alive), "silent")
		gauge(looked, max(0, w.Now().Sub(at).Seconds()))
	}
	to <- prometheus.MustNewConstMetric(failures, prometheus.CounterValue, float64(w.Looks.Failures()))
	var fs unix.Statfs_t
	if unix.Statfs(w.StateDir, &fs) == nil {
		gauge(freeBytes, float64(fs.Bavail)*float64(fs.Bsize))
	}
}

func (w *Worker) count() map[string]int {
	n := map[string]int{}
	for _, v := range w.Views.All() {
		if v.GetWorker() == w.Name {
			n[v.GetState()]++
		}
	}
	return n
}

// Scheduler shows how many workers fresh counts.
func Scheduler(fresh func() int) prometheus.Collector { return schedulerCollector(fresh) }

type schedulerCollector func() int

func (s schedulerCollector) Describe(to chan<- *prometheus.Desc) { to <- workersDesc }

func (s schedulerCollector) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.MustNewConstMetric(workersDesc, prometheus.GaugeValue, float64(s()))
}
