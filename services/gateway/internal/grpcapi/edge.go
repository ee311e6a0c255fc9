package grpcapi

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
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
	// maxMargin is how much earlier than its client a call gives up, so that its answer still arrives; at most a tenth.
	maxMargin = 500 * time.Millisecond
)

// ownNetwork is that of this program's own tools of MCP, which call through memory: bufconn's.
const ownNetwork = "bufconn"

// open are the services that answer without a credential: they show no tenant's data.
func open(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.") || strings.HasPrefix(method, "/grpc.reflection.")
}

// interceptors put the edge around every call.
type interceptors struct{ *edge.Edge }

func (e interceptors) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if open(info.FullMethod) {
		return handler(ctx, req)
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(e.correlate(ctx, info.FullMethod), budget(ctx))
	defer cancel()
	_ = grpc.SetHeader(ctx, metadata.Pairs(headerCorrelation, telemetry.Correlation(ctx)))
	ctx, release, err := e.Door.Admit(ctx, credential(ctx), true)
	defer release()
	var res any
	if err == nil {
		err = e.validate(req)
	}
	if err == nil {
		err = e.Reachable(ctx)
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

func (e interceptors) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if open(info.FullMethod) {
		return handler(srv, ss)
	}
	start := time.Now()
	ctx := e.correlate(ss.Context(), info.FullMethod)
	_ = ss.SetHeader(metadata.Pairs(headerCorrelation, telemetry.Correlation(ctx)))
	ctx, release, err := e.Door.Admit(ctx, credential(ctx), true)
	defer release()
	if err == nil {
		err = handler(srv, &checked{ServerStream: ss, ctx: ctx, edge: e})
	}
	return e.finish(ctx, info.FullMethod, start, err)
}

// checked validates what comes in on a stream.
type checked struct {
	grpc.ServerStream
	ctx  context.Context //nolint:containedctx // this is how gRPC hands a context to a stream's handler
	edge interceptors
}

func (c *checked) Context() context.Context { return c.ctx }

func (c *checked) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := c.edge.validate(m); err != nil {
		return err
	}
	return c.edge.Reachable(c.ctx)
}

// correlate begins a call, under the caller's correlation id where it is one.
func (e interceptors) correlate(ctx context.Context, method string) context.Context {
	api := calls.GRPC
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() == ownNetwork {
		api = calls.MCP
	}
	ctx = e.Calls.Begin(ctx, api, method[strings.LastIndexByte(method, '/')+1:])
	return edge.Correlate(ctx, first(ctx, headerCorrelation), first(ctx, headerTrace))
}

// credential is the one of a call; two are none that could be good.
func credential(ctx context.Context) string {
	if all := metadata.ValueFromIncomingContext(ctx, headerAuthorization); len(all) > 1 {
		return "none"
	}
	return first(ctx, headerAuthorization)
}

func first(ctx context.Context, name string) string {
	if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// validate turns every violated rule into a field error at once.
func (e interceptors) validate(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	if err := legible(m.ProtoReflect()); err != nil {
		return err
	}
	return e.Validate(m)
}

// finish logs the call and turns its error into a status.
func (e interceptors) finish(ctx context.Context, method string, start time.Time, err error) error {
	e.Finish(ctx, method, start, err)
	if err == nil {
		return nil
	}
	return fault.Status(e.Shown(ctx, err), telemetry.Correlation(ctx)).Err()
}
