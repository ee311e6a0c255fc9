package events_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/events"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/watermillnats"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const patience = 20 * time.Second

// tenancy gives each topic of Watermill's suite a tenant of its own, whose events stand on eight aggregates. The suite publishes messages
// with one UUID to several topics; in one log an id is there once, so they get their topic in front.
type tenancy struct {
	*events.Subscriber
	runs sync.WaitGroup
}

func tenantOf(topic string) events.Filter {
	return events.Filter{Tenant: fmt.Sprintf("t%x", sha256.Sum256([]byte(topic)))[:32]}
}

func (s *tenancy) SubscribeInitialize(topic string) error {
	return s.Subscriber.SubscribeInitialize(tenantOf(topic).Topic())
}

func (s *tenancy) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscriber.Subscribe(ctx, tenantOf(topic).Topic())
	out := make(chan *message.Message)
	if err != nil {
		return out, err
	}
	s.runs.Go(func() {
		defer close(out)
		var handing sync.WaitGroup
		defer handing.Wait()
		for m := range in {
			handing.Go(func() { s.hand(m, tenantOf(topic).Tenant, out) })
		}
	})
	return out, nil
}

func (s *tenancy) Close() error {
	defer s.runs.Wait()
	return s.Subscriber.Close()
}

// hand gives a message on under the UUID that the suite gave it, and its answer back.
func (*tenancy) hand(m *message.Message, tenant string, out chan<- *message.Message) {
	c := m.Copy()
	c.UUID = strings.TrimPrefix(m.UUID, tenant)
	c.SetContext(m.Context())
	select {
	case out <- c:
	case <-m.Context().Done():
		return
	}
	select {
	case <-c.Acked():
		m.Ack()
	case <-c.Nacked():
		m.Nack()
	case <-m.Context().Done():
	}
}

// prefixing is the other half.
type prefixing struct{ *watermillnats.Publisher }

func (p prefixing) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		c := m.Copy()
		c.UUID = tenantOf(topic).Tenant + m.UUID
		c.SetContext(m.Context())
		if err := p.Publisher.Publish(topic, c); err != nil {
			return err
		}
	}
	return nil
}

func TestWatermillSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	f := natstest.Start(t)
	group := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		pub := watermillnats.NewPublisher(f.JS, func(topic string, m *message.Message) string {
			return subject.Sandbox(tenantOf(topic).Tenant, fmt.Sprint("s", crc32.ChecksumIEEE([]byte(m.UUID))%8)).Subject()
		})
		sub, err := events.NewSubscriber(t.Context(), f.JS, events.Config{
			Group: fmt.Sprintf("g%x", sha256.Sum256([]byte(group)))[:events.MaxGroup], Backoff: []time.Duration{10 * time.Millisecond},
		})
		require.NoError(t, err)
		return prefixing{pub}, &tenancy{Subscriber: sub}
	}
	tests.TestPubSub(t, tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true},
		func(t *testing.T) (message.Publisher, message.Subscriber) { return group(t, "default") }, group)
}

// write appends events to aggregates of a tenant, one after another, and returns their ids.
func write(t *testing.T, f *natstest.Fixture, agg subject.Aggregate, bodies ...proto.Message) (all []string) {
	t.Helper()
	log := jslog.New(f.JS)
	for _, b := range bodies {
		h, err := log.Load(t.Context(), agg)
		require.NoError(t, err)
		id := ids.New()
		_, err = log.Append(t.Context(), agg, h.Tail(), envelope.Event{Meta: envelope.Meta{ID: id, Actor: "key:ci"}, Body: b})
		require.NoError(t, err)
		all = append(all, id)
	}
	return all
}

