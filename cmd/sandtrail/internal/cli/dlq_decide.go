package cli

import (
	"bufio"
	"context"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Deciding are the flags of commands that decide about letters.
type Deciding struct {
	Log
	Which
	IDs      []uint64 `arg:"" optional:"" name:"id" help:"Their ids, as in the list."`
	All      bool     `group:"Which" help:"All letters that there are now and that the other flags choose."`
	DryRun   bool     `help:"Only show what would be done."`
	Operator string   `env:"SANDTRAIL_OPERATOR" placeholder:"NAME" help:"Who decides; the log keeps it. Default: your user name."`
	Note     string   `placeholder:"TEXT" help:"Why; the log keeps it for ever."`
}

// decision is what is done with one letter.
type decision struct {
	ID       uint64 `json:"id"`
	LetterID string `json:"letter_id"`
	// Result is redriven, dropped, or what would be.
	Result string `json:"result"`
	// Sequence of the new message in CMD.
	Sequence uint64 `json:"sequence,omitempty"`
	// Again: somebody had decided the same before, and this finished it.
	Again bool `json:"again,omitempty"`
	about string
}

func (d *Deciding) operator() dlq.Operator {
	return dlq.Operator{Name: operatorName(d.Operator), Note: d.Note}
}

// operatorName is the given name, or this user's, as it can stand in an event.
func operatorName(name string) string {
	if name == "" {
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
	}
	name = strings.Map(func(r rune) rune {
		if r < 128 && subject.ValidToken(string(r)) {
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), 64)]
}

func (d *Deciding) check() (dlq.Filter, error) {
	f, err := d.filter()
	chosen := d.Which != Which{}
	switch {
	case err != nil:
		return f, err
	case len(d.Note) > dlq.MaxNote:
		return f, usagef("--note: at most %d bytes", dlq.MaxNote)
	case d.All && len(d.IDs) > 0:
		return f, usagef("give either ids or --all")
	case !d.All && len(d.IDs) == 0:
		return f, usagef("give the ids of letters, or --all with flags that choose them")
	case !d.All && chosen:
		return f, usagef("flags that choose letters go with --all, not with ids")
	}
	return f, nil
}

// letters are those that were chosen. What dies from now on is not among them, so that a message that dies again ends nothing.
func (d *Deciding) letters(ctx context.Context, q *dlq.Queue, f dlq.Filter) (chosen []dlq.Letter, missing map[uint64]error, err error) {
	if d.All {
		chosen, err = matching(ctx, q, f, 0)
		return chosen, nil, err
	}
	missing = map[uint64]error{}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(d.IDs))) {
		l, err := q.Show(ctx, id)
		if err != nil {
			missing[id] = ended(ctx, err)
			continue
		}
		// The body is not needed for what is shown.
		l.Data, l.Header = nil, nil
		chosen = append(chosen, l)
	}
	return chosen, missing, nil
}

// each decides about the chosen letters one after another, oldest first. A failure does not keep the others; the exit code is that of
// the first.
func (d *Deciding) each(ctx context.Context, e *Env, chosen []dlq.Letter, missing map[uint64]error, do func(dlq.Letter) (decision, error)) error {
	code := ExitOK
	failed := func(id uint64, err error) {
		if c := report(e.Stderr, aboutError{"letter " + strconv.FormatUint(id, 10), err}, d.json()); code == ExitOK {
			code = c
		}
	}
	for _, id := range d.IDs {
		if err := missing[id]; err != nil {
			failed(id, err)
			delete(missing, id)
		}
	}
	done := make([]decision, 0, len(chosen))
	for _, l := range chosen {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		x, err := do(l)
		if err != nil {
			failed(l.ID, ended(ctx, err))
			continue
		}
		x.ID, x.LetterID = l.ID, l.LetterID()
		if done = append(done, x); d.json() {
			continue
		}
		if _, err := fmt.Fprintln(e.Stdout, render.Clean(fmt.Sprintf("%d  %s  %s%s", l.ID, x.Result, l.Subject, x.about))); err != nil {
			return err
		}
	}
	if d.json() {
		if err := render.Value(e.Stdout, done); err != nil {
			return err
		}
	}
	if code != ExitOK {
		return exitError(code)
	}
	return nil
}

// DLQRedrive is `sandtrail dlq redrive`.
type DLQRedrive struct{ Deciding }

// Help is printed below the flags.
func (r *DLQRedrive) Help() string {
	return "A command is published again as it was; its handler knows by the command's id if it was carried out before. An event is handed to " +
		"whoever runs its consumer, which must be running and take it; otherwise the letter stays. Doing it twice has one effect. Each redrive is " +
		"an event in the log."
}

// Run redrives letters.
func (r *DLQRedrive) Run(e *Env) error {
	f, err := r.check()
	if err != nil {
		return err
	}
	ctx, q, done, err := r.queue(e)
	if err != nil {
		return err
	}
	defer done()
	chosen, missing, err := r.letters(ctx, q, f)
	if err != nil {
		return ended(ctx, err)
	}
	return r.each(ctx, e, chosen, missing, func(l dlq.Letter) (decision, error) {
		if r.DryRun {
			return decision{Result: "would be redriven", about: " to " + l.Consumer}, l.Redriveable()
		}
		x, err := q.Redrive(ctx, l.ID, r.operator())
		if err != nil {
			return decision{}, err
		}
		out := decision{Result: "redriven", Sequence: x.Seq, Again: x.Again, about: " to " + l.Consumer}
		if x.Seq > 0 {
			out.about += fmt.Sprintf(" as %s %d", l.Stream, x.Seq)
		}
		return out, nil
	})
}

// DLQDrop is `sandtrail dlq drop`.
type DLQDrop struct {
	Deciding
	Yes bool `short:"y" help:"Do not ask."`
}

// Help is printed below the flags.
func (d *DLQDrop) Help() string {
	return "The message is never handled: what a command asked for is not done, what an event costs is not billed. An event itself stays in the " +
		"log. Each drop is an event in the log too."
}

// Run drops letters.
func (d *DLQDrop) Run(e *Env) error {
	f, err := d.check()
	if err != nil {
		return err
	}
	if !d.Yes && !d.DryRun && !render.Terminal(e.Stdin) {
		return usagef("drop asks before it removes anything: give --yes where nobody can answer")
	}
	ctx, q, done, err := d.queue(e)
	if err != nil {
		return err
	}
	defer done()
	chosen, missing, err := d.letters(ctx, q, f)
	if err != nil {
		return ended(ctx, err)
	}
	if len(chosen) > 0 && !d.Yes && !d.DryRun {
		e.warn("drop %d dead letters for good? Type yes to do so:", len(chosen))
		answer, _ := bufio.NewReader(e.Stdin).ReadString('\n')
		if strings.TrimSpace(answer) != "yes" {
			return errInterrupted
		}
	}
	return d.each(ctx, e, chosen, missing, func(l dlq.Letter) (decision, error) {
		if d.DryRun {
			return decision{Result: "would be dropped"}, nil
		}
		_, err := q.Drop(ctx, l.ID, d.operator())
		return decision{Result: "dropped"}, err
	})
}
