package check_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// copyOf is a run that a plant may damage.
type copyOf struct {
	t *testing.T
	h journal.History
	e evidence.Evidence
}

// call gives the first call that fits.
func (c *copyOf) call(fits func(journal.Call) bool) *journal.Call {
	c.t.Helper()
	i := slices.IndexFunc(c.h.Calls, fits)
	require.GreaterOrEqual(c.t, i, 0, "no such call")
	return &c.h.Calls[i]
}

// of is the first exec call of a program.
func (c *copyOf) of(token string) *journal.Call {
	c.t.Helper()
	return c.call(func(call journal.Call) bool { return call.Program != nil && call.Program.Token == token })
}

// made is the sandbox that a key made.
func (c *copyOf) made(key string) string {
	c.t.Helper()
	return c.call(func(call journal.Call) bool { return call.Op == journal.Create && call.Key == key }).Sandbox
}

func (c *copyOf) sandboxSubject(id string) string { return subject.Sandbox(tenant, id).Subject() }

func (c *copyOf) execSubject(token string) string {
	call := c.of(token)
	return subject.Exec(tenant, call.Sandbox, call.Exec).Subject()
}

func (c *copyOf) transcript(token string) *evidence.Transcript {
	c.t.Helper()
	id := c.of(token).Exec
	i := slices.IndexFunc(c.e.Transcripts, func(t evidence.Transcript) bool { return t.Exec == id })
	require.GreaterOrEqual(c.t, i, 0, "no transcript")
	return &c.e.Transcripts[i]
}

// rewrite makes another history of one aggregate, with ids, times and digests as if it had been appended so. Events keep their
// places; further ones stand behind all others.
func (c *copyOf) rewrite(at string, change func([]envelope.Event) []envelope.Event) {
	c.t.Helper()
	var places []int
	var was []envelope.Event
	for i, e := range c.e.Events {
		if e.Subject == at {
			r, err := e.Decode()
			require.NoError(c.t, err)
			places, was = append(places, i), append(was, envelope.Event{Meta: r.Meta, Body: r.Body})
		}
	}
	require.NotEmpty(c.t, was, "no events on %s", at)
	var digest []byte
	for i, e := range change(was) {
		m, d, err := envelope.Encode(at, e, digest)
		require.NoError(c.t, err)
		digest = d
		next := evidence.Event{Subject: at, Header: m.Header, Data: m.Data, Stored: e.Time}
		if i < len(places) {
			next.Seq = c.e.Events[places[i]].Seq
			c.e.Events[places[i]] = next
			continue
		}
		next.Seq = c.e.Events[len(c.e.Events)-1].Seq + 1
		c.e.Events = append(c.e.Events, next)
	}
	if n := len(change(was)); n < len(places) {
		for _, i := range slices.Backward(places[n:]) {
			c.e.Events = slices.Delete(c.e.Events, i, i+1)
		}
	}
}

// insert puts a new aggregate's event behind the events that fit, before everything else.
func (c *copyOf) insert(at string, e envelope.Event, behind func(evidence.Event) bool) {
	c.t.Helper()
	m, _, err := envelope.Encode(at, e, nil)
	require.NoError(c.t, err)
	place := 0
	for i, have := range c.e.Events {
		if behind(have) {
			place = i + 1
		}
	}
	require.NotZero(c.t, place)
	c.e.Events = slices.Insert(c.e.Events, place, evidence.Event{Subject: at, Header: m.Header, Data: m.Data, Stored: e.Time})
	for i := range c.e.Events {
		c.e.Events[i].Seq = uint64(i + 1)
	}
}

// again is an event once more, under another id.
func again(e envelope.Event) envelope.Event {
	e.ID, e.Body = ids.New(), proto.CloneOf(e.Body)
	return e
}

// body is the index of the first event with a body of this type.
func body[Body proto.Message](events []envelope.Event) int {
	return slices.IndexFunc(events, func(e envelope.Event) bool { _, ok := e.Body.(Body); return ok })
}

// change alters the first event of a type on a subject.
func change[Body proto.Message](c *copyOf, at string, how func(Body)) {
	c.t.Helper()
	c.rewrite(at, func(events []envelope.Event) []envelope.Event {
		i := body[Body](events)
		require.GreaterOrEqual(c.t, i, 0, "no such event")
		b := proto.CloneOf(events[i].Body)
		how(b.(Body))
		events = slices.Clone(events)
		events[i].Body = b
		return events
	})
}

// drop takes the first event of a type away.
func drop[Body proto.Message](c *copyOf, at string) {
	c.t.Helper()
	c.rewrite(at, func(events []envelope.Event) []envelope.Event {
		i := body[Body](events)
		require.GreaterOrEqual(c.t, i, 0, "no such event")
		return slices.Delete(slices.Clone(events), i, i+1)
	})
}

// double appends an event of a type once more.
func double[Body proto.Message](c *copyOf, at string) {
	c.t.Helper()
	c.rewrite(at, func(events []envelope.Event) []envelope.Event {
		i := body[Body](events)
		require.GreaterOrEqual(c.t, i, 0, "no such event")
		return append(slices.Clone(events), again(events[i]))
	})
}

// later moves the moment of the collection.
func (c *copyOf) later(by time.Duration) { c.e.Taken = c.e.Taken.Add(by) }

// host is the only one.
func (c *copyOf) host() *evidence.Host { return &c.e.Hosts[0] }

// found adds something to the host.
func (c *copyOf) found(r evidence.Resource) { c.host().Found = append(c.host().Found, r) }

// without takes what fits from the host away.
func (c *copyOf) without(fits func(evidence.Resource) bool) {
	c.t.Helper()
	n := len(c.host().Found)
	c.host().Found = slices.DeleteFunc(c.host().Found, fits)
	require.Less(c.t, len(c.host().Found), n, "nothing was taken away")
}

// row is a row of an exec.
func (c *copyOf) row(token string) evidence.Row {
	c.t.Helper()
	id := c.of(token).Exec
	i := slices.IndexFunc(c.e.Execs, func(r evidence.Row) bool { return r["exec_id"] == id })
	require.GreaterOrEqual(c.t, i, 0, "no row")
	return c.e.Execs[i]
}

// lose makes an exec's end one that is lost.
func (c *copyOf) lose(token string, lost *eventsv1.ExecLost) {
	c.t.Helper()
	c.rewrite(c.execSubject(token), func(events []envelope.Event) []envelope.Event {
		events = slices.Clone(events)
		i := body[*eventsv1.ExecCompleted](events)
		require.GreaterOrEqual(c.t, i, 0, "no end")
		events[i].Type, events[i].Body = "", lost
		return events
	})
}

// signalled says that the programs of a sandbox were sent a signal just when this one ended.
func (c *copyOf) signalled(token string, signal int32) {
	c.t.Helper()
	at := c.execSubject(token)
	for _, e := range c.e.Events {
		if r, err := e.Decode(); err == nil && e.Subject == at {
			c.e.Faults = []evidence.Fault{{At: r.Time, Kind: "signal", Sandbox: c.of(token).Sandbox, Signal: signal}}
		}
	}
}
