package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/replay"
	"github.com/sandtrail/sandtrail/libs/credential"
	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/subject"
	usageapp "github.com/sandtrail/sandtrail/services/usage/app"
)

const (
	intoNothing    = "dry-run"
	intoLines      = "jsonl"
	intoClickHouse = "clickhouse"
)

// ReplayRun is `sandtrail replay run`.
type ReplayRun struct {
	NATS       string          `name:"nats" default:"nats://127.0.0.1:4222" env:"SANDTRAIL_NATS" placeholder:"URL" group:"The log" help:"The NATS server; may hold credentials, which are never printed."`
	Proof      credential.NATS `embed:"" group:"The log"`
	Timeout    time.Duration   `default:"24h" help:"Give up after this long."`
	Output     string          `short:"o" default:"table" enum:"table,json" help:"Print as ${enum}."`
	Into       string          `default:"dry-run" enum:"dry-run,jsonl,clickhouse" help:"Where events go: nowhere, into --file as CloudEvents, or as usage rows into --clickhouse. One of ${enum}."`
	File       string          `placeholder:"FILE" help:"For jsonl; - is stdout. It must not exist, unless a checkpoint says that it was begun."`
	ClickHouse string          `name:"clickhouse" env:"SANDTRAIL_CLICKHOUSE" placeholder:"URL" help:"For clickhouse: clickhouse://user:password@host:9000, never printed. Rows that are there stay as they are."`
	From       uint64          `default:"1" placeholder:"SEQ" help:"First sequence. Default: ${default}."`
	To         uint64          `placeholder:"SEQ" help:"Last sequence. Default: the last one at the start."`
	Filter     string          `placeholder:"SUBJECT" help:"Only events whose subject matches, e.g. 'evt.acme.exec.>'."`
	Type       []string        `placeholder:"TYPE" help:"Only these types, e.g. ExecCompleted."`
	Rate       float64         `placeholder:"N" help:"At most so many events a second. Default: no bound."`
	Checkpoint string          `placeholder:"FILE" type:"path" help:"Remember how far it is, and go on from there."`
}

// Help is printed below the flags.
func (r *ReplayRun) Help() string {
	return "Prints two digests: one over the events that were read, one over what was made of them. They are the same for every replay of the " +
		"same events, however often it was interrupted."
}

func (r *ReplayRun) plan() (replay.Plan, error) {
	p := replay.Plan{Into: r.Into, From: r.From, To: r.To, Subjects: r.Filter, Types: []string{}}
	switch {
	case (r.Into == intoLines) != (r.File != ""):
		return p, usagef("--file is the file of --into jsonl")
	case r.Into == intoClickHouse && r.ClickHouse == "":
		return p, usagef("--into clickhouse: into which --clickhouse?")
	case r.File == "-" && (r.Checkpoint != "" || r.Output == "json"):
		return p, usagef("--file -: what went to stdout cannot be gone on with, nor told from --output json")
	case r.From == 0 || (r.To > 0 && r.To < r.From):
		return p, usagef("--from and --to: sequences begin at 1, and the first is not behind the last")
	case r.Rate < 0:
		return p, usagef("--rate: is not negative")
	}
	if p.Subjects == "" {
		p.Subjects = subject.Events
	}
	if !strings.HasPrefix(p.Subjects, subject.EventPrefix) || strings.ContainsAny(p.Subjects, " \t\r\n") {
		return p, usagef("--filter: %q matches no event: they begin with %s", p.Subjects, subject.EventPrefix)
	}
	for _, t := range r.Type {
		if !events.Known(t) {
			return p, usagef("--type: there is no event %q", t)
		}
		p.Types = append(p.Types, t)
	}
	slices.Sort(p.Types)
	return p, nil
}