func subscriber(t *testing.T, f *natstest.Fixture, c events.Config) *events.Subscriber {
	t.Helper()
	s, err := events.NewSubscriber(t.Context(), f.JS, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// next takes one message.
func next(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-messages:
		require.True(t, ok, "the subscription has ended")
		return m
	case <-time.After(patience):
		require.FailNow(t, "no event came")
		return nil
	}
}

func TestASubscriberGetsWhatItsFilterWants(t *testing.T) {
	f := natstest.Start(t)
	write(t, f, subject.Sandbox("acme", "s"), &eventsv1.SandboxStarting{}, &eventsv1.SandboxReady{})
	want := write(t, f, subject.Exec("acme", "s", "x"), &eventsv1.ExecStarted{}, &eventsv1.ExecCompleted{ExitCode: 3})
	write(t, f, subject.Exec("globex", "s", "x"), &eventsv1.ExecCompleted{})
	s := subscriber(t, f, events.Config{Group: "billing"})
	topic := events.Filter{Tenant: "acme", Kinds: []subject.Kind{subject.KindExec}, Types: []string{"ExecCompleted"}}.Topic()
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	m := next(t, messages)
	require.Equal(t, want[1], m.UUID)
	e, err := events.Of(m)
	require.NoError(t, err)
	require.EqualValues(t, 3, e.Body.(*eventsv1.ExecCompleted).GetExitCode())
	require.Equal(t, "key:ci", e.Actor)
	require.Equal(t, e.Seq, s.Cursor(m).Seq)
	require.NotEmpty(t, s.Cursor(m).Log)
	m.Ack()
	require.Equal(t, write(t, f, subject.Exec("acme", "s", "y"), &eventsv1.ExecCompleted{})[0], next(t, messages).UUID, "nothing else came in between")
	_, err = events.Of(message.NewMessage("1", nil))
	require.Error(t, err)
}

// A group goes on where it was, another one begins at a cursor.
func TestGroupsHaveTheirOwnPlaces(t *testing.T) {
	f := natstest.Start(t)
	agg := subject.Sandbox("acme", "s")
	want := write(t, f, agg, &eventsv1.SandboxStarting{}, &eventsv1.SandboxReady{}, &eventsv1.SandboxUsageSampled{})
	topic := events.Filter{Tenant: "acme"}.Topic()
	take := func(c events.Config, n int) (got []string, at cursor.Cursor) {
		s, err := events.NewSubscriber(t.Context(), f.JS, c)
		require.NoError(t, err)
		messages, err := s.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		for range n {
			m := next(t, messages)
			got, at = append(got, m.UUID), s.Cursor(m)
			m.Ack()
			if len(got) == n {
				break
			}
		}
		// Once the last one is known to be done.
		require.Eventually(t, func() bool { return settled(t, f, at.Seq) }, patience, 10*time.Millisecond)
		require.NoError(t, s.Close())
		return got, at
	}
	first, at := take(events.Config{Group: "a"}, 2)
	require.Equal(t, want[:2], first)
	rest, _ := take(events.Config{Group: "a", After: cursor.Cursor{Seq: 99}}, 1)
	require.Equal(t, want[2:], rest, "where a group is counts, not where it would begin")
	rest, _ = take(events.Config{Group: "b", After: at}, 1)
	require.Equal(t, want[2:], rest)

	s := subscriber(t, f, events.Config{Group: "a"})
	require.NoError(t, s.Reset(t.Context(), topic, cursor.Cursor{}))
	messages, err := s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.Equal(t, want[0], next(t, messages).UUID)
}

// settled reports whether a consumer has an event acknowledged.
func settled(t *testing.T, f *natstest.Fixture, seq uint64) bool {
	t.Helper()
	stream, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	for info := range stream.ListConsumers(t.Context()).Info() {
		if strings.HasPrefix(info.Name, "sub-") && info.AckFloor.Stream == seq {
			return true
		}
	}
	return false
}

// What was not acked comes again, to whoever of the group is there then, under the same id.
func TestWhatWasNotAckedComesAgain(t *testing.T) {
	f := natstest.Start(t)
	topic := events.Filter{Tenant: "acme"}.Topic()
	var want []string
	for range 20 {
		want = append(want, write(t, f, subject.Sandbox("acme", "s"), &eventsv1.SandboxUsageSampled{})...)
	}
	killed := subscriber(t, f, events.Config{Group: "a"})
	ctx, kill := context.WithCancel(t.Context())
	messages, err := killed.Subscribe(ctx, topic)
	require.NoError(t, err)
	for _, id := range want[:5] {
		m := next(t, messages)
		require.Equal(t, id, m.UUID)
		m.Ack()
	}
	require.Equal(t, want[5], next(t, messages).UUID)
	kill()
	_, open := <-messages
	require.False(t, open)

	other := subscriber(t, f, events.Config{Group: "a"})
	messages, err = other.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	var got []string
	for len(got) < 15 {
		m := next(t, messages)
		m.Ack()
		if !slices.Contains(got, m.UUID) && slices.Contains(want[5:], m.UUID) {
			got = append(got, m.UUID)
		}
	}
	require.ElementsMatch(t, want[5:], got)
}

// A subscriber that was slower than the log is told, and where it may go on.
func TestASubscriberThatMissedEventsIsTold(t *testing.T) {
	f := natstest.Start(t)
	topic := events.Filter{Tenant: "acme"}.Topic()
	write(t, f, subject.Sandbox("acme", "s"), &eventsv1.SandboxStarting{}, &eventsv1.SandboxReady{}, &eventsv1.SandboxUsageSampled{}, &eventsv1.SandboxStopping{})
	s := subscriber(t, f, events.Config{Group: "slow"})
	ctx, stop := context.WithCancel(t.Context())
	messages, err := s.Subscribe(ctx, topic)
	require.NoError(t, err)
	next(t, messages).Ack()
	require.Eventually(t, func() bool { return settled(t, f, 1) }, patience, 10*time.Millisecond)
	stop()
	for range messages {
	}
	stream, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(4)))
	_, err = s.Subscribe(t.Context(), topic)
	require.True(t, fault.Is(err, fault.ReasonCursorExpired), "%v", err)
	require.ErrorContains(t, err, ":3")
	late := subscriber(t, f, events.Config{Group: "late", After: cursor.Cursor{Seq: 1}})
	_, err = late.Subscribe(t.Context(), topic)
	require.True(t, fault.Is(err, fault.ReasonCursorExpired), "%v", err)
	require.True(t, fault.Is(late.Reset(t.Context(), topic, cursor.Cursor{Seq: 1}), fault.ReasonCursorExpired))
	require.NoError(t, s.Reset(t.Context(), topic, cursor.Cursor{Seq: 3}))
	messages, err = s.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	e, err := events.Of(next(t, messages))
	require.NoError(t, err)
	require.EqualValues(t, 4, e.Seq)
}

func TestSubscribersAreChecked(t *testing.T) {
	f := natstest.Start(t)
	for _, group := range []string{"", "a.b", strings.Repeat("x", events.MaxGroup+1)} {
		_, err := events.NewSubscriber(t.Context(), f.JS, events.Config{Group: group})
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), group)
	}
	s := subscriber(t, f, events.Config{Group: "a"})
	_, err := s.Subscribe(t.Context(), "acme")
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), "%v", err)
	topic := events.Filter{Tenant: "acme"}.Topic()
	require.NoError(t, s.SubscribeInitialize(topic))
	require.NoError(t, s.SubscribeInitialize(topic), "it may be there")
	require.NoError(t, s.Remove(t.Context(), topic))
	require.NoError(t, s.Remove(t.Context(), topic))
}
