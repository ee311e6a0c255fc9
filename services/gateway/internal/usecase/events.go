package usecase

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

// eventsBeat is the longest silence on a followed log.
const eventsBeat = 10 * time.Second

// Events gives each of the tenant's events behind sequence after, in order, and follows the log unless stop is set. sandboxID
// narrows it to one sandbox and its execs. Every eventsBeat of silence each gets nil: alive, nothing new.
func (u *UseCases) Events(ctx context.Context, p principal.Principal, tenant, sandboxID string, after uint64, stop bool, each func(*envelope.Recorded) error) error {
	if sandboxID != "" {
		s, err := u.locate(ctx, p, sandboxID)
		if err != nil {
			return err
		}
		tenant = s.Tenant
	}
	owner, err := p.Owner(tenant)
	if err != nil {
		return err
	}
	wake := make(chan struct{}, 1)
	live, err := u.nc.Subscribe(subject.Live(subject.OfTenant(owner)), func(*nats.Msg) {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err != nil {
		return unreachable(err)
	}
	defer live.Unsubscribe() //nolint:errcheck // the connection is closing if this fails
	silent := time.NewTicker(eventsBeat)
	defer silent.Stop()
	for {
		n, err := u.eventsFrom(ctx, owner, sandboxID, &after, each)
		if err != nil || stop {
			return err
		}
		if n > 0 {
			silent.Reset(eventsBeat)
		}
		select {
		case <-wake:
		case <-silent.C:
			if err := each(nil); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// eventsFrom reads what is stored behind *after and moves it on.
func (u *UseCases) eventsFrom(ctx context.Context, tenant, sandboxID string, after *uint64, each func(*envelope.Recorded) error) (given int, err error) {
	var refused error
	err = directget.Each(ctx, u.js, topology.StreamEvents, subject.OfTenant(tenant), *after+1, func(m directget.Message) error {
		*after = m.Seq
		agg, err := subject.ParseEvent(m.Subject)
		if err != nil || (sandboxID != "" && agg.Sandbox != sandboxID) {
			return nil //nolint:nilerr // what is no event of ours is nothing to show
		}
		e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err == nil {
			err = each(&e)
		}
		given, refused = given+1, err
		return err
	})
	if err != nil && refused == nil {
		return given, unreachable(err)
	}
	return given, err
}
