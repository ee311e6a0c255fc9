package figure

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

const (
	// nodeRounds is how often each server is taken down; a round has three slices, healthy, without it, and healthy again.
	nodeRounds = 5
	// A slice runs that many commands and creates one after the other, for their times, and then that many side by side, for their rate.
	nodeExecs, nodeCreates         = 40, 6
	nodeExecsBeside, nodeExecLanes = 160, 8
	nodeCreatesBeside, nodeLanes   = 12, 4
	// nodePatience bounds an election, and the return of a server with all that it has missed.
	nodePatience = 2 * time.Minute
)

// losses are the servers that are taken down.
var losses = []struct {
	name string
	pick func(ctx context.Context, r *rig.Rig) (*rig.Process, error)
}{
	{"a follower", func(ctx context.Context, r *rig.Rig) (*rig.Process, error) {
		leader, err := r.Leader(ctx, logStream)
		if err != nil {
			return nil, err
		}
		for _, p := range r.Nodes() {
			if p != leader {
				return p, nil
			}
		}
		return nil, errors.New("there is no follower")
	}},
	{"the leader", func(ctx context.Context, r *rig.Rig) (*rig.Process, error) { return r.Leader(ctx, logStream) }},
}

// logStream is the stream whose leader is meant.
const logStream = "EVT"

// load is what slices have measured.
type load struct{ exec, execRate, create, createRate sample.Values }

func (l *load) add(o load) {
	l.exec, l.create = append(l.exec, o.exec...), append(l.create, o.create...)
	l.execRate, l.createRate = append(l.execRate, o.execRate...), append(l.createRate, o.createRate...)
}

// nodeDown measures commands and creates on three NATS servers, and while one of them is down, in turn.
func nodeDown(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	c, err := startCluster(ctx, b)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	// What is done for the first time takes longer.
	if _, err := c.slice(ctx, b); err != nil {
		return nil, err
	}
	rounds := max(2, b.count(nodeRounds))
	for _, loss := range losses {
		var healthy, lost load
		var elections sample.Values
		for i := range rounds {
			b.say("node-down: %s, round %d of %d", loss.name, i+1, rounds)
			before, without, after, election, err := c.round(ctx, b, loss.pick)
			if err != nil {
				return nil, fmt.Errorf("without %s: %w", loss.name, err)
			}
			healthy.add(before)
			healthy.add(after)
			lost.add(without)
			elections.Add(election.Seconds())
		}
		rows = append(rows, nodeRows(loss.name, healthy, lost, elections)...)
	}
	return rows, nil
}

func nodeRows(name string, healthy, lost load, elections sample.Values) []report.Row {
	const against = "the same with all three"
	down := "three NATS servers, " + name + " of the log down: "
	note := fmt.Sprintf("Slices take turns. A slice begins once a command and a create have succeeded: median %.1f s after the kill.", elections.Median())
	// 0.7 of the healthy speed: of a time that is its inverse.
	row := func(what, unit string, ours, theirs sample.Values, target report.Target, note string) report.Row {
		return report.Row{
			Name: down + what, Unit: unit, Ours: ours.Median(), Baseline: theirs.Median(), Against: against, Samples: min(len(ours), len(theirs)),
			Target: target, Note: note,
		}
	}
	return []report.Row{
		row("exec of `true`", "ms", lost.exec, healthy.exec, report.RatioAtMost(1/0.7), note),
		row(fmt.Sprintf("execs by %d at once", nodeExecLanes), "execs/s", lost.execRate, healthy.execRate, report.RatioAtLeast(0.7), ""),
		row("create to the end of its first command", "ms", lost.create, healthy.create, report.RatioAtMost(1/0.7), ""),
		row(fmt.Sprintf("creates by %d at once", nodeLanes), "creates/s", lost.createRate, healthy.createRate, report.RatioAtLeast(0.7), ""),
	}
}

// cluster is Sandtrail as separate processes on three NATS servers.
type cluster struct {
	rig  *rig.Rig
	dir  string
	conn *grpc.ClientConn
	up   *live.Up
	// boxes are sandboxes for commands.
	boxes []string
}

