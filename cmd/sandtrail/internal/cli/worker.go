package cli

import (
	"fmt"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/up"
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