// Run replays.
func (r *ReplayRun) Run(e *Env) error {
	plan, err := r.plan()
	if err != nil {
		return err
	}
	ctx, js, done, err := (&Log{NATS: r.NATS, Proof: r.Proof, Timeout: r.Timeout}).connect(e, permission.Operator)
	if err != nil {
		return err
	}
	defer done()
	state, err := r.begin(ctx, js, plan)
	if err != nil {
		return ended(ctx, err)
	}
	sink, closing, err := r.sink(ctx, e, js, state)
	if err != nil {
		return ended(ctx, err)
	}
	defer closing()
	p := render.NewProgress(e.Stderr)
	job := replay.Job{JS: js, Sink: sink, Rate: r.Rate, Progress: func(seq uint64) { p.Events("replay", seq, state.To) }}
	if r.Checkpoint != "" {
		job.Save = replay.Checkpoint(r.Checkpoint).Save
	}
	state, err = replay.Run(ctx, job, state)
	p.Clear()
	if err != nil {
		if r.Checkpoint != "" {
			e.warn("stored up to event %d; the same command goes on from there", state.Next-1)
		}
		return ended(ctx, err)
	}
	return r.show(e, state)
}

// begin is the state to replay from.
func (r *ReplayRun) begin(ctx context.Context, js jetstream.JetStream, plan replay.Plan) (replay.State, error) {
	log, err := cursor.BoundsOf(ctx, js)
	if err != nil {
		return replay.State{}, err
	}
	if plan.To > log.Last {
		return replay.State{}, usagef("--to: the log ends at %d", log.Last)
	}
	plan.Log = log.Log
	var was replay.State
	there := false
	if r.Checkpoint != "" {
		if was, there, err = replay.Checkpoint(r.Checkpoint).Load(); err != nil {
			return was, err
		}
	}
	state, err := replay.Continue(plan, was, there, log.Last)
	if err != nil {
		return state, err
	}
	return state, log.Holds(cursor.Cursor{Log: log.Log, Seq: state.Next - 1})
}

func (r *ReplayRun) sink(ctx context.Context, e *Env, js jetstream.JetStream, s replay.State) (replay.Sink, func(), error) {
	switch {
	case r.File == "-":
		return replay.LinesTo(e.Stdout), func() {}, nil
	case r.Into == intoLines:
		l, err := replay.OpenLines(r.File, s.Bytes)
		if err != nil {
			return nil, nil, err
		}
		return l, func() { _ = l.Close() }, nil // what was flushed is stored
	case r.Into == intoClickHouse:
		rows, err := usageapp.OpenRows(ctx, js, r.ClickHouse)
		if err != nil {
			return nil, nil, err
		}
		return replay.Rows{To: rows}, func() { _ = rows.Close() }, nil
	}
	return replay.Nothing{}, func() {}, nil
}

func (r *ReplayRun) show(e *Env, s replay.State) error {
	if r.File == "-" {
		e.warn("events to %d, digest %s", s.To, s.Digest)
		return nil
	}
	if r.Output == "json" {
		return render.Value(e.Stdout, s)
	}
	fields := []render.Field{
		{Name: "Log", Value: s.Log},
		{Name: "Events", Value: fmt.Sprintf("%d, of sequences %d to %d", s.Events, s.From, s.To)},
		{Name: "Not known", Value: fmt.Sprintf("%d of types that this program does not have, %d unreadable", s.Unknown, s.Unreadable)},
		{Name: "Digest", Value: s.Digest},
	}
	if s.Into != intoNothing {
		fields = append(fields, render.Field{Name: "Written", Value: fmt.Sprintf("from %d events", s.Made)}, render.Field{Name: "Result digest", Value: s.Result})
	}
	if err := render.Fields(e.Stdout, fields); err != nil || len(s.ByType) == 0 {
		return err
	}
	fmt.Fprintln(e.Stdout)
	t := render.Table{Header: []string{"TYPE", "EVENTS"}}
	for _, name := range slices.Sorted(maps.Keys(s.ByType)) {
		t.Rows = append(t.Rows, []string{shortType(name), number(s.ByType[name])})
	}
	return t.Write(e.Stdout)
}
