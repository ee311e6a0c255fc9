package figure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	// settle is how long nothing happens before idle memory is read; sampleEvery is between two readings.
	settle      = 8 * time.Second
	sampleEvery = 50 * time.Millisecond
)

// idle reads the memory of `up` with nothing to do, and of one sandbox with nothing to do.
func idle(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	row, err := idleUp(ctx, b, "idle memory of `up` without ClickHouse, after its start")
	if err != nil {
		return nil, err
	}
	up, box, remove, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(&err)
	plain, err := up.NewPlain()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	bare, err := plain.Run("/usr/bin/sh", "-c", "echo ready; read x; true")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bare.End()) }()
	b.say("idle: memory of a sandbox")
	if err := rest(ctx, settle); err != nil {
		return nil, err
	}
	var keeper, keeperShare, ours, theirs, resident sample.Values
	for range b.Runs {
		readings := []struct {
			to   *sample.Values
			pids []int
			read func(int) (float64, error)
		}{
			{&keeper, []int{box.Keeper}, live.Resident},
			{&keeperShare, []int{box.Keeper}, live.Proportional},
			{&ours, live.Tree(box.Keeper), live.Proportional},
			{&theirs, live.Tree(bare.PID), live.Proportional},
			{&resident, []int{box.Sentry}, live.Resident},
		}
		for _, r := range readings {
			sum := 0.0
			for _, pid := range r.pids {
				mb, err := r.read(pid)
				if err != nil {
					return nil, err
				}
				sum += mb
			}
			r.to.Add(sum)
		}
		if err := rest(ctx, sampleEvery); err != nil {
			return nil, err
		}
	}
	return []report.Row{
		row,
		{
			Name: "one idle sandbox, all its processes", Unit: "MB", Ours: ours.Median(), Baseline: theirs.Median(), Against: "`runsc run` of the same image with a shell that waits", Samples: len(ours),
			Note: fmt.Sprintf("Proportional set size of the keeper and all below it; the baseline has the runsc command in its place. The sentry alone has %.0f MB resident.", resident.Median()),
		},
		{
			Name: "the keeper of one idle sandbox", Unit: "MB", Ours: keeper.Median(), Baseline: report.None, Samples: len(keeper), Target: report.AtMost(12 * 1.048576),
			Note: fmt.Sprintf("Resident size (the bound is 12 MiB); its proportional share is %.1f MB.", keeperShare.Median()),
		},
	}, nil
}

// idleAfter reads the memory of `up` again behind everything else.
func idleAfter(ctx context.Context, b *Bench) ([]report.Row, error) {
	row, err := idleUp(ctx, b, "idle memory of `up` without ClickHouse, after all of the above")
	return []report.Row{row}, err
}

func idleUp(ctx context.Context, b *Bench, name string) (report.Row, error) {
	up, err := b.Up(ctx)
	if err != nil {
		return report.Row{}, err
	}
	b.say("idle: memory of up")
	if err := rest(ctx, settle); err != nil {
		return report.Row{}, err
	}
	var mb sample.Values
	for range b.Runs {
		v, err := live.Resident(up.PID)
		if err != nil {
			return report.Row{}, err
		}
		mb.Add(v)
		if err := rest(ctx, sampleEvery); err != nil {
			return report.Row{}, err
		}
	}
	return report.Row{Name: name, Unit: "MB", Ours: mb.Median(), Baseline: report.None, Samples: len(mb), Target: report.AtMost(150)}, nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
