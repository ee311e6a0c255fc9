package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
)

const (
	// settleTopic names the process manager's input: the facts of all sandboxes.
	settleTopic = "sandboxes"
	// settleLanes bounds the sandboxes settled at once; each may wait for its worker's grace.
	settleLanes = 32
	settleClose = 10 * time.Second
)

// settle runs the process manager that ends the execs of sandboxes that have ended. Its consumer is shared by every exec service:
// whichever takes an event settles, wherever the sandbox was. A message that fails is tried again without end: an exec that is
// never settled would be open for ever.
func (a *App) settle(ctx context.Context) error {
	sub := watermillnats.NewSubscriber(a.deps.JS, watermillnats.SubscriberConfig{
		Service: "exec", Lanes: settleLanes, Log: a.deps.Log, Registerer: a.deps.Registry,
		Consumer: func(string) (string, string, error) { return topology.StreamEvents, topology.ConsumerSettle, nil },
	})
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: settleClose}, watermill.NewSlogLogger(a.deps.Log))
	if err != nil {
		return errors.Join(fmt.Errorf("make the settling router: %w", err), sub.Close())
	}
	router.AddMiddleware(middleware.Recoverer)
	router.AddConsumerHandler("settle", settleTopic, sub, a.settleOne)
	err = router.Run(ctx)
	return errors.Join(err, sub.Close())
}

// settleOne takes one event of a sandbox. What is no event cannot be settled by trying again; the projections report it.
func (a *App) settleOne(m *message.Message) error {
	src, ok := watermillnats.Source(m.Context())
	if !ok {
		return errors.New("the message does not say where it is from")
	}
	e, err := envelope.Decode(src.Subject, src.Seq, src.Header, src.Data)
	if err != nil {
		a.deps.Log.ErrorContext(m.Context(), "not an event", "subject", src.Subject, "sequence", src.Seq, "error", err)
		return nil
	}
	return a.settler.Handle(m.Context(), e)
}
