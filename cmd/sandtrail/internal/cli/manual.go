package cli

import (
	"fmt"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/manual"
)

// Manual is `sandtrail manual`.
type Manual struct {
	Format string `default:"man" enum:"man,markdown" help:"man for a page of man(1), markdown for one of a web site: ${enum}."`
}

// Run prints every command, with its arguments and flags, from what the parser itself goes by.
func (m *Manual) Run(e *Env) error {
	// What stands in a page is for every machine, so paths are not those of this one.
	k, err := parserWith(&Root{}, e, "~/.local/state/sandtrail")
	if err != nil {
		return err
	}
	if m.Format == "markdown" {
		_, err = fmt.Fprint(e.Stdout, manual.Markdown(k.Model, exitHelp))
		return err
	}
	_, err = e.Stdout.Write(manual.Man(k.Model, exitHelp))
	return err
}
