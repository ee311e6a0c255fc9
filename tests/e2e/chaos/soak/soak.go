// Package soak runs a whole Sandtrail at a steady load for long, looks at all that it uses again and again, and judges of each figure whether
// it stays, grows with what is kept for ever, or leaks.
package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/load"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// Options of a soak.
type Options struct {
	Seed     uint64
	Form     rig.Form
	Duration time.Duration
	// Every is the time from one look to the next. Looks ends the soak once there are so many; 0 leaves that to Duration.
	Every time.Duration
	Looks int
	// Lives is how many sandboxes there are at once, Pause how long a client waits before each of its steps.
	Lives int
	Pause time.Duration
	// FaultEvery makes one fault after the other, each with this time behind it; 0 makes none. Only chooses kinds, as for chaos.
	FaultEvery time.Duration
	Only       []string
	// Also are watched beside the rig's own processes, once its state directory is known, and ended by stop when the load has; may be nil.
	Also func(state string) (watched []Target, stop func())
	// Out is a directory for figures, plot, journal and summary.
	Out string
	Say func(format string, args ...any)
}

// Summary of a soak.
type Summary struct {
	Verdicts []Verdict
	Rows     []Row
	Chaos    *chaos.Summary
	// Missed are looks at which a part did not answer.
	Missed int

	looks atomic.Int64
}

// OK reports that nothing leaks and, where the run itself was judged too, nothing went wrong.
func (s *Summary) OK() bool { return len(Leaks(s.Verdicts)) == 0 && (s.Chaos == nil || s.Chaos.OK()) }

// many is more than any soak does.
const (
	manyCreates = 1 << 20
	// execsEach is how many commands a sandbox runs on average.
	execsEach = 10
)

// Run makes a soak. An error is one of the harness; what leaks or went wrong is in the summary.
func Run(ctx context.Context, o Options) (*Summary, error) {
	s := &Summary{}
	co := chaos.Options{
		Seed: o.Seed, Form: o.Form, Replicas: 1, Creates: manyCreates, Execs: manyCreates * execsEach, Duration: o.Duration, Lives: o.Lives,
		Pause: o.Pause, AppendPause: 2 * time.Second, Out: o.Out, Say: o.Say,
		Watch: func(ctx context.Context, r *rig.Rig, counts *load.Counts) error { return s.watch(ctx, o, r, counts) },
	}
	if o.Looks > 0 {
		co.Creates, co.Execs, co.Enough = 1, execsEach, func() bool { return s.looks.Load() >= int64(o.Looks) }
	}
	if o.FaultEvery > 0 {
		co.Lanes, co.Faults, co.Rest, co.Only = 1, manyCreates, o.FaultEvery, o.Only
	}
	var err error
	if s.Chaos, err = chaos.Run(ctx, co); err != nil {
		return nil, err
	}
	h, err := journal.Read(o.Out)
	if err != nil {
		return nil, err
	}
	latencies(s.Rows, h)
	if err := s.judge(); err != nil {
		return nil, err
	}
	return s, s.write(o.Out)
}

func (s *Summary) watch(ctx context.Context, o Options, r *rig.Rig, counts *load.Counts) error {
	var also []Target
	if o.Also != nil {
		var stop func()
		also, stop = o.Also(r.State)
		defer stop()
	}
	sampler, err := NewSampler(r, counts, also...)
	if err != nil {
		return err
	}
	defer sampler.Close()
	tick := time.NewTicker(o.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		row, errs := sampler.Take(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if len(errs) > 0 {
			s.Missed++
			o.Say("not seen at this look: %v", errors.Join(errs...))
		}
		s.Rows = append(s.Rows, row)
		s.looks.Add(1)
		// What was seen so far is kept, whatever happens to this program.
		if err := save(o.Out, CSVFile, func(w io.Writer) error { return WriteCSV(w, s.Rows) }); err != nil {
			return err
		}
	}
}

// Names of files in the directory of a soak.
const (
	CSVFile  = "soak.csv"
	PlotFile = "soak.svg"
	TextFile = "soak.txt"
)

func (s *Summary) write(dir string) error {
	text := s.String()
	for _, f := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{CSVFile, func(w io.Writer) error { return WriteCSV(w, s.Rows) }},
		{PlotFile, func(w io.Writer) error { return Plot(w, s.Rows) }},
		{TextFile, func(w io.Writer) error { _, err := io.WriteString(w, text); return err }},
	} {
		if err := save(dir, f.name, f.write); err != nil {
			return err
		}
	}
	return nil
}

func save(dir, name string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600)
}

// Again judges the figures that an earlier soak has left in a directory, and writes plot and table there.
func Again(dir string) (*Summary, error) {
	f, err := os.Open(filepath.Join(dir, CSVFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := &Summary{}
	if s.Rows, err = ReadCSV(f); err != nil {
		return nil, err
	}
	if err := s.judge(); err != nil {
		return nil, err
	}
	return s, s.write(dir)
}

func (s *Summary) judge() error {
	if len(s.Rows) < 2*least {
		return fmt.Errorf("%d looks are too few to judge: it needs %d", len(s.Rows), 2*least)
	}
	s.Verdicts = Judge(s.Rows)
	return nil
}
