package dlq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func bury(t *testing.T, f *natstest.Fixture, i dlq.Info, data string) uint64 {
	t.Helper()
	h := nats.Header{"Sandtrail-Correlation": {"c-1"}, nats.MsgIdHdr: {"m-1"}, nats.ExpectedLastSeqHdr: {"77"}}
	require.NoError(t, dlq.Store(t.Context(), f.JS, i, h, []byte(data)))
	s, err := f.JS.Stream(t.Context(), topology.StreamDead)
	require.NoError(t, err)
	m, err := s.GetLastMsgForSubject(t.Context(), subject.DeadLetter(i.Service, i.Consumer, i.Subject))
	require.NoError(t, err)
	return m.Sequence
}

func command(n uint64) dlq.Info {
	return dlq.Info{
		Service: "lifecycle", Consumer: topology.ConsumerScheduler, Reason: "poison", Attempts: 3, Stream: topology.StreamCommands,
		Seq: n, Subject: subject.SandboxCommand("acme", fmt.Sprint("s", n)), MessageID: "m-1", Code: "internal", FaultReason: "internal",
		Error: "a sentence", Stored: time.Unix(1, 2).UTC(), Died: time.Unix(3, 4).UTC(),
	}
}

func TestListAndShow(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS)
	for n := range uint64(5) {
		bury(t, f, command(n+1), "payload")
	}
	other := command(9)
	other.Service, other.Consumer = "exec", "exec-run-w1-v1"
	bury(t, f, other, "payload")
	require.Equal(t, uint64(1), bury(t, f, command(1), "payload"), "one message has one letter")

	page, err := q.List(t.Context(), dlq.Filter{Service: "lifecycle", Limit: 3})
	require.NoError(t, err)
	require.Len(t, page, 3)
	require.Equal(t, command(1), page[0].Info)
	require.Equal(t, 7, page[0].Size)
	require.Nil(t, page[0].Data)
	page, err = q.List(t.Context(), dlq.Filter{Service: "lifecycle", After: page[2].ID, Limit: 3})
	require.NoError(t, err)
	require.Len(t, page, 2)
	page, err = q.List(t.Context(), dlq.Filter{Consumer: "exec-run-w1-v1"})
	require.NoError(t, err)
	require.Len(t, page, 1)

	l, err := q.Show(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "payload", string(l.Data))
	_, err = q.Show(t.Context(), 99)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	for _, bad := range []dlq.Filter{{Limit: dlq.MaxPage + 1}, {Limit: -1}, {Service: ">"}, {Consumer: "a.b"}} {
		_, err = q.List(t.Context(), bad)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), "%+v", bad)
	}
}

func TestRedriveMakesTheMessageAgain(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS)
	id := bury(t, f, command(1), "payload")
	seq, err := q.Redrive(t.Context(), id)
	require.NoError(t, err)
	s, err := f.JS.Stream(t.Context(), topology.StreamCommands)
	require.NoError(t, err)
	m, err := s.GetMsg(t.Context(), seq)
	require.NoError(t, err)
	require.Equal(t, command(1).Subject, m.Subject)
	require.Equal(t, "payload", string(m.Data))
	require.Equal(t, "c-1", m.Header.Get("Sandtrail-Correlation"))
	require.Empty(t, m.Header.Get("Sandtrail-Dead-Reason"))
	_, err = q.Redrive(t.Context(), id)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func TestRedriveRefusesEvents(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS)
	i := command(1)
	i.Stream, i.Subject = topology.StreamEvents, subject.Sandbox("acme", "s1").Subject()
	id := bury(t, f, i, "payload")
	_, err := q.Redrive(t.Context(), id)
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err))
	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	require.Zero(t, s.CachedInfo().State.Msgs, "the log got nothing")
	_, err = q.Show(t.Context(), id)
	require.NoError(t, err, "the letter is kept")
}

func TestDrop(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS)
	id := bury(t, f, command(1), "payload")
	require.NoError(t, q.Drop(t.Context(), id))
	require.Equal(t, fault.NotFound, fault.CodeOf(q.Drop(t.Context(), id)))
	page, err := q.List(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	require.Empty(t, page)
}
