package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// ackWait is short, so that a heartbeat that is not sent shows.
const ackWait = 300 * time.Millisecond

type bench struct {
	*natstest.Fixture
	t   *testing.T
	cfg worker.Config
}

func newBench(t *testing.T) *bench {
	t.Helper()
	f := natstest.Start(t)
	_, err := f.JS.CreateOrUpdateConsumer(t.Context(), topology.StreamCommands, jetstream.ConsumerConfig{
		Durable: "test-v1", FilterSubject: "cmd.test.>", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxDeliver: -1,
	})
	require.NoError(t, err)
	return &bench{Fixture: f, t: t, cfg: worker.Config{
		Service: "test", Stream: topology.StreamCommands, Consumer: "test-v1", Backoff: []time.Duration{10 * time.Millisecond},
	}}
}

func (b *bench) publish(subject, data string) uint64 {
	b.t.Helper()
	m := nats.NewMsg("cmd.test." + subject)
	m.Data = []byte(data)
	telemetry.Inject(telemetry.WithCorrelation(b.t.Context(), "c-"+data), m.Header)
	ack, err := b.JS.PublishMsg(b.t.Context(), m)
	require.NoError(b.t, err)
	return ack.Sequence
}

// run starts a worker and returns what stops it and waits for its end.
func (b *bench) run(h worker.Handler) func() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- worker.Run(ctx, b.JS, b.cfg, h) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(b.t, <-done)
	})
	b.t.Cleanup(stop)
	return stop
}

// empty waits until no message of the consumer is left.
func (b *bench) empty() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		c, err := b.JS.Consumer(b.t.Context(), b.cfg.Stream, b.cfg.Consumer)
		return err == nil && c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 0
	}, patience, 10*time.Millisecond)
}

