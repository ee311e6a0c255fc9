package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

// execPath is that of a sandbox's execs, or of what is below it.
func execPath(name string, parts ...string) string {
	return below(named.Box(name, "executions"), parts...)
}

// Ps is `sandtrail ps`.
type Ps struct {
	Remote
	Format
	All   bool   `short:"a" help:"Also the last that have ended."`
	Limit int    `default:"100" help:"At most so many that have ended."`
	Name  string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run lists what runs in a sandbox.
func (p *Ps) Run(e *Env) error {
	call := named.Request{Method: http.MethodGet, Path: execPath(p.Name), Query: url.Values{"all": {strconv.FormatBool(p.All)}, "limit": {strconv.Itoa(p.Limit)}}}
	return p.listed(e, &p.Format, call, "executions", []string{"ID", "STATE", "KIND", "STARTED", "EXIT", "COMMAND"}, func(v map[string]any) []string {
		return append(columns("execution_id", "state", "kind", "started_at", "exit_code")(v), commandLine(v["command"]))
	})
}

// commandLine is a command as one line.
func commandLine(command any) string {
	all, _ := command.([]any)
	line := make([]string, 0, len(all))
	for _, w := range all {
		line = append(line, fmt.Sprint(w))
	}
	return strings.Join(line, " ")
}

// Kill is `sandtrail kill`.
type Kill struct {
	Remote
	Signal string   `short:"s" default:"TERM" placeholder:"SIGNAL" help:"Its name or its number (${default})."`
	Tree   bool     `help:"End it and every process that it started: TERM, then KILL."`
	Name   string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Execs  []string `arg:"" name:"exec" help:"The execs, as ps lists them."`
}

// Help is printed below the flags.
func (k *Kill) Help() string {
	return "The signal goes to the program of the exec alone, and the program decides what comes of it; --tree ends everything and waits for it."
}

// Run signals execs. Failures of some do not keep the others.
func (k *Kill) Run(e *Env) error {
	below, said, body := "signal", "sent "+k.Signal, map[string]any{"signal": k.Signal}
	if k.Tree {
		below, said, body = "cancel", "ended", nil
	}
	return k.each(e, callTimeout, k.Execs, func(ctx context.Context, api *named.Client, id string) error {
		var v any // a nil map would be a body
		if body != nil {
			v = body
		}
		answer := map[string]any{}
		if err := api.JSON(ctx, http.MethodPost, execPath(k.Name, id, below), nil, v, &answer); err != nil {
			return err
		}
		how := said
		if k.Tree && text(answer, "ended_at") == "" {
			how = "is being ended"
		}
		_, err := fmt.Fprintf(e.Stdout, "%s  %s\n", render.Clean(id), render.Clean(how))
		return err
	})
}

// Attach is `sandtrail attach`.
type Attach struct {
	Remote
	Stdin bool   `short:"i" help:"Give it what comes in on stdin, and close its own at the end. It must have been started with --keep-stdin."`
	After uint64 `placeholder:"CHUNK" help:"Only output behind this chunk: an id of the server's events. Default: all of it."`
	Name  string `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Exec  string `arg:"" help:"The exec, as ps lists it."`
}

// Help is printed below the flags.
func (a *Attach) Help() string {
	return "Its stdout and stderr come out as they are, from the beginning, and its exit code is this program's. A connection that breaks is made " +
		"again behind the last byte. Ctrl-C leaves; the exec goes on if it was started with --detach.\n\n" + exitHelp
}

// Run follows an exec to its end.
func (a *Attach) Run(e *Env) error {
	ctx, api, done, err := a.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	if a.Stdin {
		go func() {
			if err := api.Input(ctx, a.Name, a.Exec, e.Stdin); err != nil && ctx.Err() == nil {
				e.warn("stdin: %s", render.Clean(err.Error()))
			}
		}()
	}
	exit, err := api.Attach(ctx, a.Name, a.Exec, a.After, e.Stdout, e.Stderr, func(said string) { e.warn("%s", render.Clean(said)) })
	return endedWith(exit, err)
}
