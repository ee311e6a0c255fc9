package events_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
	"github.com/sandtrail/sandtrail/libs/worker"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// billing is a subscriber as a team that bills would write one: it adds up the CPU time of a tenant's execs by session. Its book
// stands for a table whose key is the event's id, so that an event which comes twice counts once.
type billing struct {
	mu   sync.Mutex
	book map[string]entry
}

type entry struct {
	session   string
	cpuMillis uint64
}

// Run follows a tenant's execs until ctx ends.
func (b *billing) Run(ctx context.Context, js jetstream.JetStream, tenant string) error {
	sub, err := events.NewSubscriber(ctx, js, events.Config{Group: "billing"})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(watermillnats.Report)
	topic := events.Filter{Tenant: tenant, Kinds: []subject.Kind{subject.KindExec}, Types: []string{"ExecCompleted", "ExecLost"}}.Topic()
	router.AddConsumerHandler("billing", topic, sub, b.handle)
	return router.Run(ctx)
}

func (b *billing) handle(m *message.Message) error {
	e, err := events.Of(m)
	if err != nil {
		return worker.Poison(err)
	}
	var x entry
	switch body := e.Body.(type) {
	case *eventsv1.ExecCompleted:
		x = entry{body.GetSessionId(), body.GetUsage().GetCpuMs()}
	case *eventsv1.ExecLost:
		x = entry{body.GetSessionId(), body.GetUsage().GetCpuMs()}
	default:
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.book[e.ID] = x
	return nil
}

func (b *billing) totals() map[string]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]uint64{}
	for _, x := range b.book {
		all[x.session] += x.cpuMillis
	}
	return all
}

func Example() {
	// A connection to NATS and its JetStream come from nats.go: js, err := jetstream.New(nc).
	bill := func(ctx context.Context, js jetstream.JetStream) error {
		return (&billing{book: map[string]entry{}}).Run(ctx, js, "acme")
	}
	_ = bill
}

// The bill is the same however often the subscriber dies, and nothing of another tenant is on it.
func TestABillingSubscriberCountsEachExecOnce(t *testing.T) {
	f := natstest.Start(t)
	const execs = 60
	b := &billing{book: map[string]entry{}}
	stop := func() {}
	for i := range execs {
		if i%20 == 0 {
			stop()
			stop = bill(t, f, b)
		}
		for _, tenant := range []string{"acme", "globex"} {
			write(t, f, subject.Exec(tenant, "s", fmt.Sprint("x", i)), &eventsv1.ExecStarted{}, &eventsv1.ExecCompleted{
				SessionId: fmt.Sprint("session", i%2), Usage: &commonv1.UsageMetrics{CpuMs: uint64(i)},
			})
		}
	}
	defer func() { stop() }()
	want := map[string]uint64{"session0": 870, "session1": 900}
	require.Eventually(t, func() bool {
		return len(b.totals()) == 2 && b.totals()["session0"] >= 870 && b.totals()["session1"] >= 900
	}, patience, 10*time.Millisecond)
	require.Equal(t, want, b.totals())
}

// bill runs the subscriber until the function that it returns is called.
func bill(t *testing.T, f *natstest.Fixture, b *billing) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx, f.JS, "acme") }()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}
