package figure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	crowdBoxes = 20
	crowdExecs = 200
	// crowdLines of 14 bytes each are what one command writes.
	crowdLines = 7500
)

// crowd runs 200 commands at once over 20 sandboxes, each with numbered lines of its own, by our API and by `runsc exec`.
func crowd(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	up, err := b.Up(ctx)
	if err != nil {
		return nil, err
	}
	boxes, execs := make([]*live.Sandbox, b.count(crowdBoxes)), b.count(crowdExecs)
	b.say("crowd: %d sandboxes, %d commands at once", len(boxes), execs)
	defer func() {
		for _, box := range boxes {
			if box != nil {
				err = errors.Join(err, up.Destroy(context.WithoutCancel(ctx), box.ID))
			}
		}
	}()
	makers, mctx := errgroup.WithContext(ctx)
	makers.SetLimit(2)
	for i := range boxes {
		makers.Go(func() (err error) {
			boxes[i], err = up.Create(mctx)
			return err
		})
	}
	if err := makers.Wait(); err != nil {
		return nil, err
	}
	ours, each, err := together(execs, func(i int) ([]byte, error) {
		var got bytes.Buffer
		_, err := up.Exec(ctx, boxes[i%len(boxes)].ID, func(data []byte) error { got.Write(data); return nil }, "seq", "-f", crowdFormat(i), fmt.Sprint(crowdLines))
		return got.Bytes(), err
	})
	if err != nil {
		return nil, fmt.Errorf("through gRPC: %w", err)
	}
	theirs, _, err := together(execs, func(i int) ([]byte, error) {
		box := boxes[i%len(boxes)]
		argv, err := box.RunscExec("/usr/bin/seq", "-f", crowdFormat(i), fmt.Sprint(crowdLines))
		if err != nil {
			return nil, err
		}
		var got bytes.Buffer
		err = box.Inside(func() error {
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Dir, cmd.Stdout = "/", &got
			return cmd.Run()
		})
		return got.Bytes(), err
	})
	if err != nil {
		return nil, fmt.Errorf("by runsc exec: %w", err)
	}
	n := float64(execs)
	return []report.Row{
		{
			Name: fmt.Sprintf("%d commands at once over %d sandboxes", execs, len(boxes)), Unit: "execs/s", Ours: n / ours.Seconds(), Baseline: n / theirs.Seconds(), Against: "as many `runsc exec` at once",
			Note: fmt.Sprintf("%.1f s for all; the median command took %.1f s, the slowest %.1f s. Each wrote %d numbered lines, which are compared byte by byte.", ours.Seconds(), each.Median(), each.Max(), crowdLines),
		},
		{Name: "errors, bytes lost or repeated in it", Unit: "", Ours: 0, Baseline: report.None, Target: report.AtMost(0)},
	}, nil
}

func crowdFormat(i int) string { return fmt.Sprintf("%04d", i) + "-%08g" }

// together runs n commands at once and checks what each has written. each is in seconds.
func together(n int, run func(i int) ([]byte, error)) (took time.Duration, each sample.Values, err error) {
	var mu sync.Mutex
	var g errgroup.Group
	begin := time.Now()
	for i := range n {
		g.Go(func() error {
			got, err := run(i)
			if err != nil {
				return fmt.Errorf("command %d: %w", i, err)
			}
			mu.Lock()
			each.Add(time.Since(begin).Seconds())
			mu.Unlock()
			return numbered(i, got)
		})
	}
	err = g.Wait()
	return time.Since(begin), each, err
}

// numbered checks that every line is there once and in order.
func numbered(i int, got []byte) error {
	var want bytes.Buffer
	for line := 1; line <= crowdLines; line++ {
		fmt.Fprintf(&want, "%04d-%08d\n", i, line)
	}
	if !bytes.Equal(got, want.Bytes()) {
		return fmt.Errorf("command %d wrote %d bytes, %d came, or others", i, want.Len(), len(got))
	}
	return nil
}
