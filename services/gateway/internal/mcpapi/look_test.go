package mcpapi

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// ending is an API that ends each attach with an error.
type ending struct {
	computev1.ComputeServiceClient
	err error
}

func (e ending) AttachExec(context.Context, *computev1.AttachExecRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[computev1.ExecEvent], error) {
	return nil, e.err
}

// A look at a command that runs ends by its deadline, on whichever side that is noticed first.
func TestALookEndsByItsDeadlineOnEitherSide(t *testing.T) {
	at := func(ctx context.Context, code codes.Code) error {
		api := ending{err: status.Error(code, "stream terminated by RST_STREAM with error code: CANCEL")}
		f := &following{call: &call{Tools: &Tools{opt: Options{API: api}}, ctx: ctx}, req: &computev1.ExecCommandRequest{}}
		return f.live(0)
	}
	require.NoError(t, at(t.Context(), codes.DeadlineExceeded))
	require.Error(t, at(t.Context(), codes.Internal))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, at(gone, codes.DeadlineExceeded), "whoever asked has gone, or has no more time")
}
