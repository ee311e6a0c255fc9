package grpcapi

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/output"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

func (s *Server) ExecCommand(req *computev1.ExecCommandRequest, stream grpc.ServerStreamingServer[computev1.ExecEvent]) error {
	ctx := stream.Context()
	p, err := principal.From(ctx)
	if err != nil {
		return err
	}
	w := &watcher{stream: stream}
	end, err := s.use.Exec(ctx, p, first(ctx, headerIdempotency), req, w)
	if err != nil {
		return err
	}
	return w.finish(end)
}

func (s *Server) AttachExec(req *computev1.AttachExecRequest, stream grpc.ServerStreamingServer[computev1.ExecEvent]) error {
	ctx := stream.Context()
	p, err := principal.From(ctx)
	if err != nil {
		return err
	}
	w := &watcher{stream: stream}
	end, err := s.use.Attach(ctx, p, req.GetSandboxId(), req.GetExecId(), req.GetAfterChunk(), w)
	if err != nil {
		return err
	}
	return w.finish(end)
}

// watcher sends what it is told on a stream.
type watcher struct {
	stream grpc.ServerStreamingServer[computev1.ExecEvent]
	id     string
	// headed: the header is sent.
	headed bool
}

func (w *watcher) Named(id string) error {
	w.id = id
	return w.stream.SetHeader(metadata.Pairs(headerExec, id))
}

// Output sends the header with the first thing it is told: from then on the exec is known to every other call.
func (w *watcher) Output(i output.Item) error {
	if i.Accepted {
		if !w.headed {
			w.headed = true
			return w.stream.SendHeader(nil)
		}
		return nil
	}
	w.headed = true
	if i.Chunk == nil {
		return w.stream.Send(&computev1.ExecEvent{
			Event: &computev1.ExecEvent_Heartbeat{Heartbeat: &computev1.Heartbeat{}}, EmittedAt: timestamppb.Now(),
		})
	}
	c := i.Chunk
	e := &computev1.ExecEvent{Chunk: c.Number, Offset: c.Offset, EmittedAt: timestamppb.New(c.Time)}
	switch {
	case c.GapTo > 0:
		e.Event = &computev1.ExecEvent_Gap{Gap: &computev1.OutputGap{Stream: c.Stream, From: c.Offset, To: c.GapTo}}
	case c.Stream == transcript.Stderr:
		e.Event = &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: c.Data}}
	default:
		e.Event = &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: c.Data}}
	}
	return w.stream.Send(e)
}

// finish sends the end. A lost exec is an error, never a completion.
func (w *watcher) finish(end envelope.Recorded) error {
	switch b := end.Body.(type) {
	case *eventsv1.ExecCompleted:
		return w.stream.Send(&computev1.ExecEvent{
			Event: &computev1.ExecEvent_Completed{Completed: completed(w.id, b)}, EmittedAt: timestamppb.New(end.Time),
		})
	case *eventsv1.ExecLost:
		return fault.Newf(fault.Lost, fault.ReasonExecLost, "the outcome of exec %s is not known: %s", w.id, b.GetMessage())
	default:
		return fault.New(fault.Internal, fault.ReasonInternal, "the exec's last event is of an unknown type")
	}
}

// forced are the ends that the program did not choose by itself.
var forced = []string{sandbox.ReasonCancelled, sandbox.ReasonTimedOut, sandbox.ReasonOutputLimit}

func completed(id string, b *eventsv1.ExecCompleted) *computev1.ExecCompleted {
	return &computev1.ExecCompleted{
		ExitCode: b.GetExitCode(), WallTime: durationpb.New(time.Duration(b.GetWallTimeUs()) * time.Microsecond),
		Cancelled: slices.Contains(forced, b.GetReason()), Usage: usage(b.GetUsage()),
		ExecId: id, UsageEventId: b.GetUsageEventId(), Signal: b.GetSignal(), Reason: b.GetReason(), Message: b.GetMessage(),
		Limits: b.GetLimits(),
		Stdout: digest(b.GetStdout()), Stderr: digest(b.GetStderr()),
	}
}

