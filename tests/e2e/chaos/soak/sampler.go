package soak

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/load"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// patience bounds each question: a part that a fault has stopped must not hold up the looks at the others.
const patience = 5 * time.Second

// Sampler looks at a whole rig, again and again.
type Sampler struct {
	rig       *rig.Rig
	counts    *load.Counts
	js        jetstream.JetStream
	nc        *nats.Conn
	processes *processes
	// known are the sandboxes that there ever were: what remains of one is found by its id.
	known map[string]bool
}

// NewSampler watches the processes of a rig, and more. Close it.
func NewSampler(r *rig.Rig, counts *load.Counts, more ...Target) (*Sampler, error) {
	nc, err := nats.Connect(r.NATS, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(time.Second))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	s := &Sampler{rig: r, counts: counts, nc: nc, js: js, processes: &processes{targets: more}, known: map[string]bool{}}
	for _, p := range r.Processes() {
		s.processes.targets = append(s.processes.targets, Target{Name: p.Name, Metrics: r.Metrics[p.Name], PIDs: func() []int {
			if pid := p.PID(); pid != 0 {
				return []int{pid}
			}
			return nil
		}})
	}
	for _, part := range []struct {
		name string
		part rig.Part
	}{{"keepers", rig.Keeper}, {"sentries", rig.Sentry}} {
		s.processes.targets = append(s.processes.targets, Target{Name: part.name, Many: true, PIDs: func() []int {
			var pids []int
			for _, m := range r.Members() {
				if m.Part == part.part {
					pids = append(pids, m.PID)
				}
			}
			return pids
		}})
	}
	return s, nil
}

// Close ends the connection to NATS.
func (s *Sampler) Close() { s.nc.Close() }

// Take looks at everything. A part that does not answer is left out, and told: faults make that happen.
func (s *Sampler) Take(ctx context.Context) (Row, []error) {
	row := Row{At: time.Now(), Figures: map[string]float64{}}
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	note(s.processes.take(ctx, row.Figures))
	note(streams(ctx, s.js, filepath.Join(s.rig.State, "nats"), row.Figures))
	note(directories(s.rig.State, row.Figures))
	note(tables(ctx, s.rig.ClickHouseURL, s.rig.ClickHousePassword, row.Figures))
	note(s.host(row.Figures))
	row.Figures["load.creates"] = float64(s.counts.Creates.Load())
	row.Figures["load.destroys"] = float64(s.counts.Destroys.Load())
	row.Figures["load.execs"] = float64(s.counts.Execs.Load())
	row.Figures["load.bytes"] = float64(s.counts.Bytes.Load())
	return row, errs
}

// host adds how many of each kind of thing of the rig there are on the host, workspaces aside: those are files.
func (s *Sampler) host(into map[string]float64) error {
	entries, err := os.ReadDir(filepath.Join(s.rig.State, "sandboxes"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			s.known[e.Name()] = true
		}
	}
	var known []string
	for id := range s.known {
		known = append(known, id)
	}
	h, err := evidence.LookAtHost("local", s.rig.State, known)
	if err != nil {
		return err
	}
	for _, kind := range []evidence.Kind{evidence.Mount, evidence.Loop, evidence.Cgroup, evidence.Netns, evidence.Socket, evidence.Process} {
		into["host."+string(kind)] = 0
	}
	into["host.zombie"] = 0
	for _, r := range h.Found {
		if r.Kind != evidence.Workspace {
			into["host."+string(r.Kind)]++
		}
		if r.Zombie {
			into["host.zombie"]++
		}
	}
	return nil
}
