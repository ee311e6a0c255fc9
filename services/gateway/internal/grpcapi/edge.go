package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// Metadata names.
const (
	headerAuthorization = "authorization"
	headerCorrelation   = "x-correlation-id"
	headerTrace         = "x-trace-id"
	headerIdempotency   = "idempotency-key"
	headerExec          = "sandtrail-exec-id"
	headerTenant        = "x-tenant-id"
	headerOrg           = "x-org-id"
)

const (
	// unaryDeadline bounds a call whose client gave no deadline of its own.
	unaryDeadline = 2 * time.Minute
	// outageWait is how long a call waits for the connection to the log to come back, at most half of its own deadline.
	outageWait = 2 * time.Second
	// maxMargin is how much earlier than its client a call gives up, so that its answer still arrives; at most a tenth.
	maxMargin = 500 * time.Millisecond
)

// open are the services that answer without a credential: they show no tenant's data.
func open(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.") || strings.HasPrefix(method, "/grpc.reflection.")
}

// edge is what happens to every call before and after its use case.
type edge struct {
	keys      *principal.Keys
	validator protovalidate.Validator
	logger    *slog.Logger
	// connected reports whether the log can be reached.
	connected func() bool
}

func (e edge) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if open(info.FullMethod) {
		return handler(ctx, req)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(correlate(ctx), budget(ctx))
	defer cancel()
	_ = grpc.SetHeader(ctx, metadata.Pairs(headerCorrelation, telemetry.Correlation(ctx)))
	ctx, err := e.admit(ctx)
	var res any
	if err == nil {
		err = e.validate(req)
	}
	if err == nil {
		err = e.reachable(ctx)
	}
	if err == nil {
		res, err = handler(ctx, req)
	}
	return res, e.finish(ctx, info.FullMethod, start, err)
}

// budget is the time that a unary call may take.
func budget(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return unaryDeadline
	}
	left := time.Until(deadline)
	return min(left-min(left/10, maxMargin), unaryDeadline)
}

func (e edge) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if open(info.FullMethod) {
		return handler(srv, ss)
	}
	start := time.Now()
	ctx := correlate(ss.Context())
	_ = ss.SetHeader(metadata.Pairs(headerCorrelation, telemetry.Correlation(ctx)))
	ctx, err := e.admit(ctx)
	if err == nil {
		err = handler(srv, &checked{ServerStream: ss, ctx: ctx, edge: e})
	}
	return e.finish(ctx, info.FullMethod, start, err)
}

// reachable waits a moment for a connection that is being made again, and gives unavailable where it does not come: sooner than
// the client gives up, and with nothing done yet.
func (e edge) reachable(ctx context.Context) error {
	if e.connected() {
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
			if e.connected() {
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

// checked validates what comes in on a stream.
type checked struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // this is how gRPC hands a context to a stream's handler
	edge edge
}

func (c *checked) Context() context.Context { return c.ctx }

func (c *checked) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := c.edge.validate(m); err != nil {
		return err
	}
	return c.edge.reachable(c.ctx)
}

// correlate takes the caller's correlation id where it is one, or makes one.
func correlate(ctx context.Context) context.Context {
	for _, name := range []string{headerCorrelation, headerTrace} {
		if c := telemetry.WithCorrelation(ctx, first(ctx, name)); telemetry.Correlation(c) != "" {
			return c
		}
	}
	return telemetry.WithCorrelation(ctx, ids.New())
}

func first(ctx context.Context, name string) string {
	if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (e edge) admit(ctx context.Context) (context.Context, error) {
	p, err := e.keys.Authenticate(first(ctx, headerAuthorization))
	if err != nil {
		return ctx, err
	}
	return principal.With(ctx, p), nil
}

// validate turns every violated rule into a field error at once.
func (e edge) validate(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if err := legible(m.ProtoReflect()); err != nil {
		return err
	}
	fields := map[string]string{}
	impossible(m.ProtoReflect(), "", fields)
	if err := e.rules(m, fields); err != nil {
		return err
	}
	if len(fields) == 0 {
		return nil
	}
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, "the request is not valid").WithFields(fields)
}

// rules adds what the contract's own rules say of a request.
func (e edge) rules(m proto.Message, fields map[string]string) error {
	err := e.validator.Validate(m)
	if err == nil {
		return nil
	}
	var v *protovalidate.ValidationError
	if !errors.As(err, &v) {
		return fault.From(err)
	}
	for _, violation := range v.Violations {
		path := protovalidate.FieldPathString(violation.Proto.GetField())
		if old := fields[path]; old != "" {
			fields[path] = old + "; " + violation.Proto.GetMessage()
			continue
		}
		fields[path] = violation.Proto.GetMessage()
	}
	return nil
}

// finish logs the call and turns its error into a status. Requests and answers are never logged: they hold secrets and output.
func (e edge) finish(ctx context.Context, method string, start time.Time, err error) error {
	attrs := []any{"method", method, "took", time.Since(start)}
	if p, ok := principal.From(ctx); ok == nil {
		attrs = append(attrs, "actor", p.Actor)
	}
	if err == nil {
		e.logger.DebugContext(ctx, "call", attrs...)
		return nil
	}
	st := fault.Status(e.shown(ctx, err), telemetry.Correlation(ctx))
	level := slog.LevelInfo
	if st.Code() == codes.Internal || st.Code() == codes.Unavailable {
		level = slog.LevelError
	}
	e.logger.Log(ctx, level, "call failed", append(attrs, "code", st.Code().String(), "error", err)...)
	return st.Err()
}

// shown is the fault that a caller gets of err. What failed because the call was over is not the fault of what it was doing.
func (e edge) shown(ctx context.Context, err error) error {
	var f *fault.Error
	_, grpcs := status.FromError(err)
	switch ended := ctx.Err(); {
	case errors.Is(ended, context.Canceled):
		return ended
	case ended != nil && !e.connected():
		return unreachable()
	case !errors.As(err, &f) && grpcs:
		// gRPC's own: the message was not sent or could not be read.
		return fault.FromStatus(err)
	default:
		return err
	}
}

func (e edge) recovered(ctx context.Context, p any) error {
	e.logger.ErrorContext(ctx, "a handler panicked", "panic", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
	return fault.New(fault.Internal, fault.ReasonInternal, "something went wrong on our side; the correlation id leads to it")
}
