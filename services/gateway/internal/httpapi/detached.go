package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
)

// accepted is the answer to a detached execute. It is the same however often that is repeated, and whatever became of the command.
type accepted struct {
	ExecutionID string `json:"execution_id"`
	SandboxID   string `json:"sandbox_id"`
	State       string `json:"state"`
	// URL is where to poll it, EventsURL where to follow it.
	URL       string `json:"url"`
	EventsURL string `json:"events_url"`
}

// errAccepted ends the following of a command that is left to itself.
var errAccepted = errors.New("it was accepted")

// untilAccepted follows an exec until its worker has it.
type untilAccepted struct{ id string }

func (w *untilAccepted) Named(id string) error {
	w.id = id
	return nil
}

func (w *untilAccepted) Output(i output.Item) error {
	if i.Accepted || i.Chunk != nil {
		return errAccepted
	}
	return nil // a heartbeat
}

// detach starts a command and answers once it is accepted.
func (c *call) detach(req *computev1.ExecCommandRequest) error {
	w := &untilAccepted{}
	if _, err := c.use.Exec(c.ctx, c.p, c.key, req, w); err != nil && !errors.Is(err, errAccepted) {
		return err
	}
	at := Base + "/sandbox/" + req.GetSandboxId() + "/executions/" + w.id
	c.w.Header().Set(headerExecution, w.id)
	c.w.Header().Set("Location", at)
	return c.answer(http.StatusAccepted, accepted{
		ExecutionID: w.id, SandboxID: req.GetSandboxId(), State: "accepted", URL: at, EventsURL: at + "/events",
	})
}

// both are the ids in the path.
func (c *call) both() (box, id string, err error) {
	if box, err = c.sandbox(); err != nil {
		return "", "", err
	}
	id, err = c.execution()
	return box, id, err
}

// events follows an exec, running or ended. The id of an event is the number of its chunk: who comes back with the last one that it has gets
// each byte once.
func (c *call) events() error {
	box, id, err := c.both()
	if err != nil {
		return err
	}
	after, err := c.lastEvent()
	if err != nil {
		return err
	}
	w := &events{call: c}
	_, err = c.use.Attach(c.ctx, c.p, box, id, after, w)
	if c.Status == 0 && err != nil {
		return names{"after_chunk": "last-event-id"}.in(err)
	}
	return w.finish(box, err)
}

// lastEvent is the header Last-Event-ID; 0 without one.
func (c *call) lastEvent() (uint64, error) {
	all := c.r.Header["Last-Event-Id"]
	if len(all) == 0 || len(all) == 1 && all[0] == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(all[0], 10, 64)
	if err != nil || len(all) > 1 {
		return 0, invalid(map[string]string{"last-event-id": "must be the id of an event of this stream, once"})
	}
	return n, nil
}

// cancelWait is how long a cancel waits for the end that it asks for.
const cancelWait = 15 * time.Second

// cancel ends a command and answers how it stands then.
func (c *call) cancel() error {
	box, id, err := c.both()
	if err == nil {
		err = c.none()
	}
	if err != nil {
		return err
	}
	if err := c.use.Cancel(c.ctx, c.p, c.key, box, id); err != nil {
		return err
	}
	// The end comes when none of its processes is left.
	x, err := c.use.AwaitEnd(c.ctx, c.p, box, id, cancelWait)
	if err != nil {
		return err
	}
	return c.replay(x)
}

// stdinTaken is how much of a standard input was taken.
type stdinTaken struct {
	// Offset is where the next write begins: less than what was sent where the command does not read on.
	Offset uint64 `json:"offset"`
	Closed bool   `json:"closed"`
}

// stdin writes to a standard input, and closes it.
func (c *call) stdin() error {
	box, id, err := c.both()
	if err != nil {
		return err
	}
	query, bad := c.r.URL.Query(), map[string]string{}
	offset, err := strconv.ParseUint(query.Get("offset"), 10, 63)
	if err != nil {
		bad["offset"] = "is needed: how many bytes of standard input come before the body"
	}
	eof := query.Get("close")
	if query.Has("close") && eof != "true" && eof != "false" {
		bad["close"] = "must be true or false"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	data, release, err := c.read(maxStdin, "")
	defer release()
	if err != nil {
		return err
	}
	taken, err := c.use.Stdin(c.ctx, c.p, box, id, offset, data, eof == "true")
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, stdinTaken{Offset: taken, Closed: eof == "true" && taken == offset+uint64(len(data))})
}
