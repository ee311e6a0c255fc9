package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/fault"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	box  = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
	xid  = "0d9f7a52-3c1e-4a55-9a35-1f7f6c1c9a01"
	corr = "corr-1234"
)

// fake is a server whose streams are cut, whose answers are lost and whose failures come when a test wants them.
type fake struct {
	computev1.UnimplementedComputeServiceServer
	addr   string
	server *grpc.Server

	mu sync.Mutex
	// calls are the methods that were called, in order; meta their metadata.
	calls []string
	meta  []metadata.MD
	// fail is asked before each call of a method with its number from 1.
	fail func(method string, n int) error
	// events are an exec's, streams what each of its streams does: send so many events, then end with an error. Behind the last
	// one streams run to the end.
	events  []*computev1.ExecEvent
	streams []piece
	// hold keeps an exec's end back until it is closed.
	hold    chan struct{}
	starts  map[string]int
	after   []uint64
	execs   []*computev1.ExecCommandRequest
	creates []*computev1.CreateSandboxRequest
	boxes   []*computev1.DescribeSandboxResponse
	lists   []*computev1.ListSandboxesRequest
	rows    []*computev1.UsageRow
	log     []*computev1.WatchEventsResponse
	// logCut ends each stream of the log after so many events, 0 never.
	logCut int
	files  map[string]*file
	extra  []*computev1.FileEntry
	// loseAppend answers the n-th write with a failure after it was done, 0 none.
	loseWrite int
	writes    int
	// uploads are files in parts; onPart is told of the file that is there when one comes. An earlier server knows no parts.
	uploads map[string][]byte
	onPart  func(now *file)
	earlier bool
}

type file struct {
	data []byte
	mode uint32
}

