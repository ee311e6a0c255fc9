package sandboxapi

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/interpreter"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	// usualEnded and mostEnded bound how many execs that are over a list has.
	usualEnded, mostEnded = 100, 1000
	// maxShown is the most bytes of a command that are shown of it.
	maxShown = 1 << 10
	// maxInput is the most bytes of one write to a standard input.
	maxInput = 512 << 10
	// cancelWait is how long a cancel waits for the end that it asks for.
	cancelWait = 20 * time.Second
)

// listedExec is an exec as lists show it.
type listedExec struct {
	ExecutionID string `json:"execution_id"`
	// Command and its arguments, at most maxShown of them.
	Command []string `json:"command"`
	// Kind is command, terminal, session, context or watcher. Of the last three only the program is in Command.
	Kind string `json:"kind"`
	// State is PENDING, RUNNING, TERMINATED, or LOST where how it ended cannot be known.
	State     string     `json:"state"`
	Detach    bool       `json:"detach"`
	KeepStdin bool       `json:"keep_stdin"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	// ExitCode, Reason and Message are how it ended.
	ExitCode *int32 `json:"exit_code,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
}

func listedOf(x sandbox.Exec) listedExec {
	r := listedExec{ExecutionID: x.ID, State: "PENDING", Detach: x.Spec.GetDetach(), KeepStdin: x.Spec.GetKeepStdin(), CreatedAt: x.RequestedAt}
	r.Command, r.Kind = shownOf(x)
	if x.Started() {
		r.State, r.StartedAt = "RUNNING", &x.StartedAt
	}
	if x.Over() {
		r.EndedAt = &x.EndedAt
	}
	switch x.State {
	case sandbox.ExecCompleted:
		code := x.Completed.GetExitCode()
		r.State, r.ExitCode, r.Reason, r.Message = "TERMINATED", &code, x.Completed.GetReason(), x.Completed.GetMessage()
	case sandbox.ExecLost:
		r.State, r.Reason, r.Message = "LOST", x.Lost.GetReason(), x.Lost.GetMessage()
	}
	return r
}

// shownOf is what is shown of a command. What a session, a context or a watcher runs is a program of ours.
func shownOf(x sandbox.Exec) (command []string, kind string) {
	label, _ := usecase.LabelOf(x.Spec)
	_, context := interpreter.Maker(x)
	switch {
	case label == sessionLabel:
		return []string{x.Spec.GetCommand()}, "session"
	case context:
		return []string{x.Spec.GetCommand()}, "context"
	case x.Spec.GetCommand() == watchProgram:
		return []string{x.Spec.GetCommand()}, "watcher"
	case x.Spec.GetTerminal() != nil:
		kind = "terminal"
	default:
		kind = "command"
	}
	left := maxShown
	for _, word := range append([]string{x.Spec.GetCommand()}, x.Spec.GetArgs()...) {
		if len(word) > left {
			return append(command, strings.ToValidUTF8(word[:left], "")+"…"), kind
		}
		command, left = append(command, word), left-len(word)
	}
	return command, kind
}

// executions lists the execs of a sandbox that run, and with all=true the last that ended, newest first.
func (c *call) executions() error {
	query, bad := c.r.URL.Query(), map[string]string{}
	ended := 0
	switch query.Get("all") {
	case "true":
		ended = usualEnded
	case "", "false":
	default:
		bad["all"] = "must be true or false"
	}
	if query.Has("limit") {
		n, err := strconv.Atoi(query.Get("limit"))
		if err != nil || n < 1 || n > mostEnded {
			bad["limit"] = "must be a number from 1 to " + strconv.Itoa(mostEnded)
		}
		ended = min(ended, 1) * n
	}
	if err := invalid(bad); err != nil {
		return err
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	var open, over []listedExec
	err = c.use.EachExec(c.ctx, c.p, box, func(x sandbox.Exec) {
		switch {
		case !x.Over():
			open = append(open, listedOf(x))
		case ended > 0:
			if over = append(over, listedOf(x)); len(over) >= 2*ended {
				over = slices.Clone(over[len(over)-ended:])
			}
		}
	})
	if err != nil {
		return err
	}
	all := slices.Concat(open, over[max(len(over)-ended, 0):])
	slices.SortFunc(all, func(a, b listedExec) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ExecutionID, a.ExecutionID))
	})
	return c.answer(http.StatusOK, struct {
		Executions []listedExec `json:"executions"`
	}{append([]listedExec{}, all...)})
}

// both are the sandbox and the exec that the path names.
func (c *call) both() (box, id string, err error) {
	if box, err = c.box(); err != nil {
		return "", "", err
	}
	if id = c.r.PathValue("id"); !ids.Valid(id) {
		return "", "", fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no exec %.64q", id)
	}
	return box, id, nil
}

func (c *call) execution() error {
	box, id, err := c.both()
	if err != nil {
		return err
	}
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err != nil {
		return err
	}
	return c.record(x)
}

func (c *call) record(x sandbox.Exec) error {
	c.w.Header().Set(headerExecution, x.ID)
	return c.answer(http.StatusOK, listedOf(x))
}

