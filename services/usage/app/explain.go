package app

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// Question chooses quantities and what they are added up by; Group is an answer, Meter what is counted. See Show.
type (
	Question = clickhouse.Question
	Group    = clickhouse.Group
	Meter    = metering.Meter
)

// Dimensions are what quantities can be added up by.
func Dimensions() []string { return clickhouse.Dimensions() }

// Show answers a question from the rollups of the server at an address.
func Show(ctx context.Context, address string, q Question) ([]Group, error) {
	conn, err := clickhouse.Open(address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return conn.Show(ctx, q)
}

// Explanation is what the log says about the usage of a sandbox or exec, and what is made of it.
type Explanation struct {
	Tenant, Sandbox string
	// Exec is empty where all of a sandbox is explained, without its execs.
	Exec  string
	Owner metering.Owner
	Facts []Fact
	// Spans are what is between the facts. That of a workspace which is still there ends at Until.
	Spans []metering.Span
	Until time.Time
}

// Fact is one event that counts.
type Fact struct {
	metering.Reading
	EventID, Type string
	// Time is the event's own.
	Time time.Time
}

// Explain reads the events behind an id: that of a usage row, an exec, an event or a sandbox. tenant is empty where any will do.
// fault.NotFound: no row has it.
func Explain(ctx context.Context, js jetstream.JetStream, address, tenant, id string) (Explanation, error) {
	u, err := uuid.Parse(id)
	if err != nil {
		return Explanation{}, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the id is not a UUID")
	}
	conn, err := clickhouse.Open(address)
	if err != nil {
		return Explanation{}, err
	}
	defer func() { _ = conn.Close() }()
	o, found, err := conn.Find(ctx, u)
	if err != nil {
		return Explanation{}, err
	}
	if !found || tenant != "" && o.Tenant != tenant {
		return Explanation{}, fault.New(fault.NotFound, fault.ReasonExecNotFound, "no usage row, exec, event or sandbox has this id")
	}
	m, err := conn.Marked(ctx)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Tenant: o.Tenant, Sandbox: o.Sandbox.String(), Until: time.UnixMilli(m.Until()).UTC()}
	aggregates := []subject.Aggregate{subject.Sandbox(x.Tenant, x.Sandbox), subject.Workspace(x.Tenant, x.Sandbox)}
	if o.Exec != uuid.Nil {
		x.Exec = o.Exec.String()
		aggregates = []subject.Aggregate{subject.Exec(x.Tenant, x.Sandbox, x.Exec)}
	}
	for _, agg := range aggregates {
		err := directget.Each(ctx, js, topology.StreamEvents, agg.Subject(), 1, func(m directget.Message) error { return x.take(agg, m) })
		if err != nil {
			return Explanation{}, fmt.Errorf("read the events behind a row: %w", err)
		}
	}
	x.spans()
	return x, nil
}

func (x *Explanation) take(agg subject.Aggregate, m directget.Message) error {
	e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
	if err != nil {
		return nil //nolint:nilerr // what cannot be decoded makes no row
	}
	if b, ok := e.Body.(*eventsv1.SandboxRequested); ok {
		x.Owner = metering.OwnerOf(b)
	}
	if r, ok := metering.Read(e, agg); ok {
		x.Facts = append(x.Facts, Fact{Reading: r, EventID: e.ID, Type: e.Type, Time: e.Time})
	}
	return nil
}

func (x *Explanation) spans() {
	readings := make([]metering.Reading, 0, len(x.Facts))
	for _, f := range x.Facts {
		readings = append(readings, f.Reading)
		if f.Kind == metering.Ended {
			x.Spans = append(x.Spans, metering.Exec(f.Reading))
		}
	}
	if x.Exec != "" {
		return
	}
	x.Spans = metering.Spans(readings, x.Owner)
	if s, ok := metering.Storage(readings, x.Owner, x.Until.UnixMilli()); ok {
		x.Spans = append(x.Spans, s)
	}
}
