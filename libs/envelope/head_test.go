package envelope_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
)

// headOf is the head of what the client makes of a block.
func headOf(block string) envelope.Head {
	h, err := nats.DecodeHeadersMsg([]byte(block))
	if err != nil {
		return envelope.Head{}
	}
	return envelope.HeadOf(h)
}

func TestReadHeadGivesWhatTheClientGives(t *testing.T) {
	whole := "NATS/1.0\r\nNats-Msg-Id: i\r\nSandtrail-Type:t\r\nSandtrail-Schema: \t1\r\nSandtrail-Tenant: a:b\r\nSandtrail-Actor: dev\r\nSandtrail-Cause: c\r\n" +
		"Sandtrail-Correlation: x y \r\nSandtrail-Time: 2026\r\nSandtrail-Digest: ff\r\ntraceparent: p\r\ntracestate: s\r\nOther: o\r\n\r\n"
	require.Equal(t, envelope.Head{
		ID: "i", Type: "t", Schema: "1", Tenant: "a:b", Actor: "dev", Cause: "c", Correlation: "x y ", Time: "2026", Digest: "ff", Traceparent: "p", Tracestate: "s",
	}, envelope.ReadHead(whole))
	for _, block := range []string{
		whole, "", "NATS/1.0", "NATS/1.0\r\n", "NATS/1.0\r\n\r\n", "HTTP/1.0\r\nNats-Msg-Id: i\r\n\r\n", "NATS/1.0 100 Idle Heartbeat\r\n\r\n",
		"NATS/1.0\r\nNats-Msg-Id: i\r\n", "NATS/1.0\r\nNats-Msg-Id i\r\n\r\n", "NATS/1.0\r\n: i\r\nNats-Msg-Id: j\r\n\r\n", "NATS/1.0\nNats-Msg-Id: i\n\n",
		"NATS/1.0\r\nNats-Msg-Id: i\r\nNats-Msg-Id: j\r\n\r\n", "NATS/1.0\r\nNats-Msg-Id:\r\nNats-Msg-Id: j\r\n\r\n", "NATS/1.0\r\nnats-msg-id: i\r\n\r\n",
	} {
		require.Equal(t, headOf(block), envelope.ReadHead(block), "%q", block)
	}
	// And of what is nearly one.
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		b := []byte(whole)
		for range 1 + r.IntN(3) {
			switch at := r.IntN(len(b)); r.IntN(3) {
			case 0:
				b[at] = "\r\n: \tNx"[r.IntN(7)]
			case 1:
				b = append(b[:at], b[at+1:]...)
			default:
				b = append(b[:at:at], append([]byte(strings.Repeat("Nats-Msg-Id: z\r\n", r.IntN(2))), b[at:]...)...)
			}
		}
		require.Equal(t, headOf(string(b)), envelope.ReadHead(string(b)), "seed %d: %q", seed, b)
	}
}
