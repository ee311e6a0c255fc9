// Package figure measures: each figure and its baseline in the same run, taking turns so that what else happens on the machine
// hits both.
package figure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
)

// Bench is one run.
type Bench struct {
	// Runs is how many samples a median is of, at least.
	Runs int
	// Quick measures less of everything: to see that it works, not for figures.
	Quick bool
	// Bin is the directory of the built programs.
	Bin string
	// Progress gets a line for each step.
	Progress io.Writer

	up  *live.Up
	log *slog.Logger
}

// Figure is one measurement, which makes several rows.
type Figure struct {
	Name string
	run  func(ctx context.Context, b *Bench) ([]report.Row, error)
}

// All are the figures in the order in which they are taken: the idle one first, while nothing has happened yet.
func All() []Figure {
	return []Figure{
		{"idle", idle},
		{"exec", execTrue},
		{"create", create},
		{"output", output},
		{"crowd", crowd},
		{"neighbours", neighbours},
		{"fairness", fairness},
		{"node-down", nodeDown},
		{"usage", readable},
		{"log", appends},
		{"replay", replay},
		{"projection", projected},
		{"audit", audited},
		{"idle-after", idleAfter},
	}
}

// Run takes one figure.
func (b *Bench) Run(ctx context.Context, f Figure) report.Section {
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	rows, err := f.run(ctx, b)
	if err != nil {
		err = fmt.Errorf("%s: %w", f.Name, err)
	}
	return report.Section{Name: f.Name, Rows: rows, Err: err}
}

// Up is the running Sandtrail, which is started by the first figure that needs it.
func (b *Bench) Up(ctx context.Context) (*live.Up, error) {
	if b.up != nil {
		return b.up, nil
	}
	b.say("starting sandtrail up")
	up, err := live.Start(ctx, b.Bin)
	if err != nil {
		return nil, err
	}
	b.up = up
	return up, nil
}

// Close ends what the figures have started.
func (b *Bench) Close() error {
	if b.up == nil {
		return nil
	}
	err := b.up.Close()
	b.up = nil
	return err
}

func (b *Bench) say(format string, args ...any) { fmt.Fprintf(b.Progress, format+"\n", args...) }

// count is n, or a small part of it in a quick run.
func (b *Bench) count(n int) int {
	if b.Quick {
		return max(1, n/10)
	}
	return n
}

// sandbox makes one for a figure; remove ends it and adds its failure to err.
func (b *Bench) sandbox(ctx context.Context) (*live.Up, *live.Sandbox, func(*error), error) {
	up, err := b.Up(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := up.Create(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	return up, s, func(err *error) {
		*err = errors.Join(*err, up.Destroy(context.WithoutCancel(ctx), s.ID))
	}, nil
}
