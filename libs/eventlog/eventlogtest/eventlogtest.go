// Package eventlogtest is the contract of an event log: every implementation passes Run.
package eventlogtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// finder is what a log may offer beside eventlog.Log.
type finder interface {
	Find(ctx context.Context, filter string) (subject.Aggregate, error)
}

// Run checks a log. The factory may give the same log every time: each test uses aggregates of its own.
func Run(t *testing.T, factory func(t testing.TB) eventlog.Log) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, eventlog.Log){
		"AppendedEventsAreLoadedInOrder":       testOrder,
		"UnknownAggregateIsEmpty":              testUnknown,
		"StaleExpectationIsAConflict":          testConflict,
		"RepeatedAppendIsDone":                 testRepeat,
		"RepeatedAppendWithALaterClockIsDone":  testRepeatLater,
		"RepeatBehindOthersIsDone":             testRepeatBehindOthers,
		"IDUsedTwiceIsRefused":                 testReusedID,
		"SeveralEventsAreOneBatch":             testBatchOfOne,
		"RepeatedBatchIsDone":                  testRepeatBatch,
		"BatchOverAggregatesIsAllOrNone":       testBatch,
		"HistoryLongerThanAPage":               testLong,
		"DigestChainHolds":                     testChain,
		"CancelledContextAppendsNothing":       testCancelled,
		"TenantsAndIDsDoNotMix":                testIsolation,
		"InvalidAppendsAreRefused":             testInvalid,
		"LargeEventsAreRefused":                testLarge,
		"Find":                                 testFind,
		"ExecuteDecidesAgainAfterAConflict":    testExecute,
		"ExecuteByManyLosesNothing":            testExecuteConcurrent,
		"ExecuteOfARecordedCommandIsDone":      testExecuteRepeat,
		"ExecuteGivesUp":                       testExecuteGivesUp,
		"ConcurrentAppendsHaveOneWinner":       testOneWinner,
		"EmptyBodiesAndUnknownTypesAreHandled": testEmptyBody,
	} {
		t.Run(name, func(t *testing.T) { test(t, factory(t)) })
	}
}

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// aggregate is one that no other test uses.
func aggregate() subject.Aggregate { return subject.Sandbox("acme", ids.New()) }

// events are n events of a new command.
func events(n int) []envelope.Event { return eventsOf(ids.New(), n) }

func eventsOf(command string, n int) []envelope.Event {
	out := make([]envelope.Event, n)
	for i := range out {
		out[i] = envelope.Event{
			Meta: envelope.Meta{
				ID: ids.Event(command, i), Actor: "dev", Cause: command, Correlation: "c-" + command,
				Time: time.Date(2026, 11, 29, 12, 0, i, 123456789, time.UTC),
			},
			Body: &eventsv1.SandboxUsageSampled{
				UptimeMs: uint64(i), Usage: &commonv1.UsageMetrics{},
			},
		}
	}
	return out
}

func eventIDs(recorded []envelope.Recorded) []string {
	out := []string{}
	for _, r := range recorded {
		out = append(out, r.ID)
	}
	return out
}

func wantIDs(events ...envelope.Event) []string {
	out := []string{}
	for _, e := range events {
		out = append(out, e.ID)
	}
	return out
}

func load(t *testing.T, log eventlog.Log, agg subject.Aggregate) eventlog.History {
	t.Helper()
	h, err := log.Load(limited(t), agg)
	require.NoError(t, err)
	return h
}

// eventually loads until the history has n events: in a cluster a replica that lags may answer for a moment.
func eventually(t *testing.T, log eventlog.Log, agg subject.Aggregate, n int) eventlog.History {
	t.Helper()
	var h eventlog.History
	require.Eventually(t, func() bool {
		var err error
		h, err = log.Load(limited(t), agg)
		return err == nil && len(h.Events) >= n
	}, 10*time.Second, 2*time.Millisecond)
	require.Len(t, h.Events, n)
	return h
}

