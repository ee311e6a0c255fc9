package cli

import (
	"context"
	"log/slog"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	gateway "github.com/sandtrail/sandtrail/services/gateway/app"
)

// MCP is `sandtrail mcp`.
type MCP struct {
	Server
	Image string `default:"ghcr.io/paper-board/sandbox-python:v0.1.0" placeholder:"REF" help:"Image of sandboxes for which the agent names none. Default: ${default}."`
}

// Run serves an agent's program on stdin and stdout until it closes stdin.
func (m *MCP) Run(e *Env) error {
	ctx, api, done, err := m.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	tenant := m.Tenant
	if key, err := m.key(); err == nil && key == "" && tenant == "" {
		tenant = defaultTenant
	}
	err = gateway.ServeTools(ctx, gateway.ToolOptions{
		API: api, Image: m.Image, Tenant: tenant, Version: version.Version, Log: slog.New(slog.NewTextHandler(e.Stderr, nil)),
		Run: func(
			ctx context.Context, req *computev1.ExecCommandRequest, key string, accepted func(string) error, each func(*computev1.ExecEvent) error,
		) (*computev1.ExecCompleted, error) {
			return api.Exec(ctx, req, key, client.Follower{Accepted: accepted, Event: each})
		},
	}, e.Stdin, e.Stdout)
	return ended(ctx, err)
}
