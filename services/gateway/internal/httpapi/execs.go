package httpapi

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"math"
	"net/http"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
)

const (
	known         = "known"
	unknown       = "unknown"
	streamLost    = "exec_stream_lost"
	recordPending = sandbox.RecordPending
	unrecorded    = "result_unrecorded"
)

var executeNames = names{"sandbox_id": "sandbox_id", "args": "command"}

// execution is what a caller gets of an exec, while it runs and behind its end, first and repeated.
type execution struct {
	ExecutionID string `json:"execution_id"`
	SandboxID   string `json:"sandbox_id"`
	// State is accepted, running, exited, signaled, timed_out, cancelled, start_failed or unknown.
	State string `json:"state"`
	// Outcome is known once the end was observed, unknown where it cannot be, null before.
	Outcome     *string `json:"outcome"`
	SystemError string  `json:"system_error,omitempty"`
	// ExitCode and Signal are null unless the outcome is known.
	ExitCode *int32 `json:"exit_code"`
	Signal   *int32 `json:"signal"`
	// Reason is the state's, more exactly; Message is for people.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Stdout and Stderr are text, or base64 where their encoding says so. Truncated: at least one is not whole here.
	Stdout         string   `json:"stdout"`
	Stderr         string   `json:"stderr"`
	StdoutEncoding string   `json:"stdout_encoding"`
	StderrEncoding string   `json:"stderr_encoding"`
	Truncated      bool     `json:"truncated"`
	DurationMS     *float64 `json:"duration_ms"`
	Receipt        receipt  `json:"receipt"`
}

// receipt is what the log says of an exec beside its outcome.
type receipt struct {
	RequestedAt   *time.Time `json:"requested_at"`
	StartedAt     *time.Time `json:"started_at"`
	EndedAt       *time.Time `json:"ended_at"`
	KeySHA256     string     `json:"idempotency_key_sha256"`
	RequestSHA256 string     `json:"request_sha256"`
	FirstSequence uint64     `json:"first_sequence"`
	LastSequence  uint64     `json:"last_sequence"`
	Stdout        recorded   `json:"stdout"`
	Stderr        recorded   `json:"stderr"`
	UsageEventID  string     `json:"usage_event_id"`
	// Digest is the chain's, of the exec's last event.
	Digest string `json:"digest"`
}

// recorded is what was recorded of one stream.
type recorded struct {
	Bytes        uint64 `json:"bytes"`
	SHA256       string `json:"sha256"`
	DroppedBytes uint64 `json:"dropped_bytes"`
	// URL is where all that was kept can be read.
	URL string `json:"url"`
}

// execute runs a command and answers its end, whatever it is.
func (c *call) execute() error {
	id, err := c.sandbox()
	if err != nil {
		return err
	}
	o, release, err := c.object(maxBody)
	defer release()
	if err != nil {
		return err
	}
	argv := o.command("command")
	// A lost connection changes nothing about the command: its timeout ends it.
	req := &computev1.ExecCommandRequest{SandboxId: id, Env: o.texts("env"), Detach: true}
	if len(argv) > 0 {
		req.Command, req.Args = argv[0], argv[1:]
	}
	req.WorkingDir, _ = o.text("working_dir")
	if ms, ok := o.whole("timeout", math.MaxInt64/int64(time.Millisecond)); ok {
		req.Timeout = durationpb.New(time.Duration(ms) * time.Millisecond)
	}
	if in, ok := o.text("stdin"); ok {
		req.Stdin = []byte(in)
	}
	stream, detach := o.flag("stream"), o.flag("detach")
	req.KeepStdin = o.flag("keep_stdin")
	switch {
	case stream && detach:
		o.bad["detach"] = "cannot be streamed; follow it by its events"
	case req.GetKeepStdin() && !stream && !detach:
		o.bad["keep_stdin"] = "needs stream or detach: nobody learns its id before its end otherwise"
	}
	if err := c.check(o, req, executeNames); err != nil {
		return err
	}
	switch {
	case stream:
		err = c.stream(req)
	case detach:
		err = c.detach(req)
	default:
		err = c.wait(req)
	}
	return executeNames.in(err)
}

// wait follows a command to its end and answers that.
func (c *call) wait(req *computev1.ExecCommandRequest) error {
	g := c.gather()
	defer g.Release()
	_, err := c.use.Exec(c.ctx, c.p, c.key, req, g)
	unfollowed := ""
	switch {
	case errors.Is(err, errPending):
		unfollowed = recordPending
	case err != nil && g.lost(err):
		unfollowed = streamLost
	case err != nil:
		return err
	}
	return c.tell(req.GetSandboxId(), g.id, g, unfollowed)
}

// tell answers what is recorded of an exec. unfollowed is the system error with which its end could not be waited for, if it could not.
func (c *call) tell(box, id string, g *gathered, unfollowed string) error {
	c.w.Header().Set(headerExecution, id)
	x, err := c.use.Receipt(c.ctx, c.p, box, id)
	switch {
	case err != nil && unfollowed == "":
		return err
	case err != nil:
		x = sandbox.Exec{ID: id, Sandbox: box}
	case unfollowed != "" && x.Over():
		return c.replay(x) // it was recorded in the meantime: the answer is the one that all get
	}
	out := describe(x)
	if unfollowed != "" {
		out.unresolved(unfollowed)
	}
	g.into(&out, x)
	return c.answer(http.StatusOK, out)
}