type piece struct {
	send   int
	err    error
	header bool
	// events instead of the exec's.
	events []*computev1.ExecEvent
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{starts: map[string]int{}, files: map[string]*file{}, uploads: map[string][]byte{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f.serve(l)
	t.Cleanup(func() { f.server.Stop() })
	return f
}

func (f *fake) serve(l net.Listener) {
	f.addr = l.Addr().String()
	f.server = grpc.NewServer(grpc.MaxRecvMsgSize(17<<20), grpc.MaxSendMsgSize(17<<20),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := f.called(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := f.called(ss.Context(), info.FullMethod); err != nil {
				return err
			}
			return h(srv, ss)
		}))
	computev1.RegisterComputeServiceServer(f.server, f)
	go f.server.Serve(l) // it ends with the test
}

func (f *fake) called(ctx context.Context, full string) error {
	method := full[strings.LastIndexByte(full, '/')+1:]
	md, _ := metadata.FromIncomingContext(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.meta = append(f.calls, method), append(f.meta, md)
	if f.fail == nil {
		return nil
	}
	n := 0
	for _, c := range f.calls {
		if c == method {
			n++
		}
	}
	return f.fail(method, n)
}

func (f *fake) count(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if c == method {
			n++
		}
	}
	return n
}

// header gives a metadata value of each call of a method.
func (f *fake) header(method, name string) (all []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, c := range f.calls {
		if c == method {
			all = append(all, strings.Join(f.meta[i].Get(name), ","))
		}
	}
	return all
}

func failure(code fault.Code, reason fault.Reason, message string, fields map[string]string) error {
	return fault.Status(fault.New(code, reason, message).WithFields(fields), corr).Err()
}

func (f *fake) CreateSandbox(_ context.Context, req *computev1.CreateSandboxRequest) (*computev1.CreateSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creates = append(f.creates, req)
	return &computev1.CreateSandboxResponse{SandboxId: box, Status: computev1.SandboxStatus_SANDBOX_STATUS_STARTING}, nil
}

func (f *fake) DescribeSandbox(_ context.Context, req *computev1.DescribeSandboxRequest) (*computev1.DescribeSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.boxes) == 0 {
		return nil, failure(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox "+req.GetSandboxId(), nil)
	}
	b := f.boxes[0]
	if len(f.boxes) > 1 {
		f.boxes = f.boxes[1:]
	}
	return b, nil
}

func (f *fake) DestroySandbox(_ context.Context, req *computev1.DestroySandboxRequest) (*computev1.DestroySandboxResponse, error) {
	if req.GetSandboxId() != box {
		return nil, failure(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox", nil)
	}
	return &computev1.DestroySandboxResponse{SandboxId: box, TotalUptime: durationpb.New(26 * time.Hour)}, nil
}

func (f *fake) ExtendSandbox(_ context.Context, req *computev1.ExtendSandboxRequest) (*computev1.ExtendSandboxResponse, error) {
	if req.GetSandboxId() != box {
		return nil, failure(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox", nil)
	}
	return &computev1.ExtendSandboxResponse{SandboxId: box, ExpiresAt: timestamppb.New(time.Unix(0, 0).Add(req.GetTimeout().AsDuration()))}, nil
}

func page[T any](all []T, p *commonv1.PageRequest) ([]T, *commonv1.PageResponse) {
	from, _ := strconv.Atoi(p.GetCursor())
	to := min(from+int(p.GetLimit()), len(all))
	next := ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return all[from:to], &commonv1.PageResponse{NextCursor: next}
}

func (f *fake) ListSandboxes(_ context.Context, req *computev1.ListSandboxesRequest) (*computev1.ListSandboxesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists = append(f.lists, req)
	some, p := page(f.boxes, req.GetPage())
	return &computev1.ListSandboxesResponse{Sandboxes: some, Page: p}, nil
}

func (f *fake) ListUsage(_ context.Context, req *computev1.ListUsageRequest) (*computev1.ListUsageResponse, error) {
	some, p := page(f.rows, req.GetPage())
	return &computev1.ListUsageResponse{Rows: some, Page: p}, nil
}

func (f *fake) ExecCommand(req *computev1.ExecCommandRequest, s grpc.ServerStreamingServer[computev1.ExecEvent]) error {
	md, _ := metadata.FromIncomingContext(s.Context())
	f.mu.Lock()
	f.execs = append(f.execs, req)
	f.starts[strings.Join(md.Get("idempotency-key"), ",")]++
	f.mu.Unlock()
	return f.stream(s, 0)
}

func (f *fake) AttachExec(req *computev1.AttachExecRequest, s grpc.ServerStreamingServer[computev1.ExecEvent]) error {
	if req.GetExecId() != xid {
		return failure(fault.NotFound, fault.ReasonExecNotFound, "there is no exec", nil)
	}
	f.mu.Lock()
	f.after = append(f.after, req.GetAfterChunk())
	f.mu.Unlock()
	return f.stream(s, req.GetAfterChunk())
}

func (f *fake) stream(s grpc.ServerStreamingServer[computev1.ExecEvent], after uint64) error {
	f.mu.Lock()
	p := piece{send: len(f.events), header: true}
	if len(f.streams) > 0 {
		p, f.streams = f.streams[0], f.streams[1:]
	}
	f.mu.Unlock()
	if p.header {
		if err := s.SendHeader(metadata.Pairs("sandtrail-exec-id", xid)); err != nil {
			return err
		}
	}
	sent, events := 0, f.events
	if p.events != nil {
		events = p.events
	}
	for _, e := range events {
		if n := e.GetChunk(); n > 0 && n <= after {
			continue
		}
		if sent == p.send {
			break
		}
		sent++
		if hold := f.holding(); e.GetCompleted() != nil && hold != nil {
			select {
			case <-hold:
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return p.err
}

func (f *fake) holding() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hold
}

func (f *fake) CancelExec(context.Context, *computev1.CancelExecRequest) (*computev1.CancelExecResponse, error) {
	if hold := f.holding(); hold != nil {
		close(hold)
	}
	return &computev1.CancelExecResponse{}, nil
}

func (f *fake) WatchEvents(req *computev1.WatchEventsRequest, s grpc.ServerStreamingServer[computev1.WatchEventsResponse]) error {
	sent := 0
	for _, e := range f.log {
		if e.GetSequence() <= req.GetAfterSequence() {
			continue
		}
		if f.logCut > 0 && sent == f.logCut {
			return status.Error(codes.Unavailable, "cut")
		}
		sent++
		if err := s.Send(e); err != nil {
			return err
		}
	}
	if req.GetNoFollow() {
		return nil
	}
	if err := s.Send(&computev1.WatchEventsResponse{Heartbeat: true, Sequence: req.GetAfterSequence()}); err != nil {
		return err
	}
	<-s.Context().Done()
	return s.Context().Err()
}

func (f *fake) ReadFile(_ context.Context, req *computev1.ReadFileRequest) (*computev1.ReadFileResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.files[req.GetPath()]
	if x == nil {
		if slices.ContainsFunc(f.extra, func(e *computev1.FileEntry) bool { return e.GetPath() == req.GetPath() }) {
			return nil, failure(fault.InvalidArgument, fault.ReasonPathNotFile, "it is no regular file", nil)
		}
		return nil, failure(fault.NotFound, fault.ReasonPathNotFound, "there is no such file", nil)
	}
	from := min(req.GetOffset(), int64(len(x.data)))
	to := min(from+req.GetMaxBytes(), int64(len(x.data)))
	return &computev1.ReadFileResponse{Data: x.data[from:to], TotalSize: int64(len(x.data)), Eof: to == int64(len(x.data))}, nil
}

func (f *fake) WriteFile(_ context.Context, req *computev1.WriteFileRequest) (*computev1.WriteFileResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	lost := f.writes == f.loseWrite
	id := req.GetUploadId()
	if id != "" && !f.earlier {
		if req.GetAbort() {
			delete(f.uploads, id)
			return &computev1.WriteFileResponse{}, nil
		}
		if req.GetOffset() > int64(len(f.uploads[id])) {
			return nil, status.Error(codes.InvalidArgument, "parts must come in order")
		}
		f.uploads[id] = append(f.uploads[id][:req.GetOffset():req.GetOffset()], req.GetData()...)
		if f.onPart != nil {
			f.onPart(f.files[req.GetPath()])
		}
	}
	res := &computev1.WriteFileResponse{BytesWritten: int64(len(req.GetData()))}
	if id == "" || f.earlier || req.GetLast() {
		x := f.files[req.GetPath()]
		if x == nil || !req.GetAppend() {
			x = &file{mode: req.GetMode()}
			f.files[req.GetPath()] = x
		}
		if id != "" && !f.earlier {
			x.data = f.uploads[id]
		} else {
			x.data = append(x.data, req.GetData()...)
		}
		res.Size = int64(len(x.data))
	}
	if lost {
		return nil, status.Error(codes.Unavailable, "the answer is lost")
	}
	return res, nil
}

func (f *fake) ListFiles(_ context.Context, req *computev1.ListFilesRequest) (*computev1.ListFilesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	res := &computev1.ListFilesResponse{}
	prefix := strings.TrimSuffix(req.GetPath(), "/") + "/"
	if req.GetPath() == "" || req.GetPath() == "." {
		prefix = ""
	}
	for name, x := range f.files {
		res.Entries = append(res.Entries, &computev1.FileEntry{Path: name, Size: uint64(len(x.data)), Mode: x.mode})
	}
	res.Entries = append(res.Entries, f.extra...)
	res.Entries = slices.DeleteFunc(res.Entries, func(e *computev1.FileEntry) bool {
		rest, below := strings.CutPrefix(e.GetPath(), prefix)
		return !below || !req.GetRecursive() && strings.Contains(rest, "/")
	})
	slices.SortFunc(res.Entries, func(a, b *computev1.FileEntry) int { return strings.Compare(a.GetPath(), b.GetPath()) })
	return res, nil
}

// result is what a command line gave.
type result struct {
	code           int
	stdout, stderr string
}

// run runs a command line against the fake.
func (f *fake) run(t *testing.T, args ...string) result {
	t.Helper()
	return f.runWith(t, nil, nil, args...)
}

func (f *fake) runWith(t *testing.T, stdin []byte, signals <-chan os.Signal, args ...string) result {
	t.Helper()
	t.Setenv("SANDTRAIL_ADDR", f.addr)
	return runCLI(stdin, signals, args...)
}

func runCLI(stdin []byte, signals <-chan os.Signal, args ...string) result {
	var out, errs buffer
	code := cli.Main(args, cli.Env{
		Stdin: bytes.NewReader(stdin), Stdout: &out, Stderr: &errs,
		Signals: func() (<-chan os.Signal, func()) { return signals, func() {} },
	})
	return result{code, out.String(), errs.String()}
}

// buffer is a bytes.Buffer for several writers.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func sandboxes(n int) (all []*computev1.DescribeSandboxResponse) {
	for i := range n {
		all = append(all, &computev1.DescribeSandboxResponse{
			SandboxId: fmt.Sprintf("00000000-0000-4000-8000-%012d", i), Status: computev1.SandboxStatus_SANDBOX_STATUS_READY,
			Detail: &computev1.SandboxDetail{State: "ready", TenantId: "acme", Image: "img"},
		})
	}
	return all
}
