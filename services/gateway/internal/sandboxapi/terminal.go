package sandboxapi

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// terminalProtocol is the WebSocket subprotocol of clients that speak of more than bytes. With it binary messages to the client begin with
// the number of their chunk, eight bytes, most significant first, and text messages both ways are terminalMessages. Without it binary and
// text messages to the server are what is typed, but for binary ones that are a size; and all messages to the client are what the terminal
// shows.
const terminalProtocol = "sandtrail.terminal.v1"

const (
	// maxTypedMessage bounds one message, typedMessages those that wait for the terminal: more are not read.
	maxTypedMessage = 256 << 10
	typedMessages   = 8
	// typedAtOnce is how much of what waits is typed at once.
	typedAtOnce = 64 << 10
	// pingEvery is how often the client is asked whether it is there, pingTime how long it may take to answer.
	pingEvery, pingTime = 15 * time.Second, 20 * time.Second
	// resizeEvery is the least time between two sizes; of those in between only the last counts.
	resizeEvery = 100 * time.Millisecond
	// typistTime bounds taking the terminal over.
	typistTime = 15 * time.Second
)

// Close codes of our own.
const (
	closeTaken websocket.StatusCode = 4001
	closeLost  websocket.StatusCode = 4002
	closeFault websocket.StatusCode = 4003
)

// Why a connection ends before its command does.
var (
	errLeft     = errors.New("the client left")
	errTaken    = errors.New("somebody else has the terminal")
	errStopping = errors.New("the server stops")
)

