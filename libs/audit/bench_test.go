package audit

import (
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// story is n events of aggregates that have three each, whose events stand between those of others.
func story(t testing.TB, n int) []Entry {
	t.Helper()
	const open = 64
	var agg [open]string
	var tail [open][]byte
	all := make([]Entry, 0, n)
	for i := range n {
		k := i % open
		if i/open%3 == 0 {
			agg[k], tail[k] = fmt.Sprintf("evt.acme.exec.%s.%s", ids.New(), ids.New()), nil
		}
		m, d, err := envelope.Encode(agg[k], envelope.Event{
			Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Actor: "service:exec", Cause: ids.New(), Correlation: ids.New(), Time: began, Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
			Body: &eventsv1.ExecCompleted{WallTimeUs: 8123, Reason: "exited", LastChunk: 2, UsageEventId: ids.New(), SessionId: "bench", Stdout: &eventsv1.Output{Bytes: 1234, Sha256: make([]byte, 32)}},
		}, tail[k])
		require.NoError(t, err)
		tail[k] = d
		e := Entry{Subject: agg[k], Seq: uint64(i + 1), Data: m.Data}
		setHeader(&e, m.Header)
		all = append(all, e)
	}
	require.Len(t, hex.EncodeToString(tail[0]), 64)
	return all
}

func BenchmarkVerifyExport(b *testing.B) {
	const n = 300_000
	dir := b.TempDir()
	_, err := (&Export{Dir: dir, LogID: "l", To: n}).Run(b.Context(), lists(story(b, n)))
	require.NoError(b, err)
	for b.Loop() {
		s, err := OpenExport(dir, 1, nil)
		require.NoError(b, err)
		r := verify(b, s, Options{})
		require.True(b, r.OK())
	}
	b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "events/s")
}
