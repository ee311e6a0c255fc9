// Package files answers FileCall requests for the sandboxes of one worker through their toolboxes.
package files

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

const (
	// MaxPart bounds the bytes of one read or write; more is refused with too_large.
	MaxPart = 512 << 10
	// callTimeout bounds one call; queue group of the workers' subscription.
	callTimeout = 20 * time.Second
	// wholeTimeout bounds one that reads a whole file, or removes a whole directory.
	wholeTimeout = 2 * time.Minute
	// wholeMost of those are at work at once, of all sandboxes; a write whose last part is behind wholeBytes is one.
	wholeMost  = 8
	wholeBytes = 16 << 20
	group      = "files"
	// pending requests wait for a free slot; over it NATS drops them and the caller times out.
	pendingMost  = 1024
	pendingBytes = 64 << 20
)

// Server answers file calls.
type Server struct {
	NC     *nats.Conn
	Worker string
	// Concurrent calls, 32 by default; further ones wait.
	Concurrent int
	// Owner gives the tenant of a sandbox of this worker. It is what keeps tenants apart: the caller's word is not taken.
	Owner   func(ctx context.Context, sandbox string) (tenant string, err error)
	Toolbox func(sandbox string) *client.Client
	// Resized records that the terminal of an exec was given another size.
	Resized func(ctx context.Context, exec subject.Aggregate, size *commonv1.TerminalSize) error
	// Connected serves a tunnel to a port.
	Connected func(ctx context.Context, tenant, sandbox, id string, dial func(context.Context) (net.Conn, error)) error
	Log       *slog.Logger
	wholes    wholes
	// Tracer makes a span of each call behind that of its caller; nil makes none.
	Tracer trace.Tracer
}

// Run serves until ctx ends, and lets the calls in work finish.
func (s *Server) Run(ctx context.Context) error {
	n := s.Concurrent
	if n <= 0 {
		n = 32
	}
	slots := make(chan struct{}, n)
	work := context.WithoutCancel(ctx)
	sub, err := s.NC.QueueSubscribe(subject.FilesOf(s.Worker), group, func(m *nats.Msg) {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			s.serve(work, m)
		}()
	})
	if err != nil {
		return fmt.Errorf("subscribe to file calls: %w", err)
	}
	if err := sub.SetPendingLimits(pendingMost, pendingBytes); err != nil {
		return fmt.Errorf("bound file calls: %w", err)
	}
	<-ctx.Done()
	err = sub.Unsubscribe()
	for range n {
		slots <- struct{}{}
	}
	return err
}

func (s *Server) serve(ctx context.Context, m *nats.Msg) {
	ctx, cancel := context.WithTimeout(ctx, wholeTimeout)
	defer cancel()
	span := trace.SpanFromContext(ctx)
	if s.Tracer != nil {
		ctx, span = s.Tracer.Start(telemetry.Extract(ctx, m.Header), "files.call", trace.WithSpanKind(trace.SpanKindServer))
	}
	defer span.End()
	reply, err := s.call(ctx, m)
	if err != nil {
		f := translate(err)
		span.SetStatus(codes.Error, string(f.Reason))
		if f.Code == fault.Internal {
			s.Log.WarnContext(ctx, "file call failed", "subject", m.Subject, "error", err)
		}
		detail, code := fault.Detail(f)
		reply = &commandsv1.FileReply{Error: detail, GrpcCode: uint32(code)}
	}
	data, err := proto.Marshal(reply)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !errors.Is(err, nats.ErrMsgNoReply) {
		s.Log.WarnContext(ctx, "file call not answered", "subject", m.Subject, "error", err)
	}
}