// terminalMessage is a text message of the subprotocol. To the client: hello (execution, input), gap (bytes), pending, exit (code, reason,
// message), taken, error (error). From it: resize (columns, rows).
type terminalMessage struct {
	Type string `json:"type"`
	// Execution is to come back to, Input how many bytes were typed to it so far.
	Execution string  `json:"execution,omitempty"`
	Input     *uint64 `json:"input,omitempty"`
	// Bytes were dropped here.
	Bytes   uint64 `json:"bytes,omitempty"`
	Code    *int32 `json:"code,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	Columns uint32 `json:"columns,omitempty"`
	Rows    uint32 `json:"rows,omitempty"`

	Error *fault.ProblemError `json:"error,omitempty"`
}

// terminal is one connection to a terminal. It follows the exec, so its methods Named and Output are called one after another.
type terminal struct {
	*call
	box, id string
	ask     terminalRequest
	// ctx ends with its cause when the connection is to end; wire, on which messages travel, when it has.
	ctx    context.Context //nolint:containedctx // of the connection
	cancel context.CancelCauseFunc
	wire   context.Context //nolint:containedctx // of the connection
	cut    context.CancelFunc

	conn *websocket.Conn
	// speaks: the client knows the subprotocol.
	speaks bool
	typist *usecase.Typist
	// midway: what is shown first begins in the middle of a line.
	midway bool
	typed  chan []byte
	sizes  chan *commonv1.TerminalSize
	// full: nothing is read from the client until the terminal takes what was typed.
	full atomic.Bool
	work sync.WaitGroup
}

func newTerminal(c *call, box string, ask terminalRequest) *terminal {
	t := &terminal{call: c, box: box, ask: ask, typed: make(chan []byte, typedMessages), sizes: make(chan *commonv1.TerminalSize, 1)}
	t.ctx, t.cancel = context.WithCancelCause(c.ctx)
	t.wire, t.cut = context.WithCancel(context.WithoutCancel(c.ctx))
	return t
}

// Named implements usecase.Watcher.
func (t *terminal) Named(id string) error {
	t.id = id
	t.w.Header().Set(headerExecution, id)
	return nil
}

// Output implements usecase.Watcher. The connection becomes a WebSocket once there is something to say: what is refused before is refused
// as on any other route.
func (t *terminal) Output(i output.Item) error {
	if t.conn == nil {
		if err := t.open(); err != nil {
			return err
		}
	}
	switch {
	case i.Pending:
		return t.tell(terminalMessage{Type: "pending"})
	case i.Chunk == nil:
		return nil // silence is broken by pings
	case i.Chunk.GapTo > 0:
		return t.tell(terminalMessage{Type: "gap", Bytes: i.Chunk.GapTo - i.Chunk.Offset})
	}
	data := i.Chunk.Data
	if t.midway {
		t.midway = false
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	if len(data) == 0 && !t.speaks {
		return nil
	}
	if t.speaks {
		data = append(binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(data)), i.Chunk.Number), data...)
	}
	return t.send(websocket.MessageBinary, data)
}

// open makes the connection a WebSocket and takes the terminal.
func (t *terminal) open() error {
	conn, err := websocket.Accept(t.w, t.r, &websocket.AcceptOptions{
		Subprotocols:       []string{terminalProtocol},
		InsecureSkipVerify: true, // looked at before
	})
	t.Status = http.StatusSwitchingProtocols
	if err != nil {
		return err
	}
	conn.SetReadLimit(maxTypedMessage)
	t.conn, t.speaks = conn, conn.Subprotocol() == terminalProtocol
	wait, cancel := context.WithTimeout(t.ctx, typistTime)
	defer cancel()
	t.typist, err = t.use.Typist(wait, t.p, t.box, t.id, t.ask.exec == "")
	if fault.CodeOf(err) == fault.FailedPrecondition {
		err = nil // it has ended: there is only to look at
	}
	if err != nil {
		return err
	}
	hello := terminalMessage{Type: "hello", Execution: t.id}
	if t.typist != nil {
		input := t.typist.Offset()
		hello.Input = &input
	}
	if err := t.tell(hello); err != nil {
		return err
	}
	t.work.Go(t.read)
	t.work.Go(t.ping)
	if t.typist != nil {
		if t.ask.exec != "" && t.ask.sized {
			t.resize(t.ask.size)
		}
		t.work.Go(t.watch)
		t.work.Go(t.write)
		t.work.Go(t.fit)
	}
	return nil
}

// send gives the client edge.WriteTime to take a message.
func (t *terminal) send(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(t.wire, edge.WriteTime)
	defer cancel()
	return t.conn.Write(ctx, kind, data)
}

// tell sends a message of the subprotocol; other clients would take it for output.
func (t *terminal) tell(m terminalMessage) error {
	if !t.speaks {
		return nil
	}
	data, err := json.Marshal(m)
	if err != nil {
		return fault.From(err)
	}
	return t.send(websocket.MessageText, data)
}

// read takes what the client sends until it leaves.
func (t *terminal) read() {
	for {
		kind, data, err := t.conn.Read(t.wire)
		if err != nil {
			t.cancel(errLeft)
			return
		}
		if t.typist == nil {
			continue
		}
		if kind == websocket.MessageText && t.speaks {
			var m terminalMessage
			if json.Unmarshal(data, &m) != nil {
				t.cancel(malformed("a text message of this protocol is a JSON object"))
				return
			}
			if size := (&commonv1.TerminalSize{Columns: m.Columns, Rows: m.Rows}); m.Type == "resize" && sizeFits(size) {
				t.resize(size)
			}
			continue
		}
		if size, ok := sizeMessage(data); ok && kind == websocket.MessageBinary && !t.speaks {
			t.resize(size)
			continue
		}
		if !t.enter(data) {
			return
		}
	}
}

// enter queues what was typed; false: the connection ends.
func (t *terminal) enter(data []byte) bool {
	if len(data) == 0 {
		return true
	}
	if !t.memory.Take(len(data)) {
		t.cancel(edge.Busy())
		return false
	}
	select {
	case t.typed <- data:
		return true
	default:
	}
	t.full.Store(true)
	defer t.full.Store(false)
	select {
	case t.typed <- data:
		return true
	case <-t.ctx.Done():
		t.memory.Give(len(data))
		return false
	}
}

// write types what was queued.
func (t *terminal) write() {
	ended := false
	for {
		select {
		case data := <-t.typed:
			for more := true; more && len(data) < typedAtOnce; {
				select {
				case next := <-t.typed:
					data = append(data, next...)
				default:
					more = false
				}
			}
			var err error
			if !ended {
				err = t.typist.Type(t.ctx, data)
			}
			t.memory.Give(len(data))
			if fault.CodeOf(err) == fault.FailedPrecondition {
				ended = true // its end is on the way to the client
				err = nil
			}
			if err != nil {
				t.cancel(err)
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// resize queues a size in place of one that waits.
func (t *terminal) resize(size *commonv1.TerminalSize) {
	if size == nil {
		return
	}
	select {
	case <-t.sizes:
	default:
	}
	select {
	case t.sizes <- size:
	default: // another one came in between
	}
}

// fit gives the terminal its sizes.
func (t *terminal) fit() {
	for {
		select {
		case size := <-t.sizes:
			if err := t.typist.Resize(t.ctx, size); err != nil && t.ctx.Err() == nil {
				t.Log.DebugContext(t.ctx, "a terminal was not resized", "exec", t.id, "error", err)
			}
		case <-t.ctx.Done():
			return
		}
		pause := time.NewTimer(resizeEvery)
		select {
		case <-pause.C:
		case <-t.ctx.Done():
			pause.Stop()
			return
		}
	}
}

// ping finds out that a client is gone that did not say so.
func (t *terminal) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		if t.full.Load() {
			continue // its answer would not be read
		}
		ctx, cancel := context.WithTimeout(t.wire, pingTime)
		err := t.conn.Ping(ctx)
		cancel()
		if err != nil && !t.full.Load() {
			t.cancel(errLeft)
			return
		}
	}
}

func (t *terminal) watch() {
	select {
	case <-t.typist.Taken():
		t.cancel(errTaken)
	case <-t.use.Stopping():
		t.cancel(errStopping)
	case <-t.ctx.Done():
	}
}

// finish tells the client how it ended, and ends the connection. An error before there was one is answered like any other.
func (t *terminal) finish(err error) error {
	defer t.cut()
	if t.conn == nil && err == nil {
		err = t.open() // it ended before it had anything to say
	}
	if t.conn == nil {
		t.cancel(nil)
		return err
	}
	cause := context.Cause(t.ctx)
	t.cancel(nil)
	if t.typist != nil {
		t.typist.Close()
	}
	switch {
	case err == nil:
		t.exited()
	case errors.Is(cause, errTaken):
		t.last(terminalMessage{Type: "taken"}, closeTaken, "somebody else has the terminal")
	case errors.Is(cause, errStopping):
		_ = t.conn.Close(websocket.StatusServiceRestart, "come back")
	case errors.Is(cause, errLeft):
	default:
		if cause != nil {
			err = cause
		}
		t.failed(err)
	}
	_ = t.conn.CloseNow()
	t.cut()
	t.work.Wait()
	for {
		select {
		case data := <-t.typed:
			t.memory.Give(len(data))
		default:
			return nil
		}
	}
}

// last says a last word. A client that does not take it is gone.
func (t *terminal) last(m terminalMessage, code websocket.StatusCode, why string) {
	_ = t.tell(m)
	_ = t.conn.Close(code, why)
}

// exited tells the end that is recorded.
func (t *terminal) exited() {
	x, err := t.use.Receipt(t.call.ctx, t.p, t.box, t.id)
	if err == nil {
		err = outcome(x)
	}
	if err != nil {
		t.failed(err)
		return
	}
	code := x.Completed.GetExitCode()
	t.last(terminalMessage{Type: "exit", Code: &code, Reason: x.Completed.GetReason(), Message: x.Completed.GetMessage()}, websocket.StatusNormalClosure, x.Completed.GetReason())
}

func (t *terminal) failed(err error) {
	_, p := fault.HTTP(t.Shown(t.call.ctx, err), telemetry.Correlation(t.call.ctx))
	code := closeFault
	if p.Error.Reason == fault.ReasonExecLost {
		code = closeLost
	}
	t.last(terminalMessage{Type: "error", Error: &p.Error}, code, string(p.Error.Reason))
}
