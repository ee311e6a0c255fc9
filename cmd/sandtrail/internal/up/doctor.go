package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"text/tabwriter"

	lifecycle "github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// ErrUnfit: something that `up` needs is missing on this host.
var ErrUnfit = errors.New("this host lacks something that sandtrail up needs")

// Doctor is `sandtrail doctor`: what this host can do, and for each lack its fix. It changes nothing but the cache.
type Doctor struct {
	Stack
	Output string `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
}

// Run prints every check; ErrUnfit when one fails.
func (d *Doctor) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return d.run(ctx, os.Stdout, os.Stderr)
}

func (d *Doctor) run(ctx context.Context, out, logs io.Writer) error {
	if err := d.resolve(); err != nil {
		return err
	}
	tel, err := d.telemetry(ctx, logs)
	if err != nil {
		return err
	}
	s := &stack{Stack: &d.Stack, tel: tel, progress: newProgress(logs)}
	checks := append(lifecycle.Checks(ctx, s.lifecycleConfig(), tel.Log), d.clickhouse())
	if d.Output == "json" {
		err = json.NewEncoder(out).Encode(checks)
	} else {
		err = table(out, checks)
	}
	if err != nil {
		return err
	}
	for _, c := range checks {
		if !c.OK && !c.Optional {
			return ErrUnfit
		}
	}
	return nil
}

func table(out io.Writer, checks []lifecycle.Check) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, c := range checks {
		state := "ok"
		switch {
		case c.OK:
		case c.Optional:
			state = "without"
		default:
			state = "LACKS"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", state, c.Name, c.Detail)
		if c.Fix != "" {
			fmt.Fprintf(w, "\t\tfix: %s\n", c.Fix)
		}
	}
	return w.Flush()
}

// clickhouse says whether the built-in engine can run here, or that another server is used.
func (d *Doctor) clickhouse() lifecycle.Check {
	c := lifecycle.Check{Name: "clickhouse", OK: true}
	if d.ClickHouse != "" {
		c.Detail = "a server of your own"
		return c
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		c.OK, c.Detail, c.Fix = false, "the built-in engine exists for linux/amd64 only", "give --clickhouse URL of a server"
		return c
	}
	if have, _ := filepath.Glob(filepath.Join(d.Cache, "chdb", "*", "node_modules")); len(have) > 0 {
		c.Detail = "the built-in engine is in the cache"
		return c
	}
	if _, err := exec.LookPath("npm"); err != nil {
		c.OK, c.Detail, c.Fix = false, "npm, which fetches the built-in engine, is not there", "install npm, or give --clickhouse URL of a server"
		return c
	}
	c.Detail = "npm is there to fetch the built-in engine (178 MB) at the first start"
	return c
}
