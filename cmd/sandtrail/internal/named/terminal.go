package named

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// terminalProtocol is the server's way to speak of more than bytes.
const terminalProtocol = "sandtrail.terminal.v1"

const (
	// maxShown bounds one message from the server: a chunk of output and its number.
	maxShown = 1 << 20
	// helloTime bounds the wait for the first message.
	helloTime = 30 * time.Second
	// pingEvery is how often the server is asked whether it is there, pingTime how long it may take to answer.
	pingEvery, pingTime = 15 * time.Second, 20 * time.Second
)

// TerminalOptions say what terminal is wanted.
type TerminalOptions struct {
	Columns, Rows int
	// Term is the kind of the caller's own terminal; empty is the server's choice.
	Term string
	// Execution is one to come back to, behind chunk After; 0: with what it showed last.
	Execution string
	After     uint64
	// Detach lets what runs live when its last reader has left.
	Detach bool
}

// Terminal is a connection to a terminal in a sandbox. Next is for one goroutine, Type and Resize for any.
type Terminal struct {
	conn *websocket.Conn
	stop func()
	// Execution is to come back to.
	Execution string
	// Input is how much was typed to it so far; Typing is false where it takes no more.
	Input  uint64
	Typing bool
}

// Shown is what a terminal has to tell: output, or one of the others.
type Shown struct {
	// Chunk is the number of Data's chunk.
	Chunk uint64
	Data  []byte
	// Dropped bytes are missing here.
	Dropped uint64
	// Exit is its end.
	Exit *TerminalExit
}

// TerminalExit is how what ran on a terminal ended.
type TerminalExit struct {
	Code int
	// Reason is exited, signaled, timed_out, …; Message is for people.
	Reason, Message string
}

// ErrTaken: somebody else has the terminal now.
var ErrTaken = errors.New("somebody else has the terminal now")

// message is one of the protocol.
type message struct {
	Type      string              `json:"type"`
	Execution string              `json:"execution,omitempty"`
	Input     *uint64             `json:"input,omitempty"`
	Bytes     uint64              `json:"bytes,omitempty"`
	Code      *int                `json:"code,omitempty"`
	Reason    string              `json:"reason,omitempty"`
	Message   string              `json:"message,omitempty"`
	Columns   int                 `json:"columns,omitempty"`
	Rows      int                 `json:"rows,omitempty"`
	Error     *fault.ProblemError `json:"error,omitempty"`
}

// Terminal opens a terminal in a sandbox, or comes back to one. A refusal is a *fault.Error.
func (c *Client) Terminal(ctx context.Context, box string, o TerminalOptions) (*Terminal, error) {
	q := url.Values{"cols": {strconv.Itoa(o.Columns)}, "rows": {strconv.Itoa(o.Rows)}}
	if o.Term != "" {
		q.Set("term", o.Term)
	}
	if o.Execution != "" {
		q.Set("execution", o.Execution)
	}
	if o.After > 0 {
		q.Set("after", strconv.FormatUint(o.After, 10))
	}
	if o.Detach {
		q.Set("detach", "true")
	}
	header := http.Header{}
	c.identify(header)
	to := "ws" + strings.TrimPrefix(c.options.URL, "http") + Box(box, "pty") + "?" + q.Encode()
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	options := &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{terminalProtocol}}
	conn, res, err := websocket.Dial(ctx, to, options) //nolint:bodyclose // it is the connection's, or read already
	switch {
	case err == nil:
	case res != nil && res.StatusCode != http.StatusSwitchingProtocols:
		return nil, refused(res)
	case errors.Is(context.Cause(ctx), context.Canceled):
		return nil, context.Cause(ctx)
	default:
		return nil, c.unreached(err)
	}
	conn.SetReadLimit(maxShown)
	t := &Terminal{conn: conn, stop: func() {}}
	if conn.Subprotocol() != terminalProtocol {
		t.Close()
		return nil, fault.New(fault.FailedPrecondition, fault.ReasonNotImplemented, "the server opens terminals, but not as this program knows them")
	}
	if err := t.hello(ctx); err != nil {
		t.Close()
		return nil, err
	}
	alive, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	go t.ping(alive)
	return t, nil
}

// ping cuts a connection whose other end is gone.
func (t *Terminal) ping(ctx context.Context) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		wait, cancel := context.WithTimeout(ctx, pingTime)
		err := t.conn.Ping(wait)
		cancel()
		if err != nil {
			_ = t.conn.CloseNow()
			return
		}
	}
}

func (t *Terminal) hello(ctx context.Context) error {
	kind, data, err := t.conn.Read(ctx)
	if err != nil {
		return broken(err)
	}
	var m message
	if kind != websocket.MessageText || json.Unmarshal(data, &m) != nil {
		return broken(errors.New("it does not begin with a greeting"))
	}
	if m.Type != "hello" {
		_, err := told(m)
		return err
	}
	t.Execution, t.Typing = m.Execution, m.Input != nil
	if t.Typing {
		t.Input = *m.Input
	}
	return nil
}

// broken is the fault of a connection that ended without a word of the server.
func broken(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonWorkerUnavailable, "the connection broke").Because(err)
}

// Next waits for what comes next. Unavailable: the connection is gone, and the terminal may be come back to. ErrTaken, and any other
// fault: it is not to be had any more.
func (t *Terminal) Next(ctx context.Context) (Shown, error) {
	for {
		kind, data, err := t.conn.Read(ctx)
		if err != nil {
			return Shown{}, broken(err)
		}
		if kind == websocket.MessageBinary {
			if len(data) < 8 {
				return Shown{}, broken(errors.New("a piece of output has no number"))
			}
			return Shown{Chunk: binary.BigEndian.Uint64(data), Data: data[8:]}, nil
		}
		var m message
		if err := json.Unmarshal(data, &m); err != nil {
			return Shown{}, broken(err)
		}
		shown, err := told(m)
		if err != nil || shown.Exit != nil || shown.Dropped > 0 {
			return shown, err
		}
	}
}

// told is what a message says; nothing for one that this program does not know.
func told(m message) (Shown, error) {
	switch m.Type {
	case "gap":
		return Shown{Dropped: m.Bytes}, nil
	case "exit":
		x := &TerminalExit{Reason: m.Reason, Message: m.Message}
		if m.Code != nil {
			x.Code = *m.Code
		}
		return Shown{Exit: x}, nil
	case "taken":
		return Shown{}, ErrTaken
	case "error":
		if m.Error == nil {
			return Shown{}, broken(errors.New("an error without a word"))
		}
		return Shown{}, problemFault(*m.Error)
	}
	return Shown{}, nil
}

// Type sends what was typed.
func (t *Terminal) Type(ctx context.Context, data []byte) error {
	return t.conn.Write(ctx, websocket.MessageBinary, data)
}

// Resize sends a size.
func (t *Terminal) Resize(ctx context.Context, columns, rows int) error {
	data, err := json.Marshal(message{Type: "resize", Columns: columns, Rows: rows})
	if err != nil {
		return fmt.Errorf("encode a size: %w", err)
	}
	return t.conn.Write(ctx, websocket.MessageText, data)
}

// Leave says that nobody is here any more.
func (t *Terminal) Leave() {
	t.stop()
	_ = t.conn.Close(websocket.StatusNormalClosure, "")
}

// Close cuts the connection.
func (t *Terminal) Close() {
	t.stop()
	_ = t.conn.CloseNow()
}
