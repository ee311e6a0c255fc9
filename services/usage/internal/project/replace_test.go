package project_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// older is a projector whose mapping was wrong: it put the rows into another session and month, and counted seconds.
type older struct {
	project.Sink
	months int
}

func (o *older) Insert(ctx context.Context, rows *clickhouse.Block) error {
	wrong := make([]clickhouse.Row, rows.Len())
	for i := range wrong {
		r := rows.Row(i)
		r.Session, r.OccurredAt, r.CPUMillis, r.Schema = "", r.OccurredAt.AddDate(0, o.months, 0), r.CPUMillis/1000, 0
		wrong[i] = r
	}
	return o.Sink.Insert(ctx, clickhouse.Rows(wrong...))
}

func TestACorrectedMappingReplacesTheRows(t *testing.T) {
	for name, months := range map[string]int{"earlier": -1, "the same": 0, "later": 1} {
		t.Run("from a month that is "+name, func(t *testing.T) {
			n, e := natstest.Start(t), enginetest.Start(t, "")
			c := enginetest.Open(t, e.URL())
			for i := range 5 {
				publish(t, n.JS, life(t, i, 30)...)
			}
			stop, _ := run(t, n.JS, &older{c, months})
			awaitDone(t, n.JS)
			require.NoError(t, stop())
			require.NotEqual(t, sum(5, 30), ask(t, e.HTTP(), totals))

			again(t, n.JS)
			run(t, n.JS, c)
			awaitDone(t, n.JS)
			require.Equal(t, sum(5, 30), ask(t, e.HTTP(), totals))
			require.Equal(t, "150\t150\t150", ask(t, e.HTTP(), "SELECT count(), countIf(session_id LIKE 'session-%' AND schema_version = 2),"+
				" countIf(occurred_at BETWEEN '2026-05-31' AND '2026-06-01 23:00:00') FROM agents.usage_events"))
		})
	}
}

func TestASandboxThatLivesOverTheEndOfAMonthHasOneRow(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	sandbox := ids.New()
	subj := subject.Sandbox("acme", sandbox).Subject()
	run(t, n.JS, c)
	for i, want := range []string{"ready\t2026-05\t1", "ready\t2026-06\t2", "destroyed\t2026-07\t3"} {
		at := time.Date(2026, time.Month(5+i), 28, 0, 0, 0, 0, time.UTC)
		body := &eventsv1.SandboxUsageSampled{Usage: &commonv1.UsageMetrics{CpuMs: uint64(i) + 1}}
		m := message(t, subj, at, body)
		if i == 2 {
			m = message(t, subj, at, &eventsv1.SandboxDestroyed{Usage: body.Usage})
		}
		// One insert each, so that each has a part in a partition of its own.
		publish(t, n.JS, m)
		awaitDone(t, n.JS)
		require.Equal(t, want, ask(t, e.HTTP(),
			"SELECT outcome, formatDateTime(occurred_at, '%Y-%m'), cpu_ms FROM agents.sandbox_usage"))
	}
	require.Equal(t, "3", ask(t, e.HTTP(), "SELECT uniqExact(_partition_id) FROM agents.usage_events_raw"), "nothing was tested")
}

func TestARestartOfTheBrokerLosesNothing(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	run(t, n.JS, enginetest.Open(t, e.URL()))
	for i := range 10 {
		publish(t, n.JS, life(t, i, 30)...)
	}
	n.Restart()
	publish(t, n.JS, life(t, 10, 30)...)
	awaitDone(t, n.JS)
	require.Equal(t, sum(11, 30), ask(t, e.HTTP(), totals))
}

// stuck never takes a row.
type stuck struct{ entered chan struct{} }

func (s *stuck) Clear(context.Context) error { return nil }

func (s *stuck) Late(context.Context, string, uuid.UUID) error { return nil }

func (s *stuck) Insert(ctx context.Context, _ *clickhouse.Block) error {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestAProjectorThatEndsLeavesItsEventsToTheNextAtOnce(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	for i := range 20 {
		publish(t, n.JS, life(t, i, 30)...)
	}
	s := &stuck{entered: make(chan struct{}, 1)}
	p, err := project.New(t.Context(), project.Config{JS: n.JS, Sink: s, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	<-s.entered
	cancel()
	require.NoError(t, <-ended)
	run(t, n.JS, enginetest.Open(t, e.URL()))
	awaitDone(t, n.JS)
	require.Equal(t, sum(20, 30), ask(t, e.HTTP(), totals))
}

func TestRowsOfEventsThatTheLogHasLostAreRemoved(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	publish(t, n.JS, life(t, 0, 30)...)
	n.Lose(topology.StreamEvents, func() {
		stop, _ := run(t, n.JS, c)
		publish(t, n.JS, life(t, 1, 30)...)
		awaitDone(t, n.JS)
		require.Equal(t, sum(2, 30), ask(t, e.HTTP(), totals))
		require.NoError(t, stop())
	})
	// The log has grown past the checkpoint before anybody looks.
	publish(t, n.JS, life(t, 2, 40)...)
	_, metrics := run(t, n.JS, c)
	require.Eventually(t, func() bool {
		return ask(t, e.HTTP(), "SELECT count() FROM agents.usage_events") == "70"
	}, patience, 20*time.Millisecond)
	awaitDone(t, n.JS)
	require.Equal(t, "70", ask(t, e.HTTP(), "SELECT count() FROM agents.usage_events"))
	require.Equal(t, "2", ask(t, e.HTTP(), "SELECT count() FROM agents.sandbox_usage"))
	require.InDelta(t, 1, value(t, metrics, "sandtrail_usage_rewinds_total"), 0)
}
