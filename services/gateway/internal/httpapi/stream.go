package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
)

// event is one of the stream of a command: stdout, stderr, then exit or error, then done.
type event struct {
	Type string `json:"type"`
	// Data is output, text or base64 by its encoding; Gap names bytes of the stream that were dropped instead.
	Data     string `json:"data,omitempty"`
	Encoding string `json:"encoding,omitempty"`
	Gap      *gap   `json:"gap,omitempty"`
	// Execution is the answer that execute gives without a stream, its output left out.
	Execution *execution          `json:"execution,omitempty"`
	ExitCode  *int32              `json:"exit_code,omitempty"`
	Error     *fault.ProblemError `json:"error,omitempty"`
}

type gap struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// stream runs a command and sends its output as server-sent events. Each is one line of JSON, so that nothing that a program prints can
// be taken for an event.
func (c *call) stream(req *computev1.ExecCommandRequest) error {
	w := &events{call: c}
	_, err := c.use.Exec(c.ctx, c.p, c.key, req, w)
	if c.Status == 0 && err != nil {
		return err
	}
	return w.finish(req.GetSandboxId(), err)
}

// finish sends how an exec ended that was followed to its end, or why it could not be.
func (w *events) finish(box string, err error) error {
	c := w.call
	last := event{Type: "exit"}
	x, rerr := c.use.Receipt(c.ctx, c.p, box, w.id)
	out := describe(x)
	switch {
	case errors.Is(err, errPending) && rerr == nil && !x.Over():
		out.unresolved(recordPending)
		last = w.problem(fault.New(fault.Lost, fault.ReasonExecLost, "the command has ended, and how is not recorded yet; read the execution later"))
		last.Execution = &out
	case (err == nil || errors.Is(err, errPending)) && rerr == nil && out.Outcome != nil && *out.Outcome == known:
		last.Execution, last.ExitCode = &out, out.ExitCode
	case (err == nil || errors.Is(err, errPending)) && rerr == nil:
		last = w.problem(fault.Newf(fault.Lost, fault.ReasonExecLost, "the outcome is not known: %s", out.Message))
		last.Execution = &out
	default:
		last = w.problem(c.Shown(c.ctx, errors.Join(err, rerr)))
	}
	if err := w.send(last, 0); err != nil {
		return err
	}
	return w.send(event{Type: "done"}, 0)
}

// events sends what it is told as events.
type events struct {
	*call
	id      string
	pending pendingEnd
}

func (w *events) problem(err error) event {
	_, p := fault.HTTP(err, telemetry.Correlation(w.ctx))
	return event{Type: "error", Error: &p.Error}
}

func (w *events) Named(id string) error {
	w.id = id
	w.w.Header().Set(headerExecution, id)
	return nil
}

func (w *events) Output(i output.Item) error {
	if i.Pending {
		if err := w.pending.still(w.opt.PendingWait); err != nil {
			return err
		}
	}
	if i.Chunk == nil {
		return w.write([]byte(":\n\n")) // a comment, so that nobody takes the silence for an end
	}
	e := event{Type: i.Chunk.Stream}
	if i.Chunk.GapTo > 0 {
		e.Gap = &gap{From: i.Chunk.Offset, To: i.Chunk.GapTo}
	} else {
		e.Data, e.Encoding = encoded(i.Chunk.Data)
	}
	return w.send(e, i.Chunk.Number)
}

// send writes an event; number is that of the chunk it holds.
func (w *events) send(e event, number uint64) error {
	var b bytes.Buffer
	if number > 0 {
		b.WriteString("id: " + strconv.FormatUint(number, 10) + "\n")
	}
	b.WriteString("data: ")
	j := json.NewEncoder(&b)
	j.SetEscapeHTML(false)
	if err := j.Encode(e); err != nil {
		return fault.From(err)
	}
	b.WriteByte('\n')
	return w.write(b.Bytes())
}

func (w *events) write(b []byte) error { return w.Event(mediaSSE, b) }
