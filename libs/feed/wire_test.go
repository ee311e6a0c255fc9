package feed

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func TestParsesBothFormsOfAReply(t *testing.T) {
	for _, reply := range []string{
		"$JS.ACK.EVT.abc.1.7001.12.1780000000123456789.5",
		"$JS.ACK._.ACC.EVT.abc.1.7001.12.1780000000123456789.5",
		"$JS.ACK.hub.ACC.EVT.abc.1.7001.12.1780000000123456789.5.tok",
	} {
		m := &nats.Msg{Subject: "evt.a.sandbox.s", Reply: reply, Data: []byte("x")}
		got, ok := parse(m)
		require.True(t, ok, reply)
		require.Equal(t, numbered{
			Message:   Message{Subject: m.Subject, Seq: 7001, Stored: 1780000000123456789, Left: 5, Data: m.Data},
			delivered: 12,
		}, got)
		require.Zero(t, testing.AllocsPerRun(100, func() { parse(m) }))
	}
}

func TestWhatIsNoPlaceDoesNotParse(t *testing.T) {
	for _, reply := range []string{
		"", "_INBOX.a.b", "$JS.ACK", "$JS.ACK.EVT.abc.1.7001.12.1780000000123456789", "$JS.ACK.EVT.abc.1.7001.12.1780000000123456789.5.6",
		"$JS.ACK.EVT.abc.1..12.1780000000123456789.5", "$JS.ACK.EVT.abc.1.x.12.1780000000123456789.5", "$JS.FC.EVT.abc.1.7001.12.1780000000123456789.5",
		"$JS.ACK.a.b.c.d.1.2.3.4.5.6.7.8", "$JS.ACK.EVT.abc.1.7001.12.1780000000123456789.999999999999999999999",
	} {
		_, ok := parse(&nats.Msg{Reply: reply})
		require.False(t, ok, reply)
	}
}
