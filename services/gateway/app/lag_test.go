package app_test

import (
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// A caller of a gateway that reads a replica which is behind finds what exists, whoever made it, and never goes back in time.
func TestCallersDoNotSeeThatAReplicaLags(t *testing.T) {
	w := newWorld(t, nil)
	w.lag = time.Second
	_, conn := w.gateway(w.connect())
	behind := computev1.NewComputeServiceClient(conn)
	w.peer.script("short", func(x *execution) {
		x.write(chunks.Stdout, []byte("out"))
		x.complete(0)
	})
	describe := func(id string) computev1.SandboxStatus {
		t.Helper()
		d, err := behind.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: id})
		require.NoError(t, err)
		return d.GetStatus()
	}
	for _, maker := range []computev1.ComputeServiceClient{w, behind} {
		made, err := maker.CreateSandbox(t.Context(), &computev1.CreateSandboxRequest{TenantId: "acme", Image: "python"})
		require.NoError(t, err)
		id := made.GetSandboxId()
		describe(id)
		stream, err := behind.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: id, Command: "short"})
		require.NoError(t, err)
		r := drainStream(stream)
		require.ErrorIs(t, r.failure, io.EOF)
		require.Equal(t, "out", r.out.String())
		got, err := behind.GetExec(t.Context(), &computev1.GetExecRequest{SandboxId: id, ExecId: r.execID})
		require.NoError(t, err)
		require.Equal(t, "completed", got.GetState(), "the caller has seen its end")
		require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_READY, describe(id))
		_, err = behind.DestroySandbox(t.Context(), &computev1.DestroySandboxRequest{SandboxId: id})
		require.NoError(t, err)
		require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED, describe(id), "the caller has seen its end")
	}
	made, err := behind.CreateSandbox(keyed(t.Context(), "k"), &computev1.CreateSandboxRequest{TenantId: "acme", Image: "python"})
	require.NoError(t, err)
	again, err := behind.CreateSandbox(keyed(t.Context(), "k"), &computev1.CreateSandboxRequest{TenantId: "acme", Image: "python"})
	require.NoError(t, err, "the same request with the same key")
	require.Equal(t, made.GetSandboxId(), again.GetSandboxId())
	_, err = behind.DescribeSandbox(t.Context(), &computev1.DescribeSandboxRequest{SandboxId: "00000000-0000-4000-8000-000000000000"})
	require.Equal(t, codes.NotFound, status.Code(err))
}
