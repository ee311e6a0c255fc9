package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/fault"
)

// Exit codes. `exec` (and `replay exec --exit-code`) ends with the command's own code; the codes of our own failures lie where
// few programs have theirs. Nothing else in this program knows a number.
const (
	ExitOK = 0
	// ExitUsage: the command line is wrong; nothing was asked of the server.
	ExitUsage = 240
	// ExitRefused: the server refuses: not valid, not allowed, in conflict, not possible in this state, over a limit.
	ExitRefused = 241
	// ExitNotFound: there is no such sandbox, exec or file.
	ExitNotFound = 242
	// ExitUnavailable: the server was not reached, or did not answer in time.
	ExitUnavailable = 243
	// ExitUnknown: the exec was accepted, and how it ended is not known: its sandbox is lost, or the server cannot be reached any
	// more. Look at `sandtrail replay exec ID` before you run it again.
	ExitUnknown = 244
	// ExitCancelled: you interrupted it.
	ExitCancelled = 245
	// ExitDifferent: the topology is not as it should be, or usage is not what the log says.
	ExitDifferent = 246
	// ExitTampered: what was checked is not what was recorded: the log, an export, or a proof.
	ExitTampered = 247
	// ExitFailed: anything else.
	ExitFailed = 249
)

const exitHelp = `Exit codes:
  0    done; exec ends with the exit code of its command (128 + n after signal n)
  240  wrong usage
  241  refused: not valid, not allowed, in conflict, not possible now, over a limit
  242  not found
  243  the server was not reached or did not answer in time
  244  an exec was accepted and its outcome is not known
  245  interrupted
  246  topology diff: the server differs from what it should have; usage verify, usage rebuild: ClickHouse differs from the log
  247  audit: the log, the export or the proof is not what was recorded
  249  anything else
`

// usageError is a mistake on the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends the program with a code; whatever there is to say has been said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// aboutError says which of several things err is about.
type aboutError struct {
	what string
	err  error
}

func (e aboutError) Error() string { return e.what + ": " + e.err.Error() }

func (e aboutError) Unwrap() error { return e.err }

var errInterrupted = errors.New("interrupted")

// problem is a failure as it is shown; its JSON is what programs get on stderr.
type problem struct {
	Code        string            `json:"code"`
	Reason      string            `json:"reason,omitempty"`
	Message     string            `json:"message"`
	Fields      map[string]string `json:"fields,omitempty"`
	Correlation string            `json:"correlation_id,omitempty"`
	RetryAfter  float64           `json:"retry_after_seconds,omitempty"`
	Exec        string            `json:"exec_id,omitempty"`
	Exit        int               `json:"exit_code"`
}

func describe(err error) problem {
	var (
		wrong   usageError
		parse   *kong.ParseError
		unknown *client.UnknownOutcomeError
		about   aboutError
		wronged tamperedError
	)
	switch {
	case errors.As(err, &about):
		p := describe(about.err)
		p.Message = about.what + ": " + p.Message
		return p
	case errors.As(err, &wrong), errors.As(err, &parse), errors.Is(err, client.ErrPlaintextKey), errors.Is(err, named.ErrPlaintextKey):
		return problem{Code: "usage", Message: err.Error(), Exit: ExitUsage}
	case errors.As(err, &wronged):
		return problem{Code: string(fault.FailedPrecondition), Reason: string(fault.ReasonAuditDamaged), Message: err.Error(), Exit: ExitTampered}
	case errors.As(err, &unknown):
		p := fromServer(unknown.Err)
		p.Code, p.Exec, p.Exit = string(fault.Lost), unknown.Exec, ExitUnknown
		p.Message = fmt.Sprintf("the server cannot be reached any more and the outcome of exec %s is not known (%s); it may still run", unknown.Exec, p.Message)
		return p
	case errors.Is(err, errInterrupted):
		return problem{Code: string(fault.Cancelled), Message: err.Error(), Exit: ExitCancelled}
	case isServers(err):
		return fromServer(err)
	case errors.Is(err, context.DeadlineExceeded):
		return problem{Code: string(fault.DeadlineExceeded), Message: "it took longer than --timeout", Exit: ExitUnavailable}
	case errors.Is(err, context.Canceled):
		return problem{Code: string(fault.Cancelled), Message: "interrupted", Exit: ExitCancelled}
	case errors.Is(err, fs.ErrNotExist):
		return problem{Code: string(fault.NotFound), Message: err.Error(), Exit: ExitNotFound}
	default:
		return problem{Code: "failed", Message: err.Error(), Exit: ExitFailed}
	}
}

// isServers reports whether err is what a call gave, or a fault of our own.
func isServers(err error) bool {
	var f *fault.Error
	_, ok := status.FromError(err)
	return ok || errors.As(err, &f)
}

func fromServer(err error) problem {
	// Without what was wrapped around it the status has its own sentence.
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		err = st.GRPCStatus().Err()
	}
	f := fault.FromStatus(err)
	var own *fault.Error
	if errors.As(err, &own) {
		f = own
	}
	if f == nil {
		return problem{Code: string(fault.Unavailable), Message: "the stream ended early", Exit: ExitUnavailable}
	}
	p := problem{
		Code: string(f.Code), Reason: string(f.Reason), Message: f.Message, Fields: f.Fields, Correlation: client.Correlation(err),
		RetryAfter: f.RetryAfter.Seconds(), Exit: ExitFailed,
	}
	if f.Reason == fault.ReasonAuditDamaged {
		p.Exit = ExitTampered
		return p
	}
	if f.Code == fault.Unavailable && f.Reason == fault.Reason(fault.Unavailable) {
		// Nobody gives this reason but the connection itself.
		p.Message = "the server cannot be reached (--grpc, SANDTRAIL_ADDR; `sandtrail up` runs one): " + f.Message
	}
	switch f.Code {
	case fault.InvalidArgument, fault.Conflict, fault.Unauthorized, fault.PermissionDenied, fault.FailedPrecondition, fault.ResourceExhausted:
		p.Exit = ExitRefused
	case fault.NotFound:
		p.Exit = ExitNotFound
	case fault.Unavailable, fault.DeadlineExceeded:
		p.Exit = ExitUnavailable
	case fault.Lost:
		p.Exit = ExitUnknown
	case fault.Cancelled:
		p.Exit = ExitCancelled
	case fault.Internal:
	}
	return p
}

// report writes err to stderr and returns the program's exit code.
func report(w io.Writer, err error, asJSON bool) int {
	var done exitError
	if errors.As(err, &done) {
		return int(done)
	}
	p := describe(err)
	if asJSON {
		// A stderr that cannot be written to leaves the exit code.
		_ = render.Value(w, map[string]problem{"error": p})
		return p.Exit
	}
	var more []string
	if p.Reason != "" {
		more = append(more, p.Reason)
	}
	if p.Correlation != "" {
		more = append(more, "correlation id "+p.Correlation)
	}
	line := "sandtrail: " + p.Message
	if len(more) > 0 {
		line += " (" + strings.Join(more, "; ") + ")"
	}
	fmt.Fprintln(w, render.Clean(line))
	for _, field := range slices.Sorted(maps.Keys(p.Fields)) {
		fmt.Fprintln(w, render.Clean("  "+field+": "+p.Fields[field]))
	}
	return p.Exit
}
