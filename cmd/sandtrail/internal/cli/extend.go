package cli

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// Extend is `sandtrail extend`.
type Extend struct {
	Server
	Sandbox        string        `arg:"" help:"Its id."`
	Duration       time.Duration `arg:"" help:"How long it is to live from now on, at least: 30m, 2h. Its time never gets shorter."`
	IdempotencyKey string        `placeholder:"KEY" help:"The same key with the same arguments gives the same answer for 24 hours. Default: a random one."`
	Timeout        time.Duration `default:"1m" help:"Give up after this long."`
}

// Run lets a sandbox live longer and says until when.
func (x *Extend) Run(e *Env) error {
	id, err := sandboxID(x.Sandbox)
	if err != nil {
		return err
	}
	if x.Duration < time.Second {
		return usagef("%s is less than a second", x.Duration)
	}
	ctx, api, done, err := x.connect(e, x.Timeout)
	if err != nil {
		return err
	}
	defer done()
	ctx = client.WithKey(ctx, idempotencyKey(x.IdempotencyKey))
	res, err := client.Retry(ctx, api, func(ctx context.Context) (*computev1.ExtendSandboxResponse, error) {
		return api.ExtendSandbox(ctx, &computev1.ExtendSandboxRequest{SandboxId: id, Timeout: durationpb.New(x.Duration)})
	})
	if err != nil {
		return ended(ctx, err)
	}
	if x.json() {
		return render.One(e.Stdout, res)
	}
	_, err = fmt.Fprintf(e.Stdout, "%s  lives until %s\n", id, render.Time(res.GetExpiresAt()))
	return err
}