func (s *Server) call(ctx context.Context, m *nats.Msg) (*commandsv1.FileReply, error) {
	c := &commandsv1.FileCall{}
	if err := proto.Unmarshal(m.Data, c); err != nil {
		return nil, invalid("the request cannot be read")
	}
	tenant, box := c.GetTenantId(), c.GetSandboxId()
	if !subject.ValidToken(tenant) || !subject.ValidToken(box) || m.Subject != subject.Files(s.Worker, tenant, box) {
		return nil, invalid("the request does not belong to its subject")
	}
	owner, err := s.Owner(ctx, box)
	if err != nil {
		return nil, err
	}
	if owner != tenant {
		return nil, fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox %s", box)
	}
	if whole(c) {
		leave, err := s.wholes.enter(box)
		if err != nil {
			return nil, err
		}
		defer leave()
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	tb := s.Toolbox(box)
	switch call := c.GetCall().(type) {
	case *commandsv1.FileCall_Stat:
		return stat(ctx, tb, call.Stat)
	case *commandsv1.FileCall_Delete:
		return remove(ctx, tb, call.Delete)
	case *commandsv1.FileCall_Make:
		return makeEntry(ctx, tb, call.Make)
	case *commandsv1.FileCall_Stdin:
		return stdin(ctx, tb, call.Stdin)
	case *commandsv1.FileCall_Signal:
		return signal(ctx, tb, call.Signal)
	case *commandsv1.FileCall_Resize:
		return s.resize(ctx, tb, tenant, box, call.Resize)
	case *commandsv1.FileCall_Connect:
		return s.connect(ctx, tb, tenant, box, call.Connect)
	case *commandsv1.FileCall_Read:
		return read(ctx, tb, call.Read)
	case *commandsv1.FileCall_Write:
		return write(ctx, tb, call.Write)
	case *commandsv1.FileCall_List:
		return list(ctx, tb, call.List)
	case *commandsv1.FileCall_Stats:
		u, err := tb.Usage(ctx, &toolboxv1.Usage{})
		if err != nil {
			return nil, err
		}
		return &commandsv1.FileReply{Usage: u.GetUsage()}, nil
	default:
		return nil, invalid("the request is of no known kind")
	}
}

// whole reports whether a call may take long: it reads a whole file, or removes all of a directory.
func whole(c *commandsv1.FileCall) bool {
	w := c.GetWrite()
	return c.GetStat().GetDigest() || c.GetDelete().GetRecursive() || w.GetLast() && w.GetOffset() >= wholeBytes
}

// wholes lets one long call of each sandbox, and few of all, work at a time: the others wait for none of them.
type wholes struct {
	mu   sync.Mutex
	busy map[string]bool
}

func (w *wholes) enter(box string) (leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy[box] || len(w.busy) >= wholeMost {
		return nil, fault.New(fault.Unavailable, fault.ReasonConflict, "another large file is at work; try again").WithRetry(time.Second)
	}
	if w.busy == nil {
		w.busy = map[string]bool{}
	}
	w.busy[box] = true
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.busy, box)
	}, nil
}

func stat(ctx context.Context, tb *client.Client, c *commandsv1.StatCall) (*commandsv1.FileReply, error) {
	if err := path(c.GetPath()); err != nil {
		return nil, err
	}
	r, err := tb.StatFile(ctx, &toolboxv1.StatFile{Path: c.GetPath(), Digest: c.GetDigest()})
	if err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{
		TotalSize: r.GetSize(), Version: r.GetVersion(), Unsettled: r.GetUnsettled(), ModifiedAt: r.GetModifiedAt(), Sha256: r.GetSha256(),
		Mode: r.GetMode(),
	}, nil
}

func makeEntry(ctx context.Context, tb *client.Client, c *commandsv1.MakeCall) (*commandsv1.FileReply, error) {
	for _, p := range []string{c.GetPath(), c.GetSymlink(), c.GetHardlink()} {
		if err := path(p); err != nil {
			return nil, err
		}
	}
	_, err := tb.MakeEntry(ctx, &toolboxv1.MakeEntry{
		Path: c.GetPath(), Symlink: c.GetSymlink(), Hardlink: c.GetHardlink(), Mode: c.GetMode(), ModifiedAt: c.GetModifiedAt(),
	})
	if err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{}, nil
}

func remove(ctx context.Context, tb *client.Client, c *commandsv1.DeleteCall) (*commandsv1.FileReply, error) {
	if err := path(c.GetPath()); err != nil {
		return nil, err
	}
	if _, err := tb.DeleteFile(ctx, &toolboxv1.DeleteFile{Path: c.GetPath(), Recursive: c.GetRecursive()}); err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{}, nil
}

func stdin(ctx context.Context, tb *client.Client, c *commandsv1.StdinCall) (*commandsv1.FileReply, error) {
	if !subject.ValidToken(c.GetExecId()) || len(c.GetData()) > MaxPart {
		return nil, invalid("exec_id or data is out of bounds")
	}
	r, err := tb.Stdin(ctx, &toolboxv1.Stdin{ExecId: c.GetExecId(), Offset: c.GetOffset(), Data: c.GetData(), Eof: c.GetEof()})
	if err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{StdinOffset: r.GetOffset()}, nil
}

// maxSignal is the last one that Linux has.
const maxSignal = 64

func signal(ctx context.Context, tb *client.Client, c *commandsv1.SignalCall) (*commandsv1.FileReply, error) {
	if !subject.ValidToken(c.GetExecId()) || c.GetSignal() < 1 || c.GetSignal() > maxSignal {
		return nil, invalid("exec_id or signal is out of bounds")
	}
	if _, err := tb.Signal(ctx, &toolboxv1.Signal{ExecId: c.GetExecId(), Signal: c.GetSignal()}); err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{}, nil
}

// resize gives a terminal another size and records it: what is recorded has happened.
func (s *Server) resize(ctx context.Context, tb *client.Client, tenant, box string, c *commandsv1.ResizeCall) (*commandsv1.FileReply, error) {
	if !subject.ValidToken(c.GetExecId()) {
		return nil, invalid("exec_id is not valid")
	}
	if _, err := tb.Resize(ctx, &toolboxv1.Resize{ExecId: c.GetExecId(), Size: c.GetSize()}); err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{}, s.Resized(ctx, subject.Exec(tenant, box, c.GetExecId()), c.GetSize())
}

