package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	lifecycle "github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// downTimeout bounds the end of all sandboxes of a state.
const downTimeout = 10 * time.Minute

// Run ends every sandbox and records it, without serving anybody.
func (d *Down) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return d.run(ctx, os.Stdout, os.Stderr)
}

func (d *Down) run(ctx context.Context, out, logs io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	u := &Up{Stack: d.Stack, GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", NATS: "127.0.0.1:0"}
	s, err := u.open(ctx, out, logs)
	if err != nil {
		return err
	}
	defer s.close()
	ctx, stop := context.WithCancel(ctx)
	result := make(chan error, 1)
	err = s.serve(ctx, u, func(a Addresses) error {
		go func() {
			defer stop()
			result <- endAll(ctx, a.GRPC, s.progress)
		}()
		return nil
	})
	stop()
	select {
	case ended := <-result:
		return errors.Join(err, ended, lifecycle.Tidy(s.lifecycleConfig()))
	default:
		return err
	}
}

func endAll(ctx context.Context, addr string, p *progress) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	api := computev1.NewComputeServiceClient(conn)
	ended := 0
	for limit := int32(200); ; {
		page, err := api.ListSandboxes(ctx, &computev1.ListSandboxesRequest{
			Page: &commonv1.PageRequest{Limit: &limit},
			Statuses: []computev1.SandboxStatus{
				computev1.SandboxStatus_SANDBOX_STATUS_STARTING, computev1.SandboxStatus_SANDBOX_STATUS_READY, computev1.SandboxStatus_SANDBOX_STATUS_FAILED,
			},
		}, grpc.WaitForReady(true))
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		before := ended
		for _, b := range page.GetSandboxes() {
			if _, err := api.DestroySandbox(ctx, &computev1.DestroySandboxRequest{SandboxId: b.GetSandboxId()}); err != nil {
				return fmt.Errorf("end sandbox %s: %w", b.GetSandboxId(), err)
			}
			ended++
			p.step("down", 0, 0, fmt.Sprintf("%d sandboxes ended", ended))
		}
		// The view is a moment behind the log: a page of what is gone already means that it is about to be empty.
		if len(page.GetSandboxes()) == 0 || ended == before {
			p.done("down", fmt.Sprintf("%d sandboxes ended; their workspaces are kept until their time", ended))
			return nil
		}
	}
}
