package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

const (
	mutate = " SETTINGS mutations_sync = 2"
	// facts are those of execs and sandboxes as people read them.
	facts = "SELECT (SELECT (count(), uniqExact(id), sum(cpu_ms), sum(wall_time_ms), sum(cityHash64(session_id, reason))) FROM agents.usage_events)," +
		" (SELECT (count(), sum(cpu_ms), sum(uptime_ms)) FROM agents.sandbox_usage), (SELECT (count(), sum(cpu_ms), sum(cpu_limit_millis)) FROM agents.usage_readings)"
)

// Whatever is done to the tables, a rebuild finds it and puts it right, while events go on coming.
func TestARebuildFindsAndMendsEveryDamage(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	serve(t, n, e.URL())
	conn := open(t, e.URL())
	a := newAuthor(t, n.JS, 1)
	a.write(1500)
	a.put(subject.Exec("tenant-0", ids.New(), ids.New()), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: time.Unix(0, 0)}, Body: &eventsv1.ExecCompleted{}})
	a.write(10)
	same(t, n.JS, e.URL())

	copies := "INSERT INTO agents.usage_events_raw (* EXCEPT(ingested_at)) SELECT * EXCEPT ingested_at REPLACE (%s) FROM agents.usage_events_raw WHERE event_type = 'exec_command' LIMIT 5"
	for _, c := range []struct {
		name   string
		damage []string
		// found says whether what a comparison found is the damage.
		found func(app.Rebuilt) bool
	}{
		{"nothing", nil, func(r app.Rebuilt) bool { return r.Same() && r.Unusable == 1 }},
		{
			"rows missing",
			[]string{"ALTER TABLE agents.usage_events_raw DELETE WHERE event_type = 'exec_command' AND stream_seq % 3 = 0" + mutate},
			func(r app.Rebuilt) bool { d := r.Differences; return d.Missing > 10 && d.Changed+d.Foreign == 0 },
		},
		{
			"rows changed",
			[]string{"ALTER TABLE agents.usage_events_raw UPDATE cpu_ms = cpu_ms + 1 WHERE event_type = 'sandbox_reading' AND stream_seq % 5 = 0" + mutate},
			func(r app.Rebuilt) bool { d := r.Differences; return d.Changed > 10 && d.Missing+d.Foreign == 0 },
		},
		{
			"foreign rows",
			[]string{replaced(copies, "generateUUIDv4() AS id"), replaced(copies, "generateUUIDv4() AS id, 'nobody' AS tenant_id, generateUUIDv4() AS sandbox_id")},
			func(r app.Rebuilt) bool { d := r.Differences; return d.Foreign == 10 && d.Changed+d.Missing == 0 },
		},
		{
			"rows of events beyond the log",
			[]string{replaced(copies, "generateUUIDv4() AS id, 1099511627776 AS stream_seq")},
			func(r app.Rebuilt) bool { return r.Beyond == 5 },
		},
		{
			"another figure behind the one that is right",
			[]string{replaced(copies, "cpu_ms + 1 AS cpu_ms, 9 AS schema_version")},
			func(r app.Rebuilt) bool { d := r.Differences; return d.Changed == 5 && d.Missing+d.Foreign == 0 },
		},
		{"all rows gone", []string{"TRUNCATE TABLE agents.usage_events_raw"}, func(r app.Rebuilt) bool {
			return r.Differences.Stand == 0 && r.Differences.Missing == r.Differences.Made
		}},
		{
			"hours changed and foreign",
			[]string{
				"ALTER TABLE agents.usage_hourly_raw UPDATE quantity = quantity + 1 WHERE meter = 'exec_cpu'" + mutate,
				"INSERT INTO agents.usage_hourly_raw SELECT * REPLACE (generateUUIDv4() AS sandbox_id) FROM agents.usage_hourly_raw LIMIT 7",
			},
			func(r app.Rebuilt) bool {
				return r.Differences.Hours > 10 && r.Differences.Days == 0 && len(r.Differences.Windows) > 0
			},
		},
		{
			"days missing",
			[]string{"ALTER TABLE agents.usage_daily_raw DELETE WHERE meter = 'execs'" + mutate},
			func(r app.Rebuilt) bool { return r.Differences.Days > 0 && r.Differences.Hours == 0 },
		},
		{"all hours gone", []string{"TRUNCATE TABLE agents.usage_hourly_raw", "TRUNCATE TABLE agents.usage_windows_raw"}, func(r app.Rebuilt) bool { return r.Differences.Hours > 100 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range c.damage {
				require.NoError(t, conn.Exec(t.Context(), s))
			}
			b := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: e.URL(), Limit: 3, Compare: true}
			r, err := b.Run(t.Context())
			require.NoError(t, err)
			require.True(t, c.found(r), "%+v", r)
			require.LessOrEqual(t, len(r.Differences.First), 3)

			// Without a word it swaps only what is the same.
			b.Compare = false
			r, err = b.Run(t.Context())
			require.NoError(t, err)
			require.Equal(t, len(c.damage) == 0, r.Swapped)

			var busy sync.WaitGroup
			busy.Go(func() {
				for range 20 {
					a.write(5)
				}
			})
			b.Swap, b.Patience = true, 5*time.Second
			r, err = b.Run(t.Context())
			busy.Wait()
			require.NoError(t, err)
			require.True(t, r.Swapped)
			a.write(10)
			v := same(t, n.JS, e.URL())
			require.Equal(t, 1, v.Unusable)
			b.Compare, b.Swap = true, false
			r, err = b.Run(t.Context())
			require.NoError(t, err)
			require.True(t, r.Same(), "%+v", r)
		})
	}
	require.Equal(t, "0", ask(t, e.HTTP(), "SELECT count() FROM agents.usage_hourly WHERE tenant_id = 'nobody'"))
}