func digest(o *eventsv1.Output) *computev1.OutputDigest {
	if o.GetBytes() == 0 {
		return nil
	}
	d := &computev1.OutputDigest{Bytes: o.GetBytes(), DroppedBytes: o.GetDroppedBytes(), Sha256: o.GetSha256()}
	for _, g := range o.GetGaps() {
		d.Gaps = append(d.Gaps, &computev1.ByteRange{From: g.GetFrom(), To: g.GetTo()})
	}
	return d
}

func (s *Server) CancelExec(ctx context.Context, req *computev1.CancelExecRequest) (*computev1.CancelExecResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.use.Cancel(ctx, p, first(ctx, headerIdempotency), req.GetSandboxId(), req.GetExecId()); err != nil {
		return nil, err
	}
	return &computev1.CancelExecResponse{}, nil
}

func (s *Server) GetExec(ctx context.Context, req *computev1.GetExecRequest) (*computev1.GetExecResponse, error) {
	p, err := principal.From(ctx)
	if err != nil {
		return nil, err
	}
	x, err := s.use.Receipt(ctx, p, req.GetSandboxId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	res := &computev1.GetExecResponse{
		ExecId: x.ID, SandboxId: x.Sandbox, State: x.State, LostReason: x.Lost.GetReason(),
		RequestedAt: timestamp(x.RequestedAt), StartedAt: timestamp(x.StartedAt), EndedAt: timestamp(x.EndedAt),
		Command: x.Spec.GetCommand(), Args: x.Spec.GetArgs(), WorkingDir: x.Spec.GetWorkingDir(),
		FirstSequence: x.FirstSeq, LastSequence: x.LastSeq, Digest: x.Digest,
		LastChunk: max(x.Completed.GetLastChunk(), x.Lost.GetLastChunk()), Terminal: x.Spec.GetTerminal(),
	}
	for _, r := range x.Resizes {
		res.Resizes = append(res.Resizes, &computev1.TerminalResize{Time: timestamp(r.Time), Size: r.Size})
	}
	if x.Completed != nil {
		res.Completed = completed(x.ID, x.Completed)
	}
	return res, nil
}

func (s *Server) WatchEvents(req *computev1.WatchEventsRequest, stream grpc.ServerStreamingServer[computev1.WatchEventsResponse]) error {
	ctx := stream.Context()
	p, err := principal.From(ctx)
	if err != nil {
		return err
	}
	each := func(seq uint64, e *envelope.Recorded) error {
		if e == nil {
			return stream.Send(&computev1.WatchEventsResponse{Heartbeat: true, Sequence: seq})
		}
		return stream.Send(watched(e))
	}
	return s.use.Events(ctx, p, named(ctx, p, req.GetTenantId()), req.GetSandboxId(), req.GetAfterSequence(), req.GetNoFollow(), each)
}

func watched(e *envelope.Recorded) *computev1.WatchEventsResponse {
	res := &computev1.WatchEventsResponse{
		Sequence: e.Seq, Subject: e.Subject, Id: e.ID, Type: e.Type, Time: timestamppb.New(e.Time), TenantId: e.Tenant,
		Actor: e.Actor, Cause: e.Cause, CorrelationId: e.Correlation, Digest: e.Digest, Body: e.Data,
	}
	if agg, err := subject.ParseEvent(e.Subject); err == nil {
		res.SandboxId = agg.Sandbox
		if agg.Kind == subject.KindExec {
			res.ExecId = agg.ID
		}
	}
	// What was not written by us may hold anything, and a string that is no UTF-8 would end the stream.
	for _, s := range []*string{&res.Id, &res.Type, &res.TenantId, &res.Actor, &res.Cause, &res.CorrelationId} {
		*s = strings.ToValidUTF8(*s, "\uFFFD")
	}
	if e.Body != nil {
		if text, err := (protojson.MarshalOptions{UseProtoNames: true}).Marshal(e.Body); err == nil {
			res.BodyJson = string(text)
		}
	}
	return res
}

// bytesQuantity writes a size as a Kubernetes quantity with the largest binary suffix that keeps it exact.
func bytesQuantity(n uint64) string {
	suffix := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	i := 0
	for n > 0 && n%1024 == 0 && i < len(suffix)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatUint(n, 10) + suffix[i]
}
