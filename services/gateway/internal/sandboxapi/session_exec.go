package sandboxapi

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/talk"
)

const (
	// busyWait is how long a shell may take to say that it is at nothing.
	busyWait = 5 * time.Second
	// interruptWait is how long it may take to come back after each interrupt.
	interruptWait = 2 * time.Second
	// codeTimedOut is the exit code of a command that took too long, as timeout(1) has it.
	codeTimedOut = 124
)

// interrupts are what is tried, one after another, with a command that takes too long. The second is for a loop that begins its next program
// just when the first comes.
var interrupts = []force{first, first, last}

// sessionCommand is the body of an exec in a session.
type sessionCommand struct {
	Command string `json:"command"`
	// Timeout in seconds; 0 is the server's default.
	Timeout float64 `json:"timeout"`
}

func (b sessionCommand) check(longest time.Duration) error {
	bad := map[string]string{}
	switch {
	case strings.TrimSpace(b.Command) == "":
		bad["command"] = "must not be empty"
	case len(b.Command) > maxArgument:
		bad["command"] = "must be at most 64 KiB; put it into a file"
	case strings.ContainsRune(b.Command, 0):
		bad["command"] = "must not hold a zero byte"
	}
	switch {
	case math.IsNaN(b.Timeout) || b.Timeout < 0:
		bad["timeout"] = "must be a number of seconds"
	case b.Timeout > longest.Seconds():
		bad["timeout"] = "is over the maximum of this deployment, " + longest.String()
	}
	return invalid(bad)
}

// sessionResult is the answer to a command in a session. Output, streams and Truncated are as in result.
type sessionResult struct {
	CmdID        string    `json:"cmd_id"`
	SessionID    string    `json:"session_id"`
	ExecutionID  string    `json:"execution_id"`
	Output       string    `json:"output"`
	ExitCode     int32     `json:"exit_code"`
	Truncated    bool      `json:"truncated"`
	Stdout       string    `json:"stdout"`
	Stderr       string    `json:"stderr"`
	StdoutBase64 string    `json:"stdout_base64,omitempty"`
	StderrBase64 string    `json:"stderr_base64,omitempty"`
	StartedAt    time.Time `json:"started_at"`
	EndedAt      time.Time `json:"ended_at"`
	// Cwd is where the shell is behind it, empty where that is not known.
	Cwd string `json:"cwd"`
	// Reason is exited or timed_out, or how the session ended with it; Message is for people.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Ended: the session ended with the command.
	Ended bool `json:"session_ended"`
}

// execSession runs a command in the shell of a session. It goes on when the client leaves, to its end or timeout: a shell cannot be left half way.
func (c *call) execSession() error {
	var b sessionCommand
	if err := c.object(&b); err != nil {
		return err
	}
	if err := b.check(c.use.LongestExec()); err != nil {
		return err
	}
	box, x, err := c.session()
	if err != nil {
		return err
	}
	if x.Over() {
		return sessionOver(x)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.ctx))
	defer cancel()
	defer context.AfterFunc(c.use.Ending(), cancel)()
	g := edge.NewGathered(c.memory, true)
	defer g.Release()
	var out sessionResult
	err = c.use.Alone(ctx, c.p, x.ID, func(held context.Context) error {
		out, err = c.within(held).inShell(box, x, b, g)
		return err
	})
	switch {
	case err != nil && c.use.Ending().Err() != nil:
		return fault.New(fault.Unavailable, fault.ReasonTimeout, "the server stops; the command goes on in the session").WithRetry(time.Second).Because(err)
	case err != nil:
		return err
	}
	c.w.Header().Set(headerExecution, x.ID)
	return c.answer(http.StatusOK, out)
}

// within is the call for as long as ctx lasts, and not the client.
func (c *call) within(ctx context.Context) *call {
	stays := *c
	stays.ctx = ctx
	return &stays
}

// probe asks a shell whether it is at nothing. within bounds the beginning of the answer; 0: ctx alone does.
func probe(ctx context.Context, conv *talk.Conversation, within time.Duration) (shellState, error) {
	token := talk.NewToken()
	a, err := conv.Ask(ctx, talk.Question{Text: shellProbe(token), Token: token, Begin: within})
	if err != nil {
		return shellState{}, err
	}
	state, ok := shellSaid(a)
	if !ok {
		return state, fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "the shell is none that keeps a session any more; delete it")
	}
	return state, nil
}

