package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// callTimeout bounds every call of a test, so that what hangs fails.
const callTimeout = 2 * time.Minute

// Create makes a sandbox of tenant acme and returns its id at once.
func (s *Stack) Create(t testing.TB, change ...func(*computev1.CreateSandboxRequest)) string {
	t.Helper()
	req := &computev1.CreateSandboxRequest{TenantId: "acme", SessionId: "session-1", Image: Image}
	for _, c := range change {
		c(req)
	}
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	res, err := s.API.CreateSandbox(ctx, req)
	require.NoError(t, err)
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_STARTING, res.GetStatus())
	return res.GetSandboxId()
}

// Ready makes a sandbox and waits until commands start in it at once.
func (s *Stack) Ready(t testing.TB, change ...func(*computev1.CreateSandboxRequest)) string {
	t.Helper()
	id := s.Create(t, change...)
	require.Zero(t, s.Exec(t, id, "true").Completed.GetExitCode())
	return id
}

// Destroy ends a sandbox and returns what it was.
func (s *Stack) Destroy(t testing.TB, sandbox string) *computev1.DestroySandboxResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	res, err := s.API.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: sandbox})
	require.NoError(t, err)
	return res
}

// Describe returns a sandbox as it is now.
func (s *Stack) Describe(t testing.TB, sandbox string) *computev1.DescribeSandboxResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	res, err := s.API.DescribeSandbox(ctx, &computev1.DescribeSandboxRequest{SandboxId: sandbox})
	require.NoError(t, err)
	return res
}

// Result is an exec's output, each byte checked to be at its place, and its end.
type Result struct {
	ID             string
	Stdout, Stderr []byte
	Gaps           []*computev1.OutputGap
	Chunks         int
	LastChunk      uint64
	Completed      *computev1.ExecCompleted
}

// Exec runs a command to its end.
func (s *Stack) Exec(t testing.TB, sandbox, command string, args ...string) Result {
	t.Helper()
	return s.Run(t, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: command, Args: args})
}

// Sh runs a shell script to its end.
func (s *Stack) Sh(t testing.TB, sandbox, script string) Result {
	t.Helper()
	return s.Exec(t, sandbox, "sh", "-c", script)
}

// Run makes an ExecCommand call and reads its stream to the end.
func (s *Stack) Run(t testing.TB, req *computev1.ExecCommandRequest) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	stream, err := s.API.ExecCommand(ctx, req)
	require.NoError(t, err)
	var r Result
	require.NoError(t, r.Read(stream), "exec %s: %s", r.ID, req.GetArgs())
	require.NotNil(t, r.Completed)
	return r
}

// Begin starts a detached exec, reads its output until it has at least n bytes of stdout and goes away.
func (s *Stack) Begin(t testing.TB, n int, req *computev1.ExecCommandRequest) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	req.Detach = true
	stream, err := s.API.ExecCommand(ctx, req)
	require.NoError(t, err)
	var r Result
	require.NoError(t, r.header(stream))
	for len(r.Stdout) < n {
		e, err := stream.Recv()
		require.NoError(t, err)
		require.NoError(t, r.Take(e))
		require.Nil(t, r.Completed, "it ended already")
	}
	return r
}

// Finish attaches behind the last chunk of r until the exec's end, again where the stream breaks because a service restarts.
func (s *Stack) Finish(t testing.TB, r *Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	for r.Completed == nil {
		stream, err := s.API.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: r.ID, AfterChunk: r.LastChunk})
		require.NoError(t, err)
		err = r.Read(stream)
		if status.Code(err) == codes.Unavailable {
			continue
		}
		require.NoError(t, err)
	}
}

// Receipt returns what is recorded of an exec.
func (s *Stack) Receipt(t testing.TB, exec string) *computev1.GetExecResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	res, err := s.API.GetExec(ctx, &computev1.GetExecRequest{ExecId: exec})
	require.NoError(t, err)
	return res
}

