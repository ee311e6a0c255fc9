package watermillnats_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
	"github.com/sandtrail/sandtrail/libs/worker"
)

func TestWatermillSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	f := natstest.Start(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// The topology of a topic: a stream of its own, a consumer for each group.
	consumer := func(topic, group string) (string, string, error) {
		name := "T-" + topic
		_, err := f.JS.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{"topic." + topic}})
		if err != nil {
			return "", "", err
		}
		_, err = f.JS.CreateOrUpdateConsumer(ctx, name, jetstream.ConsumerConfig{
			Durable: group, AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second, MaxDeliver: -1,
		})
		return name, group, err
	}
	group := func(_ *testing.T, group string) (message.Publisher, message.Subscriber) {
		pub := watermillnats.NewPublisher(f.JS, func(topic string, _ *message.Message) string { return "topic." + topic })
		sub := watermillnats.NewSubscriber(f.JS, watermillnats.SubscriberConfig{
			Service: "test", Backoff: []time.Duration{10 * time.Millisecond},
			Consumer: func(topic string) (string, string, error) { return consumer(topic, group) },
		})
		return pub, &initializing{sub, func(topic string) error {
			_, _, err := consumer(topic, group)
			return err
		}}
	}
	t.Run("suite", func(t *testing.T) {
		tests.TestPubSub(t, tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true},
			func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "default") }, group)
	})
	require.False(t, f.NC.IsClosed(), "closing publishers and subscribers leaves the connection")
}

// initializing makes a topic's stream before the suite publishes to it.
type initializing struct {
	*watermillnats.Subscriber
	init func(topic string) error
}

func (i *initializing) SubscribeInitialize(topic string) error { return i.init(topic) }

func TestForeignAndMalformedMessages(t *testing.T) {
	f := natstest.Start(t)
	_, err := f.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "T", Subjects: []string{"topic.>"}})
	require.NoError(t, err)
	_, err = f.JS.CreateConsumer(t.Context(), "T", jetstream.ConsumerConfig{Durable: "c", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	sub := watermillnats.NewSubscriber(f.JS, watermillnats.SubscriberConfig{
		Service: "test", Consumer: func(string) (string, string, error) { return "T", "c", nil },
	})
	defer func() { require.NoError(t, sub.Close()) }()
	messages, err := sub.Subscribe(t.Context(), "x")
	require.NoError(t, err)
	// No headers, no id, no data; then headers without values.
	_, err = f.JS.Publish(t.Context(), "topic.x", nil)
	require.NoError(t, err)
	_, err = f.JS.PublishMsg(t.Context(), &nats.Msg{Subject: "topic.x", Header: nats.Header{"empty": {}, "traceparent": {"zz"}}})
	require.NoError(t, err)
	for range 2 {
		select {
		case m := <-messages:
			require.NotEmpty(t, m.UUID)
			m.Ack()
		case <-time.After(20 * time.Second):
			require.FailNow(t, "a message did not come")
		}
	}
}

func TestPublishHonoursTheContext(t *testing.T) {
	f := natstest.Start(t)
	pub := watermillnats.NewPublisher(f.JS, func(string, *message.Message) string { return "cmd.test.x" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m := message.NewMessage("1", nil)
	m.SetContext(ctx)
	require.ErrorIs(t, pub.Publish("x", m), context.Canceled)
	require.NoError(t, pub.Close())
	require.Error(t, pub.Publish("x", message.NewMessage("2", nil)))
}

func TestPoisonAndPanicsGoToTheDeadLettersAndBlockNobody(t *testing.T) {
	f := natstest.Start(t)
	_, err := f.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "T", Subjects: []string{"topic.>"}})
	require.NoError(t, err)
	// As many at once as there are bad ones: each that stays would keep a good one away.
	_, err = f.JS.CreateConsumer(t.Context(), "T", jetstream.ConsumerConfig{
		Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 3, MaxDeliver: -1,
	})
	require.NoError(t, err)
	for _, data := range []string{"poison", "panic", "fails", "good", "good", "good", "good"} {
		_, err = f.JS.Publish(t.Context(), "topic.x", []byte(data))
		require.NoError(t, err)
	}
	sub := watermillnats.NewSubscriber(f.JS, watermillnats.SubscriberConfig{
		Service: "test", Backoff: []time.Duration{10 * time.Millisecond}, MaxAttempts: 5,
		Consumer: func(string) (string, string, error) { return "T", "c", nil },
	})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(watermillnats.Report)
	var good atomic.Int32
	router.AddConsumerHandler("h", "x", sub, func(m *message.Message) error {
		switch string(m.Payload) {
		case "poison":
			return worker.Poison(dlq.Undecodable("an event", errors.New("hunter2")))
		case "panic":
			panic("hunter2")
		case "fails":
			return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "not now")
		}
		good.Add(1)
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- router.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, sub.Close())
	}()
	var letters []dlq.Letter
	require.Eventually(t, func() bool {
		letters, err = dlq.New(f.JS, nil).List(t.Context(), dlq.Filter{})
		return err == nil && len(letters) == 3 && good.Load() == 4
	}, 20*time.Second, 10*time.Millisecond)
	got := map[string]string{}
	for _, l := range letters {
		got[l.Reason] = l.FaultReason
		require.NotContains(t, l.Error, "hunter2")
	}
	require.Equal(t, map[string]string{"poison": "undecodable", "panic": "panic", "attempts": "log_unavailable"}, got)
}
