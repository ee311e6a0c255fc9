package cli

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/permission"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Topology is `sandtrail topology`.
type Topology struct {
	Diff   TopologyDiff   `cmd:"" help:"Compare streams, buckets and consumers as they should be with those that the server has."`
	Ensure TopologyEnsure `cmd:"" help:"Make and change what differs, as services do at their start."`
}

// Declared are the flags that say what the topology should be: those that the services were started with.
type Declared struct {
	Log
	Replicas       int           `default:"1" enum:"1,3,5" group:"The topology" help:"Replicas of streams and buckets, at least: ${enum}. What has more keeps them."`
	EventsMaxBytes int64         `placeholder:"BYTES" group:"The topology" help:"Bound of the log (EVT), if it is not the usual one."`
	OutputMaxBytes int64         `placeholder:"BYTES" group:"The topology" help:"Bound of all output (OUT), if it is not the usual one."`
	OutputMaxAge   time.Duration `placeholder:"AGE" group:"The topology" help:"How long output is kept, if it is not the usual time."`
	Worker         []string      `placeholder:"NAME" group:"The topology" help:"A worker whose consumers should be there; those that have one are looked at anyway. May be repeated."`
}

func (d *Declared) options() topology.Options {
	return topology.Options{
		Replicas: d.Replicas, EventsMaxBytes: d.EventsMaxBytes, OutputMaxBytes: d.OutputMaxBytes, OutputMaxAge: d.OutputMaxAge,
	}
}

// survey is topology.Survey or topology.Apply.
type survey func(context.Context, jetstream.JetStream, topology.Options, ...string) ([]topology.Thing, error)

// show prints what a survey says of each thing, those that are as they should be too, and gives all of them.
func (d *Declared) show(e *Env, role permission.Role, do survey) ([]topology.Thing, error) {
	if d.EventsMaxBytes < 0 || d.OutputMaxBytes < 0 || d.OutputMaxAge < 0 {
		return nil, usagef("a bound is not negative")
	}
	ctx, js, done, err := d.connect(e, role)
	if err != nil {
		return nil, err
	}
	defer done()
	all, err := do(ctx, js, d.options(), d.Worker...)
	if err != nil {
		return nil, ended(ctx, err)
	}
	if d.json() {
		out := make([]thingJSON, 0, len(all))
		for _, t := range all {
			out = append(out, thingOf(t))
		}
		return all, render.Value(e.Stdout, out)
	}
	table := render.Table{Header: []string{"KIND", "NAME", "STREAM", "STATE", "SETTING", "IS", "SHOULD BE"}}
	for _, t := range all {
		row := []string{string(t.Kind), t.Name, t.Stream, string(t.State)}
		if len(t.Differences) == 0 || t.State == topology.Missing || t.State == topology.Made {
			table.Rows = append(table.Rows, append(row, "", "", ""))
			continue
		}
		for _, x := range t.Differences {
			table.Rows = append(table.Rows, append(row[:4:4], x.Field, x.Have, x.Want))
		}
	}
	if err := table.Write(e.Stdout); err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.Why != "" {
			e.warn("%s %s is refused: %s", t.Kind, t.Name, t.Why)
		}
	}
	return all, nil
}

// thingJSON is a thing as programs get it.
type thingJSON struct {
	Kind        string           `json:"kind"`
	Name        string           `json:"name"`
	Stream      string           `json:"stream,omitempty"`
	State       string           `json:"state"`
	Differences []differenceJSON `json:"differences"`
	Why         string           `json:"why,omitempty"`
}

// differenceJSON has values as JSON texts, as the server's API writes them.
type differenceJSON struct {
	Setting string `json:"setting"`
	Have    string `json:"have"`
	Want    string `json:"want"`
}

func thingOf(t topology.Thing) thingJSON {
	out := thingJSON{Kind: string(t.Kind), Name: t.Name, Stream: t.Stream, State: string(t.State), Differences: []differenceJSON{}, Why: t.Why}
	for _, d := range t.Differences {
		out.Differences = append(out.Differences, differenceJSON{Setting: d.Field, Have: d.Have, Want: d.Want})
	}
	return out
}

// TopologyDiff is `sandtrail topology diff`.
type TopologyDiff struct {
	Declared
}

// Run compares, and ends with ExitDifferent where anything is not as it should be.
func (t *TopologyDiff) Run(e *Env) error { return t.compare(e) }

func (d *Declared) compare(e *Env) error {
	all, err := d.show(e, permission.Operator, topology.Survey)
	if err != nil {
		return err
	}
	for _, t := range all {
		if !t.Settled() {
			return exitError(ExitDifferent)
		}
	}
	return nil
}

// TopologyEnsure is `sandtrail topology ensure`.
type TopologyEnsure struct {
	Declared
	DryRun bool `help:"Only show what would be done; ends like diff."`
}

// Run applies what can be applied, and ends with ExitRefused where something could not be.
func (t *TopologyEnsure) Run(e *Env) error {
	if t.DryRun {
		return t.compare(e)
	}
	all, err := t.show(e, permission.Provisioner, topology.Apply)
	if err != nil {
		return err
	}
	for _, t := range all {
		if t.State == topology.Refused {
			return exitError(ExitRefused)
		}
	}
	return nil
}
