package e2e

import (
	"context"
	"encoding/hex"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// The caller's own span: the trace that everything must be in.
const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
	secret  = "not-for-any-span"
)

// spans is an OTLP receiver.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu   sync.Mutex
	all  []span
	raw  [][]byte
	addr string
}

type span struct {
	*tracev1.Span
	service string
}

func (s span) String() string { return s.service + ": " + s.GetName() }

func receive(t *testing.T) *spans {
	t.Helper()
	// Batches leave at once rather than after five seconds.
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &spans{addr: l.Addr().String()}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return s
}

func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.raw = append(s.raw, raw)
	for _, res := range r.GetResourceSpans() {
		service := ""
		for _, a := range res.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range res.GetScopeSpans() {
			for _, one := range scope.GetSpans() {
				s.all = append(s.all, span{one, service})
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// of returns the spans of a trace by span id.
func (s *spans) of(trace string) map[string]span {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]span{}
	for _, one := range s.all {
		if hex.EncodeToString(one.GetTraceId()) == trace {
			found[hex.EncodeToString(one.GetSpanId())] = one
		}
	}
	return found
}

// path is the way from the caller to the first span of a name that there is, nil where a parent is missing.
func path(all map[string]span, leaf string) []string {
	for id, one := range all {
		if one.GetName() != leaf {
			continue
		}
		var way []string
		for id != spanID {
			one, ok := all[id]
			if !ok {
				way = nil
				break
			}
			way = append([]string{one.String()}, way...)
			id = hex.EncodeToString(one.GetParentSpanId())
		}
		if way != nil {
			return way
		}
	}
	return nil
}

// linked reports whether a span of a name leads to the trace.
func (s *spans) linked(name, trace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.all {
		for _, link := range one.GetLinks() {
			if one.GetName() == name && hex.EncodeToString(link.GetTraceId()) == trace {
				return true
			}
		}
	}
	return false
}

func TestOneTraceThroughUp(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	s := receive(t)
	follow(t, s, stack.Up(t, "--otlp-endpoint", s.addr))
}

func TestOneTraceThroughProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	s := receive(t)
	extra := stack.Extra{}
	for _, name := range stack.Services {
		extra[name] = []string{"--otlp-endpoint", s.addr}
	}
	follow(t, s, stack.Processes(t, extra))
}

// follow makes a sandbox and runs a command in it below one span of the caller's, and looks for every step of both.
func follow(t *testing.T, s *spans, run *stack.Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+traceID+"-"+spanID+"-01")
	box, err := run.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{
		TenantId: "acme", SessionId: "session-1", Image: stack.Image, EnvVars: map[string]string{"KEY": secret},
	})
	require.NoError(t, err)
	stream, err := run.API.ExecCommand(ctx, &computev1.ExecCommandRequest{
		SandboxId: box.GetSandboxId(), Command: "cat", Stdin: []byte(secret), Env: map[string]string{"OTHER": secret},
	})
	require.NoError(t, err)
	var done stack.Result
	require.NoError(t, done.Read(stream))
	require.Equal(t, secret, string(done.Stdout))
	_, err = run.API.WriteFile(ctx, &computev1.WriteFileRequest{SandboxId: box.GetSandboxId(), Path: "a.txt", Data: []byte(secret)})
	require.NoError(t, err)

	const gateway, lifecycle, exec = "sandtrail-gateway: ", "sandtrail-lifecycle: ", "sandtrail-exec: "
	create := []string{gateway + "compute.v1.ComputeService/CreateSandbox", gateway + "command.publish", lifecycle + "sandbox.decide"}
	command := []string{gateway + "compute.v1.ComputeService/ExecCommand", gateway + "command.publish", exec + "exec.run"}
	for leaf, want := range map[string][]string{
		"runtime.create":     append(create, lifecycle+"sandbox.work", lifecycle+"runtime.create"),
		"toolbox start":      append(command[:3:3], exec+"exec.start", exec+"toolbox start"),
		"toolbox attach":     append(command[:3:3], exec+"toolbox attach"),
		"toolbox write file": {gateway + "compute.v1.ComputeService/WriteFile", gateway + "files.request", exec + "files.call", exec + "toolbox write file"},
	} {
		require.Eventually(t, func() bool { return path(s.of(traceID), leaf) != nil }, 20*time.Second, 50*time.Millisecond,
			"no unbroken way from the caller to %q in %v", leaf, s.of(traceID))
		require.Equal(t, want, path(s.of(traceID), leaf))
	}
	require.Eventually(t, func() bool { return s.linked("usage.batch", traceID) }, 20*time.Second, 50*time.Millisecond)

	log := jslog.New(run.JS)
	for _, agg := range []subject.Aggregate{subject.Sandbox("acme", box.GetSandboxId()), subject.Exec("acme", box.GetSandboxId(), done.ID)} {
		h, err := log.Load(ctx, agg)
		require.NoError(t, err)
		require.NotEmpty(t, h.Events)
		for _, e := range h.Events {
			require.True(t, strings.HasPrefix(e.Traceparent, "00-"+traceID+"-"), "%s has the trace %q", e.Type, e.Traceparent)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, raw := range s.raw {
		require.NotContains(t, string(raw), secret)
	}
}
