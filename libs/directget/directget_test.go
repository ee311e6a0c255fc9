package directget_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/natstest"
)

// losing puts a network between a reader and the server that loses what lose says: the nth request, or its answer.
func losing(t *testing.T, f *natstest.Fixture, lose func(n int64, answer bool) bool) jetstream.JetStream {
	t.Helper()
	var asked atomic.Int64
	sub, err := f.NC.Subscribe("LOSSY.DIRECT.GET.>", func(m *nats.Msg) {
		n := asked.Add(1)
		if lose(n, false) {
			return
		}
		reply := m.Reply
		if lose(n, true) {
			reply = f.NC.NewInbox()
		}
		_ = f.NC.PublishRequest("$JS.API.DIRECT.GET."+m.Subject[len("LOSSY.DIRECT.GET."):], reply, m.Data)
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	js, err := jetstream.NewWithAPIPrefix(f.NC, "LOSSY")
	require.NoError(t, err)
	return js
}

func TestAPageIsAskedForAgainWhenItsRequestOrAnswerIsLost(t *testing.T) {
	f := natstest.Start(t)
	_, err := f.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, AllowDirect: true})
	require.NoError(t, err)
	for i := range 3 {
		_, err := f.JS.Publish(t.Context(), "s.a", fmt.Append(nil, i))
		require.NoError(t, err)
	}
	for name, answer := range map[string]bool{"request": false, "answer": true} {
		t.Run(name, func(t *testing.T) {
			js := losing(t, f, func(n int64, a bool) bool { return n == 1 && a == answer })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			messages, pending, err := directget.Page(ctx, js, "S", "s.a", 1, 10, 1<<20)
			require.NoError(t, err)
			require.Len(t, messages, 3)
			require.Zero(t, pending)
		})
	}
}

func TestAPageThatNeverComesEndsWithItsContext(t *testing.T) {
	f := natstest.Start(t)
	js := losing(t, f, func(int64, bool) bool { return true })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := directget.Page(ctx, js, "S", "s.a", 1, 10, 1<<20)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTheLeaderGivesMessagesWithAndWithoutHeaders(t *testing.T) {
	f := natstest.Start(t)
	_, err := f.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	require.NoError(t, err)
	none, err := directget.LeaderLast(t.Context(), f.JS, "S", "s.a")
	require.NoError(t, err)
	require.Nil(t, none)
	_, err = f.JS.Publish(t.Context(), "s.a", []byte("plain"))
	require.NoError(t, err)
	_, err = f.JS.PublishMsg(t.Context(), &nats.Msg{Subject: "s.b", Data: []byte("headed"), Header: nats.Header{"A": {"1"}}})
	require.NoError(t, err)
	plain, err := directget.LeaderLast(t.Context(), f.JS, "S", "s.a")
	require.NoError(t, err)
	require.Equal(t, "plain", string(plain.Data))
	require.Empty(t, plain.Header)
	headed, err := directget.LeaderLast(t.Context(), f.JS, "S", "s.>")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), headed.Stored, time.Minute)
	headed.Stored = time.Time{}
	require.Equal(t, directget.Message{Subject: "s.b", Seq: 2, Header: nats.Header{"A": {"1"}}, Data: []byte("headed")}, *headed)
	first, err := directget.Leader(t.Context(), f.JS, "S", "s.*", 1)
	require.NoError(t, err)
	require.Equal(t, "plain", string(first.Data))
}
