package figure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"time"

	"github.com/sandtrail/sandtrail/libs/ids"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
	"github.com/sandtrail/sandtrail/toolbox/sentry"
)

// warm is how often each way is taken before it counts.
const warm = 5

// execTrue runs `true` in one sandbox by four ways in turn: our API, the keeper, the sentry's control socket, and the runsc command.
func execTrue(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	up, box, remove, err := b.sandbox(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(&err)
	control, root, err := box.Control()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	defer control.Close()
	ways := []struct {
		name string
		run  func() (time.Time, error)
		took sample.Values
	}{
		{name: "gRPC", run: func() (time.Time, error) {
			r, err := up.Exec(ctx, box.ID, nil, "true")
			return r.At, err
		}},
		{name: "keeper", run: func() (time.Time, error) {
			err := keeperExec(ctx, box)
			return time.Now(), err
		}},
		{name: "control socket", run: func() (time.Time, error) {
			err := controlExec(ctx, control)
			return time.Now(), err
		}},
		{name: "runsc exec"},
	}
	// Each leaves the processors something to do behind its end, so none may come behind the same one every time.
	order := rand.New(rand.NewPCG(1, 1))
	runs := warm + max(b.Runs, 40)
	b.say("exec: %d times `true`, four ways in changing order", runs)
	for i := range runs {
		for _, w := range order.Perm(len(ways)) {
			way := &ways[w]
			var ms float64
			var err error
			if way.run == nil {
				ms, err = runscExec(box)
			} else {
				begin := time.Now()
				var end time.Time
				end, err = way.run()
				ms = float64(end.Sub(begin).Microseconds()) / 1000
			}
			if err != nil {
				return nil, fmt.Errorf("exec by %s: %w", way.name, err)
			}
			if i >= warm {
				way.took.Add(ms)
			}
		}
	}
	grpc, keeper, socket, runsc := ways[0].took, ways[1].took, ways[2].took, ways[3].took
	n := len(grpc)
	spread := func(v sample.Values) string {
		return fmt.Sprintf("p10 %.1f, p90 %.1f", v.Quantile(0.1), v.Quantile(0.9))
	}
	return []report.Row{
		{
			Name: "exec of `true` through gRPC to completed", Unit: "ms", Ours: grpc.Median(), Baseline: runsc.Median(), Against: "`runsc exec` in the same sandbox", Samples: n,
			Target: report.RatioAtMost(0.5),
			Note:   fmt.Sprintf("One persistent connection, until `completed` has arrived. `runsc exec` is started in the keeper's mount namespace, without nsenter. gRPC: %s ms; runsc: %s ms.", spread(grpc), spread(runsc)),
		},
		{
			Name: "our own share of it", Unit: "ms", Ours: grpc.Median() - socket.Median(), Baseline: report.None, Against: "", Samples: n, Target: report.AtMost(4),
			Note: fmt.Sprintf("gRPC less the sentry's control socket (start and wait of the same program over one open connection, %s ms).", spread(socket)),
		},
		{Name: "exec of `true` by the control socket alone", Unit: "ms", Ours: socket.Median(), Baseline: runsc.Median(), Against: "`runsc exec` in the same sandbox", Samples: n},
		{
			Name: "exec of `true` by the keeper alone", Unit: "ms", Ours: keeper.Median(), Baseline: runsc.Median(), Against: "`runsc exec` in the same sandbox", Samples: n,
			Note: "Start, Attach to the end and Forget on the keeper's socket: what of our share is not in the gateway, the log and the exec service.",
		},
	}, nil
}

func keeperExec(ctx context.Context, box *live.Sandbox) error {
	c, id := box.Toolbox(), ids.New()
	if _, err := c.Start(ctx, &toolboxv1.Start{ExecId: id, Argv: []string{"true"}}); err != nil {
		return err
	}
	s, err := c.Attach(ctx, &toolboxv1.Attach{ExecId: id})
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if end := e.GetEnd(); end != nil && end.GetExitCode() != 0 {
			return fmt.Errorf("exit code %d: %s", end.GetExitCode(), end.GetReason())
		}
	}
	_, err = c.Forget(ctx, &toolboxv1.Forget{ExecId: id})
	return err
}

func controlExec(ctx context.Context, c *sentry.Client) error {
	var stdio [3]*os.File
	for i := range stdio {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		defer r.Close()
		defer w.Close()
		if stdio[i] = w; i == 0 {
			stdio[i] = r
		}
	}
	pid, err := c.Execute(ctx, sentry.Program{Argv: []string{"/usr/bin/true"}, WorkingDir: "/", UID: 1000, GID: 1000, Stdio: stdio})
	if err != nil {
		return err
	}
	status, err := c.Wait(ctx, pid)
	if err == nil && status.ExitStatus() != 0 {
		err = fmt.Errorf("status %#x", uint32(status))
	}
	return err
}

// runscExec gives the time of the command alone, in ms: joining the mount namespace comes before.
func runscExec(box *live.Sandbox) (ms float64, err error) {
	argv, err := box.RunscExec("/usr/bin/true")
	if err != nil {
		return 0, err
	}
	err = box.Inside(func() error {
		cmd := exec.Command(argv[0], argv[1:]...)
		cmd.Dir = "/"
		var words bytes.Buffer
		cmd.Stderr = &words
		begin := time.Now()
		err := cmd.Run()
		ms = float64(time.Since(begin).Microseconds()) / 1000
		if err != nil {
			err = fmt.Errorf("%w: %.300s", err, words.String())
		}
		return err
	})
	return ms, err
}
