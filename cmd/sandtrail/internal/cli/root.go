// Package cli is the command line of Sandtrail: one struct for each command, its fields the flags, its Run what it does.
package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/up"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/version"
)

const description = `Run the code of agents in isolated sandboxes, with a log of everything that happened.

Answers go to stdout as tables, or with --output json for programs: one document for an answer, an array for a list, one line for
each message of a stream. Everything else, errors included, goes to stderr.

` + exitHelp

// Root is every command.
type Root struct {
	Up       up.Up     `cmd:"" group:"Server" help:"Run everything on this host: log, services, sandboxes, usage rows."`
	Down     up.Down   `cmd:"" group:"Server" help:"End every sandbox of a state that no up serves."`
	Doctor   up.Doctor `cmd:"" group:"Server" help:"Say what this host can do, and how to fix what it lacks."`
	Worker   Worker    `cmd:"" group:"Server" help:"Run sandboxes on this host for a fleet whose log is on another one."`
	Cordon   Cordon    `cmd:"" group:"Server" help:"Keep new sandboxes off the worker of this host."`
	Uncordon Uncordon  `cmd:"" group:"Server" help:"Let new sandboxes come to the worker of this host again."`

	Create   Create   `cmd:"" group:"Sandboxes" help:"Create a sandbox and print its id."`
	Ls       Ls       `cmd:"" group:"Sandboxes" help:"List sandboxes, newest first."`
	Describe Describe `cmd:"" group:"Sandboxes" help:"Show all that is known of a sandbox."`
	Extend   Extend   `cmd:"" group:"Sandboxes" help:"Let a sandbox live longer."`
	Rm       Rm       `cmd:"" group:"Sandboxes" help:"End sandboxes and wait until they are gone."`
	Exec     Exec     `cmd:"" group:"Sandboxes" help:"Run a command in a sandbox; ends with its exit code."`
	Cp       Cp       `cmd:"" group:"Sandboxes" help:"Copy files to and from a sandbox."`
	MCP      MCP      `cmd:"" name:"mcp" group:"Sandboxes" help:"Give an agent sandboxes as tools, on stdin and stdout."`

	List     List        `cmd:"" group:"Named sandboxes" help:"List sandboxes by name."`
	Get      Get         `cmd:"" group:"Named sandboxes" help:"Show a sandbox: state, worker, architecture."`
	Delete   Delete      `cmd:"" group:"Named sandboxes" help:"End sandboxes; their names are free again."`
	Stop     StopBox     `cmd:"" group:"Named sandboxes" help:"End the processes of sandboxes and keep their files."`
	Start    StartBox    `cmd:"" group:"Named sandboxes" help:"Bring stopped sandboxes back."`
	Snapshot SnapshotBox `cmd:"" group:"Named sandboxes" help:"Make an image of what a sandbox has outside of its workspace."`
	Update   Update      `cmd:"" group:"Named sandboxes" help:"Let a sandbox live longer, or give it other labels."`
	Execute  Execute     `cmd:"" group:"Named sandboxes" help:"Run a command or code; ends with its exit code."`
	Stream   Execute     `cmd:"" group:"Named sandboxes" help:"The same as execute: its output comes as it is written, too."`
	Ps       Ps          `cmd:"" group:"Named sandboxes" help:"List what runs in a sandbox."`
	Kill     Kill        `cmd:"" group:"Named sandboxes" help:"Send a signal to what runs in a sandbox."`
	Attach   Attach      `cmd:"" group:"Named sandboxes" help:"Follow what runs in a sandbox, or ran; ends with its exit code."`
	Run      RunCode     `cmd:"" group:"Named sandboxes" help:"Run Python that keeps its variables for the next run."`
	Context  Contexts    `cmd:"" group:"Named sandboxes" help:"Look after the interpreters of a sandbox."`
	Session  Sessions    `cmd:"" group:"Named sandboxes" help:"Run commands in a shell that keeps its state."`
	Shell    Shell       `cmd:"" group:"Named sandboxes" help:"Open a terminal in a sandbox."`
	FS       FS          `cmd:"" name:"fs" group:"Named sandboxes" help:"Work with the files of a sandbox."`
	Logs     Logs        `cmd:"" group:"Named sandboxes" help:"Show what happened to a sandbox and in it."`
	Env      GuestEnv    `cmd:"" group:"Named sandboxes" help:"Show what a sandbox says of itself."`
	Stats    Stats       `cmd:"" group:"Named sandboxes" help:"Show what a sandbox uses now."`
	Preview  Preview     `cmd:"" group:"Named sandboxes" help:"Make a URL that shows a port of a sandbox."`
	Job      Job         `cmd:"" group:"Named sandboxes" help:"Show how far an order is."`
	Poder    Poder       `cmd:"" group:"Named sandboxes" help:"Show the workers."`
	Token    Token       `cmd:"" group:"Named sandboxes" help:"Look after your tenant's API keys, over the server."`
	Health   Health      `cmd:"" group:"Named sandboxes" help:"Ask a server whether it is well."`
	Metrics  Metrics     `cmd:"" group:"Named sandboxes" help:"Print a server's metrics."`
	Config   Config      `cmd:"" group:"Named sandboxes" help:"Keep the URLs and keys of servers."`

	Events Events `cmd:"" group:"History" help:"Show what happened, from the log."`
	Replay Replay `cmd:"" group:"History" help:"Show an exec's recorded output, or a sandbox, exec or tenant as it was; read the log again."`
	Trace  Trace  `cmd:"" group:"History" help:"Show what one request led to: commands, events, output, usage rows."`
	Usage  Usage  `cmd:"" group:"History" help:"Show what was used."`
	Audit  Audit  `cmd:"" group:"History" help:"Check that the log is what was recorded, export it, and prove single events."`

	Tenant     Tenant     `cmd:"" group:"Operation" help:"Look after tenants."`
	Key        Key        `cmd:"" group:"Operation" help:"Look after tenants' API keys."`
	Webhook    Webhook    `cmd:"" group:"Operation" help:"Have events of tenants sent to URLs."`
	Subscriber Subscriber `cmd:"" group:"Operation" help:"Let others read a tenant's events with clients of NATS."`
	Quota      Quota      `cmd:"" group:"Operation" help:"Look after what tenants may use at once."`
	Budget     Budget     `cmd:"" group:"Operation" help:"Look after what tenants' months may cost."`
	DLQ        DLQ        `cmd:"" name:"dlq" group:"Operation" help:"Look after messages that could not be handled."`
	Topology   Topology   `cmd:"" group:"Operation" help:"Compare the NATS server with the streams, buckets and consumers that should be there."`
	Secrets    Secrets    `cmd:"" group:"Operation" help:"Print the secrets of an installation in Kubernetes, made anew."`

	Completion Completion `cmd:"" group:"This program" help:"Print a script that completes commands in your shell."`
	Version    Version    `cmd:"" group:"This program" help:"Print the version."`
	Manual     Manual     `cmd:"" group:"This program" help:"Print the manual of every command."`
	Help       Help       `cmd:"" group:"This program" help:"Explain a command."`
	Complete   Complete   `cmd:"" name:"__complete" hidden:"" help:"Used by completion scripts."`
}

