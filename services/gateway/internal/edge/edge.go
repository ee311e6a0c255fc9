// Package edge is what happens to every call before and after its use case, whichever API it comes by: the caller is authenticated, the
// request validated, the log must be within reach, and what went wrong is told as one kind of error.
package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// outageWait is how long a call waits for the connection to the log to come back, at most half of its own deadline.
const outageWait = 2 * time.Second

// Edge is shared by the APIs of one gateway.
type Edge struct {
	Door *principal.Door
	Log  *slog.Logger
	// Connected reports whether the log can be reached.
	Connected func() bool
	// Calls records them; nil: nobody does.
	Calls     *calls.Recorder
	validator protovalidate.Validator
	// shares are what the calls of all HTTP APIs hold in bodies, files and outputs that they gather.
	shares *stored.Shares
}

// New fails only where a rule of the contract is none. memory is what all calls of HTTP APIs together may hold, in bytes.
func New(door *principal.Door, log *slog.Logger, connected func() bool, memory int) (*Edge, error) {
	v, err := protovalidate.New(protovalidate.WithMessages(
		&computev1.CreateSandboxRequest{}, &computev1.DestroySandboxRequest{}, &computev1.ExtendSandboxRequest{}, &computev1.DescribeSandboxRequest{},
		&computev1.ExecCommandRequest{}, &computev1.ReadFileRequest{}, &computev1.WriteFileRequest{}, &computev1.ListFilesRequest{},
		&computev1.ListSandboxesRequest{}, &computev1.AttachExecRequest{}, &computev1.CancelExecRequest{}, &computev1.GetExecRequest{},
		&computev1.WatchEventsRequest{}, &computev1.ListUsageRequest{},
		&computev1.GetQuotaRequest{}, &computev1.StopSandboxRequest{}, &computev1.StartSandboxRequest{},
	))
	if err != nil {
		return nil, err
	}
	return &Edge{Door: door, Log: log, Connected: connected, validator: v, shares: stored.NewShares(memory)}, nil
}

// Correlate takes the first of the ids that is one as the call's correlation id, or makes one.
func Correlate(ctx context.Context, given ...string) context.Context {
	for _, id := range given {
		if c := telemetry.WithCorrelation(ctx, id); telemetry.Correlation(c) != "" {
			return c
		}
	}
	return telemetry.WithCorrelation(ctx, ids.New())
}

// Reachable waits a moment for a connection that is being made again, and gives unavailable where it does not come: sooner than
// the client gives up, and with nothing done yet.
func (e *Edge) Reachable(ctx context.Context) error {
	if e.Connected() {
		return nil
	}
	wait := outageWait
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	tick, end := time.NewTicker(20*time.Millisecond), time.After(wait)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if e.Connected() {
				return nil
			}
		case <-end:
			return unreachable()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func unreachable() *fault.Error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the event log cannot be reached; try again").WithRetry(time.Second)
}

// Validate is nil for a request that breaks no rule. Otherwise each violated one is a field error.
func (e *Edge) Validate(m proto.Message) error {
	fields, err := e.Violations(m)
	if err != nil || len(fields) == 0 {
		return err
	}
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(fields)
}

// Violations are the rules that a request breaks, by the path of the field.
func (e *Edge) Violations(m proto.Message) (map[string]string, error) {
	fields := map[string]string{}
	impossible(m.ProtoReflect(), "", fields)
	err := e.validator.Validate(m)
	if err == nil {
		return fields, nil
	}
	var v *protovalidate.ValidationError
	if !errors.As(err, &v) {
		return nil, fault.From(err)
	}
	for _, violation := range v.Violations {
		path := protovalidate.FieldPathString(violation.Proto.GetField())
		if old := fields[path]; old != "" {
			fields[path] = old + "; " + violation.Proto.GetMessage()
			continue
		}
		fields[path] = violation.Proto.GetMessage()
	}
	return fields, nil
}

// Shown is the fault that a caller gets of err. What failed because the call was over is not the fault of what it was doing.
func (e *Edge) Shown(ctx context.Context, err error) error {
	var f, why *fault.Error
	_, grpcs := status.FromError(err)
	switch ended := ctx.Err(); {
	case ended != nil && errors.As(context.Cause(ctx), &why):
		return why // the credential's end
	case errors.Is(ended, context.Canceled):
		return ended
	case ended != nil && !e.Connected():
		return unreachable()
	case !errors.As(err, &f) && grpcs:
		// gRPC's own: the message was not sent or could not be read.
		return fault.FromStatus(err)
	default:
		return err
	}
}

// Finish logs and records a call. Requests and answers are never logged: they hold secrets and output.
func (e *Edge) Finish(ctx context.Context, method string, start time.Time, err error) {
	attrs := []any{"method", method, "took", time.Since(start)}
	if p, ok := principal.From(ctx); ok == nil {
		attrs = append(attrs, "actor", p.Actor)
	}
	if err != nil {
		err = e.Shown(ctx, err)
	}
	e.Calls.Ended(ctx, start, err)
	if err == nil {
		e.Log.DebugContext(ctx, "call", attrs...)
		return
	}
	detail, code := fault.Detail(err)
	level := slog.LevelInfo
	if c := fault.Code(detail.GetCode()); c == fault.Internal || c == fault.Unavailable {
		level = slog.LevelError
	}
	e.Log.Log(ctx, level, "call failed", append(attrs, "code", code.String(), "error", err)...)
}

// Recovered is the fault of a handler that panicked.
func (e *Edge) Recovered(ctx context.Context, p any) error {
	e.Log.ErrorContext(ctx, "a handler panicked", "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
	return fault.New(fault.Internal, fault.ReasonInternal, "something went wrong on our side; the correlation id leads to it")
}

// impossible adds what no field may hold, whatever its own rules are: a zero byte in a text, which no program, path or environment
// can have and which would mean something else wherever it cuts the text; and a number that its enum does not have.
func impossible(m protoreflect.Message, path string, bad map[string]string) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		at := path + string(f.Name())
		switch {
		case f.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				impossibleValue(f.MapKey(), k.Value(), at, bad)
				impossibleValue(f.MapValue(), v, fmt.Sprintf("%s[%q]", at, k.String()), bad)
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				impossibleValue(f, v.List().Get(i), fmt.Sprintf("%s[%d]", at, i), bad)
			}
		default:
			impossibleValue(f, v, at, bad)
		}
		return true
	})
}

func impossibleValue(f protoreflect.FieldDescriptor, v protoreflect.Value, at string, bad map[string]string) {
	switch f.Kind() {
	case protoreflect.StringKind:
		if strings.IndexByte(v.String(), 0) >= 0 {
			bad[at] = "must not hold a zero byte"
		}
	case protoreflect.EnumKind:
		if f.Enum().Values().ByNumber(v.Enum()) == nil {
			bad[at] = "is none of the values of " + string(f.Enum().Name())
		}
	case protoreflect.MessageKind:
		impossible(v.Message(), at+".", bad)
	}
}
