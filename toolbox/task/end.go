package task

import (
	"regexp"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

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
	Lost        = "sandbox_lost"
)

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
