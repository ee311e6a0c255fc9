package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
	"github.com/sandtrail/sandtrail/libs/worker"
)

const (
	// settleTopic names the process manager's input: the facts of all sandboxes.
	settleTopic = "sandboxes"
	// settleLanes bounds the sandboxes settled at once; each may wait for its worker's grace.
	settleLanes = 32
	settleClose = 10 * time.Second
)

// settle runs the process manager that ends the execs of sandboxes that have ended. Its consumer is shared by every exec service:
// whichever takes an event settles, wherever the sandbox was. An event that fails for hours goes to the dead letters: the consumer
// hands out a bounded number at once, and those that fail would in the end hold up all others. Its execs are open until it is redriven.
func (a *App) settle(ctx context.Context) error {
	sub := watermillnats.NewSubscriber(a.deps.JS, watermillnats.SubscriberConfig{
		Service: "exec", Lanes: settleLanes, Log: a.deps.Log, Registerer: a.deps.Registry, MaxAttempts: worker.DefaultMaxAttempts,
		Consumer: func(string) (string, string, error) { return topology.StreamEvents, topology.ConsumerSettle, nil },
	})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: settleClose}, watermill.NewSlogLogger(a.deps.Log))
	if err != nil {
		return errors.Join(fmt.Errorf("make the settling router: %w", err), sub.Close())
	}
	router.AddMiddleware(watermillnats.Report)
	router.AddConsumerHandler("settle", settleTopic, sub, a.settleOne)
	err = router.Run(ctx)
	return errors.Join(err, sub.Close())
}

// settleOne takes one event of a sandbox. What is no event cannot be settled by trying again.
func (a *App) settleOne(m *message.Message) error {
	src, ok := watermillnats.Source(m.Context())
	if !ok {
		return errors.New("the message does not say where it is from")
	}
	e, err := envelope.Decode(src.Subject, src.Seq, src.Header, src.Data)
	if err != nil {
		return worker.Poison(dlq.Undecodable("an event", err))
	}
	return a.settler.Handle(m.Context(), e)
}