func startCluster(ctx context.Context, b *Bench) (_ *cluster, err error) {
	bin, err := filepath.Abs(b.Bin)
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.dir, err = os.MkdirTemp("", "st-bench-"); err != nil {
		return nil, err
	}
	b.say("node-down: starting three NATS servers and every service")
	c.rig, err = rig.Start(ctx, rig.Options{
		Bin: bin, State: filepath.Join(c.dir, "s"), Form: rig.Services, Replicas: 3, MaxSandboxes: 64, MaxPerTenant: 64, Say: b.say,
	})
	if err != nil {
		return nil, err
	}
	if c.conn, err = grpc.NewClient(c.rig.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return nil, err
	}
	c.up = &live.Up{API: computev1.NewComputeServiceClient(c.conn)}
	for range nodeLanes {
		// Streams that were just made elect their leaders still.
		err := until(ctx, "make a sandbox on three servers", func(ctx context.Context) error {
			id, err := c.create(ctx)
			if err == nil {
				c.boxes = append(c.boxes, id)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *cluster) close() error {
	var errs []error
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	if c.rig != nil {
		errs = append(errs, c.rig.Stop())
	}
	if c.dir != "" {
		errs = append(errs, os.RemoveAll(c.dir))
	}
	return errors.Join(errs...)
}

// create makes a sandbox and runs its first command, which waits for it.
func (c *cluster) create(ctx context.Context) (string, error) {
	res, err := c.up.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: live.Tenant, Image: live.Image})
	if err != nil {
		return "", fmt.Errorf("create sandbox: %w", err)
	}
	_, err = c.up.Exec(ctx, res.GetSandboxId(), nil, "true")
	return res.GetSandboxId(), err
}

func (c *cluster) destroy(ctx context.Context, ids ...string) error {
	var errs []error
	for _, id := range ids {
		_, err := c.up.API.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: id})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// round measures before, during and after the loss of a server, and how long it takes after the loss until everything works.
func (c *cluster) round(
	ctx context.Context, b *Bench, pick func(context.Context, *rig.Rig) (*rig.Process, error),
) (before, without, after load, election time.Duration, err error) {
	if before, err = c.slice(ctx, b); err != nil {
		return before, without, after, 0, err
	}
	node, err := pick(ctx, c.rig)
	if err != nil {
		return before, without, after, 0, err
	}
	lost := time.Now()
	if err = node.Kill(syscall.SIGKILL); err != nil {
		return before, without, after, 0, err
	}
	err = until(ctx, "work without a server", c.works)
	election = time.Since(lost)
	if err == nil {
		without, err = c.slice(ctx, b)
	}
	node.Release()
	if err != nil {
		return before, without, after, election, err
	}
	if err = until(ctx, "the return of a server", c.whole); err != nil {
		return before, without, after, election, err
	}
	after, err = c.slice(ctx, b)
	return before, without, after, election, err
}

func (c *cluster) works(ctx context.Context) error {
	if _, err := c.up.Exec(ctx, c.boxes[0], nil, "true"); err != nil {
		return err
	}
	id, err := c.create(ctx)
	return errors.Join(err, c.destroy(ctx, id))
}

func (c *cluster) whole(ctx context.Context) error {
	behind, err := c.rig.Behind(ctx)
	if err == nil && len(behind) > 0 {
		err = fmt.Errorf("replicas are not current yet: %v", behind)
	}
	return err
}

// until tries until it succeeds.
func until(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, nodePatience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, stop := context.WithTimeout(ctx, nodePatience/4)
		err := try(attempt)
		stop()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// slice measures once.
func (c *cluster) slice(ctx context.Context, b *Bench) (load, error) {
	var l load
	for range max(8, b.count(nodeExecs)) {
		begin := time.Now()
		r, err := c.up.Exec(ctx, c.boxes[0], nil, "true")
		if err != nil {
			return l, err
		}
		l.exec.Add(float64(r.At.Sub(begin).Microseconds()) / 1000)
	}
	var made []string
	for range max(2, b.count(nodeCreates)) {
		begin := time.Now()
		id, err := c.create(ctx)
		if err != nil {
			return l, err
		}
		l.create.Took(begin)
		made = append(made, id)
	}
	if err := c.destroy(ctx, made...); err != nil {
		return l, err
	}
	rate, _, err := side(ctx, nodeExecLanes, max(16, b.count(nodeExecsBeside)), func(ctx context.Context, i int) (string, error) {
		_, err := c.up.Exec(ctx, c.boxes[i%len(c.boxes)], nil, "true")
		return "", err
	})
	if err != nil {
		return l, err
	}
	l.execRate.Add(rate)
	rate, made, err = side(ctx, nodeLanes, max(4, b.count(nodeCreatesBeside)), func(ctx context.Context, _ int) (string, error) { return c.create(ctx) })
	if err != nil {
		return l, err
	}
	l.createRate.Add(rate)
	return l, c.destroy(ctx, made...)
}

// side does something n times, at most lanes at once, and gives how often a second and what came of each.
func side(ctx context.Context, lanes, n int, do func(ctx context.Context, i int) (string, error)) (rate float64, made []string, err error) {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lanes)
	made = make([]string, n)
	begin := time.Now()
	for i := range n {
		g.Go(func() (err error) {
			made[i], err = do(ctx, i)
			return err
		})
	}
	err = g.Wait()
	return float64(n) / time.Since(begin).Seconds(), made, err
}