// detached is the answer to a command that is left to itself: the same however often it is repeated with its key, whatever became of it.
type detached struct {
	ExecutionID string `json:"execution_id"`
	SandboxID   string `json:"sandbox_id"`
	State       string `json:"state"`
}

// detach starts a command and answers once its worker has it.
func (c *call) detach(req *computev1.ExecCommandRequest) error {
	id, err := c.use.Begin(c.ctx, c.p, c.r.Header.Get(headerKey), req)
	if err != nil {
		return rename(err)
	}
	c.w.Header().Set(headerExecution, id)
	return c.answer(http.StatusAccepted, detached{ExecutionID: id, SandboxID: req.GetSandboxId(), State: "PENDING"})
}

// attach follows an exec, running or ended, by the events of a stream: from its beginning, or behind the chunk of after= or Last-Event-ID.
func (c *call) attach() error {
	how, err := c.framing()
	if err != nil {
		return err
	}
	var after uint64
	if given := orElse(c.r.URL.Query().Get("after"), c.r.Header.Get("Last-Event-Id")); given != "" {
		if after, err = strconv.ParseUint(given, 10, 63); err != nil {
			return field("after", "must be the id of an event of this stream")
		}
	}
	box, id, err := c.both()
	if err != nil {
		return err
	}
	w := &events{call: c, frame: newFramer(how), numbered: true}
	if _, err = c.use.Attach(c.ctx, c.p, box, id, after, w); err != nil {
		return w.finish(sandbox.Exec{}, rename(err))
	}
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err == nil {
		err = outcome(x)
	}
	if err != nil && w.Status == 0 {
		if err := w.send([]byte("\n")); err != nil { // an end that is not known is no failed call
			return err
		}
	}
	return w.finish(x, err)
}

// inputTaken is how much of a standard input was taken.
type inputTaken struct {
	// Offset is where the next write begins: less than what was sent where the command does not read on.
	Offset uint64 `json:"offset"`
	Closed bool   `json:"closed"`
}

// stdin writes to the standard input of an exec that keeps it open, and closes it behind that with close=true. Without an offset the body
// stands behind what was taken; such a write is none to repeat.
func (c *call) stdin() error {
	query, bad := c.r.URL.Query(), map[string]string{}
	var offset uint64
	if query.Has("offset") {
		var err error
		if offset, err = strconv.ParseUint(query.Get("offset"), 10, 63); err != nil {
			bad["offset"] = "must be how many bytes of standard input come before the body"
		}
	}
	eof := query.Get("close")
	if eof != "" && eof != "true" && eof != "false" {
		bad["close"] = "must be true or false"
	}
	if err := invalid(bad); err != nil {
		return err
	}
	box, id, err := c.both()
	if err != nil {
		return err
	}
	data, release, err := edge.Body{Most: maxInput, Time: c.opt.BodyTime, Memory: c.memory}.Read(c.w, c.r)
	defer release()
	if err != nil {
		return err
	}
	if !query.Has("offset") {
		if offset, err = c.use.Stdin(c.ctx, c.p, box, id, 0, nil, false); err != nil {
			return err
		}
	}
	taken, err := c.use.Stdin(c.ctx, c.p, box, id, offset, data, eof == "true")
	if err != nil {
		return err
	}
	c.w.Header().Set(headerExecution, id)
	return c.answer(http.StatusOK, inputTaken{Offset: taken, Closed: eof == "true" && taken == offset+uint64(len(data))})
}

// signal sends a signal to the program of an exec, and answers the exec as it stands then.
func (c *call) signal() error {
	var b struct {
		Signal json.RawMessage `json:"signal"`
	}
	if err := c.object(&b); err != nil {
		return err
	}
	number, ok := signalNumber(strings.Trim(string(b.Signal), `"`))
	if !ok {
		return field("signal", "must be the name of a signal, such as TERM, INT, HUP, KILL or USR1, or its number, 1 to 64")
	}
	box, id, err := c.both()
	if err != nil {
		return err
	}
	if err := c.use.Signal(c.ctx, c.p, box, id, number); err != nil {
		return err
	}
	return c.execution()
}

// cancel ends an exec and every process that it started, and answers how it stands then. One that has ended is left as it is.
func (c *call) cancel() error {
	box, id, err := c.both()
	if err != nil {
		return err
	}
	if err := c.use.Cancel(c.ctx, c.p, c.r.Header.Get(headerKey), box, id); err != nil {
		return err
	}
	x, err := c.use.AwaitEnd(c.ctx, c.p, box, id, cancelWait)
	if err != nil {
		return err
	}
	return c.record(x)
}

// signals are the names of Linux, which sandboxes are, in the order of their numbers from 1 on.
var signals = strings.Fields("HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS")

// maxSignal is the last one, of real time.
const maxSignal = 64

// signalNumber reads a name, with SIG before it or without, in large letters or small, or a number.
func signalNumber(s string) (int32, bool) {
	if n, err := strconv.Atoi(s); err == nil {
		return int32(n), n >= 1 && n <= maxSignal
	}
	i := slices.Index(signals, strings.TrimPrefix(strings.ToUpper(s), "SIG"))
	return int32(i + 1), i >= 0
}
