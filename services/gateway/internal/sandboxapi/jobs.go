package sandboxapi

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Kinds of jobs, and how their ids begin. A job is nothing that is stored: its id names a sandbox and what was to become of it, and the
// sandbox's events say how far that is. A sandbox is stopped, started and made snapshots of often: the id of such a job ends with the place in the log of the
// event that began it.
const (
	jobCreate = "CREATE"
	jobDelete = "DELETE"
	jobStop   = "STOP"
	jobStart  = "START"
)

// Statuses of a job.
const (
	jobPending   = "PENDING"
	jobRunning   = "RUNNING"
	jobCompleted = "COMPLETED"
	jobFailed    = "FAILED"
)

func jobID(kind, sandboxID string) string { return strings.ToLower(kind) + "-" + sandboxID }

// job is what the log says of an order.
type job struct {
	ID           string    `json:"id"`
	Type         string    `json:"type"`
	Status       string    `json:"status"`
	SandboxName  string    `json:"sandbox_name"`
	ErrorMessage string    `json:"error_message"`
	Result       jobResult `json:"result"`
	CreatedAt    time.Time `json:"created_at"`
	UpdatedAt    time.Time `json:"updated_at"`
}

type jobResult struct {
	SandboxID string `json:"sandbox_id"`
	// Attempts counts how often a worker began: over 1 where one was killed half way and it was taken up again.
	Attempts uint32 `json:"attempts"`
	// Message says what it waits for.
	Message string `json:"message,omitempty"`
	// Image, Digest, Bytes and Sequence are those of a snapshot.
	Image    string `json:"image,omitempty"`
	Digest   string `json:"digest,omitempty"`
	Bytes    uint64 `json:"bytes,omitempty"`
	Sequence uint64 `json:"sequence,omitempty"`
}

// showJob answers a job by its id.
func (c *call) showJob() error {
	kind, id, _ := strings.Cut(c.r.PathValue("id"), "-")
	kind = strings.ToUpper(kind)
	var seq uint64
	turn := kind == jobStop || kind == jobStart || kind == jobSnapshot
	if i := strings.LastIndexByte(id, '-'); turn && i > 0 {
		seq, _ = strconv.ParseUint(id[i+1:], 10, 64)
		id = id[:i]
	}
	if !ids.Valid(id) || kind != jobCreate && kind != jobDelete && (!turn || seq == 0) {
		return noJob(c.r.PathValue("id"))
	}
	j, err := c.jobOf(id, kind, seq)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, j)
}

// jobOf tells a job from the log; seq is the event that began a stop, a start or a snapshot.
func (c *call) jobOf(id, kind string, seq uint64) (job, error) {
	h, err := c.use.History(c.ctx, c.p, id)
	if fault.Is(err, fault.ReasonSandboxNotFound) {
		return job{}, noJob(jobID(kind, id))
	}
	if err != nil {
		return job{}, err
	}
	s, err := sandbox.Show(h)
	if err != nil {
		return job{}, err
	}
	j := job{ID: jobID(kind, id), Type: kind, SandboxName: orElse(s.Name, s.ID), Result: jobResult{SandboxID: id}}
	switch kind {
	case jobCreate:
		creating(&j, h)
	case jobDelete:
		deleting(&j, h)
	case jobStop:
		j.ID = turnID(kind, id, seq)
		stopping(&j, h, seq)
	case jobStart:
		j.ID = turnID(kind, id, seq)
		starting(&j, h, seq)
	case jobSnapshot:
		j.ID = turnID(kind, id, seq)
		snapshotting(&j, h, seq)
	}
	if j.Status == "" {
		return job{}, noJob(j.ID)
	}
	return j, nil
}

func turnID(kind, sandboxID string, seq uint64) string {
	return jobID(kind, sandboxID) + "-" + strconv.FormatUint(seq, 10)
}

// lastTurn is the id of the last stop or start in a history; empty without one.
func lastTurn(h eventlog.History, kind string) string {
	var seq uint64
	stopped := false
	for _, e := range h.Events {
		switch e.Body.(type) {
		case *eventsv1.SandboxStopping:
			if kind == jobStop {
				seq = e.Seq
			}
		case *eventsv1.SandboxStarting:
			if kind == jobStart && stopped {
				seq = e.Seq
			}
		}
		_, stopped = e.Body.(*eventsv1.SandboxStopped)
	}
	if seq == 0 {
		return ""
	}
	return turnID(kind, h.Aggregate.ID, seq)
}

