package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/lease"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// Differences are those between what stands and what was made from the log; see clickhouse.Differences.
type (
	Differences    = clickhouse.Differences
	FactDifference = clickhouse.FactDifference
	FactRow        = clickhouse.FactRow
	WindowTotal    = clickhouse.WindowTotal
)

// Rebuild makes the tables of usage from the log, beside those that stand, and compares the two.
type Rebuild struct {
	JS  jetstream.JetStream
	Log *slog.Logger
	// Address is that of ClickHouse, of a user who may make and swap tables. Cluster is as in Config.
	Address, Cluster string
	// Swap puts what was made in the place of what stands although the two differ, Compare never does. Without either it is done where
	// nothing differs.
	Swap, Compare bool
	// Afresh forgets what an earlier rebuild that did not come to its end has read. Keep leaves the other tables after a swap.
	Afresh, Keep bool
	// Rate bounds the events that are read in a second; 0 does not.
	Rate int
	// Limit bounds the differences of each kind that are given.
	Limit int
	// Patience is how long to wait for the service where it adds hours up at the moment of a comparison: one pass of it, or 30 s.
	Patience time.Duration
	// Progress gets what is done, and how far it is; may be nil.
	Progress func(step string, done, of uint64)
}

// Rebuilt is what a rebuild found and did.
type Rebuilt struct {
	// Mark is up to where both were compared. Without a comparison, after a swap that had begun before, it is the zero mark.
	Mark Mark
	// Events were read, Unusable of them never make a row. Resumed is the sequence that an earlier rebuild had come to.
	Events, Unusable int
	Resumed          uint64
	Differences      Differences
	// Beyond are rows of events that the log does not have at all, of at least so many.
	Beyond int
	// Swapped: what was made from the log stands now. Finished: it had begun before.
	Swapped, Finished bool
}

// Same reports whether nothing differed.
func (r Rebuilt) Same() bool { return r.Differences.Same() && r.Beyond == 0 }

// looks bounds how often the two are compared anew because the service has gone on meanwhile.
const looks = 20

// leaseTTL is how long a rebuild that has vanished keeps the next one waiting. It is long because a busy machine is late with everything.
const leaseTTL = 15 * time.Second

// Run rebuilds. It may be done while the service works: what arrives meanwhile is in what was made as well. It may be repeated after a death at
// any time, and goes on where it was. fault.Conflict: another one runs. fault.FailedPrecondition: there are no hours of this log yet, or
// the log has lost its end and the service makes all rows anew.
func (r Rebuild) Run(ctx context.Context) (Rebuilt, error) {
	conn, err := clickhouse.Open(r.Address)
	if err != nil {
		return Rebuilt{}, err
	}
	defer func() { _ = conn.Close() }()
	tables, err := conn.OnCluster(r.Cluster)
	if err != nil {
		return Rebuilt{}, err
	}
	kv, err := r.JS.KeyValue(ctx, topology.BucketLease)
	if err != nil {
		return Rebuilt{}, fmt.Errorf("look up the bucket of leases: %w", err)
	}
	b := &rebuilding{Rebuild: r, live: tables, shadow: tables.Shadow(), deadline: time.Now()}
	err = lease.Lease{KV: kv, Key: topology.LeaseRebuild, Holder: ids.New(), TTL: leaseTTL, Log: r.Log}.Once(ctx, func(held context.Context) error {
		err := b.run(held)
		if held.Err() != nil && ctx.Err() == nil {
			return fault.New(fault.Conflict, fault.ReasonConflict, "the lease of the rebuild was lost; run it again, it goes on where it was").Because(err)
		}
		return err
	})
	if errors.Is(err, lease.ErrHeld) {
		err = fault.New(fault.Conflict, fault.ReasonConflict, "another rebuild is running")
	}
	return b.done, err
}

// rebuilding is one run.
type rebuilding struct {
	Rebuild
	live   *clickhouse.Conn
	shadow *clickhouse.Shadow
	state  clickhouse.ShadowState
	done   Rebuilt
	// deadline is until when differences may be those of a service that is adding up.
	deadline time.Time
}

func (b *rebuilding) run(ctx context.Context) error {
	mark, err := b.standing(ctx)
	if err != nil {
		return err
	}
	if finished, err := b.resume(ctx, mark); err != nil || finished {
		return err
	}
	b.deadline = time.Now().Add(b.Patience)
	for look := 0; ; look++ {
		settled, err := b.compare(ctx)
		if err != nil {
			return err
		}
		if settled {
			break
		}
		if look == looks {
			return fault.New(fault.Unavailable, fault.ReasonConflict, "the service goes on faster than the two can be compared; try again").WithRetry(time.Minute)
		}
		if err := pause.For(ctx, time.Second); err != nil {
			return err
		}
	}
	if b.Compare || !b.Swap && !b.done.Same() {
		return nil
	}
	return b.swap(ctx)
}

func (b *rebuilding) say(step string, done, of uint64) {
	if b.Progress != nil {
		b.Progress(step, done, of)
	}
}

// standing is the mark of the tables that stand, if it is of the log that there is.
func (b *rebuilding) standing(ctx context.Context) (Mark, error) {
	p, ok, err := project.Standing(ctx, b.JS)
	if err != nil {
		return Mark{}, err
	}
	m, err := b.live.Marked(ctx)
	if err != nil {
		return Mark{}, err
	}
	if !ok || m.Seq == 0 || m.Life != p.Life {
		return m, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState,
			"ClickHouse has no hours of this log yet; the usage service makes rows first and then adds them up every few seconds")
	}
	return m, nil
}

