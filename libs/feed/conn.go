package feed

import (
	"bytes"
	"net"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Reading headers into a map is half of what a message costs the client, and most readers need few of them. So a feed has a
// connection of its own, on which messages with headers are shown to the client as such without: what the server sends as
//
//	HMSG <subject> <sid> <reply> <size of headers> <size>
//
// the client reads as
//
//	MSG <mark><size of headers>:<subject> <sid> <reply> <size>
//
// which is as long, so that it can be changed where it stands. The headers are then the beginning of the data.
const mark = '\x01'

// dial connects like nc, for one feed. nil: a connection like nc cannot be looked into, or there is no other one to be had.
func dial(nc *nats.Conn) *nats.Conn {
	o := nc.Opts
	_, err := nc.TLSConnectionState()
	encrypted := err == nil || o.Secure || o.TLSConfig != nil || o.TLSHandshakeFirst
	if encrypted || strings.HasPrefix(nc.ConnectedUrl(), "ws") || !nc.IsConnected() {
		return nil
	}
	if o.InProcessServer != nil {
		o.InProcessServer = inProcess{o.InProcessServer}
	} else {
		o.CustomDialer = dialer{o.CustomDialer, net.Dialer{Timeout: o.Timeout}}
	}
	// The feed ends with its connection.
	o.AllowReconnect, o.RetryOnFailedConnect = false, false
	o.ConnectedCB, o.ClosedCB, o.DisconnectedErrCB, o.ReconnectedCB, o.ReconnectErrCB, o.DiscoveredServersCB = nil, nil, nil, nil, nil, nil
	o.AsyncErrorCB, o.LameDuckModeHandler = func(*nats.Conn, *nats.Subscription, error) {}, nil
	if o.Name != "" {
		o.Name += "-feed"
	}
	own, err := o.Connect()
	if err != nil {
		return nil
	}
	return own
}

type inProcess struct{ nats.InProcessConnProvider }

func (p inProcess) InProcessConn() (net.Conn, error) {
	c, err := p.InProcessConnProvider.InProcessConn()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

type dialer struct {
	custom nats.CustomDialer
	plain  net.Dialer
}

func (d dialer) Dial(network, address string) (c net.Conn, err error) {
	if d.custom != nil {
		c, err = d.custom.Dial(network, address)
	} else {
		c, err = d.plain.Dial(network, address)
	}
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// conn changes the lines before messages on their way to the client.
type conn struct {
	net.Conn
	// held is a line whose end has not come yet.
	held []byte
	// payload is how much of a message's data is to come.
	payload int
}

// Read reads whole lines and any part of data. A line that does not fit into p is given unchanged: the client refuses it.
func (c *conn) Read(p []byte) (int, error) {
	have := copy(p, c.held)
	c.held = c.held[:copy(c.held, c.held[have:])]
	if have == len(p) {
		return have, nil
	}
	for {
		n, err := c.Conn.Read(p[have:])
		have += n
		whole := c.pass(p[:have])
		if err != nil || have == len(p) && whole == 0 {
			return have, err
		}
		if whole > 0 {
			c.held = append(c.held[:0], p[whole:have]...)
			return whole, nil
		}
	}
}

// pass changes the lines in b and says where the last line begins that has no end.
func (c *conn) pass(b []byte) int {
	for at := 0; ; {
		n := min(c.payload, len(b)-at)
		at += n
		c.payload -= n
		if at == len(b) {
			return at
		}
		end := bytes.IndexByte(b[at:], '\n')
		if end < 0 {
			return at
		}
		c.line(b[at : at+end+1])
		at += end + 1
	}
}

// line looks at one line of the protocol, changes it where it is that of a message with headers, and takes note of the data
// behind it.
func (c *conn) line(l []byte) {
	headed := bytes.HasPrefix(l, []byte("HMSG "))
	if !headed && !bytes.HasPrefix(l, []byte("MSG ")) {
		return
	}
	last := bytes.LastIndexByte(l, ' ')
	size, ok := number(string(bytes.TrimRight(l[last+1:], "\r\n")))
	if !ok {
		return
	}
	c.payload = int(size) + len("\r\n") //nolint:gosec // the server bounds it
	if !headed {
		return
	}
	before := bytes.LastIndexByte(l[:last], ' ')
	if before < len("HMSG ") {
		return
	}
	// The size of the headers goes from the end to the front: "HMSG a 1 b 12 34" becomes "MSG \x0112:a 1 b 34".
	const front = len("MSG ") + 1
	var digits [20]byte
	d := copy(digits[:], l[before+1:last])
	copy(l[front+d+1:], l[len("HMSG "):before])
	copy(l, "MSG ")
	l[front-1] = mark
	copy(l[front:], digits[:d])
	l[front+d] = ':'
}

// headers splits a message that such a connection gave: its subject, the block of its headers and its data.
func headers(m *nats.Msg) (subject string, block, data []byte) {
	if m.Subject == "" || m.Subject[0] != mark {
		return m.Subject, nil, m.Data
	}
	for i := 1; i < len(m.Subject); i++ {
		if m.Subject[i] != ':' {
			continue
		}
		n, err := strconv.Atoi(m.Subject[1:i])
		if err != nil || n > len(m.Data) {
			break
		}
		return m.Subject[i+1:], m.Data[:n], m.Data[n:]
	}
	return m.Subject, nil, m.Data
}