func appendTo(t *testing.T, log eventlog.Log, agg subject.Aggregate, after eventlog.Tail, e ...envelope.Event) eventlog.Tail {
	t.Helper()
	got, err := log.Append(limited(t), agg, after, e...)
	require.NoError(t, err)
	require.Equal(t, wantIDs(e...), eventIDs(got))
	return eventlog.History{Events: got}.Tail()
}

func testOrder(t *testing.T, log eventlog.Log) {
	agg, all := aggregate(), events(5)
	var tail eventlog.Tail
	var returned []envelope.Recorded
	for _, e := range all {
		got, err := log.Append(limited(t), agg, tail, e)
		require.NoError(t, err)
		require.Greater(t, got[0].Seq, tail.Seq)
		returned = append(returned, got...)
		tail = eventlog.History{Events: got}.Tail()
	}
	h := eventually(t, log, agg, 5)
	require.Equal(t, wantIDs(all...), eventIDs(h.Events))
	require.Equal(t, tail, h.Tail())
	for i, r := range h.Events {
		require.Equal(t, returned[i].Meta, r.Meta, "what Append returns is what Load reads")
		require.Equal(t, returned[i].Digest, r.Digest)
		require.Equal(t, agg.Subject(), r.Subject)
		require.Equal(t, agg.Tenant, r.Tenant)
		require.Equal(t, "sandtrail.events.v1.SandboxUsageSampled", r.Type)
		require.Equal(t, uint64(i), r.Body.(*eventsv1.SandboxUsageSampled).GetUptimeMs())
		require.True(t, all[i].Time.Equal(r.Time))
	}
}

func testUnknown(t *testing.T, log eventlog.Log) {
	h := load(t, log, aggregate())
	require.Empty(t, h.Events)
	require.Equal(t, eventlog.Tail{}, h.Tail())
}

func testConflict(t *testing.T, log eventlog.Log) {
	agg := aggregate()
	first := appendTo(t, log, agg, eventlog.Tail{}, events(1)...)
	second := appendTo(t, log, agg, first, events(1)...)
	for name, after := range map[string]eventlog.Tail{
		"none": {}, "first": first, "beyond": {Seq: second.Seq + 1000, Digest: second.Digest},
	} {
		_, err := log.Append(limited(t), agg, after, events(1)...)
		require.ErrorIs(t, err, eventlog.ErrConflict, name)
		_, err = log.Append(limited(t), agg, after, events(2)...)
		require.ErrorIs(t, err, eventlog.ErrConflict, name)
	}
	eventually(t, log, agg, 2)
}