// resume opens the shadow, or makes a new one. finished: it was at a swap, which is done now.
func (b *rebuilding) resume(ctx context.Context, m Mark) (finished bool, err error) {
	state, ok, err := b.shadow.State(ctx)
	if err != nil {
		return false, err
	}
	if ok && len(state.Swap) > 0 {
		// What is half swapped cannot be left, whatever was asked for.
		b.state, b.done.Finished = state, true
		return true, b.finish(ctx)
	}
	if ok && state.Life == m.Life && !b.Afresh {
		b.state, b.done.Resumed = state, state.Read
		return false, nil
	}
	if err := b.shadow.Make(ctx); err != nil {
		return false, err
	}
	b.state = clickhouse.ShadowState{Life: m.Life}
	return false, b.shadow.Save(ctx, b.state)
}

// compare brings the shadow to where the tables stand and compares. settled: neither has gone on meanwhile.
func (b *rebuilding) compare(ctx context.Context) (settled bool, err error) {
	m, err := b.standing(ctx)
	if err != nil {
		return false, err
	}
	if m.Life != b.state.Life {
		return false, b.gone()
	}
	if err := b.read(ctx, m.Seq); err != nil {
		return false, err
	}
	b.say("adding hours up", 0, 0)
	if err := b.shadow.Roll(ctx, m); err != nil {
		return false, err
	}
	b.say("comparing", 0, 0)
	b.done.Mark = m
	if b.done.Differences, err = b.shadow.Differ(ctx, m, b.Limit); err != nil {
		return false, err
	}
	last := func(ctx context.Context) (uint64, error) { return project.Last(ctx, b.JS) }
	if b.done.Beyond, err = b.live.Beyond(ctx, m, last); err != nil {
		return false, err
	}
	again, err := b.live.Marked(ctx)
	if err != nil || again != m {
		return false, err
	}
	if b.done.Same() || !time.Now().Before(b.deadline) {
		return true, nil
	}
	rolling, err := b.live.Rolling(ctx, m)
	return !rolling, err
}

func (b *rebuilding) gone() error {
	return fault.New(fault.FailedPrecondition, fault.ReasonIllegalState,
		"the rows that stand are of another life of the log than when this rebuild began; run it again")
}

// read brings the rows of the shadow up to a sequence.
func (b *rebuilding) read(ctx context.Context, to uint64) error {
	return b.scan(ctx, b.state.Read+1, to, func(ctx context.Context, p project.Part) error {
		if err := b.shadow.Insert(ctx, p.Rows); err != nil {
			return err
		}
		b.state.Read, b.state.Events, b.state.Unusable = p.Last, b.state.Events+p.Events, b.state.Unusable+p.Unusable
		b.done.Events, b.done.Unusable = b.state.Events, b.state.Unusable
		return b.shadow.Save(ctx, b.state)
	})
}

// scan reads events at the rate that was asked for.
func (b *rebuilding) scan(ctx context.Context, from, to uint64, do func(context.Context, project.Part) error) error {
	s := project.Scan{JS: b.JS, Log: b.Log}
	if b.Rate > 0 {
		// Five parts a second, so that it is no burst every few seconds.
		s.Batch = min(max(b.Rate/5, 100), project.MaxBatch)
	}
	begin, events := time.Now(), 0
	return s.Run(ctx, from, to, func(ctx context.Context, p project.Part) error {
		if err := do(ctx, p); err != nil {
			return err
		}
		b.say("events", p.Last, to)
		if events += p.Events; b.Rate > 0 {
			due := time.Duration(float64(events) / float64(b.Rate) * float64(time.Second))
			return pause.For(ctx, due-time.Since(begin))
		}
		return nil
	})
}

// swap puts the shadow in the place of the tables that stand.
func (b *rebuilding) swap(ctx context.Context) error {
	b.say("swapping", 0, 0)
	// As little as possible is left for between the swaps.
	last, err := project.Last(ctx, b.JS)
	if err != nil {
		return err
	}
	if err := b.read(ctx, last); err != nil {
		return err
	}
	wanted, err := b.shadow.Prepare(ctx, b.done.Mark)
	if err != nil {
		return err
	}
	m, err := b.standing(ctx)
	if err != nil {
		return err
	}
	if m.Life != b.state.Life {
		return b.gone()
	}
	b.state.Swap = wanted
	if err := b.shadow.Save(ctx, b.state); err != nil {
		return err
	}
	return b.finish(ctx)
}

// finish does a swap, or what is left of one.
func (b *rebuilding) finish(ctx context.Context) error {
	err := b.shadow.Swap(ctx, b.state.Swap, func(ctx context.Context) error {
		// An insert of the service that had begun before the facts were swapped went to the table that was swapped away. It was of an event
		// that the log has by now, so whatever has come since the shadow was read is made here once more.
		last, err := project.Last(ctx, b.JS)
		if err != nil {
			return err
		}
		return b.scan(ctx, b.state.Read+1, last, func(ctx context.Context, p project.Part) error { return b.live.Insert(ctx, p.Rows) })
	}, func(table string) { b.say("swapped "+table, 0, 0) })
	if err != nil {
		return err
	}
	b.done.Swapped = true
	if !b.Keep {
		return b.shadow.Drop(ctx)
	}
	b.state.Swap, b.state.Life = nil, "swapped away"
	return b.shadow.Save(ctx, b.state)
}
