// Command gc runs gc as a process of its own: a loop, or one pass for a scheduled job.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/libs/chassis"
	"github.com/sandtrail/sandtrail/services/gc/app"
)

type flags struct {
	chassis.Flags
	Once   bool          `help:"Make one pass and end."`
	DryRun bool          `help:"Make one pass that only shows what would be removed, and why."`
	Every  time.Duration `default:"1m" help:"Longest time between two passes."`

	KeepViews time.Duration `default:"720h" help:"How long a sandbox that is over stays in lists, from the end of its workspace on. The log has it for ever."`

	AuditKeyFile string        `type:"path" help:"Private key (PEM, Ed25519) that the log is signed with; made when absent. Default: this process does not sign the log."`
	SignEvery    time.Duration `default:"1m" help:"Time between two signatures of the log."`

	WebhookKeyFile string `type:"path" help:"Key that secrets of webhooks are sealed with; made when absent. Default: this process sends to no webhook."`
	WebhookPrivate bool   `help:"Allow webhooks at addresses that are not public, and plain HTTP."`

	TenantOutputBytes uint64 `help:"Most bytes that the recorded output of one tenant may take up. Default: the room that there is, shared."`
}

func (f *flags) config() app.Config {
	return app.Config{
		Every: f.Every, KeepViews: f.KeepViews, TenantOutputBytes: f.TenantOutputBytes, AuditKeyFile: f.AuditKeyFile, SignEvery: f.SignEvery,
		WebhookKeyFile: f.WebhookKeyFile, WebhookPrivate: f.WebhookPrivate,
	}
}

// single is one pass as a service.
type single struct {
	app *app.App
	dry bool
}

func (s single) Run(ctx context.Context) error {
	found, err := s.app.Once(ctx, s.dry)
	for _, f := range found {
		fmt.Printf("%s\t%s\t%s\t%s\t%s\n", f.Action, f.Kind, f.Tenant, f.ID, f.Reason)
	}
	return err
}

func main() {
	var f flags
	kong.Parse(&f, chassis.Options("gc", "Removes what is over.")...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(chassis.Run(ctx, "gc", f.Flags, f.config().Validate, func(ctx context.Context, h chassis.Host) (chassis.Service, error) {
		a, err := app.New(ctx, f.config(), app.Deps{NC: h.NC, Log: h.Log, Registry: h.Registry, Tracer: h.Tracer})
		if err != nil || !f.Once && !f.DryRun {
			return a, err
		}
		return single{app: a, dry: f.DryRun}, nil
	}))
}
