package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
	"github.com/sandtrail/sandtrail/libs/worker"
)

const (
	// MaxGroup bounds the name of a group, in bytes: with what stands around it, it names a consumer.
	MaxGroup = 40
	// ackWait is after how long without a sign of life what a subscriber holds is given to another one of its group. A subscriber that
	// lives gives a sign at a third of it.
	ackWait = 10 * time.Second
	// maxOut is how many events of a group are out at once, over all its subscribers.
	maxOut = 1024
	// metaFirst is in a consumer's metadata the first sequence that the log held when it was made.
	metaFirst = "sandtrail-first"
)

// Config of a subscriber.
type Config struct {
	// Group shares events: each comes to one of the subscribers of a group, and to every group. It remembers how far it is. 1 to MaxGroup
	// of A-Z a-z 0-9 _ -.
	Group string
	// After is where a group begins that is new, by default at the beginning of the log. One that is there goes on where it was.
	After cursor.Cursor
	// Lanes is how many aggregates are handled at the same time, by default worker.DefaultLanes. The events of one come one after the
	// other and in order; only one that was nacked falls behind.
	Lanes int
	// Backoff between a nack and the next try, by default worker.DefaultBackoff.
	Backoff    []time.Duration
	Log        *slog.Logger
	Registerer prometheus.Registerer
}

// Subscriber is a Watermill subscriber to the log. Topics are those of Filter.Topic. A message has the event's id as its UUID, its body
// as payload and its headers as metadata; Of decodes it. It comes again until it is acked: keep ids, or make handling it twice the same
// as once.
type Subscriber struct {
	js     jetstream.JetStream
	cfg    Config
	log    cursor.Bounds
	inner  *watermillnats.Subscriber
	runs   context.Context
	cancel context.CancelFunc
}

// NewSubscriber is a subscriber; Close ends its subscriptions and leaves the connection open. It asks the server for the log:
// fault.Unavailable where it does not answer.
func NewSubscriber(ctx context.Context, js jetstream.JetStream, cfg Config) (*Subscriber, error) {
	if !subject.ValidToken(cfg.Group) || len(cfg.Group) > MaxGroup {
		return nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the subscriber is not valid").
			WithFields(map[string]string{"group": fmt.Sprintf("is not 1 to %d of A-Z a-z 0-9 _ -", MaxGroup)})
	}
	log, err := cursor.BoundsOf(ctx, js)
	if err != nil {
		return nil, err
	}
	s := &Subscriber{js: js, cfg: cfg, log: log}
	s.runs, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.inner = watermillnats.NewSubscriber(js, watermillnats.SubscriberConfig{
		Service: "events", Lanes: cfg.Lanes, Log: cfg.Log, Registerer: cfg.Registerer, Backoff: cfg.Backoff,
		Consumer: s.consumer,
		Key:      func(m worker.Message) string { return m.Subject },
		Wants: func(topic string) func(worker.Message) bool {
			f, err := ParseTopic(topic)
			if err != nil || len(f.Types) == 0 {
				return nil
			}
			return func(m worker.Message) bool { return f.Wants(typeOf(m.Header)) }
		},
	})
	return s, nil
}

// Subscribe gives the events of a topic until ctx ends or the subscriber is closed, then it closes the channel. An event that was not
// acked then comes again, to whoever of the group is there. Where the group has missed events because they are no longer kept it is
// fault.FailedPrecondition with ReasonCursorExpired: Reset says where to go on.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return s.inner.Subscribe(ctx, topic)
}

// SubscribeInitialize makes the group of a topic, so that it has events from then on although nobody takes them yet.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	_, _, err := s.consumer(topic)
	return err
}

// Reset forgets how far the group is with a topic: it goes on behind a cursor, with everything that is there from then on. Nobody may be
// subscribed to the topic in this group meanwhile.
func (s *Subscriber) Reset(ctx context.Context, topic string, after cursor.Cursor) error {
	f, err := ParseTopic(topic)
	if err != nil {
		return err
	}
	now, err := cursor.BoundsOf(ctx, s.js)
	if err != nil {
		return err
	}
	if err := now.Holds(after); err != nil {
		return err
	}
	if err := s.js.DeleteConsumer(ctx, topology.StreamEvents, s.name(f)); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return unavailable(err)
	}
	return s.make(ctx, f, after, now)
}

// Remove ends the group of a topic: the server keeps nothing of it.
func (s *Subscriber) Remove(ctx context.Context, topic string) error {
	f, err := ParseTopic(topic)
	if err != nil {
		return err
	}
	if err := s.js.DeleteConsumer(ctx, topology.StreamEvents, s.name(f)); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return unavailable(err)
	}
	return nil
}

// Cursor is the place behind a message of this subscriber. Who has handled an event and all before it may keep it, and begin there
// with another group.
func (s *Subscriber) Cursor(m *message.Message) cursor.Cursor {
	return cursor.Cursor{Log: s.log.Log, Seq: sequence(m.Context())}
}

// Close ends every subscription and waits for them.
func (s *Subscriber) Close() error {
	s.cancel()
	return s.inner.Close()
}

// name of the consumer of a group and topic.
func (s *Subscriber) name(f Filter) string { return "sub-" + s.cfg.Group + "-" + f.digest() }

// consumer makes sure of the group's consumer and of what it is about to give.
func (s *Subscriber) consumer(topic string) (stream, name string, err error) {
	f, err := ParseTopic(topic)
	if err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(s.runs, watermillnats.PublishTimeout)
	defer cancel()
	now, err := cursor.BoundsOf(ctx, s.js)
	if err != nil {
		return "", "", err
	}
	c, err := s.js.Consumer(ctx, topology.StreamEvents, s.name(f))
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		if err := now.Holds(s.cfg.After); err != nil {
			return "", "", err
		}
		err = s.make(ctx, f, s.cfg.After, now)
	case err == nil:
		err = passed(now, c.CachedInfo())
	default:
		err = unavailable(err)
	}
	return topology.StreamEvents, s.name(f), err
}

// passed says whether events that a consumer has not given yet are no longer kept. The server moves a consumer's place along when what
// it had yet to give is removed, so it is judged by what there was when the consumer was made: one that stands right in front of the first
// event that is left, which was not the first one then, may have missed something. Which events those were is not known any more.
func passed(now cursor.Bounds, info *jetstream.ConsumerInfo) error {
	was, err := strconv.ParseUint(info.Config.Metadata[metaFirst], 10, 64)
	at := max(info.AckFloor.Stream, max(info.Config.OptStartSeq, 1)-1)
	if err != nil || now.First <= was || at >= now.First {
		return nil //nolint:nilerr // whoever made it did not say
	}
	return now.Holds(cursor.Cursor{Log: now.Log, Seq: was - 1})
}

func (s *Subscriber) make(ctx context.Context, f Filter, after cursor.Cursor, now cursor.Bounds) error {
	c := jetstream.ConsumerConfig{
		Durable: s.name(f), Name: s.name(f), Description: "Subscribers of group " + s.cfg.Group + " to " + shortened(f.Topic()),
		DeliverPolicy: jetstream.DeliverAllPolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1, MaxAckPending: maxOut,
		FilterSubjects: f.Subjects(), Metadata: map[string]string{metaFirst: strconv.FormatUint(max(now.First, 1), 10)},
	}
	if after.Seq > 0 {
		c.DeliverPolicy, c.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after.Seq+1
	}
	_, err := s.js.CreateConsumer(ctx, topology.StreamEvents, c)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return nil // somebody else of the group was faster
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

func shortened(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

func unavailable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the log cannot be reached").Because(err)
}
