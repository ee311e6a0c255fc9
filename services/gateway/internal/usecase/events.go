package usecase

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

const (
	eventPage      = 500
	eventPageBytes = 4 << 20
	// eventsBeat is the longest silence on a followed log.
	eventsBeat = 10 * time.Second
)

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
	for {
		read := 0
		msgs, err := jetstreamext.GetBatch(ctx, u.js, topology.StreamEvents, eventPage, jetstreamext.GetBatchSubject(subject.OfTenant(tenant)),
			jetstreamext.GetBatchSeq(*after+1), jetstreamext.GetBatchMaxBytes(eventPageBytes))
		if err != nil {
			return given, unreachable(err)
		}
		for m, err := range msgs {
			if errors.Is(err, jetstreamext.ErrNoMessages) {
				return given, nil
			}
			if err != nil {
				return given, unreachable(err)
			}
			read++
			*after = m.Sequence
			agg, err := subject.ParseEvent(m.Subject)
			if err != nil || (sandboxID != "" && agg.Sandbox != sandboxID) {
				continue
			}
			e, err := envelope.Decode(m.Subject, m.Sequence, m.Header, m.Data)
			if err != nil {
				return given, err
			}
			given++
			if err := each(&e); err != nil {
				return given, err
			}
		}
		if read == 0 {
			return given, nil
		}
	}
}