// inShell asks the shell and answers what came of it.
func (c *call) inShell(box string, x sandbox.Exec, b sessionCommand, g *edge.Gathered) (sessionResult, error) {
	conv, err := talk.Open(c.ctx, c.use.Talk(c.p, box, x.ID))
	if err != nil {
		return sessionResult{}, err
	}
	defer conv.Close()
	state, err := probe(c.ctx, conv, busyWait)
	switch {
	case errors.Is(err, talk.ErrNotBegun):
		return sessionResult{}, fault.New(fault.Conflict, fault.ReasonConflict, "the session is still at a command").WithRetry(time.Second)
	case errors.Is(err, talk.ErrEnded):
		return sessionResult{}, c.over(box, x.ID)
	case err != nil:
		return sessionResult{}, err
	}
	timeout := c.use.UsualExec()
	if b.Timeout > 0 {
		timeout = time.Duration(b.Timeout * float64(time.Second))
	}
	limited, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	token := talk.NewToken()
	out := sessionResult{CmdID: token, SessionID: sessionOf(x).SessionID, ExecutionID: x.ID, StartedAt: time.Now().UTC(), Reason: sandbox.ReasonExited}
	a, err := conv.Ask(limited, talk.Question{Text: shellQuestion(token, b.Command), Token: token, Answer: g.Add})
	out.EndedAt = time.Now().UTC()
	switch {
	case err == nil:
		if state, ok := shellSaid(a); ok {
			out.ExitCode, out.Cwd = state.code, state.cwd
		} else {
			err = unknown(x.ID)
		}
	case errors.Is(err, talk.ErrUnfinished):
		err = c.tooLong(box, x.ID, conv, state, timeout, &out)
	case errors.Is(err, talk.ErrEnded) && a.Begun:
		err = c.endedWith(box, x.ID, &out)
	case errors.Is(err, talk.ErrEnded):
		err = c.over(box, x.ID)
	case errors.Is(err, talk.ErrNotBegun):
		err = unknown(x.ID)
	}
	out.Output, out.Stdout, out.Stderr = text(g.Both), text(g.Stdout), text(g.Stderr)
	out.StdoutBase64, out.StderrBase64, out.Truncated = exact(g.Stdout), exact(g.Stderr), g.Truncated(sandbox.Exec{})
	return out, err
}

// unknown is the end of a command that the shell says nothing of.
func unknown(id string) error {
	return fault.Newf(fault.Lost, fault.ReasonExecLost, "what became of the command is not known; it may have run, so do not simply repeat it; the session's receipt is %s", id)
}

// over is why a session takes no command.
func (c *call) over(box, id string) error {
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err != nil {
		return err
	}
	return sessionOver(x)
}

// endedWith is what the receipt says of a session that ended with a command.
func (c *call) endedWith(box, id string, out *sessionResult) error {
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	if err == nil {
		err = outcome(x)
	}
	if err != nil {
		return err
	}
	out.ExitCode, out.Reason, out.Ended = x.Completed.GetExitCode(), x.Completed.GetReason(), true
	out.Message = orElse(x.Completed.GetMessage(), "the session ended with the command")
	return nil
}

// tooLong ends a command that takes too long. Where the shell does not come back, the session is ended.
func (c *call) tooLong(box, id string, conv *talk.Conversation, state shellState, timeout time.Duration, out *sessionResult) error {
	out.ExitCode, out.Reason, out.Message = codeTimedOut, sandbox.ReasonTimedOut, fmt.Sprintf("it took longer than %s and was interrupted", timeout)
	for _, how := range interrupts {
		if _, err := c.script(box, interruptScript, strconv.Itoa(state.pid), string(how)); err != nil {
			c.Log.DebugContext(c.ctx, "a command of a session was not interrupted", "exec", id, "error", err)
		}
		now, err := probe(c.ctx, conv, interruptWait)
		switch {
		case err == nil:
			out.Cwd = now.cwd
			return nil
		case errors.Is(err, talk.ErrEnded):
			out.Ended, out.Message = true, out.Message+", and the session ended with it"
			return nil
		case !errors.Is(err, talk.ErrNotBegun):
			return err
		}
	}
	x, err := c.endSession(c.ctx, box, id)
	if err != nil {
		return err
	}
	out.Ended, out.Message = true, out.Message+"; the shell did not come back, so the session was ended ("+orElse(x.Completed.GetReason(), x.State)+")"
	return nil
}
