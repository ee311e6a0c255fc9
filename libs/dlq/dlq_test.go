package dlq_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
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

func TestFilters(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS, jslog.New(f.JS))
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for n := range uint64(6) {
		i := command(n + 1)
		i.Died = at.Add(time.Duration(n) * time.Hour)
		if n%2 == 1 {
			i.Stream, i.Subject, i.Reason, i.FaultReason = topology.StreamEvents, subject.Sandbox("acme", fmt.Sprint("s", n)).Subject(), dlq.ReasonPanic, "panic"
		}
		bury(t, f, i, "payload")
	}
	for name, c := range map[string]struct {
		filter dlq.Filter
		want   []uint64
	}{
		"stream":           {dlq.Filter{Stream: "EVT"}, []uint64{2, 4, 6}},
		"reason":           {dlq.Filter{Reason: dlq.ReasonPoison}, []uint64{1, 3, 5}},
		"cause":            {dlq.Filter{Cause: "panic"}, []uint64{2, 4, 6}},
		"older":            {dlq.Filter{Before: at.Add(2 * time.Hour)}, []uint64{1, 2}},
		"younger":          {dlq.Filter{Since: at.Add(4 * time.Hour)}, []uint64{5, 6}},
		"several, in part": {dlq.Filter{Stream: "EVT", Since: at.Add(2 * time.Hour), Limit: 1}, []uint64{4}},
		"next page":        {dlq.Filter{Stream: "EVT", After: 4, Limit: 1}, []uint64{6}},
		"none":             {dlq.Filter{Stream: "OUT"}, nil},
	} {
		page, err := q.List(t.Context(), c.filter)
		require.NoError(t, err, name)
		var got []uint64
		for _, l := range page {
			got = append(got, l.ID)
		}
		require.Equal(t, c.want, got, name)
	}
}

func TestALetterIsWhatItsConsumerSaysOfIt(t *testing.T) {
	f := natstest.Start(t)
	i := command(1)
	// A message may claim to be a letter, of whatever size and reason.
	h := nats.Header{"Sandtrail-Dead-Reason": {"attempts"}, "sandtrail-dead-omitted": {"7"}, "Sandtrail-Dead-Omitted": {"7"}, "Sandtrail-Dead-Code": {"x"}}
	i.Code = ""
	require.NoError(t, dlq.Store(t.Context(), f.JS, i, h, []byte("payload")))
	l, err := dlq.New(f.JS, nil).Show(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, dlq.ReasonPoison, l.Reason)
	require.Empty(t, l.Code)
	require.Zero(t, l.Omitted)
}

func TestListAndShow(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS, jslog.New(f.JS))
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
