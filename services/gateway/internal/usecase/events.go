package usecase

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// eventsPatience is how long the log may be out of reach before a follower is told.
const eventsPatience = 30 * time.Second

// eachEvent is told of an event, or of nothing: everything up to a sequence was seen.
type eachEvent func(seq uint64, e *envelope.Recorded) error

// Events gives each of the tenant's events behind sequence after, in order, and follows the log unless stop is set. sandboxID
// narrows it to one sandbox and its execs; without a tenant (development mode only) it gives those of all. each also gets the
// sequence up to which everything was seen; after a Limits.Heartbeat of silence it gets that alone, also while long stretches of the
// log are read in which there is nothing of the sandbox.
//
// A cursor behind which events are missing, because they are no longer kept, is fault.FailedPrecondition with ReasonCursorExpired and the
// oldest position, at the start and for who follows too slowly; 0 begins with whatever there is.
func (u *UseCases) Events(ctx context.Context, p principal.Principal, tenant, sandboxID string, after uint64, stop bool, each eachEvent) error {
	if err := p.Need(scopes.Inspect); err != nil {
		return err
	}
	filter, err := u.eventsFilter(ctx, p, tenant, sandboxID)
	if err != nil {
		return err
	}
	after = min(after, math.MaxUint64-1) // the next one has a number too
	wake := make(chan struct{}, 1)
	live, err := u.nc.Subscribe(subject.Live(filter), func(*nats.Msg) { poke(wake) })
	if err != nil {
		return unreachable(err)
	}
	defer live.Unsubscribe() //nolint:errcheck // the connection is closing if this fails
	silent := time.NewTicker(u.limits.Heartbeat)
	defer silent.Stop()
	sent := time.Now()
	tell := func(seq uint64, e *envelope.Recorded) error {
		if e == nil && time.Since(sent) < u.limits.Heartbeat/2 {
			return nil
		}
		sent = time.Now()
		return each(seq, e)
	}
	quiet := func() bool { return time.Since(sent) >= u.limits.Heartbeat }
	var down, checked time.Time
	for {
		n, err := 0, error(nil)
		if time.Since(checked) >= u.limits.Heartbeat {
			if err = u.kept(ctx, after); err == nil {
				checked = time.Now()
			}
		}
		if err == nil {
			n, err = u.eventsFrom(ctx, filter, sandboxID, &after, tell, quiet)
		}
		var again <-chan time.Time
		switch {
		case err == nil:
			down = time.Time{}
		case stop || !fault.Is(err, fault.ReasonLogUnavailable):
			return err
		case down.IsZero():
			down = time.Now()
			again = time.After(time.Second)
		case time.Since(down) > eventsPatience:
			return err
		default:
			again = time.After(time.Second)
		}
		if stop {
			return nil
		}
		if n > 0 {
			silent.Reset(u.limits.Heartbeat)
		}
		select {
		case <-wake:
		case <-again:
		case <-silent.C:
			if err := tell(after, nil); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// kept refuses a cursor behind which the log has lost its beginning.
func (u *UseCases) kept(ctx context.Context, after uint64) error {
	if after == 0 {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, stored.PageWait)
	defer cancel()
	now, err := cursor.BoundsOf(wait, u.js)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return unreachable(err)
	}
	oldest := now.Oldest().Seq
	if after >= oldest {
		return nil
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonCursorExpired, "events before %d are no longer kept; go on after sequence %d", now.First, oldest).
		WithFields(map[string]string{"after_sequence": "the oldest position is " + strconv.FormatUint(oldest, 10)})
}

// eventsFilter is the subject filter of what the caller may and wants to see.
func (u *UseCases) eventsFilter(ctx context.Context, p principal.Principal, tenant, sandboxID string) (string, error) {
	if tenant != "" || !p.Development() {
		owner, err := p.Owner(tenant)
		if err != nil {
			return "", err
		}
		tenant = owner
	}
	if sandboxID != "" {
		s, err := u.show(ctx, p, sandboxID)
		if err != nil {
			return "", err
		}
		if tenant != "" && tenant != s.Tenant {
			return "", notFound(sandboxID)
		}
		tenant = s.Tenant
	}
	if tenant == "" {
		return subject.Events, nil
	}
	return subject.OfTenant(tenant), nil
}

// eventsFrom reads what is stored behind *after and moves it on. While it is quiet it says how far it has come.
func (u *UseCases) eventsFrom(
	ctx context.Context, filter, sandboxID string, after *uint64, each eachEvent, quiet func() bool,
) (given int, err error) {
	err = stored.Each(ctx, u.js, u.memory, topology.StreamEvents, filter, *after+1, func(m directget.Message) error {
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil || (sandboxID != "" && agg.Sandbox != sandboxID) {
			*after = m.Seq
			if quiet() {
				return each(m.Seq, nil)
			}
			return nil // what is no event of ours is nothing to show
		}
		// One that does not decode is given as it stands, without a body: it must not be the last that its tenant ever sees.
		e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			e.Body, e.Data = nil, m.Data
		}
		given++
		if err := each(m.Seq, &e); err != nil {
			return err
		}
		*after = m.Seq
		return nil
	})
	return given, err
}