func testRepeat(t *testing.T, log eventlog.Log) {
	agg, e := aggregate(), events(1)
	first, err := log.Append(limited(t), agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	again, err := log.Append(limited(t), agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	require.Equal(t, first[0].Seq, again[0].Seq)
	require.Equal(t, first[0].Digest, again[0].Digest)
	require.Equal(t, []bool{false, true}, []bool{first[0].Found, again[0].Found})
	require.False(t, eventually(t, log, agg, 1).Events[0].Found)
}

func testRepeatLater(t *testing.T, log eventlog.Log) {
	agg, e := aggregate(), events(1)
	first, err := log.Append(limited(t), agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	was := e[0].Time
	e[0].Time = was.Add(time.Hour)
	again, err := log.Append(limited(t), agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	require.True(t, was.Equal(again[0].Time), "what stands in the log is returned")
	require.Equal(t, first[0].Digest, again[0].Digest)
}

func testRepeatBehindOthers(t *testing.T, log eventlog.Log) {
	agg, e := aggregate(), events(1)
	tail := appendTo(t, log, agg, eventlog.Tail{}, e...)
	appendTo(t, log, agg, tail, events(1)...)
	eventually(t, log, agg, 2)
	again, err := log.Append(limited(t), agg, eventlog.Tail{}, e...)
	require.NoError(t, err)
	require.Equal(t, tail.Seq, again[0].Seq)
	eventually(t, log, agg, 2)
}

func testReusedID(t *testing.T, log eventlog.Log) {
	a, b, e := aggregate(), aggregate(), events(1)
	tail := appendTo(t, log, a, eventlog.Tail{}, e...)
	eventually(t, log, a, 1)
	_, err := log.Append(limited(t), a, tail, e...)
	require.Equal(t, fault.Internal, fault.CodeOf(err), "in the same history: %v", err)
	_, err = log.Append(limited(t), b, eventlog.Tail{}, e...)
	require.Equal(t, fault.Internal, fault.CodeOf(err), "in another history: %v", err)
	require.Empty(t, load(t, log, b).Events)
	eventually(t, log, a, 1)
}

func testBatchOfOne(t *testing.T, log eventlog.Log) {
	agg := aggregate()
	e := events(3)
	tail := appendTo(t, log, agg, eventlog.Tail{}, e...)
	more := events(2)
	tail = appendTo(t, log, agg, tail, more...)
	h := eventually(t, log, agg, 5)
	require.Equal(t, wantIDs(append(e, more...)...), eventIDs(h.Events))
	require.Equal(t, tail, h.Tail())
}

func testRepeatBatch(t *testing.T, log eventlog.Log) {
	a, b := aggregate(), aggregate()
	entries := []eventlog.Entry{{Aggregate: a, Events: events(2)}, {Aggregate: b, Events: events(1)}}
	first, err := log.AppendBatch(limited(t), entries...)
	require.NoError(t, err)
	again, err := log.AppendBatch(limited(t), entries...)
	require.NoError(t, err)
	require.Equal(t, eventIDs(first), eventIDs(again))
	for i := range first {
		require.Equal(t, first[i].Seq, again[i].Seq)
		require.Equal(t, []bool{false, true}, []bool{first[i].Found, again[i].Found})
	}
	eventually(t, log, a, 2)
	eventually(t, log, b, 1)
}

func testBatch(t *testing.T, log eventlog.Log) {
	a, b := aggregate(), subject.Tenant("t"+ids.Short(ids.New()))
	a.Tenant = b.Tenant
	tailA := appendTo(t, log, a, eventlog.Tail{}, events(1)...)
	_, err := log.AppendBatch(limited(t),
		eventlog.Entry{Aggregate: a, After: tailA, Events: events(2)},
		eventlog.Entry{Aggregate: b, Events: events(1)})
	require.NoError(t, err)
	h := eventually(t, log, a, 3)
	tailB := eventually(t, log, b, 1).Tail()

	for name, entries := range map[string][]eventlog.Entry{
		"second guard stale": {{Aggregate: a, After: h.Tail(), Events: events(2)}, {Aggregate: b, Events: events(1)}},
		"first guard stale":  {{Aggregate: a, After: tailA, Events: events(1)}, {Aggregate: b, After: tailB, Events: events(1)}},
	} {
		_, err = log.AppendBatch(limited(t), entries...)
		require.ErrorIs(t, err, eventlog.ErrConflict, name)
		require.Equal(t, h.Tail(), eventually(t, log, a, 3).Tail(), name)
		require.Equal(t, tailB, eventually(t, log, b, 1).Tail(), name)
	}
}

func testLong(t *testing.T, log eventlog.Log) {
	agg := aggregate()
	const n, step = 1300, 650
	all := events(n)
	var tail eventlog.Tail
	for i := 0; i < n; i += step {
		tail = appendTo(t, log, agg, tail, all[i:i+step]...)
		// Others write in between, as they do.
		appendTo(t, log, aggregate(), eventlog.Tail{}, events(3)...)
	}
	h := eventually(t, log, agg, n)
	require.Equal(t, wantIDs(all...), eventIDs(h.Events))
	require.Equal(t, tail, h.Tail())
}

func testChain(t *testing.T, log eventlog.Log) {
	agg := aggregate()
	tail := appendTo(t, log, agg, eventlog.Tail{}, events(1)...)
	appendTo(t, log, agg, tail, events(3)...)
	h := eventually(t, log, agg, 4)
	require.NoError(t, eventlog.Verify(h))
	for name, damage := range map[string]func(*eventlog.History){
		"altered body":   func(h *eventlog.History) { h.Events[2].Data = append([]byte{8, 1}, h.Events[2].Data...) },
		"altered header": func(h *eventlog.History) { h.Events[2].Actor = "somebody else" },
		"missing event":  func(h *eventlog.History) { h.Events = append(h.Events[:1:1], h.Events[2:]...) },
		"swapped events": func(h *eventlog.History) { h.Events[2], h.Events[3] = h.Events[3], h.Events[2] },
	} {
		damaged := h
		damaged.Events = append([]envelope.Recorded(nil), h.Events...)
		damage(&damaged)
		var chain *eventlog.ChainError
		require.ErrorAs(t, eventlog.Verify(damaged), &chain, name)
	}
}

func testCancelled(t *testing.T, log eventlog.Log) {
	agg := aggregate()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := log.Append(ctx, agg, eventlog.Tail{}, events(1)...)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, fault.Cancelled, fault.CodeOf(err))
	_, err = log.Load(ctx, agg)
	require.ErrorIs(t, err, context.Canceled)
	late, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err = log.Append(late, agg, eventlog.Tail{}, events(2)...)
	require.Equal(t, fault.DeadlineExceeded, fault.CodeOf(err))
	require.Empty(t, load(t, log, agg).Events)
}

func testIsolation(t *testing.T, log eventlog.Log) {
	id, x := ids.New(), ids.New()
	all := []subject.Aggregate{
		subject.Sandbox("acme", id), subject.Sandbox("acme2", id), subject.Workspace("acme", id),
		subject.Exec("acme", id, x), subject.Exec("acme", x, id),
	}
	want := map[subject.Aggregate][]string{}
	for _, agg := range all {
		e := events(1)
		appendTo(t, log, agg, eventlog.Tail{}, e...)
		want[agg] = wantIDs(e...)
	}
	for _, agg := range all {
		require.Equal(t, want[agg], eventIDs(eventually(t, log, agg, 1).Events), agg.Subject())
	}
}

func testInvalid(t *testing.T, log eventlog.Log) {
	good := events(1)
	twice := append(events(1), good[0], good[0])
	foreign, noID, noBody := events(1), events(1), events(1)
	foreign[0].Tenant = "other"
	noID[0].ID = ""
	noBody[0].Body = nil
	agg := aggregate()
	for name, c := range map[string]struct {
		agg    subject.Aggregate
		after  eventlog.Tail
		events []envelope.Event
	}{
		"wildcard id":       {subject.Sandbox("acme", "*"), eventlog.Tail{}, good},
		"wildcard tenant":   {subject.Sandbox(">", ids.New()), eventlog.Tail{}, good},
		"dotted tenant":     {subject.Sandbox("a.sandbox", ids.New()), eventlog.Tail{}, good},
		"no tenant":         {subject.Sandbox("", ids.New()), eventlog.Tail{}, good},
		"other tenant":      {agg, eventlog.Tail{}, foreign},
		"no id":             {agg, eventlog.Tail{}, noID},
		"no body":           {agg, eventlog.Tail{}, noBody},
		"same id twice":     {agg, eventlog.Tail{}, twice},
		"tail, no digest":   {agg, eventlog.Tail{Seq: 1}, good},
		"digest of no tail": {agg, eventlog.Tail{Digest: make([]byte, 32)}, good},
	} {
		_, err := log.Append(limited(t), c.agg, c.after, c.events...)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), "%s: %v", name, err)
	}
	_, err := log.Load(limited(t), subject.Sandbox("acme", "*"))
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	_, err = log.AppendBatch(limited(t), eventlog.Entry{Aggregate: agg, Events: events(1)},
		eventlog.Entry{Aggregate: agg, Events: events(1)})
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), "one aggregate twice")
	got, err := log.Append(limited(t), agg, eventlog.Tail{})
	require.NoError(t, err)
	require.Empty(t, got)
	require.Empty(t, load(t, log, agg).Events)
}

