package feed

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// pieces gives what it holds in pieces of any size.
type pieces struct {
	net.Conn
	r    *rand.Rand
	rest []byte
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), 1+p.r.IntN(40))], p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// TestLinesOfMessagesAreChangedAndNothingElse reads what a server says in any pieces, also where data looks like a line.
func TestLinesOfMessagesAreChangedAndNothingElse(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		var said, want strings.Builder
		for range r.IntN(20) {
			data := strings.Repeat([]string{"x", "HMSG a 1 b 1 2\r\n", "\r\n", "MSG a 1 1\r\n"}[r.IntN(4)], r.IntN(10))
			block := "NATS/1.0\r\nA: b\r\n\r\n"
			switch r.IntN(5) {
			case 0:
				fmt.Fprintf(&said, "HMSG evt.a.sandbox.s 1 $JS.ACK.x %d %d\r\n%s%s\r\n", len(block), len(block)+len(data), block, data)
				fmt.Fprintf(&want, "MSG \x01%d:evt.a.sandbox.s 1 $JS.ACK.x %d\r\n%s%s\r\n", len(block), len(block)+len(data), block, data)
			case 1:
				fmt.Fprintf(&said, "HMSG _INBOX.a 1 %d %d\r\n%s\r\n", len(block), len(block), block)
				fmt.Fprintf(&want, "MSG \x01%d:_INBOX.a 1 %d\r\n%s\r\n", len(block), len(block), block)
			case 2:
				line := fmt.Sprintf("MSG evt.a.sandbox.s 1 %d\r\n%s\r\n", len(data), data)
				said.WriteString(line)
				want.WriteString(line)
			default:
				line := []string{"PING\r\n", "+OK\r\n", "INFO {\"a\":\"HMSG a 1 b 1 2\"}\r\n"}[r.IntN(3)]
				said.WriteString(line)
				want.WriteString(line)
			}
		}
		c := &conn{Conn: &pieces{r: r, rest: []byte(said.String())}}
		var got bytes.Buffer
		b := make([]byte, 64+r.IntN(200))
		for {
			n, err := c.Read(b)
			got.Write(b[:n])
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
		}
		require.Equal(t, want.String(), got.String(), "seed %d", seed)
	}
}

func TestHeadersAreCutOffTheData(t *testing.T) {
	for _, c := range []struct{ subject, data, wantSubject, wantBlock, wantData string }{
		{"\x013:evt.a", "hhhdata", "evt.a", "hhh", "data"},
		{"\x010:evt.a", "data", "evt.a", "", "data"},
		{"evt.a", "data", "evt.a", "", "data"},
		{"3:evt.a", "data", "3:evt.a", "", "data"},
		{"\x019:evt.a", "data", "\x019:evt.a", "", "data"},
		{"\x01x:evt.a", "data", "\x01x:evt.a", "", "data"},
		{"", "data", "", "", "data"},
	} {
		subject, block, data := headers(&nats.Msg{Subject: c.subject, Data: []byte(c.data)})
		require.Equal(t, []string{c.wantSubject, c.wantBlock, c.wantData}, []string{subject, string(block), string(data)})
	}
}