// connect opens a tunnel to a port.
func (s *Server) connect(ctx context.Context, tb *client.Client, tenant, box string, c *commandsv1.ConnectCall) (*commandsv1.FileReply, error) {
	if !subject.ValidToken(c.GetTunnelId()) {
		return nil, invalid("tunnel_id is not valid")
	}
	err := s.Connected(ctx, tenant, box, c.GetTunnelId(), func(ctx context.Context) (net.Conn, error) {
		return tb.Connect(ctx, &toolboxv1.Connect{Port: c.GetPort()})
	})
	var refused *client.Error
	if errors.As(err, &refused) && refused.Message == "unknown call" {
		return nil, fault.New(fault.FailedPrecondition, fault.ReasonNotImplemented, "the sandbox was made by an earlier version, which does not reach its ports; make it anew")
	}
	return &commandsv1.FileReply{}, err
}

func read(ctx context.Context, tb *client.Client, c *commandsv1.ReadPart) (*commandsv1.FileReply, error) {
	if err := path(c.GetPath()); err != nil {
		return nil, err
	}
	if c.GetOffset() < 0 || c.GetMaxBytes() < 0 {
		return nil, invalid("offset and max_bytes cannot be negative")
	}
	n := c.GetMaxBytes()
	if n == 0 || n > MaxPart {
		n = MaxPart
	}
	r, err := tb.ReadFile(ctx, &toolboxv1.ReadFile{Path: c.GetPath(), Offset: c.GetOffset(), MaxBytes: n})
	if err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{
		Data: r.GetData(), TotalSize: r.GetTotalSize(), Eof: r.GetEof(), Version: r.GetVersion(), Unsettled: r.GetUnsettled(),
	}, nil
}

func write(ctx context.Context, tb *client.Client, c *commandsv1.WritePart) (*commandsv1.FileReply, error) {
	if err := path(c.GetPath()); err != nil {
		return nil, err
	}
	if len(c.GetData()) > MaxPart {
		return nil, fault.Newf(fault.InvalidArgument, fault.ReasonTooLarge, "one part of a file has at most %d bytes", MaxPart)
	}
	if c.GetOffset() < 0 {
		return nil, invalid("offset cannot be negative")
	}
	r, err := tb.WriteFile(ctx, &toolboxv1.WriteFile{
		Path: c.GetPath(), UploadId: c.GetUploadId(), Offset: c.GetOffset(), Data: c.GetData(), Last: c.GetLast(),
		Append: c.GetAppend(), Mode: c.GetMode(), Abort: c.GetAbort(), FinishId: c.GetFinishId(),
		ModifiedAt: c.GetModifiedAt(),
	})
	if err != nil {
		return nil, err
	}
	return &commandsv1.FileReply{BytesWritten: r.GetBytesWritten(), Size: r.GetSize(), Sha256: r.GetSha256()}, nil
}

func list(ctx context.Context, tb *client.Client, c *commandsv1.ListCall) (*commandsv1.FileReply, error) {
	if err := path(c.GetPath()); err != nil {
		return nil, err
	}
	r, err := tb.ListFiles(ctx, &toolboxv1.ListFiles{
		Path: c.GetPath(), Recursive: c.GetRecursive(), MaxEntries: c.GetMaxEntries(), After: c.GetAfter(),
	})
	if err != nil {
		return nil, err
	}
	reply := &commandsv1.FileReply{Truncated: r.GetTruncated(), Next: r.GetNext()}
	for _, e := range r.GetEntries() {
		reply.Entries = append(reply.Entries, &commandsv1.FileInfo{
			Path: e.GetPath(), Size: e.GetSize(), IsDir: e.GetIsDir(), Mode: e.GetMode(), ModifiedAt: e.GetModifiedAt(),
			LinkTarget: e.GetLinkTarget(),
		})
	}
	return reply, nil
}

func path(p string) error {
	if len(p) > 4096 || strings.ContainsRune(p, 0) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "a path has at most 4096 bytes and no zero byte").
			WithFields(map[string]string{"path": "at most 4096 bytes, no zero byte"})
	}
	return nil
}

func invalid(message string) error {
	return fault.New(fault.InvalidArgument, fault.ReasonValidation, message)
}

// translate makes a fault of what a toolbox answered. A toolbox that cannot be reached is unavailable: its sandbox is starting,
// or on its way out.
func translate(err error) *fault.Error {
	var refused *client.Error
	switch {
	case errors.As(err, &refused):
		return fault.New(fault.Code(refused.Code), fault.Reason(refused.Reason), refused.Message)
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.DeadlineExceeded, fault.ReasonTimeout, "the sandbox took too long to answer").Because(err)
	case errors.Is(err, client.ErrUnavailable):
		return fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox does not answer").
			WithRetry(time.Second).Because(err)
	default:
		return fault.From(err)
	}
}
