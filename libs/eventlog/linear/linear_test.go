package linear_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/eventlog/memlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// at is a call on one aggregate that took from one moment to another.
func at(began, ended int64, c linear.Call) linear.Call {
	c.Aggregate, c.Began, c.Ended = "a", began, ended
	return c
}

func done(after, id string) linear.Call    { return linear.Call{After: after, ID: id, Done: true} }
func refused(after, id string) linear.Call { return linear.Call{After: after, ID: id} }
func unknown(after, id string) linear.Call { return linear.Call{After: after, ID: id, Unknown: true} }
func load(events ...string) linear.Call    { return linear.Call{Load: true, Events: events} }

func TestVerdictOfSmallHistories(t *testing.T) {
	for name, c := range map[string]struct {
		calls []linear.Call
		ok    bool
	}{
		"one behind the other":                           {[]linear.Call{at(1, 2, done("", "x")), at(3, 4, done("x", "y")), at(5, 6, load("x", "y"))}, true},
		"refused because another came first":             {[]linear.Call{at(1, 9, done("", "x")), at(2, 8, refused("", "y"))}, true},
		"unknown that happened":                          {[]linear.Call{at(1, 2, unknown("", "x")), at(3, 4, done("x", "y"))}, true},
		"unknown that did not happen":                    {[]linear.Call{at(1, 2, unknown("", "x")), at(3, 4, done("", "y")), at(5, 6, load("y"))}, true},
		"unknown that happened late":                     {[]linear.Call{at(1, 2, unknown("", "x")), at(3, 4, load()), at(5, 6, load("x"))}, true},
		"a load beside an append sees either":            {[]linear.Call{at(1, 9, done("", "x")), at(2, 3, load()), at(4, 5, load("x"))}, true},
		"two behind the same":                            {[]linear.Call{at(1, 9, done("", "x")), at(2, 8, done("", "y"))}, false},
		"refused where nothing stood in its way":         {[]linear.Call{at(1, 2, done("", "x")), at(3, 4, refused("x", "y")), at(5, 6, done("x", "z"))}, false},
		"acknowledged and lost":                          {[]linear.Call{at(1, 2, done("", "x")), at(3, 4, load())}, false},
		"read before it was":                             {[]linear.Call{at(1, 2, load("x")), at(3, 4, done("", "x"))}, false},
		"read, then gone":                                {[]linear.Call{at(1, 2, unknown("", "x")), at(3, 4, load("x")), at(5, 6, load())}, false},
		"in another order than they followed each other": {[]linear.Call{at(1, 2, done("", "x")), at(3, 4, done("x", "y")), at(5, 6, load("y", "x"))}, false},
		"a hole": {[]linear.Call{at(1, 2, done("", "x")), at(3, 4, done("x", "y")), at(5, 6, load("y"))}, false},
		"behind an event that its own time cannot know": {[]linear.Call{at(1, 2, done("x", "y")), at(3, 4, done("", "x"))}, false},
		"twice": {[]linear.Call{at(1, 2, done("", "x")), at(3, 4, load("x", "x"))}, false},
	} {
		t.Run(name, func(t *testing.T) {
			v := linear.Judge(c.calls, time.Minute)
			require.Equal(t, c.ok, v.OK(), "%+v", v)
			if !c.ok {
				require.Equal(t, []string{"a"}, v.Illegal)
			}
		})
	}
}

func TestWhatCannotBeDecidedInTimeIsNotOK(t *testing.T) {
	var calls []linear.Call
	for range 400 {
		calls = append(calls, at(1, 2, unknown("", ids.New())))
	}
	calls = append(calls, at(3, 4, done("no such", "x")))
	v := linear.Judge(calls, time.Millisecond)
	require.False(t, v.OK())
}

// leaky is a log that acknowledges some appends without making them.
type leaky struct{ eventlog.Log }

func (l leaky) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	if rand.IntN(10) == 0 {
		return nil, nil
	}
	return l.Log.Append(ctx, agg, after, events...)
}

func TestRecordedClientsOfALog(t *testing.T) {
	for name, c := range map[string]struct {
		log eventlog.Log
		ok  bool
	}{
		"that keeps what it acknowledges": {memlog.New(), true},
		"that loses some of it":           {leaky{memlog.New()}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rec := linear.NewRecorder()
			agg := subject.Sandbox("acme", ids.New())
			var clients sync.WaitGroup
			for i := range 4 {
				log := rec.Log(i, c.log, true)
				clients.Go(func() {
					for range 50 {
						h, err := log.Load(t.Context(), agg)
						if err == nil {
							_, _ = log.Append(t.Context(), agg, h.Tail(), envelope.Event{Meta: envelope.Meta{ID: ids.New()}, Body: &eventsv1.SandboxStopping{}})
						}
					}
				})
			}
			clients.Wait()
			appended, _ := rec.Count()
			require.NotZero(t, appended)
			require.Len(t, rec.Calls(), 400)
			require.True(t, slices.ContainsFunc(rec.Calls(), func(c linear.Call) bool { return c.After != "" }))
			require.Equal(t, c.ok, linear.Judge(rec.Calls(), time.Minute).OK())
		})
	}
}

func TestRecorderRefusesWhatItsModelDoesNotKnow(t *testing.T) {
	log := linear.NewRecorder().Log(1, memlog.New(), true)
	agg := subject.Sandbox("acme", ids.New())
	event := func() envelope.Event {
		return envelope.Event{Meta: envelope.Meta{ID: ids.New()}, Body: &eventsv1.SandboxStopping{}}
	}
	_, err := log.Append(t.Context(), agg, eventlog.Tail{}, event(), event())
	require.True(t, fault.Is(err, fault.ReasonValidation))
	_, err = log.Append(t.Context(), agg, eventlog.Tail{Seq: 1, Digest: make([]byte, 32)}, event())
	require.True(t, fault.Is(err, fault.ReasonValidation))
	_, err = log.AppendBatch(t.Context())
	require.True(t, fault.Is(err, fault.ReasonValidation))
}

// One aggregate of a long run: clients that overlap, some refused, some never answered.
func BenchmarkJudge(b *testing.B) {
	var calls []linear.Call
	last, at := "", int64(0)
	for range 10_000 {
		id := ids.New()
		c := linear.Call{Aggregate: "a", After: last, ID: id, Began: at, Ended: at + 30, Client: len(calls) % 4}
		switch n := rand.IntN(100); {
		case n < 2:
			c.Unknown = true
			if n == 0 {
				last = id
			}
		case n < 30:
			c.After = "another"
		default:
			c.Done, last = true, id
		}
		calls = append(calls, c)
		at += 10
	}
	b.ResetTimer()
	for b.Loop() {
		require.Empty(b, linear.Judge(calls, 2*time.Minute))
	}
}