// Env is what a command has of the world.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Signals gives interrupts from now on, until stop is called.
	Signals func() (c <-chan os.Signal, stop func())
}

// exited carries an exit code out of kong, which calls its exit function deep inside.
type exited int

// Main runs one command line and returns the exit code.
func Main(args []string, e Env) (code int) {
	defer func() {
		if p := recover(); p != nil {
			c, ok := p.(exited)
			if !ok {
				panic(p)
			}
			code = int(c)
		}
	}()
	k, err := parser(&Root{}, &e)
	if err != nil {
		return report(e.Stderr, err, false)
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	ctx, err := k.Parse(args)
	if err != nil {
		return report(e.Stderr, err, wantsJSON(args))
	}
	if err := ctx.Run(); err != nil {
		return report(e.Stderr, err, wantsJSON(args))
	}
	return ExitOK
}

func parser(root *Root, e *Env) (*kong.Kong, error) { return parserWith(root, e, defaultState()) }

func parserWith(root *Root, e *Env, state string) (*kong.Kong, error) {
	return kong.New(root,
		kong.Name("sandtrail"), kong.Description(description), kong.Writers(e.Stdout, e.Stderr), kong.Bind(e),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 120}),
		kong.Vars{"state": state},
		kong.Exit(func(code int) { panic(exited(code)) }),
	)
}

// defaultState is where `up` keeps everything unless it is told otherwise.
func defaultState() string {
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ".sandtrail"
		}
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, "sandtrail")
}

// wantsJSON looks for --output json before the first --: a command line that does not parse has no flags yet.
func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	for i, a := range args {
		if a == "--output=json" || a == "-ojson" || a == "-o=json" || i > 0 && a == "json" && (args[i-1] == "-o" || args[i-1] == "--output") {
			return true
		}
	}
	return false
}

// interruptible is a context that the first interrupt ends; the second ends the program, as if this one did not listen.
func (e *Env) interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals, stop := e.Signals()
	go func() {
		select {
		case <-signals:
			stop()
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Version is `sandtrail version`.
type Version struct {
	Output string `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
}

// Run prints what the program was built from.
func (v *Version) Run(e *Env) error {
	i := version.Get()
	if v.Output == "json" {
		return render.Value(e.Stdout, i)
	}
	commit := i.Commit
	if i.Modified {
		commit += " (modified)"
	}
	return render.Fields(e.Stdout, []render.Field{
		{Name: "Version", Value: i.Version}, {Name: "Commit", Value: commit}, {Name: "Go", Value: i.Go}, {Name: "Platform", Value: i.Platform},
	})
}

// Help is `sandtrail help`.
type Help struct {
	Command []string `arg:"" optional:"" help:"The command to explain."`
}

// Run prints what --help of the command prints.
func (h *Help) Run(e *Env) error {
	for _, w := range h.Command {
		if strings.HasPrefix(w, "-") {
			return usagef("%s is no command", w)
		}
	}
	if code := Main(append(slices.Clone(h.Command), "--help"), *e); code != ExitOK {
		return exitError(code)
	}
	return nil
}
