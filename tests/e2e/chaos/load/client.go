package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Times of a client, as a careful program would set them.
const (
	// unaryWait bounds an attempt of a call that is answered once.
	unaryWait = 20 * time.Second
	// silence is how long a stream may bring nothing: heartbeats come every 10 s.
	silence = 15 * time.Second
	// patience is how long an operation is repeated without any progress before the client gives up.
	patience = 3 * time.Minute
	minPause = 30 * time.Millisecond
	maxPause = time.Second
)

// Client calls the gateway over one connection and records each call. It repeats what failed on the way under the same idempotency key.
type Client struct {
	name    string
	conn    *grpc.ClientConn
	api     computev1.ComputeServiceClient
	journal *journal.Journal
}

// NewClient makes a client; it connects with its first call.
func NewClient(name, addr string, j *journal.Journal) (*Client, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(20<<20)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.3, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to the gateway: %w", err)
	}
	return &Client{name: name, conn: conn, api: computev1.NewComputeServiceClient(conn), journal: j}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// errGaveUp: there was no progress for a client's patience.
var errGaveUp = errors.New("the client gave up")

// temporary: the call may have happened or may happen when it is repeated.
func temporary(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Aborted, codes.Internal:
		return true
	default:
		return errors.Is(err, io.EOF)
	}
}

// pacer waits between attempts, longer each time, as long as there is patience.
type pacer struct {
	pause time.Duration
	since time.Time
}

func newPacer() *pacer { return &pacer{pause: minPause, since: time.Now()} }

func (p *pacer) progress() { *p = *newPacer() }

func (p *pacer) wait(ctx context.Context, err error) error {
	if time.Since(p.since) > patience {
		return fmt.Errorf("%w: %w", errGaveUp, err)
	}
	t := time.NewTimer(p.pause/2 + rand.N(p.pause/2+1)) //nolint:gosec // spreads attempts
	defer t.Stop()
	p.pause = min(2*p.pause, maxPause)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
}

// repeat makes one recorded call after the other until one is answered.
func repeat(ctx context.Context, c *Client, call journal.Call, do func(context.Context, *journal.Open) error) error {
	call.Client = c.name
	p := newPacer()
	for {
		open := c.journal.Begin(call)
		attempt, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "idempotency-key", call.Key), unaryWait)
		err := do(attempt, open)
		cancel()
		open.Done(err)
		if err == nil || !temporary(err) {
			return err
		}
		if err := p.wait(ctx, err); err != nil {
			return err
		}
	}
}

// Create makes a sandbox.
func (c *Client) Create(ctx context.Context, key string, req *computev1.CreateSandboxRequest) (id string, err error) {
	req.Labels = map[string]string{journal.Label: key}
	err = repeat(ctx, c, journal.Call{Op: journal.Create, Tenant: req.GetTenantId(), Key: key}, func(ctx context.Context, open *journal.Open) error {
		res, err := c.api.CreateSandbox(ctx, req)
		if err == nil {
			id = res.GetSandboxId()
			open.Sandbox(id)
		}
		return err
	})
	return id, err
}

// Destroy ends a sandbox.
func (c *Client) Destroy(ctx context.Context, tenant, key, sandbox string) error {
	call := journal.Call{Op: journal.Destroy, Tenant: tenant, Key: key, Sandbox: sandbox}
	return repeat(ctx, c, call, func(ctx context.Context, _ *journal.Open) error {
		_, err := c.api.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: sandbox})
		return err
	})
}

// Stop stops a sandbox, and returns once it has stopped.
func (c *Client) Stop(ctx context.Context, tenant, key, sandbox string) error {
	call := journal.Call{Op: journal.Stop, Tenant: tenant, Key: key, Sandbox: sandbox}
	return repeat(ctx, c, call, func(ctx context.Context, _ *journal.Open) error {
		_, err := c.api.StopSandbox(ctx, &computev1.StopSandboxRequest{SandboxId: sandbox})
		return err
	})
}

// Start starts a sandbox that is stopped, and returns once it is ready.
func (c *Client) Start(ctx context.Context, tenant, key, sandbox string) error {
	call := journal.Call{Op: journal.Restart, Tenant: tenant, Key: key, Sandbox: sandbox}
	return repeat(ctx, c, call, func(ctx context.Context, _ *journal.Open) error {
		_, err := c.api.StartSandbox(ctx, &computev1.StartSandboxRequest{SandboxId: sandbox})
		return err
	})
}

// Cancel ends an exec.
func (c *Client) Cancel(ctx context.Context, tenant, key, sandbox, exec string) error {
	call := journal.Call{Op: journal.Cancel, Tenant: tenant, Key: key, Sandbox: sandbox, Exec: exec}
	return repeat(ctx, c, call, func(ctx context.Context, _ *journal.Open) error {
		_, err := c.api.CancelExec(ctx, &computev1.CancelExecRequest{SandboxId: sandbox, ExecId: exec})
		return err
	})
}
