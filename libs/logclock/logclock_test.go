package logclock_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/logclock"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func TestTheTimeIsTheServers(t *testing.T) {
	f := natstest.Start(t)
	c, err := logclock.New(t.Context(), f.JS)
	require.NoError(t, err)
	ack, err := f.JS.PublishMsg(t.Context(), &nats.Msg{Subject: "evt.acme.tenant"})
	require.NoError(t, err)
	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	m, err := s.GetMsg(t.Context(), ack.Sequence)
	require.NoError(t, err)
	require.WithinDuration(t, m.Time, c.Now(), 5*time.Second)
	require.InDelta(t, 0, c.Ahead().Seconds(), 5)
	first := c.Now()
	require.False(t, c.Now().Before(first))
}

// elsewhere is a server whose clock is off.
type elsewhere struct {
	jetstream.JetStream
	off time.Duration
}

type offStream struct {
	jetstream.Stream
	off time.Duration
}

func (e elsewhere) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	s, err := e.JetStream.Stream(ctx, name)
	return offStream{s, e.off}, err
}

func (s offStream) CachedInfo() *jetstream.StreamInfo {
	info := *s.Stream.CachedInfo()
	info.TimeStamp = info.TimeStamp.Add(s.off)
	return &info
}

func TestAHostThatIsOffGoesByTheServer(t *testing.T) {
	f := natstest.Start(t)
	for _, off := range []time.Duration{-50 * time.Hour, 50 * time.Hour} {
		c, err := logclock.New(t.Context(), elsewhere{f.JS, off})
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(off), c.Now(), 10*time.Second)
		require.InDelta(t, -off.Seconds(), c.Ahead().Seconds(), 10)
	}
}

func TestAServerThatIsGoneDoesNotStopTheClock(t *testing.T) {
	f := natstest.Start(t)
	c, err := logclock.New(t.Context(), f.JS)
	require.NoError(t, err)
	before := c.Now()
	f.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, c.Sync(ctx))
	require.True(t, c.Now().After(before))
	_, err = logclock.New(ctx, f.JS)
	require.Error(t, err)
}