// A rebuild that is killed at any of its steps is finished by the next one, and leaves what is right in the meantime.
func TestARebuildGoesOnAfterADeathAtAnyStep(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	serve(t, n, e.URL())
	a := newAuthor(t, n.JS, 2)
	a.write(1500)
	same(t, n.JS, e.URL())
	whole := ask(t, e.HTTP(), facts)
	tables := []string{"usage_events_raw", "usage_hourly_raw", "usage_daily_raw", "usage_windows_raw", "usage_rollup"}
	steps := []string{"events", "adding hours up", "comparing", "swapping"}
	for _, t := range tables {
		steps = append(steps, "swapped "+t)
	}
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			require.NoError(t, open(t, e.URL()).Exec(t.Context(), "ALTER TABLE agents.usage_events_raw UPDATE cpu_ms = cpu_ms + 1 WHERE stream_seq % 7 = 0"+mutate))
			ctx, die := context.WithCancel(t.Context())
			b := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: e.URL(), Swap: true, Keep: i%2 == 0, Rate: 5000, Progress: func(s string, _, _ uint64) {
				if s == step {
					die()
				}
			}}
			_, err := b.Run(ctx)
			require.ErrorIs(t, err, context.Canceled)
			b.Progress = nil
			r, err := b.Run(t.Context())
			require.NoError(t, err)
			require.True(t, r.Swapped)
			require.Equal(t, i > 3, r.Finished)
			require.Equal(t, i <= 3, r.Resumed > 0)
			same(t, n.JS, e.URL())
			require.Equal(t, whole, ask(t, e.HTTP(), facts))
		})
	}
}

func TestOfTwoRebuildsOneIsRefusedAndARateIsKept(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	serve(t, n, e.URL())
	a := newAuthor(t, n.JS, 3)
	a.write(1000)
	same(t, n.JS, e.URL())
	begun := make(chan struct{})
	var once sync.Once
	b := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: e.URL(), Rate: 80, Progress: func(string, uint64, uint64) { once.Do(func() { close(begun) }) }}
	var slow sync.WaitGroup
	var took time.Duration
	slow.Go(func() {
		begin := time.Now()
		_, err := b.Run(t.Context())
		took = time.Since(begin)
		if err != nil {
			t.Error(err)
		}
	})
	<-begun
	other := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: e.URL()}
	_, err := other.Run(t.Context())
	require.True(t, fault.Is(err, fault.ReasonConflict), "%v", err)
	slow.Wait()
	require.GreaterOrEqual(t, took, 10*time.Second, "1,000 events at 80 a second")
	_, err = other.Run(t.Context())
	require.NoError(t, err)
}

// Windows stay closed as of the event they were closed at; those whose hours were wrong are reopened for all to see.
func TestARebuildReopensTheWindowsThatItChanges(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	newAuthor(t, n.JS, 4).write(500)
	serve(t, n, e.URL())
	same(t, n.JS, e.URL())
	const closings = "SELECT sum(closed_seq), count(), countIf(state = 'reopened') FROM agents.usage_windows WHERE state != 'open'"
	const one = " FROM agents.usage_windows WHERE tenant_id = 'tenant-1' AND state = "
	hour := ask(t, e.HTTP(), "SELECT toUnixTimestamp(max(hour))"+one+"'closed'")
	var seqs, windows, reopened int
	_, err := fmt.Sscan(ask(t, e.HTTP(), closings), &seqs, &windows, &reopened)
	require.NoError(t, err)
	require.Greater(t, windows, reopened)
	require.NoError(t, open(t, e.URL()).Exec(t.Context(),
		"ALTER TABLE agents.usage_hourly_raw UPDATE quantity = quantity + 1 WHERE tenant_id = 'tenant-1' AND toUnixTimestamp(hour) = "+hour+mutate))
	r, err := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: e.URL(), Swap: true}.Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.Swapped)
	require.Equal(t, hour, ask(t, e.HTTP(), "SELECT toUnixTimestamp(max(hour))"+one+"'reopened' AND toUnixTimestamp(hour) = "+hour))
	require.Equal(t, fmt.Sprintf("%d\t%d\t%d", seqs, windows, reopened+1), ask(t, e.HTTP(), closings))
}

func replaced(statement, columns string) string { return strings.Replace(statement, "%s", columns, 1) }
