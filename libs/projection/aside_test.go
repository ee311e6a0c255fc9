package projection_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func letters(t *testing.T, f *natstest.Fixture) []dlq.Letter {
	t.Helper()
	all, err := dlq.New(f.JS, nil).List(t.Context(), dlq.Filter{Service: "lifecycle", Consumer: "test-v1"})
	require.NoError(t, err)
	return all
}

// failOn makes the event at a sequence fail as fail does; nil lets it through.
func failOn(seq uint64, fail func() error) func(uint64) error {
	return func(at uint64) error {
		if at == seq {
			return fail()
		}
		return nil
	}
}

func TestAnEventThatCannotBeAppliedIsSetAsideAndRedriven(t *testing.T) {
	for name, c := range map[string]struct {
		fail     func() error
		reason   string
		cause    fault.Reason
		attempts int
	}{
		"panic": {func() error { panic("hunter2") }, dlq.ReasonPanic, dlq.CausePanic, dlq.MaxPanics},
		"hopeless": {func() error {
			return fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "event ready is not possible in state failed").Because(errors.New("hunter2"))
		}, dlq.ReasonPoison, fault.ReasonIllegalState, 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := natstest.Start(t)
			v := newView()
			broken := true
			tried := 0
			v.bad = failOn(6, func() error {
				if !broken {
					return nil
				}
				tried++
				return c.fail()
			})
			reg := prometheus.NewRegistry()
			r, _ := run(t, f, v, projection.Options{Service: "lifecycle", Registerer: reg})
			wait(t, r, publish(t, f, 10))
			require.Equal(t, 9, v.count(), "its neighbours are applied")
			require.Equal(t, c.attempts, tried)
			all := letters(t, f)
			require.Len(t, all, 1)
			l := all[0]
			require.EqualValues(t, 6, l.Seq)
			require.Equal(t, topology.StreamEvents, l.Stream)
			require.Equal(t, c.reason, l.Reason)
			require.Equal(t, string(c.cause), l.FaultReason)
			require.Equal(t, c.attempts, l.Attempts)
			require.NotContains(t, l.Error, "hunter2")
			require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP sandtrail_projection_dead_letters_total Events that were set aside, by reason: poison or panic. The view goes without them.
# TYPE sandtrail_projection_dead_letters_total counter
sandtrail_projection_dead_letters_total{projection="test",reason="panic"} `+number(c.reason == dlq.ReasonPanic)+`
sandtrail_projection_dead_letters_total{projection="test",reason="poison"} `+number(c.reason == dlq.ReasonPoison)+`
`), "sandtrail_projection_dead_letters_total"))

			v.mu.Lock()
			broken = false
			v.mu.Unlock()
			q := dlq.New(f.JS, jslog.New(f.JS))
			_, err := q.Redrive(t.Context(), l.ID, dlq.Operator{Name: "ann"})
			require.NoError(t, err)
			require.Equal(t, 10, v.count())
			v.mu.Lock()
			require.EqualValues(t, 6, v.order[9])
			v.mu.Unlock()
			require.Empty(t, letters(t, f))
		})
	}
}

func number(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func TestWhatMayPassIsNeverSetAside(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	failures := 0
	v.bad = failOn(5, func() error {
		if failures++; failures < 8 {
			return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "not now")
		}
		return nil
	})
	r, _ := run(t, f, v, projection.Options{Service: "lifecycle"})
	wait(t, r, publish(t, f, 10))
	require.Equal(t, 10, v.count())
	require.Empty(t, letters(t, f))
}

func TestAnEventIsNotPassedOverBeforeItsLetterIsStored(t *testing.T) {
	f := natstest.Start(t)
	require.NoError(t, f.JS.DeleteStream(t.Context(), topology.StreamDead))
	v := newView()
	asked := make(chan struct{}, 1000)
	v.bad = failOn(3, func() error {
		asked <- struct{}{}
		return fault.New(fault.Internal, fault.ReasonInternal, "never")
	})
	r, _ := run(t, f, v, projection.Options{Service: "lifecycle"})
	last := publish(t, f, 4)
	for range 5 {
		select {
		case <-asked:
		case <-time.After(patience):
			require.FailNow(t, "it was not tried again")
		}
	}
	require.Equal(t, 2, v.count())
	require.NoError(t, topology.Ensure(t.Context(), f.JS, f.Options))
	wait(t, r, last)
	require.Equal(t, 3, v.count())
	require.Len(t, letters(t, f), 1)
}

func TestUndecodableEventsAreSetAsideOnceHoweverOftenTheyAreRead(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	r, _ := run(t, f, v, projection.Options{Service: "lifecycle"})
	for name, change := range map[string]func(*nats.Msg){
		"no headers": func(m *nats.Msg) { m.Header = nil },
		"no type":    func(m *nats.Msg) { m.Header.Del(envelope.HeaderType) },
		"schema":     func(m *nats.Msg) { m.Header.Set(envelope.HeaderSchema, "one") },
		"time":       func(m *nats.Msg) { m.Header.Set(envelope.HeaderTime, "noon") },
		"digest":     func(m *nats.Msg) { m.Header.Set(envelope.HeaderDigest, "xyz") },
		"body":       func(m *nats.Msg) { m.Data = []byte("\x0a\xff hunter2") },
	} {
		m := nats.NewMsg(subject.Sandbox("acme", "s1").Subject())
		for k, value := range map[string]string{
			envelope.HeaderID: ids.New(), envelope.HeaderType: "sandtrail.events.v1.SandboxReady", envelope.HeaderSchema: "1",
			envelope.HeaderTime: time.Now().UTC().Format(time.RFC3339Nano),
		} {
			m.Header.Set(k, value)
		}
		change(m)
		_, err := f.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err, name)
	}
	last := publish(t, f, 1)
	wait(t, r, last)
	require.Equal(t, 1, v.count())
	require.NoError(t, r.Rebuild(t.Context()))
	all := letters(t, f)
	require.Len(t, all, 6)
	for _, l := range all {
		require.Equal(t, string(dlq.CauseUndecodable), l.FaultReason)
		require.Contains(t, l.Error, "the message is not an event")
		require.NotContains(t, l.Error, "hunter2")
	}
	_, err := dlq.New(f.JS, jslog.New(f.JS)).Redrive(t.Context(), all[0].ID, dlq.Operator{Name: "ann"})
	require.True(t, fault.Is(err, dlq.CauseUndecodable), "what cannot be read stays: %v", err)
	require.Len(t, letters(t, f), 6)
}
