package webhook

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// Execute carries a command out on an endpoint and gives the endpoint behind it, with the faults of Decide and of the log. The same
// command id is carried out once.
func Execute(ctx context.Context, log eventlog.Log, tenant, id, command, actor string, at time.Time, c Command) (Endpoint, error) {
	h, err := eventlog.Execute(ctx, log, subject.Webhook(tenant, id), func(h eventlog.History) ([]envelope.Event, error) {
		bodies, err := Decide(Fold(h), c)
		var all []envelope.Event
		for i, b := range bodies {
			all = append(all, envelope.Event{
				Meta: envelope.Meta{ID: ids.Event(command, i), Tenant: tenant, Actor: actor, Cause: command, Time: at.UTC()}, Body: b,
			})
		}
		return all, err
	})
	if err != nil {
		return Endpoint{}, err
	}
	return Fold(h), nil
}
