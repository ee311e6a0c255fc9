// Package watermillnats lets Watermill's routers publish to and subscribe from JetStream, for process managers and for other
// teams' subscribers. Subscribing runs on package worker: bounded prefetch, heartbeats, lanes, and patience with servers that
// go away.
package watermillnats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/worker"
)

// PublishTimeout bounds the wait for the server's word on one message.
const PublishTimeout = 10 * time.Second

var (
	errClosed = errors.New("closed")
	errNacked = fault.New(fault.Internal, fault.ReasonInternal, "its handler nacked it")
)

// Publisher publishes messages and waits until each is stored. It leaves its connection open.
type Publisher struct {
	js      jetstream.JetStream
	subject func(topic string, m *message.Message) string
	mu      sync.RWMutex
	closed  bool
}

// NewPublisher is a publisher to the subject that a function gives for a message.
func NewPublisher(js jetstream.JetStream, subject func(topic string, m *message.Message) string) *Publisher {
	return &Publisher{js: js, subject: subject}
}

// Publish stores messages one after another and stops at the first that fails. Their metadata are headers and their UUIDs
// message ids, so that publishing one again within the stream's window stores it once. The message's context bounds the wait.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return fmt.Errorf("publish to %s: %w", topic, errClosed)
	}
	for _, m := range messages {
		out := nats.NewMsg(p.subject(topic, m))
		out.Data = m.Payload
		for k, v := range m.Metadata {
			out.Header.Set(k, v)
		}
		out.Header.Set(nats.MsgIdHdr, m.UUID)
		ctx, cancel := context.WithTimeout(m.Context(), PublishTimeout)
		_, err := p.js.PublishMsg(ctx, out)
		cancel()
		if err != nil {
			return fmt.Errorf("publish to %s: %w", out.Subject, err)
		}
	}
	return nil
}

// Close waits for what is being published and refuses what comes later.
func (p *Publisher) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	return nil
}

// SubscriberConfig says where topics are.
type SubscriberConfig struct {
	// Service is in metrics and in the subjects of dead letters.
	Service string
	// Consumer gives the stream and durable consumer of a topic. It must exist.
	Consumer func(topic string) (stream, consumer string, err error)
	// Lanes is how many messages are out at the same time, by default worker.DefaultLanes. A message that was nacked comes
	// again behind others, whatever the number.
	Lanes      int
	Log        *slog.Logger
	Registerer prometheus.Registerer
	// Key groups the messages of a topic: those with one key come one after another, in order until one is nacked. nil: no order.
	Key func(worker.Message) string
	// Wants says for a topic which of its messages are handed out; the others are acknowledged as they come. nil, and a nil function: all.
	Wants func(topic string) func(worker.Message) bool
	// Backoff between a nack and the next try, by default worker.DefaultBackoff.
	Backoff []time.Duration
	// MaxAttempts of a message before it is dead; 0 is without end. What a handler below Report returns as worker.Poison, or panics
	// with too often, is dead whatever it says.
	MaxAttempts int
}

// Subscriber subscribes to durable consumers. Subscriptions to one topic share its messages.
type Subscriber struct {
	js     jetstream.JetStream
	cfg    SubscriberConfig
	ctx    context.Context
	cancel context.CancelFunc
	mu     sync.Mutex
	runs   sync.WaitGroup
}

// NewSubscriber is a subscriber; Close ends its subscriptions and leaves the connection open.
func NewSubscriber(js jetstream.JetStream, cfg SubscriberConfig) *Subscriber {
	ctx, cancel := context.WithCancel(context.Background())
	return &Subscriber{js: js, cfg: cfg, ctx: ctx, cancel: cancel}
}

// Subscribe returns the messages of a topic until ctx ends or the subscriber is closed, then it closes the channel. A message
// whose acknowledgement is outstanding then comes again.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, errClosed)
	}
	stream, consumer, err := s.cfg.Consumer(topic)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, err)
	}
	log := s.cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.ctx, cancel)
	key := s.cfg.Key
	if key == nil {
		key = func(m worker.Message) string { return fmt.Sprint(m.Seq) }
	}
	var wants func(worker.Message) bool
	if s.cfg.Wants != nil {
		wants = s.cfg.Wants(topic)
	}
	out := make(chan *message.Message)
	s.runs.Go(func() {
		defer close(out)
		defer cancel()
		defer unlink()
		err := worker.Run(ctx, s.js, worker.Config{
			Service: s.cfg.Service, Stream: stream, Consumer: consumer, Lanes: s.cfg.Lanes, Log: log,
			Registerer: s.cfg.Registerer, Backoff: s.cfg.Backoff, MaxAttempts: cmp.Or(s.cfg.MaxAttempts, -1), Drain: -1,
			Key: key,
		}, func(ctx context.Context, m worker.Message) error {
			if wants != nil && !wants(m) {
				return nil
			}
			return deliver(ctx, out, m)
		})
		if err != nil {
			log.ErrorContext(ctx, "subscription ended", "topic", topic, "error", err)
		}
	})
	return out, nil
}

// deliver hands a message out and waits for its ack or nack.
func deliver(ctx context.Context, out chan<- *message.Message, m worker.Message) error {
	id := m.Header.Get(nats.MsgIdHdr)
	if id == "" {
		// Published by something else: its place is as good an id.
		id = fmt.Sprintf("%s-%d", m.Subject, m.Seq)
	}
	msg := message.NewMessage(id, m.Data)
	for k, v := range m.Header {
		if k != nats.MsgIdHdr && len(v) > 0 {
			msg.Metadata.Set(k, v[0])
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told := new(outcome)
	msg.SetContext(withOutcome(withSource(ctx, m), told))
	select {
	case out <- msg:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-msg.Acked():
		return nil
	case <-msg.Nacked():
		if told.err != nil {
			return told.err
		}
		return errNacked
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends every subscription and waits for them.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.runs.Wait()
	return nil
}
