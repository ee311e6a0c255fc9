package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
)

// receipt answers what is recorded of an exec, by its id. It never waits for the end.
func (c *call) receipt() error {
	box, err := c.sandbox()
	if err != nil {
		return err
	}
	id, err := c.execution()
	if err != nil {
		return err
	}
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err != nil {
		return err
	}
	return c.replay(x)
}

// receiptByKey is receipt for who has only the key.
func (c *call) receiptByKey() error {
	box, err := c.sandbox()
	if err != nil {
		return err
	}
	x, err := c.use.ReceiptByKey(c.ctx, c.p, box, c.r.URL.Query().Get("idempotency_key"))
	if err != nil {
		return names{"idempotency-key": "idempotency_key"}.in(err)
	}
	return c.replay(x)
}

// replay answers an exec with the output that stands in the log, the same that the first caller got. Output that is no longer kept, or
// that is still coming, is left out.
func (c *call) replay(x sandbox.Exec) error {
	g := c.gather()
	g.id = x.ID
	defer g.Release()
	if x.Over() {
		if _, err := c.use.Attach(c.ctx, c.p, x.Sandbox, x.ID, 0, g); err != nil && !fault.Is(err, fault.ReasonCursorExpired) {
			return err
		}
	}
	c.w.Header().Set(headerExecution, x.ID)
	out := describe(x)
	g.into(&out, x)
	return c.answer(http.StatusOK, out)
}

// output answers all that is kept of one stream of an exec, as bytes; while it runs, as they come. Where bytes are missing in between
// the header Sandtrail-Gaps names them, and where that is not known beforehand the connection is cut.
func (c *call) output() error {
	box, err := c.sandbox()
	if err != nil {
		return err
	}
	id, err := c.execution()
	if err != nil {
		return err
	}
	stream := c.r.URL.Query().Get("stream")
	if stream != transcript.Stdout && stream != transcript.Stderr {
		return invalid(map[string]string{"stream": "must be stdout or stderr"})
	}
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	w := &raw{call: c, stream: stream, over: x.Over()}
	gaps := x.Completed.GetStdout().GetGaps()
	if stream == transcript.Stderr {
		gaps = x.Completed.GetStderr().GetGaps()
	}
	c.w.Header().Set(headerExecution, id)
	if len(gaps) > 0 {
		c.w.Header().Set("Sandtrail-Gaps", ranges(gaps))
	}
	if _, err = c.use.Attach(ctx, c.p, box, id, 0, w); err != nil {
		return err
	}
	return w.start()
}

func ranges(gaps []*eventsv1.Gap) string {
	var all []string
	for i, g := range gaps {
		if i == 32 {
			break
		}
		all = append(all, fmt.Sprintf("%d-%d", g.GetFrom(), g.GetTo()))
	}
	return strings.Join(all, ",")
}

// raw writes one stream of an exec.
type raw struct {
	*call
	stream string
	// over: the exec had ended before, so that its gaps are told.
	over bool
}

func (w *raw) Named(string) error { return nil }

func (w *raw) start() error {
	if w.Status == 0 {
		w.Begin(http.StatusOK, mediaBytes)
		w.w.WriteHeader(http.StatusOK)
	}
	return nil
}

func (w *raw) Output(i output.Item) error {
	if i.Chunk == nil || i.Chunk.Stream != w.stream {
		return nil
	}
	if err := w.start(); err != nil {
		return err
	}
	if i.Chunk.GapTo > 0 && !w.over {
		return fault.New(fault.FailedPrecondition, fault.ReasonCursorExpired, "output was dropped; read it again once the command has ended")
	}
	_ = w.rc.SetWriteDeadline(time.Now().Add(edge.WriteTime))
	if _, err := w.w.Write(i.Chunk.Data); err != nil {
		return err
	}
	if !w.over {
		return w.rc.Flush()
	}
	return nil
}
