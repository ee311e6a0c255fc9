package figure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	// attackTime is how long each attack goes on, attackSamples how many commands its neighbour runs meanwhile at most, and as many
	// when it is quiet.
	attackTime    = 15 * time.Second
	attackSamples = 1000
)

// attacks are what one sandbox does with all that it may have.
var attacks = map[string]string{
	"forks":       "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
	"memory":      "import subprocess\nwhile True: subprocess.run(['python3', '-c', 'held = []\\nwhile True: held.append(bytes(1 << 20))'])",
	"CPU":         "import os\nfor i in range(7): os.fork()\nwhile True: pass",
	"disk":        "import os\nwhile True:\n  f = os.open('f', os.O_CREAT | os.O_WRONLY | os.O_TRUNC)\n  for i in range(512): os.write(f, bytes(1 << 20))\n  os.close(f)",
	"small files": "import os\nos.makedirs('many', exist_ok=True)\nwhile True:\n  for i in range(20000): open('many/%d' % i, 'w').close()\n  for i in range(20000): os.unlink('many/%d' % i)",
	"output":      "import sys\nwhile True: sys.stdout.write('x' * 65536)",
}

// neighbours runs a short command in one sandbox while another one attacks, and when it does not.
func neighbours(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	up, box, remove, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(&err)
	names := make([]string, 0, len(attacks))
	for name := range attacks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		b.say("neighbours: %s", name)
		quiet, during, err := beside(ctx, b, up, box, attacks[name])
		if err != nil {
			return nil, fmt.Errorf("beside %s: %w", name, err)
		}
		rows = append(rows, report.Row{
			Name: "exec beside a sandbox that attacks by " + name + ", p99", Unit: "ms", Ours: during.Quantile(0.99), Baseline: quiet.Quantile(0.99),
			Against: "the same with nothing beside it", Samples: len(during), Target: report.RatioAtMost(2),
			Note: fmt.Sprintf("`true` through gRPC in a sandbox of its own. Medians: %.1f and %.1f ms. The attack has 1 core, 512 MiB and 256 processes.", during.Median(), quiet.Median()),
		})
	}
	return rows, nil
}

// beside takes the neighbour's times before, during and after an attack.
func beside(ctx context.Context, b *Bench, up *live.Up, box *live.Sandbox, attack string) (quiet, during sample.Values, err error) {
	other, err := up.Create(ctx)
	if err != nil {
		return nil, nil, err
	}
	samples := max(20, b.count(attackSamples))
	if err := short(ctx, up, box, samples/2, &quiet, nil); err != nil {
		return nil, nil, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = rage(ctx, up, other.ID, attack) // it is ended as a rule, or its sandbox is
	}()
	err = short(ctx, up, box, samples, &during, over)
	<-over
	if e := up.Destroy(context.WithoutCancel(ctx), other.ID); err != nil || e != nil {
		return nil, nil, errors.Join(err, e)
	}
	return quiet, during, short(ctx, up, box, samples/2, &quiet, nil)
}

// short takes the times of up to n commands, fewer where over closes before.
func short(ctx context.Context, up *live.Up, box *live.Sandbox, n int, took *sample.Values, over <-chan struct{}) error {
	for range n {
		select {
		case <-over:
			return nil
		default:
		}
		begin := time.Now()
		r, err := up.Exec(ctx, box.ID, nil, "true")
		if err != nil {
			return err
		}
		took.Add(float64(r.At.Sub(begin).Microseconds()) / 1000)
	}
	return nil
}

// rage runs an attack until its time is over.
func rage(ctx context.Context, up *live.Up, sandbox, attack string) error {
	stream, err := up.API.ExecCommand(ctx, &computev1.ExecCommandRequest{
		SandboxId: sandbox, Command: "python3", Args: []string{"-c", attack}, Timeout: durationpb.New(attackTime),
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
