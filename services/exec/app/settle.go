package app

import (
	"context"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
)

// settleLanes bounds the sandboxes settled at once; each may wait for its worker's grace.
const settleLanes = 32

// settle runs the process manager that ends the execs of sandboxes that have ended. The consumer is shared by every exec
// service: whichever takes an event settles, wherever the sandbox was.
func (a *App) settle(ctx context.Context) error {
	return worker.Run(ctx, a.deps.JS, worker.Config{
		Service: "exec", Stream: topology.StreamEvents, Consumer: topology.ConsumerSettle, Lanes: settleLanes,
		Log: a.deps.Log, Registerer: a.deps.Registry, MaxAttempts: -1,
	}, func(ctx context.Context, m worker.Message) error {
		e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
		if err != nil {
			return worker.Poison(err)
		}
		return a.settler.Handle(ctx, e)
	})
}