// unresolved makes it the answer about an exec that goes on, or has ended, out of our sight. The log may tell its end later.
func (x *execution) unresolved(why string) {
	x.State, x.Outcome, x.SystemError, x.Reason = unknown, pointer(unknown), why, why
	if why == recordPending {
		x.Reason = unrecorded
	}
}

// describe is an exec without its output.
func describe(x sandbox.Exec) execution {
	out := execution{ExecutionID: x.ID, SandboxID: x.Sandbox, State: "accepted", Receipt: receipt{
		RequestedAt: at(x.RequestedAt), StartedAt: at(x.StartedAt), EndedAt: at(x.EndedAt),
		KeySHA256: hex.EncodeToString(x.Spec.GetIdempotencyKeySha256()), RequestSHA256: hex.EncodeToString(x.Spec.GetRequestSha256()),
		FirstSequence: x.FirstSeq, LastSequence: x.LastSeq, UsageEventID: x.UsageEventID, Digest: hex.EncodeToString(x.Digest),
		Stdout: recordedOf(x, transcript.Stdout, x.Completed.GetStdout(), x.Lost.GetStdoutBytes()),
		Stderr: recordedOf(x, transcript.Stderr, x.Completed.GetStderr(), x.Lost.GetStderrBytes()),
	}}
	switch x.State {
	case sandbox.ExecRunning:
		out.State = running
	case sandbox.ExecCompleted:
		b := x.Completed
		out.State, out.Outcome = ended(b.GetReason()), pointer(known)
		out.Reason, out.Message = b.GetReason(), b.GetMessage()
		out.ExitCode, out.Signal = pointer(b.GetExitCode()), pointer(b.GetSignal())
		out.DurationMS = pointer(float64(b.GetWallTimeUs()) / 1000)
	case sandbox.ExecLost:
		out.State, out.Outcome, out.SystemError = unknown, pointer(unknown), streamLost
		out.Reason, out.Message = lostReason(x.Lost.GetReason()), x.Lost.GetMessage()
	}
	return out
}

func pointer[T any](v T) *T { return &v }

func recordedOf(x sandbox.Exec, stream string, o *eventsv1.Output, lost uint64) recorded {
	return recorded{
		Bytes: max(o.GetBytes(), lost), SHA256: hex.EncodeToString(o.GetSha256()), DroppedBytes: o.GetDroppedBytes(),
		URL: Base + "/sandbox/" + x.Sandbox + "/executions/" + x.ID + "/output?stream=" + stream,
	}
}

// ended is the state behind an observed end.
func ended(reason string) string {
	switch reason {
	case sandbox.ReasonOOMKilled:
		return sandbox.ReasonSignaled
	case sandbox.ReasonOutputLimit, sandbox.ReasonSandboxDestroyed, sandbox.ReasonSandboxStopped:
		return sandbox.ReasonCancelled
	default:
		return reason
	}
}

// lostReason is the contract's word for why an end cannot be known.
func lostReason(reason string) string {
	switch fault.Reason(reason) {
	case fault.ReasonSandboxLost, fault.ReasonSandboxFailed, fault.ReasonSandboxDestroyed, fault.ReasonSandboxStopped, fault.ReasonSandboxExpired, fault.ReasonNodeLost, fault.ReasonEvicted:
		return "sandbox_lost"
	case fault.ReasonToolboxUnavailable, fault.ReasonWorkerUnavailable:
		return "agent_unavailable"
	case fault.ReasonLogUnavailable, fault.ReasonLogFull:
		return unrecorded
	default:
		return streamLost
	}
}

// gathered is the output of an exec as far as an answer holds it.
type gathered struct {
	*call
	*edge.Gathered
	id string
	// accepted: a worker has it.
	accepted bool
	pending  pendingEnd
}

func (c *call) gather() *gathered {
	return &gathered{call: c, Gathered: edge.NewGathered(c.memory, false)}
}

// errPending: the end was seen, and could not be recorded for as long as an answer waits for that.
var errPending = errors.New("the end of the command is not recorded yet")

// pendingEnd is since when an end was seen that is not recorded; zero: none was.
type pendingEnd struct{ since time.Time }

// still is told each time that the end is still not recorded, and fails once that is so for longer than wait.
func (p *pendingEnd) still(wait time.Duration) error {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if time.Since(p.since) < wait {
		return nil
	}
	return errPending
}

func (g *gathered) Named(id string) error {
	g.id = id
	return nil
}

func (g *gathered) Output(i output.Item) error {
	g.accepted = g.accepted || i.Accepted || i.Chunk != nil
	if i.Pending {
		return g.pending.still(g.opt.PendingWait)
	}
	g.Add(i.Chunk)
	return nil
}

// lost reports whether a failure to follow leaves open what became of a command that was accepted: no reason to run it again.
func (g *gathered) lost(err error) bool {
	var f *fault.Error
	return g.accepted && g.ctx.Err() == nil && (!errors.As(err, &f) || f.Code == fault.Unavailable || f.Code == fault.Internal || f.Code == fault.Lost ||
		f.Reason == fault.ReasonCursorExpired)
}

// into puts the output into an answer.
func (g *gathered) into(out *execution, x sandbox.Exec) {
	out.Stdout, out.StdoutEncoding = encoded(g.Stdout)
	out.Stderr, out.StderrEncoding = encoded(g.Stderr)
	out.Truncated = g.Truncated(x)
}

// encoded is output as it can stand in JSON, every byte of it.
func encoded(data []byte) (text, encoding string) {
	if utf8.Valid(data) {
		return string(data), "utf-8"
	}
	return base64.StdEncoding.EncodeToString(data), "base64"
}
