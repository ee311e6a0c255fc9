package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

// Verification says whether what ClickHouse has is what the log says.
type Verification struct {
	// Mark is up to where both were compared.
	Mark Mark
	// Events is how many were read, Unusable how many of them can never be billed and stand among the dead letters.
	Events, Unusable int
	// Hours and Days are how many quantities were compared. Differences are those that are not the same; a day under the hour that it
	// begins with.
	Hours, Days                     int
	HourDifferences, DayDifferences []metering.Difference
}

// Same reports whether nothing differs.
func (v Verification) Same() bool { return len(v.HourDifferences)+len(v.DayDifferences) == 0 }

// Check is what Verify compares.
type Check struct {
	JS jetstream.JetStream
	// Address is that of ClickHouse.
	Address string
	// Tenant is empty for all.
	Tenant string
	// Patience is how long to wait for the service to finish adding up, where something differs: while it does, hours are newer than
	// the mark says.
	Patience time.Duration
	// Progress gets the sequence that was read last; may be nil.
	Progress func(seq, of uint64)
}

// Verify reads the log up to where the rollups are complete, adds it up and compares each hour and each day. An error: it could not
// compare. fault.FailedPrecondition: nothing has been added up yet, or that of another log.
func Verify(ctx context.Context, c Check) (Verification, error) {
	conn, err := clickhouse.Open(c.Address)
	if err != nil {
		return Verification{}, err
	}
	defer func() { _ = conn.Close() }()
	r := &reckoning{c: c, conn: conn, ledger: metering.NewLedger()}
	deadline := time.Now().Add(c.Patience)
	for {
		v, err := r.compare(ctx)
		if err != nil || v.Same() || !time.Now().Before(deadline) {
			return v, err
		}
		if pause.For(ctx, min(time.Second, time.Until(deadline))) != nil {
			return v, ctx.Err()
		}
	}
}

// reckoning adds the log up as far as it was asked to.
type reckoning struct {
	c                Check
	conn             *clickhouse.Conn
	ledger           *metering.Ledger
	read             uint64
	events, unusable int
}

func (r *reckoning) compare(ctx context.Context) (Verification, error) {
	m, hours, days, err := r.stands(ctx)
	if err != nil {
		return Verification{}, err
	}
	if err := r.extend(ctx, m.Seq); err != nil {
		return Verification{}, err
	}
	want := r.ledger.Windows(m.Until())
	v := Verification{Mark: m, Events: r.events, Unusable: r.unusable, Hours: len(want), HourDifferences: metering.Compare(want, hours)}
	byDay := want.Days()
	v.Days, v.DayDifferences = len(byDay), metering.Compare(byDay, days)
	return v, nil
}

// stands reads what ClickHouse has, between two looks at the mark that see the same.
func (r *reckoning) stands(ctx context.Context) (m Mark, hours, days metering.Windows, err error) {
	stream, err := r.c.JS.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return m, nil, nil, fmt.Errorf("look up the stream of events: %w", err)
	}
	for range 10 {
		if m, err = r.conn.Marked(ctx); err != nil {
			return m, nil, nil, err
		}
		if m.Seq == 0 || !strings.HasPrefix(m.Life, stream.CachedInfo().Config.Metadata[topology.MetaIncarnation]+":") || m.Seq < r.read {
			return m, nil, nil, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState,
				"ClickHouse has no hours of this log yet; the usage service adds them up every few seconds")
		}
		if hours, err = r.conn.Hours(ctx, r.c.Tenant, false); err != nil {
			return m, nil, nil, err
		}
		if days, err = r.conn.Hours(ctx, r.c.Tenant, true); err != nil {
			return m, nil, nil, err
		}
		again, err := r.conn.Marked(ctx)
		if err != nil || again == m {
			return m, hours, days, err
		}
	}
	return m, hours, days, nil
}

// errEnough ends the reading of events in good order.
var errEnough = errors.New("the mark is reached")

// extend reads on to a sequence.
func (r *reckoning) extend(ctx context.Context, to uint64) error {
	if r.read >= to {
		return nil
	}
	err := directget.Each(ctx, r.c.JS, topology.StreamEvents, subject.Events, r.read+1, func(m directget.Message) error {
		if m.Seq > to {
			return errEnough
		}
		r.take(m)
		r.events++
		if r.c.Progress != nil {
			r.c.Progress(m.Seq, to)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return fmt.Errorf("read the log: %w", err)
	}
	r.read = to
	return nil
}

// take adds an event where the projector makes a row of it.
func (r *reckoning) take(m directget.Message) {
	agg, err := subject.ParseEvent(m.Subject)
	if err != nil || r.c.Tenant != "" && agg.Tenant != r.c.Tenant {
		return
	}
	e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
	if err != nil {
		r.unusable++
		return
	}
	if e.Body == nil {
		return
	}
	if _, ok := metering.Read(e, agg); ok {
		// What it says is checked as the projector does; for whom it ran does not matter here.
		if _, err := project.Map(e, agg, project.Owner{}); err != nil {
			r.unusable++
			return
		}
	}
	r.ledger.Add(e, agg)
}
