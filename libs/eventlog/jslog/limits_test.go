package jslog

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func sandbox() subject.Aggregate { return subject.Sandbox("acme", ids.New()) }

func mustAppend(t *testing.T, log eventlog.Log, agg subject.Aggregate, after eventlog.Tail, n int) eventlog.History {
	t.Helper()
	got, err := log.Append(t.Context(), agg, after, newEvents(n)...)
	require.NoError(t, err)
	return eventlog.History{Aggregate: agg, Events: got}
}

func TestHistorySurvivesARestart(t *testing.T) {
	f := natstest.Start(t)
	log, agg := New(f.JS), sandbox()
	h := mustAppend(t, log, agg, eventlog.Tail{}, 3)
	f.Restart()
	got, err := log.Load(t.Context(), agg)
	require.NoError(t, err)
	require.Equal(t, h.Tail(), got.Tail())
	require.Equal(t, idsOf(h.Events), idsOf(got.Events))
	mustAppend(t, log, agg, got.Tail(), 1)
	diff, err := topology.Diff(t.Context(), f.JS, f.Options)
	require.NoError(t, err)
	require.Empty(t, diff)
}

func TestOutageIsUnavailableAndBounded(t *testing.T) {
	f := natstest.Start(t)
	log, agg, e := New(f.JS), sandbox(), newEvents(1)
	log.timeout, log.attempts = 50*time.Millisecond, 3
	f.Stop()
	_, err := log.Append(t.Context(), agg, eventlog.Tail{}, e...)
	require.True(t, fault.Is(err, fault.ReasonLogUnavailable), "%v", err)
	require.NotZero(t, fault.From(err).RetryAfter)
	_, err = log.Load(t.Context(), agg)
	require.True(t, fault.Is(err, fault.ReasonLogUnavailable), "%v", err)
	_, err = log.Find(t.Context(), subject.AnyTenantSandbox(agg.ID))
	require.True(t, fault.Is(err, fault.ReasonLogUnavailable), "an outage is not an absence: %v", err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = log.Append(ctx, agg, eventlog.Tail{}, newEvents(1)...)
	require.Equal(t, fault.DeadlineExceeded, fault.CodeOf(err), "the caller's own deadline")
	f.Resume()
	got, err := New(f.JS).Append(t.Context(), agg, eventlog.Tail{}, e...)
	require.NoError(t, err, "the same append may be repeated, whatever became of the first")
	require.Equal(t, e[0].ID, got[0].ID)
}

// A log that came to its end must refuse, keep all it has, and never take a part of a batch.
func TestFullLogRefuses(t *testing.T) {
	for name, start := range map[string]func(t *testing.T) *natstest.Fixture{
		"one server": func(t *testing.T) *natstest.Fixture {
			return natstest.StartWith(t, natsserver.Options{}, topology.Options{EventsMaxBytes: 64 << 10})
		},
		"cluster": func(t *testing.T) *natstest.Fixture {
			f := natstest.Cluster(t)
			s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
			require.NoError(t, err)
			config := s.CachedInfo().Config
			config.MaxBytes = 64 << 10
			_, err = f.JS.UpdateStream(t.Context(), config)
			require.NoError(t, err)
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			log, agg := New(f.JS), sandbox()
			big := func() envelope.Event {
				e := newEvents(1)[0]
				e.Body = &eventsv1.SandboxFailed{Message: string(make([]byte, 12<<10))}
				return e
			}
			var h eventlog.History
			var err error
			for err == nil {
				var got []envelope.Recorded
				got, err = log.Append(t.Context(), agg, h.Tail(), big())
				h.Events = append(h.Events, got...)
				require.Less(t, len(h.Events), 6)
			}
			require.True(t, fault.Is(err, fault.ReasonLogFull), "%v", err)
			require.Equal(t, fault.ResourceExhausted, fault.CodeOf(err))

			// The first two of these would fit.
			_, err = log.Append(t.Context(), agg, h.Tail(), newEvents(1)[0], newEvents(1)[0], big())
			require.True(t, fault.Is(err, fault.ReasonLogFull), "%v", err)
			require.Eventually(t, func() bool {
				got, err := log.Load(t.Context(), agg)
				require.NoError(t, err)
				return len(got.Events) == len(h.Events)
			}, 10*time.Second, 5*time.Millisecond)
			mustAppend(t, log, sandbox(), eventlog.Tail{}, 1) // what fits still goes in
		})
	}
}

