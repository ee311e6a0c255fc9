package feed

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// FuzzParse: a place that we read is the one that the client reads.
func FuzzParse(f *testing.F) {
	for _, reply := range []string{
		"", "$JS.ACK.EVT.abc.1.7001.12.1780000000123456789.5", "$JS.ACK._.ACC.EVT.abc.1.7001.12.1780000000123456789.5", "$JS.ACK.hub.ACC.EVT.abc.1.7001.12.1780000000123456789.5.tok",
		"$JS.ACK.........", "$JS.ACK.EVT.abc.1.7001.12.1780000000123456789.18446744073709551616", "$JS.ACK.a.b.c.d.1.2.3.4.5.6.7",
	} {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		got, ok := parse(&nats.Msg{Subject: "s", Reply: reply})
		if !ok {
			return
		}
		m := &nats.Msg{Subject: "s", Reply: reply, Sub: &nats.Subscription{}}
		want, err := m.Metadata()
		require.NoError(t, err)
		require.Equal(t, want.Sequence.Stream, got.Seq)
		require.Equal(t, want.Sequence.Consumer, got.delivered)
		require.Equal(t, want.NumPending, got.Left)
		require.Equal(t, want.Timestamp.UnixNano(), got.Stored)
	})
}