func (b *bench) letters() []dlq.Letter {
	b.t.Helper()
	l, err := dlq.New(b.JS, nil).List(b.t.Context(), dlq.Filter{Service: "test"})
	require.NoError(b.t, err)
	return l
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

func TestSlowHandlerRunsOnce(t *testing.T) {
	b := newBench(t)
	b.cfg.Lanes = 1
	var runs atomic.Int32
	// The second message waits for the lane longer than the ack wait: it must be kept alive too.
	b.run(func(_ context.Context, m worker.Message) error {
		runs.Add(1)
		require.Equal(t, 1, m.Attempt)
		<-time.After(3 * ackWait)
		return nil
	})
	b.publish("a", "1")
	b.publish("b", "2")
	require.Eventually(t, func() bool { return runs.Load() == 2 }, patience, 10*time.Millisecond)
	b.empty()
	require.EqualValues(t, 2, runs.Load())
}

func TestOneKeyInOrderOthersBeside(t *testing.T) {
	b := newBench(t)
	b.cfg.Lanes = 4
	const keys, each = 4, 5
	var (
		mu   sync.Mutex
		seen = map[string][]string{}
		busy = map[string]bool{}
		meet sync.WaitGroup
	)
	// The first message of each key waits for those of all others: without lanes beside one another it would never end.
	meet.Add(keys)
	done := make(chan struct{}, keys*each)
	b.run(func(_ context.Context, m worker.Message) error {
		mu.Lock()
		first := len(seen[m.Subject]) == 0
		require.False(t, busy[m.Subject], "two of one key at the same time")
		busy[m.Subject] = true
		seen[m.Subject] = append(seen[m.Subject], string(m.Data))
		mu.Unlock()
		if first {
			meet.Done()
			meet.Wait()
		}
		mu.Lock()
		busy[m.Subject] = false
		mu.Unlock()
		done <- struct{}{}
		return nil
	})
	for i := range each {
		for k := range keys {
			b.publish(fmt.Sprintf("k%d", k), fmt.Sprint(i))
		}
	}
	for range keys * each {
		receive(t, done)
	}
	for k, s := range seen {
		require.Equal(t, "0 1 2 3 4", strings.Join(s, " "), k)
	}
}

func TestLanesAndHeldMessagesAreBounded(t *testing.T) {
	b := newBench(t)
	b.cfg.Lanes = 3
	var now, most atomic.Int32
	release := make(chan struct{})
	started := make(chan struct{}, 100)
	b.run(func(context.Context, worker.Message) error {
		most.Store(max(most.Load(), now.Add(1)))
		started <- struct{}{}
		<-release
		now.Add(-1)
		return nil
	})
	for i := range 30 {
		b.publish(fmt.Sprint("k", i), "x")
	}
	for range 3 {
		receive(t, started)
	}
	require.Eventually(t, func() bool {
		c, err := b.JS.Consumer(t.Context(), b.cfg.Stream, b.cfg.Consumer)
		require.NoError(t, err)
		require.LessOrEqual(t, c.CachedInfo().NumAckPending, 6)
		return c.CachedInfo().NumAckPending == 6
	}, patience, 10*time.Millisecond)
	close(release)
	b.empty()
	require.EqualValues(t, 3, most.Load())
}

func TestRetriedUntilItWorks(t *testing.T) {
	b := newBench(t)
	reg := prometheus.NewRegistry()
	b.cfg.Registerer = reg
	attempts := make(chan int, 10)
	b.run(func(ctx context.Context, m worker.Message) error {
		require.Equal(t, "c-x", telemetry.Correlation(ctx))
		attempts <- m.Attempt
		switch m.Attempt {
		case 1:
			return errors.New("not yet")
		case 2:
			return worker.RetryAfter(time.Millisecond, errors.New("not yet"))
		case 3:
			panic("hunter2")
		}
		return nil
	})
	b.publish("a", "x")
	for i := range 4 {
		require.Equal(t, i+1, receive(t, attempts))
	}
	b.empty()
	require.Empty(t, b.letters())
	// The server has the acknowledgement before the worker has the server's answer and counts it.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		require.NoError(c, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP sandtrail_worker_messages_total Deliveries by what became of them: ack, retry, dead, returned, duplicate or unconfirmed.
# TYPE sandtrail_worker_messages_total counter
sandtrail_worker_messages_total{consumer="test-v1",result="ack",service="test"} 1
sandtrail_worker_messages_total{consumer="test-v1",result="retry",service="test"} 3
`), "sandtrail_worker_messages_total"))
	}, patience, 10*time.Millisecond)
}

func TestDeadLetters(t *testing.T) {
	b := newBench(t)
	b.cfg.MaxAttempts = 5
	var runs sync.Map
	b.run(func(_ context.Context, m worker.Message) error {
		n, _ := runs.LoadOrStore(m.Subject, new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
		switch m.Subject {
		case "cmd.test.poison":
			return worker.Poison(fault.New(fault.InvalidArgument, fault.ReasonValidation, "cannot be read").
				Because(errors.New("hunter2")))
		case "cmd.test.panic":
			panic("hunter2")
		default:
			return errors.New("hunter2")
		}
	})
	want := map[string]struct {
		seq      uint64
		reason   string
		attempts int
		code     fault.Code
	}{
		"cmd.test.poison": {b.publish("poison", "payload"), "poison", 1, fault.InvalidArgument},
		"cmd.test.panic":  {b.publish("panic", "payload"), "panic", worker.MaxPanics, fault.Internal},
		"cmd.test.fails":  {b.publish("fails", "payload"), "attempts", 5, fault.Internal},
	}
	require.Eventually(t, func() bool { return len(b.letters()) == 3 }, patience, 10*time.Millisecond)
	b.empty()
	letters := b.letters()
	require.Len(t, letters, 3, "each once")
	for _, l := range letters {
		w := want[l.Subject]
		require.Equal(t, w.seq, l.Seq)
		require.Equal(t, w.reason, l.Reason, l.Subject)
		require.Equal(t, w.attempts, l.Attempts, l.Subject)
		require.Equal(t, string(w.code), l.Code)
		require.Equal(t, topology.StreamCommands, l.Stream)
		n, _ := runs.Load(l.Subject)
		require.EqualValues(t, w.attempts, n.(*atomic.Int32).Load())
		full, err := dlq.New(b.JS, nil).Show(t.Context(), l.ID)
		require.NoError(t, err)
		require.Equal(t, "payload", string(full.Data))
		require.Equal(t, "c-payload", full.Header.Get("Sandtrail-Correlation"))
		require.NotContains(t, fmt.Sprint(full.Header), "hunter2", "only what is safe to show")
	}
}

func TestACommandIsDeadBeforeItsStreamForgetsIt(t *testing.T) {
	b := newBench(t)
	b.cfg.MaxAttempts, b.cfg.MaxAge = -1, 200*time.Millisecond
	b.run(func(_ context.Context, m worker.Message) error {
		// It waits for something, which is no failure, and does so for too long.
		return worker.RetryAfter(10*time.Millisecond, fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "not ready yet"))
	})
	b.publish("a", "x")
	require.Eventually(t, func() bool { return len(b.letters()) == 1 }, patience, 10*time.Millisecond)
	l := b.letters()[0]
	require.Equal(t, "attempts", l.Reason)
	require.Equal(t, string(fault.ReasonToolboxUnavailable), l.FaultReason)
	require.Greater(t, l.Attempts, 1)
}

func TestAMessageThatKillsItsProcessIsDead(t *testing.T) {
	b := newBench(t)
	b.cfg.MaxAttempts = 2
	b.publish("a", "x")
	c, err := b.JS.Consumer(t.Context(), b.cfg.Stream, b.cfg.Consumer)
	require.NoError(t, err)
	// Two processes that got it and never answered.
	for range 2 {
		_, err := c.Next(jetstream.FetchMaxWait(patience))
		require.NoError(t, err)
	}
	b.run(func(context.Context, worker.Message) error {
		return errors.New("must not run")
	})
	require.Eventually(t, func() bool { return len(b.letters()) == 1 }, patience, 10*time.Millisecond)
	require.Equal(t, "attempts", b.letters()[0].Reason)
}

func TestShutdownDrainsAndBuriesNothing(t *testing.T) {
	b := newBench(t)
	b.cfg.Lanes, b.cfg.MaxAttempts, b.cfg.Drain = 2, 1, 100*time.Millisecond
	started := make(chan string, 10)
	finish := make(chan struct{})
	stop := b.run(func(ctx context.Context, m worker.Message) error {
		started <- m.Subject
		if m.Subject == "cmd.test.finishes" {
			<-finish
			return nil
		}
		<-ctx.Done()
		return worker.Poison(ctx.Err())
	})
	b.publish("finishes", "")
	b.publish("blocks", "")
	receive(t, started)
	receive(t, started)
	// Only now are both lanes taken by those two: lanes go to whoever comes first.
	b.publish("waits", "")
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	close(finish)
	receive(t, stopped)
	require.Empty(t, b.letters(), "it failed because everything ended")

	b.cfg.MaxAttempts = 0
	again := make(chan string, 10)
	begin := time.Now()
	b.run(func(_ context.Context, m worker.Message) error {
		again <- m.Subject
		return nil
	})
	require.ElementsMatch(t, []string{"cmd.test.blocks", "cmd.test.waits"}, []string{receive(t, again), receive(t, again)})
	require.Less(t, time.Since(begin), patience)
	b.empty()
	require.Empty(t, again, "what was finished is not run again")
}

func TestServerRestartLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a reconnect")
	}
	b := newBench(t)
	const n = 200
	var mu sync.Mutex
	seen := map[string]int{}
	half := make(chan struct{})
	b.run(func(_ context.Context, m worker.Message) error {
		mu.Lock()
		defer mu.Unlock()
		seen[string(m.Data)]++
		if len(seen) == n/2 {
			close(half)
		}
		return nil
	})
	for i := range n {
		b.publish(fmt.Sprint("k", i%7), fmt.Sprint(i))
	}
	receive(t, half)
	b.Restart()
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == n
	}, patience, 10*time.Millisecond)
	b.empty()
	for k, times := range seen {
		require.Equal(t, 1, times, "message %s: an unconfirmed acknowledgement is repeated, the handler is not", k)
	}
}

func TestWaitsForItsConsumer(t *testing.T) {
	b := newBench(t)
	config := func() jetstream.ConsumerConfig {
		c, err := b.JS.Consumer(t.Context(), b.cfg.Stream, b.cfg.Consumer)
		require.NoError(t, err)
		return c.CachedInfo().Config
	}()
	got := make(chan string, 10)
	b.run(func(_ context.Context, m worker.Message) error {
		got <- string(m.Data)
		return nil
	})
	b.publish("a", "1")
	require.Equal(t, "1", receive(t, got))
	b.empty()
	require.NoError(t, b.JS.DeleteConsumer(t.Context(), b.cfg.Stream, b.cfg.Consumer))
	b.publish("a", "2")
	_, err := b.JS.CreateConsumer(t.Context(), b.cfg.Stream, config)
	require.NoError(t, err)
	require.Equal(t, "2", receive(t, got))
}

func TestConfigThatCannotWork(t *testing.T) {
	b := newBench(t)
	for name, change := range map[string]func(*worker.Config){
		"no service": func(c *worker.Config) { c.Service = "" },
		"many lanes": func(c *worker.Config) { c.Lanes = worker.MaxLanes + 1 },
		"no lanes":   func(c *worker.Config) { c.Lanes = -1 },
	} {
		cfg := b.cfg
		change(&cfg)
		require.Error(t, worker.Run(t.Context(), b.JS, cfg, nil), name)
	}
	b.NC.Close()
	require.ErrorIs(t, worker.Run(t.Context(), b.JS, b.cfg, nil), nats.ErrConnectionClosed)
}