// A refusal answers one attempt; what an earlier one did is another matter.
func TestRefusalBehindALostAcknowledgement(t *testing.T) {
	f := natstest.Start(t)
	for name, c := range map[string]struct {
		script []outcome
		stored bool
	}{
		"refused":                 {[]outcome{full}, false},
		"lost, then refused":      {[]outcome{neverSent, full}, false},
		"stored, then refused":    {[]outcome{ackLost, full}, true},
		"stored, nobody, refused": {[]outcome{ackLost, nobody, full}, true},
	} {
		log, agg := New(f.JS), sandbox()
		log.publisher = &faulty{publisher: log.publisher, script: c.script}
		// The replica that is asked first has not seen anything yet.
		log.reader = &lagging{reader: log.reader, script: []int{1, 1}}
		_, err := log.Append(t.Context(), agg, eventlog.Tail{}, newEvents(1)...)
		h, lerr := New(f.JS).Load(t.Context(), agg)
		require.NoError(t, lerr)
		if c.stored {
			require.NoError(t, err, name)
			require.Len(t, h.Events, 1, name)
		} else {
			require.True(t, fault.Is(err, fault.ReasonLogFull), "%s: %v", name, err)
			require.Empty(t, h.Events, name)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	f := natstest.Start(t)
	log, agg := New(f.JS), sandbox()
	log.maxHistory, log.pageSize = 10, 4
	h := mustAppend(t, log, agg, eventlog.Tail{}, 10)
	got, err := log.Load(t.Context(), agg)
	require.NoError(t, err)
	require.Len(t, got.Events, 10)
	mustAppend(t, log, agg, h.Tail(), 1)
	_, err = log.Load(t.Context(), agg)
	require.True(t, fault.Is(err, fault.ReasonTooLarge), "%v", err)
}

func TestDamagedHistoryIsNoticed(t *testing.T) {
	f := natstest.Start(t)
	log, agg := New(f.JS), sandbox()
	mustAppend(t, log, agg, eventlog.Tail{}, 2)
	// Somebody with access to the stream puts an event in by hand.
	m, _, err := envelope.Encode(agg.Subject(), envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, Body: &eventsv1.SandboxStopping{},
	}, []byte("a guess"))
	require.NoError(t, err)
	a, err := f.JS.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	h, err := log.Load(t.Context(), agg)
	var chain *eventlog.ChainError
	require.ErrorAs(t, err, &chain)
	require.Equal(t, a.Sequence, chain.Seq)
	require.Len(t, h.Events, 3, "an audit must see what is there")
	_, err = eventlog.Execute(t.Context(), log, agg, func(eventlog.History) ([]envelope.Event, error) {
		return newEvents(1), nil
	})
	require.ErrorAs(t, err, &chain, "nobody decides on it")

	other := sandbox()
	_, err = f.JS.Publish(t.Context(), other.Subject(), []byte("no event at all"))
	require.NoError(t, err)
	_, err = log.Load(t.Context(), other)
	require.Equal(t, fault.Internal, fault.CodeOf(err))
}

// A page with a hole in it must never pass for a history.
func TestLostRepliesAreNoticed(t *testing.T) {
	f := natstest.Start(t)
	log, agg := New(f.JS), sandbox()
	mustAppend(t, log, agg, eventlog.Tail{}, 5)
	// A proxy of the API that drops the n-th reply.
	js, err := jetstream.NewWithAPIPrefix(f.NC, "lossy")
	require.NoError(t, err)
	for drop := range 6 {
		sub, err := f.NC.Subscribe("lossy.DIRECT.GET.EVT", func(m *nats.Msg) {
			replies, err := f.NC.SubscribeSync(f.NC.NewInbox())
			if err != nil {
				return
			}
			defer func() { _ = replies.Unsubscribe() }()
			_ = f.NC.PublishRequest("$JS.API.DIRECT.GET.EVT", replies.Subject, m.Data)
			for i := range 6 {
				r, err := replies.NextMsg(time.Second)
				if err != nil {
					return
				}
				if i != drop {
					r.Subject = m.Reply
					_ = f.NC.PublishMsg(r)
				}
			}
		})
		require.NoError(t, err)
		lossy := New(js)
		lossy.attempts, lossy.timeout = 2, 100*time.Millisecond
		_, err = lossy.Load(t.Context(), agg)
		require.True(t, fault.Is(err, fault.ReasonLogUnavailable), "reply %d dropped: %v", drop, err)
		require.NoError(t, sub.Unsubscribe())
	}
}

func TestTraceContextIsRecorded(t *testing.T) {
	f := natstest.Start(t)
	log, agg := New(f.JS), sandbox()
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: 1})
	ctx := trace.ContextWithSpanContext(t.Context(), span)
	e := newEvents(2)
	e[1].Traceparent = "00-00000000000000000000000000000009-0000000000000009-01"
	_, err := log.Append(ctx, agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	h, err := log.Load(ctx, agg)
	require.NoError(t, err)
	require.Equal(t, "00-01000000000000000000000000000000-0200000000000000-01", h.Events[0].Traceparent)
	require.Equal(t, e[1].Traceparent, h.Events[1].Traceparent)
}

func TestDefaultsAreFilledIn(t *testing.T) {
	f := natstest.Start(t)
	log, agg, e := New(f.JS), sandbox(), newEvents(1)
	e[0].Time = time.Time{}
	got, err := log.Append(t.Context(), agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), got[0].Time, time.Minute)
	require.Equal(t, time.UTC, got[0].Time.Location())
	require.Equal(t, "acme", got[0].Tenant)
	require.Equal(t, 1, got[0].Schema)
}
