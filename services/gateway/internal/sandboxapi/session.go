package sandboxapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/talk"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

const (
	// sessionLabel is that of the execs that are shell sessions.
	sessionLabel = "sandtrail-session"
	// maxSessions of a sandbox at once: a sandbox runs 32 execs, and others need some.
	maxSessions = 8
	// sessionStart bounds the time until the shell of a new one answers.
	sessionStart = 30 * time.Second
	// sessionEnd is how long a delete waits for its end.
	sessionEnd = 20 * time.Second
)

// session is a shell that keeps its state. It is an exec; its id is that of the exec, or the name that its maker gave it.
type session struct {
	SessionID   string     `json:"session_id"`
	ExecutionID string     `json:"execution_id"`
	State       string     `json:"state"`
	CreatedAt   time.Time  `json:"created_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	// ExitCode and Reason are how it ended.
	ExitCode *int32 `json:"exit_code,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

func sessionOf(x sandbox.Exec) session {
	_, name := usecase.LabelOf(x.Spec)
	s := session{SessionID: orElse(name, x.ID), ExecutionID: x.ID, State: "RUNNING", CreatedAt: x.RequestedAt}
	if x.Over() {
		s.State, s.EndedAt, s.Reason = "TERMINATED", &x.EndedAt, orElse(x.Completed.GetReason(), x.Lost.GetReason())
		if x.State == sandbox.ExecCompleted {
			code := x.Completed.GetExitCode()
			s.ExitCode = &code
		}
	}
	return s
}

// sessionRequest is the body of a new one, which may be empty.
type sessionRequest struct {
	// SessionID is a name for it, by the rules of sandboxes' names.
	SessionID string            `json:"session_id"`
	Env       map[string]string `json:"env"`
	Cwd       string            `json:"cwd"`
}

// createSession starts a shell and answers once it does. One at a time in a sandbox, so that names and number hold.
func (c *call) createSession() error {
	var b sessionRequest
	if err := c.object(&b); err != nil {
		return err
	}
	if b.SessionID != "" && !sandbox.ValidName(b.SessionID) {
		return field("session_id", "must be 1 to 64 of A-Z a-z 0-9 . _ -, beginning with a letter or digit")
	}
	box, err := c.box()
	if err != nil {
		return err
	}
	req := &computev1.ExecCommandRequest{
		SandboxId: box, Command: "sh", Args: usecase.LabelledArgs(shellProgram, sessionLabel, b.SessionID), Env: b.Env, WorkingDir: b.Cwd,
		Stdin: []byte(shellPrelude), KeepStdin: true, Detach: true, Timeout: durationpb.New(c.use.LongestExec()), StopAtOutputLimit: true,
	}
	broken, err := c.Violations(req)
	if err != nil {
		return err
	}
	if err := invalid(broken); err != nil {
		return err
	}
	var made sandbox.Exec
	err = c.use.Alone(c.ctx, c.p, box, func(ctx context.Context) error {
		if err := c.roomFor(ctx, box, b.SessionID); err != nil {
			return err
		}
		made, err = c.startShell(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	c.w.Header().Set(headerExecution, made.ID)
	return c.answer(http.StatusCreated, sessionOf(made))
}

// roomFor refuses one more session where there are enough, or one has its name.
func (c *call) roomFor(ctx context.Context, box, name string) error {
	all, err := c.use.Labelled(ctx, c.p, box, sessionLabel)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, sandbox.Exec.Over)
	if name != "" && slices.ContainsFunc(all, func(x sandbox.Exec) bool { return sessionOf(x).SessionID == name }) {
		return fault.Newf(fault.Conflict, fault.ReasonNameTaken, "the sandbox has a session %s", name)
	}
	if len(all) >= maxSessions {
		return fault.Newf(fault.ResourceExhausted, fault.ReasonQuota, "a sandbox has %d sessions at most; delete one", maxSessions)
	}
	return nil
}

// startShell starts it and waits for its first answer. One that does not answer is ended.
func (c *call) startShell(ctx context.Context, req *computev1.ExecCommandRequest) (sandbox.Exec, error) {
	box := req.GetSandboxId()
	id, err := c.use.Begin(ctx, c.p, "", req)
	if err != nil {
		return sandbox.Exec{}, err
	}
	wait, cancel := context.WithTimeout(ctx, sessionStart)
	defer cancel()
	conv, err := talk.Open(wait, c.use.Talk(c.p, box, id))
	if err == nil {
		_, err = probe(wait, conv, 0)
		conv.Close()
	}
	if err == nil {
		return c.use.Receipt(ctx, c.p, box, id)
	}
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), sessionEnd)
	defer stop()
	if errors.Is(err, talk.ErrEnded) {
		x, rerr := c.use.Receipt(end, c.p, box, id)
		if rerr == nil {
			rerr = fault.Newf(fault.FailedPrecondition, fault.ReasonStartFailed, "the shell did not start: %s",
				orElse(x.Completed.GetMessage(), orElse(x.Completed.GetReason(), x.Lost.GetReason())))
		}
		return x, rerr
	}
	if cerr := c.use.Cancel(end, c.p, "", box, id); cerr != nil {
		c.Log.WarnContext(ctx, "a shell that does not answer could not be ended", "exec", id, "error", cerr)
	}
	if errors.Is(err, talk.ErrNotBegun) || errors.Is(err, talk.ErrUnfinished) {
		err = fault.Newf(fault.DeadlineExceeded, fault.ReasonTimeout, "the shell did not answer within %s", sessionStart).WithRetry(time.Second)
	}
	return sandbox.Exec{}, err
}

// sessions lists those that run, oldest first.
func (c *call) sessions() error {
	box, err := c.box()
	if err != nil {
		return err
	}
	all, err := c.use.Labelled(c.ctx, c.p, box, sessionLabel)
	if err != nil {
		return err
	}
	out := struct {
		Sessions []session `json:"sessions"`
	}{[]session{}}
	for _, x := range all {
		if !x.Over() {
			out.Sessions = append(out.Sessions, sessionOf(x))
		}
	}
	return c.answer(http.StatusOK, out)
}

func (c *call) showSession() error {
	_, x, err := c.session()
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, sessionOf(x))
}

