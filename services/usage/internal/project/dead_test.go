package project

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// ledger is a sink that keeps what it was given, by the rows' ids.
type ledger struct {
	mu   sync.Mutex
	rows map[string]uint64
}

func (l *ledger) Clear(context.Context) error { return nil }

func (l *ledger) Late(context.Context, string, uuid.UUID) error { return nil }

func (l *ledger) Insert(_ context.Context, rows *clickhouse.Block) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range rows.Len() {
		r := rows.Row(i)
		l.rows[r.ID.String()] = r.WallMillis
	}
	return nil
}

func (l *ledger) total() (rows int, wall uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.rows {
		wall += w
	}
	return len(l.rows), wall
}

// A row that cannot be made because of a mistake in this program is missing until the mistake is gone, and then there once.
func TestAnEventThatPanicsIsSetAsideAndBilledOnceItIsRedriven(t *testing.T) {
	n := natstest.Start(t)
	sink := &ledger{rows: map[string]uint64{}}
	p, err := New(t.Context(), Config{JS: n.JS, Sink: sink, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	// The mistake: nobody made the place where owners are remembered.
	p.owners = nil
	var last uint64
	for range 3 {
		agg := subject.Exec("acme", ids.New(), ids.New())
		m, _, err := envelope.Encode(agg.Subject(), envelope.Event{
			Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Time: time.Now()},
			Body: &eventsv1.ExecCompleted{Reason: "exited", WallTimeUs: 5000, UsageEventId: ids.New(), SessionId: "s"},
		}, nil)
		require.NoError(t, err)
		ack, err := n.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		last = ack.Sequence
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	q := dlq.New(n.JS, jslog.New(n.JS))
	var letters []dlq.Letter
	require.Eventually(t, func() bool {
		letters, err = q.List(t.Context(), dlq.Filter{Consumer: topology.CheckpointUsage})
		return err == nil && len(letters) == 3 && p.done.seq.Load() == last
	}, time.Minute, 20*time.Millisecond, "the projection goes on behind them")
	rows, _ := sink.total()
	require.Zero(t, rows)
	for _, l := range letters {
		require.Equal(t, dlq.ReasonPanic, l.Reason)
		require.Equal(t, dlq.MaxPanics, l.Attempts)
		require.Contains(t, l.Error, "owners.go")
	}

	// A redrive has its own place for owners, as a program without the mistake would. Twice is once.
	for _, l := range letters {
		errs := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := q.Redrive(t.Context(), l.ID, dlq.Operator{Name: "ann"})
				errs <- err
			}()
		}
		require.NoError(t, errors.Join(notGone(<-errs), notGone(<-errs)))
	}
	rows, wall := sink.total()
	require.Equal(t, 3, rows)
	require.EqualValues(t, 15, wall)
	letters, err = q.List(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	require.Empty(t, letters)
}

// notGone is err, unless it says that somebody else was done with the letter already.
func notGone(err error) error {
	if err != nil && strings.Contains(err.Error(), "there is no dead letter") {
		return nil
	}
	return err
}
