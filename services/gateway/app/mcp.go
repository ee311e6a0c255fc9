package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sandtrail/sandtrail/libs/outputcodec"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/edge"
	"github.com/sandtrail/sandtrail/services/gateway/internal/mcpapi"
)

// ToolOptions are those of a program that serves the tools of MCP itself.
type ToolOptions = mcpapi.Options

// ServeTools serves the tools of MCP to one client by lines of JSON, until it closes in or ctx ends.
func ServeTools(ctx context.Context, o ToolOptions, in io.Reader, out io.Writer) error {
	t, err := mcpapi.New(ctx, o)
	if err != nil {
		return err
	}
	return t.ServeLines(ctx, in, out)
}

const (
	// toolBuffer is how many bytes lie between the tools and the API.
	toolBuffer = 1 << 20
	// toolMessage lets through what the API takes and gives.
	toolMessage = 17 << 20
)

// tools serve MCP as a client of this gateway's own API, through memory: whatever the API does about a call, it does about a tool's too.
type tools struct {
	listener *bufconn.Listener
	conn     *grpc.ClientConn
	handler  *mcpapi.Handler
}

func newTools(ctx context.Context, cfg Config, d Deps, around *edge.Edge) (*tools, error) {
	t := &tools{listener: bufconn.Listen(toolBuffer)}
	var err error
	t.conn, err = grpc.NewClient("passthrough:///gateway",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return t.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(toolMessage), grpc.MaxCallSendMsgSize(toolMessage), grpc.ForceCodecV2(outputcodec.New())),
	)
	if err != nil {
		return nil, err
	}
	all, err := mcpapi.New(ctx, mcpapi.Options{
		API: computev1.NewComputeServiceClient(t.conn), Image: cfg.Image, Log: d.Log, Registry: d.Registry,
		Refused: func(ctx context.Context, tool, correlation string, began time.Time, err error) {
			around.Finish(around.Calls.Begin(telemetry.WithCorrelation(ctx, correlation), calls.MCP, tool), "mcp."+tool, began, err)
		},
	})
	if err != nil {
		return nil, errors.Join(err, t.conn.Close())
	}
	if t.handler, err = mcpapi.NewHandler(all); err != nil {
		return nil, errors.Join(err, t.conn.Close())
	}
	return t, nil
}

// run serves the API to the tools until the server stops, and ends the sessions when ctx does.
func (t *tools) run(ctx context.Context, server *grpc.Server) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.handler.Run(ctx)
	}()
	err := server.Serve(t.listener)
	<-done
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC to the tools: %w", err)
	}
	return t.conn.Close()
}