// stopping follows a stop to its end. Without a stop at seq the job has no status.
func stopping(j *job, h eventlog.History, seq uint64) {
	for _, e := range h.Events {
		if e.Seq < seq || j.Status == jobCompleted || j.Status == jobFailed {
			continue
		}
		switch b := e.Body.(type) {
		case *eventsv1.SandboxStopping:
			if e.Seq != seq {
				return
			}
			j.Status, j.CreatedAt = jobRunning, e.Time
		case *eventsv1.SandboxStopped:
			j.end(jobCompleted, "")
		case *eventsv1.SandboxFailed:
			j.end(jobFailed, orElse(b.GetMessage(), b.GetReason()))
		case *eventsv1.SandboxDestroying:
			j.end(jobFailed, "it was deleted before it was stopped ("+b.GetReason()+")")
		default:
			continue
		}
		j.UpdatedAt = e.Time
	}
}

// starting follows the start of a stopped sandbox to its end. Without one at seq the job has no status.
func starting(j *job, h eventlog.History, seq uint64) {
	stopped, first := false, uint32(0)
	for _, e := range h.Events {
		if e.Seq < seq || j.Status == jobCompleted || j.Status == jobFailed {
			_, stopped = e.Body.(*eventsv1.SandboxStopped)
			continue
		}
		if e.Seq == seq && !stopped {
			return
		}
		switch b := e.Body.(type) {
		case *eventsv1.SandboxStarting:
			if e.Seq == seq {
				j.Status, j.CreatedAt, first = jobRunning, e.Time, b.GetAttempt()
			}
			j.Result.Attempts, j.Result.Message = b.GetAttempt()-first+1, b.GetMessage()
		case *eventsv1.SandboxReady:
			j.Result.Message = ""
			j.end(jobCompleted, "")
		case *eventsv1.SandboxStopped:
			j.end(jobFailed, orElse(b.GetMessage(), b.GetReason()))
		case *eventsv1.SandboxFailed:
			j.end(jobFailed, orElse(b.GetMessage(), b.GetReason()))
		case *eventsv1.SandboxDestroying:
			j.end(jobFailed, "it was deleted before it was up ("+b.GetReason()+")")
		default:
			continue
		}
		j.UpdatedAt = e.Time
	}
}

// end is the end of a job that has begun.
func (j *job) end(status, message string) {
	if j.Status != "" {
		j.Status, j.ErrorMessage = status, message
	}
}

// creating follows a create to its end: the first time that it is ready, or what came instead.
func creating(j *job, h eventlog.History) {
	for _, e := range h.Events {
		if j.Status == jobCompleted || j.Status == jobFailed {
			return
		}
		switch b := e.Body.(type) {
		case *eventsv1.SandboxRequested:
			j.Status, j.CreatedAt = jobPending, e.Time
		case *eventsv1.SandboxScheduled:
		case *eventsv1.SandboxStarting:
			j.Status, j.Result.Attempts, j.Result.Message = jobRunning, b.GetAttempt(), b.GetMessage()
		case *eventsv1.SandboxReady:
			j.Status, j.Result.Message = jobCompleted, ""
		case *eventsv1.SandboxFailed:
			j.Status, j.ErrorMessage = jobFailed, orElse(b.GetMessage(), b.GetReason())
		case *eventsv1.SandboxDestroying:
			j.Status, j.ErrorMessage = jobFailed, "it was deleted before it was up ("+b.GetReason()+")"
		default:
			continue
		}
		j.UpdatedAt = e.Time
	}
}

// deleting follows the end of a sandbox. Without one the job has no status.
func deleting(j *job, h eventlog.History) {
	for _, e := range h.Events {
		switch e.Body.(type) {
		case *eventsv1.SandboxDestroying:
			j.Status, j.CreatedAt, j.UpdatedAt = jobRunning, e.Time, e.Time
		case *eventsv1.SandboxDestroyed:
			j.Status, j.UpdatedAt = jobCompleted, e.Time
		}
	}
}

func noJob(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonJobNotFound, "there is no job %.100q", id)
}

// timeOf is when an event of the log happened; zero where it does not say.
func timeOf(m directget.Message) time.Time {
	e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
	if err != nil {
		return time.Time{}
	}
	return e.Time
}
