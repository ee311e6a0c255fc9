package project_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// counting counts the rows that it lets through.
type counting struct {
	project.Sink
	rows atomic.Int64
}

func (c *counting) Insert(ctx context.Context, rows *clickhouse.Block) error {
	err := c.Sink.Insert(ctx, rows)
	if err == nil {
		c.rows.Add(int64(rows.Len()))
	}
	return err
}

// rowsOfLife is how many rows a life of so many execs makes: its execs, and two each of ready, the samples, failed and destroyed.
func rowsOfLife(execs int) int64 { return int64(execs + 2*(1+execs/5+2)) }

func TestGoesOnWhereTheConsumerOfAnEarlierVersionStopped(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := &counting{Sink: enginetest.Open(t, e.URL())}
	// The first life was projected and acknowledged; the second was delivered and not acknowledged.
	old, err := n.JS.CreateConsumer(t.Context(), topology.StreamEvents, jetstream.ConsumerConfig{
		Durable: topology.RetiredUsage, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy, MaxAckPending: 40_000,
	})
	require.NoError(t, err)
	first := life(t, 0, 30)
	publish(t, n.JS, first...)
	publish(t, n.JS, life(t, 1, 30)...)
	done, err := old.Fetch(2 * len(first))
	require.NoError(t, err)
	var got int
	for m := range done.Messages() {
		if got++; got <= len(first) {
			require.NoError(t, m.DoubleAck(t.Context()))
		}
	}
	require.Equal(t, 2*len(first), got)

	stop, _ := run(t, n.JS, c)
	publish(t, n.JS, life(t, 2, 30)...)
	awaitDone(t, n.JS)
	require.NoError(t, stop())
	require.Equal(t, 2*rowsOfLife(30), c.rows.Load(), "it goes on behind what was acknowledged, and no later")
	_, err = n.JS.Consumer(t.Context(), topology.StreamEvents, topology.RetiredUsage)
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)

	// The checkpoint counts from now on, also where an earlier version has run in between.
	_, err = n.JS.CreateConsumer(t.Context(), topology.StreamEvents, old.CachedInfo().Config)
	require.NoError(t, err)
	run(t, n.JS, c)
	publish(t, n.JS, life(t, 3, 30)...)
	awaitDone(t, n.JS)
	require.Equal(t, 3*rowsOfLife(30), c.rows.Load())
	require.Eventually(t, func() bool {
		_, err := n.JS.Consumer(context.Background(), topology.StreamEvents, topology.RetiredUsage)
		return errors.Is(err, jetstream.ErrConsumerNotFound)
	}, patience, 20*time.Millisecond)
}

func TestOfTwoProjectorsOneStandsByUntilTheOtherStops(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	sinks := [2]*counting{{Sink: c}, {Sink: c}}
	stops := [2]func() error{}
	for i := range sinks {
		stops[i], _ = run(t, n.JS, sinks[i])
	}
	// Both may project the same until they have met at the checkpoint.
	lives := 0
	project := func() (first, second int64) {
		before := [2]int64{sinks[0].rows.Load(), sinks[1].rows.Load()}
		publish(t, n.JS, life(t, lives, 30)...)
		lives++
		awaitDone(t, n.JS)
		return sinks[0].rows.Load() - before[0], sinks[1].rows.Load() - before[1]
	}
	working := -1
	require.Eventually(t, func() bool {
		a, b := project()
		switch {
		case a == rowsOfLife(30) && b == 0:
			working = 0
		case a == 0 && b == rowsOfLife(30):
			working = 1
		}
		return working >= 0
	}, patience, time.Millisecond, "both go on working")
	require.Equal(t, sum(lives, 30), ask(t, e.HTTP(), totals))

	require.NoError(t, stops[working]())
	publish(t, n.JS, life(t, lives, 30)...)
	lives++
	awaitDone(t, n.JS)
	require.Equal(t, sum(lives, 30), ask(t, e.HTTP(), totals))
}

func TestARemovedCheckpointMakesAllRowsAnew(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := &counting{Sink: enginetest.Open(t, e.URL())}
	run(t, n.JS, c)
	publish(t, n.JS, life(t, 0, 30)...)
	awaitDone(t, n.JS)
	again(t, n.JS)
	// The running projector learns of it when it wants to store the next one.
	publish(t, n.JS, life(t, 1, 30)...)
	awaitDone(t, n.JS)
	require.Equal(t, sum(2, 30), ask(t, e.HTTP(), totals))
	require.GreaterOrEqual(t, c.rows.Load(), 3*rowsOfLife(30))
}

func TestAStreamMadeAnewIsReadFromItsBeginning(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	run(t, n.JS, enginetest.Open(t, e.URL()))
	publish(t, n.JS, life(t, 0, 30)...)
	awaitDone(t, n.JS)
	require.NoError(t, n.JS.DeleteStream(t.Context(), topology.StreamEvents))
	require.NoError(t, topology.Ensure(t.Context(), n.JS, n.Options))
	// Fewer events than the checkpoint counts, so that it would pass for one behind them.
	publish(t, n.JS, life(t, 1, 10)...)
	require.Eventually(t, func() bool {
		return ask(t, e.HTTP(), "SELECT count() FROM agents.usage_events") == "40"
	}, patience, 50*time.Millisecond)
}
