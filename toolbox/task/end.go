package task

import (
	"regexp"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
)

// The reasons of an end, as in toolbox.v1.
const (
	Exited      = "exited"
	Signaled    = "signaled"
	TimedOut    = "timed_out"
	Cancelled   = "cancelled"
	StartFailed = "start_failed"
	OOMKilled   = "oom_killed"
	Destroyed   = "sandbox_destroyed"
	Stopped     = "sandbox_stopped"
	Lost        = "sandbox_lost"
)

// TimeLimit is the limit of an exec's time, as in common.v1.LimitHit.
const TimeLimit = "time"

// MaxTimeout is in milliseconds: a year, so that it cannot overflow.
const MaxTimeout = 365 * 24 * 3600 * 1000

// TimeoutGrace is between TERM and KILL when a program's time is up.
const TimeoutGrace = 2 * time.Second

// MaxGrace is the longest grace time that may be asked for.
const MaxGrace = time.Minute

// Grace is a grace time in milliseconds, bounded.
func Grace(ms uint64) time.Duration {
	return time.Duration(min(ms, uint64(MaxGrace.Milliseconds()))) * time.Millisecond
}

// ids are what may name a directory.
var ids = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// ValidID reports whether an exec may have that id.
func ValidID(id string) bool { return ids.MatchString(id) }

// SetStatus says how the leader ended, with the exit codes of a shell.
func SetStatus(end *toolboxv1.End, status syscall.WaitStatus) {
	end.Reason = Exited
	end.ExitCode = int32(status.ExitStatus()) //nolint:gosec // a byte
	if status.Signaled() {
		end.Reason = Signaled
		end.Signal = int32(status.Signal()) //nolint:gosec // at most 64
		end.ExitCode = 128 + end.Signal
	}
}

// State is how an exec stands; end is nil while it runs.
func State(id string, started time.Time, s *spool.Spool, end *toolboxv1.End) *toolboxv1.ExecState {
	state := &toolboxv1.ExecState{ExecId: id, State: "running", StartedAt: timestamppb.New(started), End: end}
	state.StdoutBytes, state.StderrBytes = s.Bytes()
	if end != nil {
		state.State = "ended"
	}
	return state
}

// EndedState is that of an exec of which only the end is remembered.
func EndedState(id string, end *toolboxv1.End) *toolboxv1.ExecState {
	return &toolboxv1.ExecState{ExecId: id, State: "ended", End: end, StdoutBytes: end.GetStdout().GetBytes(), StderrBytes: end.GetStderr().GetBytes()}
}

// Drain waits for what is left of a program's output once its leader has ended, DrainGrace at most where a child holds it open, and
// closes its input. A reader that is behind has as long to take what is in the pipes, which may be more than the spool has room for.
// Streams that were never made are nil.
func Drain(s *spool.Spool, out [2]*Output, in *Input) {
	release := time.AfterFunc(DrainGrace, s.Release)
	defer func() {
		if release.Stop() {
			s.Release()
		}
	}()
	until := time.Now().Add(DrainGrace)
	for _, o := range out {
		if o != nil {
			o.Finish(until)
		}
	}
	if in != nil {
		in.Close()
	}
}

// Close fills in what an end says of the output, the time and the limits that were met, and ends the spool: nothing may be added to
// the end behind it.
func Close(end *toolboxv1.End, s *spool.Spool, hits func(*toolboxv1.End) []*commonv1.LimitHit) {
	end.EndedAt = timestamppb.Now()
	end.Stdout, end.Stderr = s.StreamEnd(spool.Stdout), s.StreamEnd(spool.Stderr)
	end.Limits = hits(end)
	for _, hit := range end.Limits {
		if end.Message == "" && hit.Limit == TimeLimit {
			end.Message = hit.Message
		}
	}
	s.End()
}