func (r *Result) header(stream grpc.ServerStreamingClient[computev1.ExecEvent]) error {
	h, err := stream.Header()
	if err != nil {
		return err
	}
	if id := h.Get("sandtrail-exec-id"); len(id) > 0 {
		r.ID = id[0]
	}
	return nil
}

// Read takes events until the stream ends; a clean end is nil.
func (r *Result) Read(stream grpc.ServerStreamingClient[computev1.ExecEvent]) error {
	if err := r.header(stream); err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.Take(e); err != nil {
			return err
		}
	}
}

// Take adds one event. A chunk that is not the next one, or not at its place, is an error.
func (r *Result) Take(e *computev1.ExecEvent) error {
	if n := e.GetChunk(); n > 0 {
		if n != r.LastChunk+1 {
			return fmt.Errorf("chunk %d follows chunk %d", n, r.LastChunk)
		}
		r.LastChunk = n
		r.Chunks++
	}
	switch v := e.GetEvent().(type) {
	case *computev1.ExecEvent_Stdout:
		return r.add(&r.Stdout, "stdout", e.GetOffset(), v.Stdout.GetData())
	case *computev1.ExecEvent_Stderr:
		return r.add(&r.Stderr, "stderr", e.GetOffset(), v.Stderr.GetData())
	case *computev1.ExecEvent_Gap:
		r.Gaps = append(r.Gaps, v.Gap)
	case *computev1.ExecEvent_Completed:
		if r.Completed != nil {
			return errors.New("it has completed twice")
		}
		r.Completed = v.Completed
	}
	return nil
}

func (r *Result) add(to *[]byte, stream string, offset uint64, data []byte) error {
	at := uint64(len(*to))
	for _, g := range r.Gaps {
		if g.GetStream() == stream {
			at += g.GetTo() - g.GetFrom()
		}
	}
	if offset != at {
		return fmt.Errorf("%s goes on at %d and not at %d", stream, offset, at)
	}
	*to = append(*to, data...)
	return nil
}

// Events are all events of a sandbox and its execs, in order.
func (s *Stack) Events(t testing.TB, sandbox string) []*computev1.WatchEventsResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	stream, err := s.API.WatchEvents(ctx, &computev1.WatchEventsRequest{SandboxId: sandbox, NoFollow: true})
	require.NoError(t, err)
	var all []*computev1.WatchEventsResponse
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		if !e.GetHeartbeat() {
			all = append(all, e)
		}
	}
}

// ExecEvents are the types of an exec's events without their package, in order.
func (s *Stack) ExecEvents(t testing.TB, sandbox, exec string) []string {
	t.Helper()
	var types []string
	for _, e := range s.Events(t, sandbox) {
		if e.GetExecId() == exec {
			types = append(types, short(e))
		}
	}
	return types
}

// SandboxEvents are the types of a sandbox's own events without their package, in order.
func (s *Stack) SandboxEvents(t testing.TB, sandbox string) []string {
	t.Helper()
	var types []string
	for _, e := range s.Events(t, sandbox) {
		if e.GetExecId() == "" && strings.Contains(e.GetSubject(), ".sandbox.") {
			types = append(types, short(e))
		}
	}
	return types
}

func short(e *computev1.WatchEventsResponse) string {
	return e.GetType()[strings.LastIndexByte(e.GetType(), '.')+1:]
}

// Usage waits for the row of an exec.
func (s *Stack) Usage(t testing.TB, exec string) *computev1.UsageRow {
	t.Helper()
	var row *computev1.UsageRow
	limit := int32(10)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		list, err := s.API.ListUsage(ctx, &computev1.ListUsageRequest{ExecId: exec, Page: &commonv1.PageRequest{Limit: &limit}})
		if err != nil || len(list.GetRows()) == 0 {
			return false
		}
		require.Len(t, list.GetRows(), 1)
		row = list.GetRows()[0]
		return true
	}, time.Minute, 50*time.Millisecond, "no usage row")
	return row
}

// Query asks ClickHouse over HTTP.
func (s *Stack) Query(t testing.TB, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.ClickHouse+"/", strings.NewReader(sql))
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s", body)
	return strings.TrimSpace(string(body))
}
