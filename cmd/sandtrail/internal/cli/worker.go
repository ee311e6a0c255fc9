package cli

import (
	"fmt"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/up"
	lifecycle "github.com/sandtrail/sandtrail/services/lifecycle/app"
)

// Worker is `sandtrail worker`.
type Worker struct{ up.Worker }

// Run serves until it is interrupted, or prints what the NATS server has to be told.
func (w *Worker) Run(e *Env) error {
	if w.Rules != "" {
		text, err := w.User()
		if err != nil {
			return usagef("--rules: %w", err)
		}
		_, err = fmt.Fprint(e.Stdout, text)
		return err
	}
	if code := w.Serve(e.Stdout); code != 0 {
		return exitError(code)
	}
	return nil
}

// WorkerState is the flag that says which worker of this host is meant.
type WorkerState struct {
	State string `default:"${state}" type:"existingdir" env:"SANDTRAIL_STATE" placeholder:"DIR" help:"The worker's state directory, as up or worker was given it."`
}

// Cordon is `sandtrail cordon`.
type Cordon struct {
	WorkerState
	Reason string `required:"" placeholder:"TEXT" help:"Why; stands in the list of workers and in what is said of placements. At most 200 printable ASCII characters."`
}

// Run keeps new sandboxes off this host's worker, also while it does not run.
func (c *Cordon) Run(e *Env) error {
	if !lifecycle.ValidReason(c.Reason) {
		return usagef("--reason: it must be 1 to 200 printable ASCII characters")
	}
	if err := lifecycle.Cordon(c.State, c.Reason); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.Stdout, "cordoned; sandboxes that are there go on")
	return err
}

// Uncordon is `sandtrail uncordon`.
type Uncordon struct{ WorkerState }

// Run ends it.
func (u *Uncordon) Run(e *Env) error {
	if err := lifecycle.Uncordon(u.State); err != nil {
		return err
	}
	_, err := fmt.Fprintln(e.Stdout, "not cordoned")
	return err
}