func testLarge(t *testing.T, log eventlog.Log) {
	agg := aggregate()
	sized := func(n int) envelope.Event {
		e := events(1)[0]
		e.Body = &eventsv1.SandboxFailed{Message: string(make([]byte, n))}
		return e
	}
	tail := appendTo(t, log, agg, eventlog.Tail{}, sized(eventlog.MaxEventSize-4096))
	_, err := log.Append(limited(t), agg, tail, sized(eventlog.MaxEventSize))
	require.True(t, fault.Is(err, fault.ReasonTooLarge), "%v", err)
	_, err = log.Append(limited(t), agg, tail, events(eventlog.MaxEvents+1)...)
	require.True(t, fault.Is(err, fault.ReasonTooLarge), "%v", err)
	eventually(t, log, agg, 1)
}

func testFind(t *testing.T, log eventlog.Log) {
	f, ok := log.(finder)
	if !ok {
		return
	}
	agg := aggregate()
	_, err := f.Find(limited(t), subject.AnyTenantSandbox(agg.ID))
	require.True(t, fault.Is(err, fault.ReasonSandboxNotFound), "%v", err)
	tail := appendTo(t, log, agg, eventlog.Tail{}, events(1)...)
	appendTo(t, log, agg, tail, events(1)...)
	eventually(t, log, agg, 2)
	got, err := f.Find(limited(t), subject.AnyTenantSandbox(agg.ID))
	require.NoError(t, err)
	require.Equal(t, agg, got)
	twin := subject.Sandbox("acme2", agg.ID)
	appendTo(t, log, twin, eventlog.Tail{}, events(1)...)
	eventually(t, log, twin, 1)
	_, err = f.Find(limited(t), subject.AnyTenantSandbox(agg.ID))
	require.Equal(t, fault.Conflict, fault.CodeOf(err), "an id of two tenants says nothing about whose is meant")
}

