package usecase

import (
	"context"
	"errors"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/turns"
)

// Commands are served in the order of their stream, so whoever publishes without end would keep everybody waiting. A gateway has only so many
// creates and ends of sandboxes under way, and only a part of them for one tenant: the others wait here, where tenants take turns.
const (
	// decisionSlots are as many as a scheduler handles at once; decisionShare leaves room for others there, also where there are several gateways.
	decisionSlots, decisionShare = 16, 4
	// waitingMost of them of a tenant wait at one gateway; more are refused.
	waitingMost = 2048
	// turnTime is how long one keeps its turn at most: a scheduler that does not answer is no reason for others to wait longer.
	turnTime = 500 * time.Millisecond
)

// turn waits until it is a tenant's. Call done, once its command is answered.
func turn(ctx context.Context, t *turns.Turns, tenant string) (done func(), err error) {
	over, err := t.Take(ctx, tenant)
	if errors.Is(err, turns.ErrFull) {
		return over, fault.New(fault.ResourceExhausted, fault.ReasonTooManyCalls, "too many creates and ends of the tenant's sandboxes wait at this gateway; make fewer at once").
			WithRetry(time.Second)
	}
	if err != nil {
		return over, err
	}
	end := time.AfterFunc(turnTime, over)
	return func() { end.Stop(); over() }, nil
}
