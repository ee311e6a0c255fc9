package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/procfs"

	dto "github.com/prometheus/client_model/go"
)

// Target is what is watched under one name: a process, or several that are added up.
type Target struct {
	Name string
	// PIDs are its processes now.
	PIDs func() []int
	// Metrics is the URL of its metrics; empty without.
	Metrics string
	// Many: how many processes there are is a figure too.
	Many bool
}

// processes reads what the kernel and the programs themselves say of targets.
type processes struct {
	targets []Target
	// cpu is what each process had used at the last look, in seconds.
	cpu  map[int]float64
	last time.Time
}

// shown are metrics that become lines of the process that shows them: those with labels are added up.
var shown = map[string]string{
	"go_goroutines": "goroutines",
	// The collector's goal follows the live heap without its saw.
	"go_memstats_next_gc_bytes":       "heap_bytes",
	"sandtrail_projection_lag_events": "lag_events",
	"sandtrail_usage_pending_events":  "pending_events",
	"sandtrail_worker_held_messages":  "held_messages",
	"sandtrail_exec_running":          "execs_running",
}

// take adds the figures of every target. A process that has ended meanwhile counts as far as it was read.
func (p *processes) take(ctx context.Context, into map[string]float64) error {
	now, used := time.Now(), map[int]float64{}
	var errs []error
	for _, t := range p.targets {
		pids := t.PIDs()
		if t.Many {
			into[t.Name+".count"] = float64(len(pids))
		}
		for _, pid := range pids {
			if err := p.read(t.Name, pid, now, used, into); err != nil {
				errs = append(errs, err)
			}
			if !t.Many {
				into[t.Name+".pid"] = float64(pid)
			}
		}
		if t.Metrics != "" && len(pids) > 0 {
			// A service that starts or is stopped by a fault answers nothing: the row goes without.
			_ = scrape(ctx, t, into)
		}
	}
	p.cpu, p.last = used, now
	return errors.Join(errs...)
}

func (p *processes) read(name string, pid int, now time.Time, used map[int]float64, into map[string]float64) error {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return unlessGone(err)
	}
	stat, err := proc.Stat()
	if err != nil {
		return unlessGone(err)
	}
	status, err := proc.NewStatus()
	if err != nil {
		return unlessGone(err)
	}
	fds, err := proc.FileDescriptorsLen()
	if err != nil {
		return unlessGone(err)
	}
	into[name+".rss_bytes"] += float64(status.VmRSS)
	into[name+".anon_bytes"] += float64(status.RssAnon)
	into[name+".descriptors"] += float64(fds)
	into[name+".threads"] += float64(stat.NumThreads)
	used[pid] = stat.CPUTime()
	if before, ok := p.cpu[pid]; ok && now.After(p.last) {
		into[name+".cpu_share"] += (used[pid] - before) / now.Sub(p.last).Seconds()
	}
	return nil
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return fmt.Errorf("look at a process: %w", err)
}

func scrape(ctx context.Context, t Target, into map[string]float64) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.Metrics, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(res.Body)
	if err != nil {
		return fmt.Errorf("read the metrics of %s: %w", t.Name, err)
	}
	for metric, line := range shown {
		if f, ok := families[metric]; ok {
			into[t.Name+"."+line] = total(f)
		}
	}
	return nil
}

func total(f *dto.MetricFamily) float64 {
	var sum float64
	for _, m := range f.GetMetric() {
		sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
	}
	return sum
}