func testOneWinner(t *testing.T, log eventlog.Log) {
	const rounds, rivals = 10, 4
	agg := aggregate()
	var tail eventlog.Tail
	for round := range rounds {
		var (
			wg   sync.WaitGroup
			errs = make([]error, rivals)
			got  = make([][]envelope.Recorded, rivals)
		)
		for i := range rivals {
			wg.Go(func() { got[i], errs[i] = log.Append(limited(t), agg, tail, events(1)...) })
		}
		wg.Wait()
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				tail = eventlog.History{Events: got[i]}.Tail()
				continue
			}
			require.ErrorIs(t, err, eventlog.ErrConflict)
		}
		require.Equal(t, 1, won, "round %d", round)
	}
	require.Equal(t, tail, eventually(t, log, agg, rounds).Tail())
}

func testEmptyBody(t *testing.T, log eventlog.Log) {
	agg, e := aggregate(), events(3)
	e[0].Body = &eventsv1.SandboxStopping{}
	e[1].Body = &eventsv1.SandboxStopping{}
	e[1].Type = "sandtrail.events.v9.Unheard"
	appendTo(t, log, agg, eventlog.Tail{}, e...)
	h := eventually(t, log, agg, 3)
	require.NotNil(t, h.Events[0].Body)
	require.Nil(t, h.Events[1].Body, "whoever decides must see that there was something")
	require.Equal(t, "sandtrail.events.v9.Unheard", h.Events[1].Type)
}
