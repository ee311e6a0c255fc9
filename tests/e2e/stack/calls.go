package stack

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Create makes a sandbox of tenant acme and returns its id at once.
func (s *Stack) Create(t testing.TB, change ...func(*computev1.CreateSandboxRequest)) string {
	t.Helper()
	req := &computev1.CreateSandboxRequest{TenantId: "acme", SessionId: "session-1", Image: Image}
	for _, c := range change {
		c(req)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res, err := s.API.CreateSandbox(ctx, req)
	require.NoError(t, err)
	require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_STARTING, res.GetStatus())
	return res.GetSandboxId()
}

// Result is an exec's whole output and end.
type Result struct {
	ID             string
	Stdout, Stderr []byte
	Chunks         int
	LastChunk      uint64
	Completed      *computev1.ExecCompleted
}

// Exec runs a command to its end.
func (s *Stack) Exec(t testing.TB, sandbox, command string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	stream, err := s.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: sandbox, Command: command, Args: args})
	require.NoError(t, err)
	var r Result
	require.NoError(t, r.Read(stream))
	require.NotNil(t, r.Completed)
	return r
}

// Read takes events until the stream ends; a clean end is nil.
func (r *Result) Read(stream grpc.ServerStreamingClient[computev1.ExecEvent]) error {
	if h, err := stream.Header(); err == nil {
		if id := h.Get("sandtrail-exec-id"); len(id) > 0 {
			r.ID = id[0]
		}
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r.LastChunk = max(r.LastChunk, e.GetChunk())
		switch v := e.GetEvent().(type) {
		case *computev1.ExecEvent_Stdout:
			r.Chunks++
			r.Stdout = append(r.Stdout, v.Stdout.GetData()...)
		case *computev1.ExecEvent_Stderr:
			r.Chunks++
			r.Stderr = append(r.Stderr, v.Stderr.GetData()...)
		case *computev1.ExecEvent_Completed:
			r.Completed = v.Completed
		}
	}
}
