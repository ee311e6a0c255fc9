package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/client"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

const (
	// maxPauseMost bounds --max-pause: a stream that nobody reads for longer counts as broken.
	maxPauseMost = 30 * time.Second
	maxSpeed     = 1000
)

// ReplayExec is `sandtrail replay exec`.
type ReplayExec struct {
	Server
	Past
	Exec      string        `arg:"" optional:"" help:"The exec's id."`
	Last      bool          `help:"The last exec of --sandbox instead."`
	Sandbox   string        `placeholder:"ID" help:"The exec's sandbox. With --at it saves reading all that the tenant did."`
	ExitCode  bool          `help:"End with the recorded exit code instead of 0."`
	Play      bool          `help:"Write the output at the pace at which it came."`
	Speed     float64       `default:"1" placeholder:"N" help:"Play so many times as fast. Default: ${default}."`
	MaxPause  time.Duration `default:"5s" placeholder:"DURATION" help:"Play no pause longer than this, 30s at most. Default: ${default}."`
	Asciicast string        `placeholder:"FILE" help:"Write a recording for asciinema (asciicast v2) instead; - is stdout."`
}

// Help is printed below the flags.
func (r *ReplayExec) Help() string {
	return "Without --at: the output. With it: the exec as its events tell it, and what has changed since.\n\n" +
		"Times are those at which output was recorded: pieces of at most 32 KiB or 20 ms. A recording of what ran on a terminal has its size, and " +
		"the later ones that were known when it was begun."
}

func (r *ReplayExec) check() error {
	switch {
	case (r.Exec == "") != r.Last:
		return usagef("give either the id of an exec, or --last with --sandbox")
	case r.Last && r.Sandbox == "":
		return usagef("--last: of which --sandbox?")
	case r.Exec != "" && !ids.Valid(r.Exec):
		return usagef("%q is not the id of an exec", r.Exec)
	case r.Speed <= 0 || r.Speed > maxSpeed:
		return usagef("--speed: is over 0 and at most %d", maxSpeed)
	case r.MaxPause < 0 || r.MaxPause > maxPauseMost:
		return usagef("--max-pause: is not negative, and at most %s", maxPauseMost)
	case !r.Play && r.Speed != 1:
		return usagef("--speed is one of --play")
	case r.Asciicast != "" && (r.Play || r.json()):
		return usagef("--asciicast is a form of its own: leave --play and --output json out")
	case r.At != "" && (r.Play || r.Asciicast != "" || r.ExitCode):
		return usagef("--at shows a state, and no output")
	}
	if r.Sandbox == "" {
		return nil
	}
	var err error
	r.Sandbox, err = sandboxID(r.Sandbox)
	return err
}

// Run replays the output of an exec, or shows its state. One that runs is followed to its end.
func (r *ReplayExec) Run(e *Env) error {
	if err := r.check(); err != nil {
		return err
	}
	at, err := r.moment()
	if err != nil {
		return err
	}
	ctx, api, done, err := r.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	if r.Last {
		if r.Exec, err = r.last(ctx, api); err != nil {
			return ended(ctx, err)
		}
	}
	if r.At != "" {
		return ended(ctx, r.state(ctx, e, api, at))
	}
	return r.output(ctx, e, api)
}

// output replays what the exec wrote.
func (r *ReplayExec) output(ctx context.Context, e *Env, api *client.Client) error {
	out := newOutput(e, r.json())
	event := out.event
	var film *cast
	switch {
	case r.Asciicast != "":
		out.stdout.Writer, out.stderr.Writer = io.Discard, io.Discard
		var err error
		if film, err = newCast(e, r.Asciicast, r.Exec); err != nil {
			return err
		}
		defer film.discard()
		if err := r.terminal(ctx, api, film); err != nil {
			return ended(ctx, err)
		}
		event = film.before(out.event)
	case r.Play:
		event = (&player{ctx: ctx, speed: r.Speed, most: r.MaxPause, next: out.event}).event
	}
	end, err := api.Attach(ctx, r.Sandbox, r.Exec, client.Follower{Event: event})
	lost := client.Lost(err) && !r.ExitCode
	if err != nil && !lost {
		return ended(ctx, err)
	}
	if film != nil {
		if err := film.finish(); err != nil {
			return err
		}
	}
	switch {
	case lost:
		// Everything that is recorded was written; how the exec ended is not what was asked for.
		report(e.Stderr, err, r.json())
		return nil
	case !out.check(end):
		return exitError(ExitFailed)
	case r.ExitCode:
		return code(end)
	default:
		return nil
	}
}

// terminal tells a recording of the terminal that the exec ran on, as far as its sizes are known by now.
func (r *ReplayExec) terminal(ctx context.Context, api *client.Client, film *cast) error {
	x, err := client.Retry(ctx, api, func(ctx context.Context) (*computev1.GetExecResponse, error) {
		return api.GetExec(ctx, &computev1.GetExecRequest{SandboxId: r.Sandbox, ExecId: r.Exec})
	})
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	film.terminal, film.resizes = x.GetTerminal(), x.GetResizes()
	return err
}

// state shows the exec at a moment.
func (r *ReplayExec) state(ctx context.Context, e *Env, api *client.Client, at point) error {
	h := &history{at: at}
	id := strings.ToLower(r.Exec)
	req := &computev1.WatchEventsRequest{TenantId: r.Tenant, SandboxId: r.Sandbox, NoFollow: true}
	if err := watch(ctx, api, req, func(agg subject.Aggregate, ev envelope.Recorded) error {
		if agg.Kind == subject.KindExec && agg.ID == id {
			h.add(agg, ev)
		}
		return nil
	}); err != nil {
		return err
	}
	if len(h.then.Events) == 0 {
		return fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "exec %s has no event up to there", id)
	}
	return h.show(e, r.json(), execPicture)
}

// last reads the sandbox's events for the exec that was asked for last.
func (r *ReplayExec) last(ctx context.Context, api *client.Client) (string, error) {
	var id string
	seen := map[string]bool{}
	req := &computev1.WatchEventsRequest{TenantId: r.Tenant, SandboxId: r.Sandbox, NoFollow: true}
	err := api.Watch(ctx, req, func(ev *computev1.WatchEventsResponse) error {
		// The first event of an exec is its beginning; later ones of an older exec do not make it the last.
		if x := ev.GetExecId(); x != "" && !seen[x] {
			seen[x], id = true, x
		}
		return nil
	})
	if err == nil && id == "" {
		err = fault.Newf(fault.NotFound, fault.ReasonExecNotFound, "sandbox %s has run no exec", r.Sandbox)
	}
	return id, err
}