// session finds the one that the path names: by the id of its exec, or by its name, of which the newest has it.
func (c *call) session() (box string, x sandbox.Exec, err error) {
	box, err = c.box()
	if err != nil {
		return box, x, err
	}
	id := c.r.PathValue("id")
	none := fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "there is no session %.64q", id)
	if ids.Valid(id) {
		x, err = c.use.Receipt(c.ctx, c.p, box, id)
		label, _ := usecase.LabelOf(x.Spec)
		if fault.Is(err, fault.ReasonExecNotFound) || err == nil && label != sessionLabel {
			err = none
		}
		return box, x, err
	}
	all, err := c.use.Labelled(c.ctx, c.p, box, sessionLabel)
	if err != nil {
		return box, x, err
	}
	for _, x := range slices.Backward(all) {
		if sessionOf(x).SessionID == id {
			return box, x, nil
		}
	}
	return box, x, none
}

// deleteSession ends a session and all that runs in it, and answers how it stands then. One that is over is left as it is.
func (c *call) deleteSession() error {
	box, x, err := c.session()
	if err != nil {
		return err
	}
	if !x.Over() {
		if x, err = c.endSession(c.ctx, box, x.ID); err != nil {
			return err
		}
	}
	return c.answer(http.StatusOK, sessionOf(x))
}

// endSession waits until none of its processes is left, at most sessionEnd.
func (c *call) endSession(ctx context.Context, box, id string) (sandbox.Exec, error) {
	if err := c.use.Cancel(ctx, c.p, "", box, id); err != nil {
		return sandbox.Exec{}, err
	}
	wait, cancel := context.WithTimeout(ctx, sessionEnd)
	defer cancel()
	conv, err := talk.Open(wait, c.use.Talk(c.p, box, id))
	if err != nil {
		return sandbox.Exec{}, err
	}
	conv.Wait(wait)
	conv.Close()
	return c.use.Receipt(ctx, c.p, box, id)
}

// sessionOver says that a session takes no more commands.
func sessionOver(x sandbox.Exec) error {
	s := sessionOf(x)
	how := s.Reason
	if s.ExitCode != nil && how == sandbox.ReasonExited {
		how = "exit code " + strconv.Itoa(int(*s.ExitCode))
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonIllegalState, "the session has ended (%s); create another one", strings.TrimSpace(how))
}
