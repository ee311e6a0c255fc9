package feed_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// fill stores n messages of a size on alternating subjects of sandboxes and execs, and returns the sequence of the last.
func fill(t *testing.T, js jetstream.JetStream, n, size int) uint64 {
	t.Helper()
	for i := range n {
		s := subject.Sandbox("acme", fmt.Sprint("s", i))
		if i%2 == 1 {
			s = subject.Exec("acme", "s", fmt.Sprint("x", i))
		}
		m := nats.NewMsg(s.Subject())
		m.Header.Set("Number", fmt.Sprint(i))
		m.Data = make([]byte, size)
		_, err := js.PublishMsgAsync(m, jetstream.WithStallWait(patience))
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(patience):
		require.FailNow(t, "messages were not stored")
	}
	s, err := js.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	return s.CachedInfo().State.LastSeq
}

func open(t *testing.T, js jetstream.JetStream, o feed.Options) *feed.Feed {
	t.Helper()
	o.Stream = topology.StreamEvents
	f, err := feed.Open(t.Context(), js, o)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

func next(t *testing.T, f *feed.Feed) feed.Message {
	t.Helper()
	m, ok, err := f.Next(t.Context(), patience)
	require.NoError(t, err)
	require.True(t, ok, "no message came")
	return m
}

func TestGivesEveryMessageOnceInOrder(t *testing.T) {
	n := natstest.Start(t)
	// More than one request's worth of messages.
	last := fill(t, n.JS, 2*feed.MaxMessages+10, 10)
	f := open(t, n.JS, feed.Options{})
	for seq := uint64(1); seq <= last; seq++ {
		m := next(t, f)
		require.Equal(t, seq, m.Seq)
		require.Equal(t, last-seq, m.Left)
		require.Equal(t, fmt.Sprint(seq-1), m.Header().Get("Number"))
	}
	_, ok, err := f.Next(t.Context(), 20*time.Millisecond)
	require.NoError(t, err)
	require.False(t, ok)

	// What comes later comes too, also after a wait that ended without a message.
	last = fill(t, n.JS, 1, 10)
	m := next(t, f)
	require.Equal(t, last, m.Seq)
	s, err := n.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	stored, err := s.GetMsg(t.Context(), last)
	require.NoError(t, err)
	require.Equal(t, stored.Subject, m.Subject)
	require.Equal(t, stored.Data, m.Data)
	require.Equal(t, stored.Time.UnixNano(), m.Stored)
	left, delivered, err := f.Left(t.Context())
	require.NoError(t, err)
	require.Zero(t, left)
	require.Equal(t, last, delivered)
}

func TestTheWindowInBytesEndsARequestAndNotTheFeed(t *testing.T) {
	n := natstest.Start(t)
	// A request has room for four of them.
	last := fill(t, n.JS, 50, 120<<10)
	f := open(t, n.JS, feed.Options{Window: feed.MinWindow})
	for seq := uint64(1); seq <= last; seq++ {
		require.Equal(t, seq, next(t, f).Seq)
	}
}

func TestBeginsWhereItIsToldAndGivesWhatItsSubjectsMatch(t *testing.T) {
	n := natstest.Start(t)
	last := fill(t, n.JS, 100, 10)
	f := open(t, n.JS, feed.Options{From: 51, Subjects: []string{subject.AllExecs()}})
	for seq := uint64(52); seq <= last; seq += 2 {
		require.Equal(t, seq, next(t, f).Seq)
	}
	// Behind the end it waits for what comes.
	f = open(t, n.JS, feed.Options{From: last + 1})
	require.Equal(t, last+1, func() uint64 { fill(t, n.JS, 1, 10); return next(t, f).Seq }())
}

func TestAMessageThatNoWindowHasRoomForEndsTheFeed(t *testing.T) {
	n := natstest.Start(t)
	require.NoError(t, n.JS.DeleteStream(t.Context(), topology.StreamEvents))
	_, err := n.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: topology.StreamEvents, Subjects: []string{subject.Events}})
	require.NoError(t, err)
	fill(t, n.JS, 1, feed.MinWindow)
	_, err = ended(t, open(t, n.JS, feed.Options{}))
	require.ErrorIs(t, err, feed.ErrEnded)
	require.ErrorContains(t, err, "larger than half of the window")
}

// ended reads until the feed ends and returns why, and the last sequence that it gave.
func ended(t *testing.T, f *feed.Feed) (last uint64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		m, ok, err := f.Next(ctx, patience)
		if err != nil {
			return last, err
		}
		if ok {
			last = m.Seq
		}
	}
}

func TestEndsWhenTheServerDoes(t *testing.T) {
	n := natstest.Start(t)
	last := fill(t, n.JS, 100, 10)
	f := open(t, n.JS, feed.Options{})
	n.Restart()
	at, err := ended(t, f)
	require.ErrorIs(t, err, feed.ErrGap)
	f = open(t, n.JS, feed.Options{From: at + 1})
	for seq := at + 1; seq <= last; seq++ {
		require.Equal(t, seq, next(t, f).Seq)
	}
}

func TestEndsWhenItsConsumerIsRemoved(t *testing.T) {
	n := natstest.Start(t)
	f := open(t, n.JS, feed.Options{})
	s, err := n.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	names := s.ConsumerNames(t.Context())
	for name := range names.Name() {
		require.NoError(t, s.DeleteConsumer(t.Context(), name))
	}
	require.NoError(t, names.Err())
	_, err = ended(t, f)
	require.ErrorIs(t, err, feed.ErrEnded)
}

func TestCloseRemovesTheConsumer(t *testing.T) {
	n := natstest.Start(t)
	count := func() int {
		s, err := n.JS.Stream(t.Context(), topology.StreamEvents)
		require.NoError(t, err)
		return s.CachedInfo().State.Consumers
	}
	before := count()
	f := open(t, n.JS, feed.Options{})
	require.Equal(t, before+1, count())
	f.Close()
	f.Close()
	require.Eventually(t, func() bool { return count() == before }, patience, 10*time.Millisecond)
}

func TestWhoStopsReadingMissesNothing(t *testing.T) {
	n := natstest.Start(t)
	f := open(t, n.JS, feed.Options{})
	fill(t, n.JS, 10, 10)
	require.EqualValues(t, 1, next(t, f).Seq)
	// More than is read ahead while nobody reads.
	last := fill(t, n.JS, 2*feed.MaxMessages, 10)
	for seq := uint64(2); seq <= last; seq++ {
		require.Equal(t, seq, next(t, f).Seq)
	}
}

func TestAFeedOfFewMessagesIsNotTakenForASilentOne(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: eight seconds")
	}
	n := natstest.Start(t)
	f := open(t, n.JS, feed.Options{})
	// More often than the server would say that it is there, and with a wait in vain before each.
	for begin := time.Now(); time.Since(begin) < 8*time.Second; {
		_, ok, err := f.Next(t.Context(), 700*time.Millisecond)
		require.NoError(t, err)
		require.False(t, ok)
		last := fill(t, n.JS, 1, 10)
		require.Equal(t, last, next(t, f).Seq)
	}
}

func TestGivesTheErrorsOfItsContextAndConnection(t *testing.T) {
	n := natstest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	f := open(t, n.JS, feed.Options{})
	cancel()
	_, _, err := f.Next(ctx, patience)
	require.ErrorIs(t, err, context.Canceled)

	nc, err := nats.Connect(n.URL)
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	f = open(t, js, feed.Options{})
	nc.Close()
	_, err = ended(t, f)
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
}
