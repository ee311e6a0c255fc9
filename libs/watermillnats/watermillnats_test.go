package watermillnats_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
)

func TestWatermillSuite(t *testing.T) {
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
