package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/engine"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
)

// childEnv makes this program the usage service between the NATS server and the ClickHouse that it names, until it is killed.
const childEnv = "USAGE_TEST_CHILD"

// seedEnv chooses the seed.
const seedEnv = "SANDTRAIL_USAGE_SEED"

func child() int {
	var server, address string
	if _, err := fmt.Sscan(os.Getenv(childEnv), &server, &address); err != nil {
		return 1
	}
	nc, err := nats.Connect(server)
	if err != nil {
		return 1
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return 1
	}
	a, err := app.New(context.Background(), app.Config{ClickHouse: address, RollEvery: 10 * time.Millisecond},
		app.Deps{NC: nc, JS: js, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return 1
	}
	_ = a.Run(context.Background())
	return 1
}

// stressed is a log and a ClickHouse, of which anything may be done to what is between them.
type stressed struct {
	t      *testing.T
	n      *natstest.Fixture
	e      *engine.Engine
	conn   *clickhouse.Conn
	author *author
	r      *rand.Rand
}

// again makes the next service read the log from its first event.
func (s *stressed) again() {
	kv, err := s.n.JS.KeyValue(s.t.Context(), topology.BucketCheckpoint)
	require.NoError(s.t, err)
	require.NoError(s.t, kv.Delete(s.t.Context(), topology.CheckpointUsage))
}

// whole has a service do all there is to do, and stops it.
func (s *stressed) whole() {
	_, stop := serve(s.t, s.n, s.e.URL())
	same(s.t, s.n.JS, s.e.URL())
	stop()
}

// spawn starts a service as a process of its own, which dies when the server has been told so many bytes, and waits for that, or for the
// whole log to be done.
func (s *stressed) spawn(bytes int64) {
	g, through := newGate(s.t, s.e.URL())
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+s.n.URL+" "+through)
	require.NoError(s.t, cmd.Start())
	dead := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(dead)
	}()
	g.cutAfter(bytes, func() { _ = cmd.Process.Kill() })
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 100 {
		select {
		case <-dead:
			return
		case <-tick.C:
		}
		m, err := s.conn.Marked(s.t.Context())
		require.NoError(s.t, err)
		if m.Seq == s.last() {
			break
		}
	}
	_ = cmd.Process.Kill()
	<-dead
}

func (s *stressed) last() uint64 {
	stream, err := s.n.JS.Stream(s.t.Context(), topology.StreamEvents)
	require.NoError(s.t, err)
	return stream.CachedInfo().State.LastSeq
}

// faults are what is done to a service; the page about metering has them all.
var faults = []struct {
	name string
	do   func(s *stressed)
}{
	{"nothing", func(*stressed) {}},
	{"killed in the middle of inserts and passes, eight times", func(s *stressed) {
		for range 8 {
			s.spawn(s.r.Int64N(1 << (10 + s.r.IntN(11))))
		}
	}},
	{"ClickHouse down for 3,600 events", func(s *stressed) {
		g, through := newGate(s.t, s.e.URL())
		_, stop := serve(s.t, s.n, through)
		same(s.t, s.n.JS, s.e.URL())
		g.set(true)
		s.author.write(3600)
		g.set(false)
		same(s.t, s.n.JS, s.e.URL())
		stop()
	}},
	{"the log projected three times", func(s *stressed) {
		for range 2 {
			s.whole()
			s.again()
		}
	}},
	{"batches cut anywhere, and cut again", func(s *stressed) {
		g, through := newGate(s.t, s.e.URL())
		_, stop := serve(s.t, s.n, through)
		for i := range 30 {
			s.author.write(1 + s.r.IntN(40))
			g.cutAfter(s.r.Int64N(60_000), func() {})
			if i%10 == 9 {
				stop()
				_, stop = serve(s.t, s.n, through)
			}
		}
		g.cutAfter(-1, nil)
		same(s.t, s.n.JS, s.e.URL())
		stop()
	}},
	{"two services at once, and a third", func(s *stressed) {
		var stops [3]func()
		for i := range stops {
			_, stops[i] = serve(s.t, s.n, s.e.URL())
		}
		for i := range stops {
			s.author.write(200)
			s.again()
			s.author.write(200)
			stops[i]()
		}
	}},
	{"the schema taken back to its first version and upgraded", func(s *stressed) {
		s.whole()
		require.NoError(s.t, s.conn.DownTo(s.t.Context(), 1))
	}},
	{"tables and checkpoint of the version before", func(s *stressed) {
		s.whole()
		require.NoError(s.t, s.conn.DownTo(s.t.Context(), 1))
		require.NoError(s.t, open(s.t, s.e.URL()).Exec(s.t.Context(), "ALTER TABLE agents.usage_events_raw DELETE WHERE event_type LIKE '%reading'"+mutate))
		kv, err := s.n.JS.KeyValue(s.t.Context(), topology.BucketCheckpoint)
		require.NoError(s.t, err)
		stream, err := s.n.JS.Stream(s.t.Context(), topology.StreamEvents)
		require.NoError(s.t, err)
		_, err = kv.Put(s.t.Context(), topology.CheckpointUsage, fmt.Appendf(nil, `{"incarnation":%q,"seq":%d,"version":1,"projector":"old"}`,
			stream.CachedInfo().Config.Metadata[topology.MetaIncarnation], s.last()))
		require.NoError(s.t, err)
	}},
	{"tables lost, checkpoint kept", func(s *stressed) {
		s.whole()
		require.NoError(s.t, s.conn.Down(s.t.Context()))
	}},
	{"rebuilt and swapped while events come", func(s *stressed) {
		_, stop := serve(s.t, s.n, s.e.URL())
		same(s.t, s.n.JS, s.e.URL())
		var busy sync.WaitGroup
		busy.Go(func() {
			for range 40 {
				s.author.write(10)
			}
		})
		_, err := app.Rebuild{JS: s.n.JS, Log: slog.New(slog.DiscardHandler), Address: s.e.URL(), Swap: true, Patience: 10 * time.Second}.Run(s.t.Context())
		busy.Wait()
		require.NoError(s.t, err)
		stop()
	}},
}

// Whatever happens to the service, its tables and its ClickHouse: what stands in the end is what the log says, to the last unit.
func TestTotalsAreThoseOfTheLogAfterEveryFault(t *testing.T) {
	e, n := enginetest.Start(t, ""), natstest.Start(t)
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("seed %d (%s=%[1]d makes the same log and the same cuts)", seed, seedEnv)
	s := &stressed{n: n, e: e, conn: enginetest.Open(t, e.URL()), author: newAuthor(t, n.JS, seed), r: rand.New(rand.NewPCG(seed, 1))}
	s.author.write(3000)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			s.t, s.author.t = t, t
			require.NoError(t, s.conn.Down(t.Context()))
			require.NoError(t, s.conn.Up(t.Context()))
			s.again()
			f.do(s)
			_, stop := serve(t, n, e.URL())
			v := same(t, n.JS, e.URL())
			r, err := app.Rebuild{JS: n.JS, Log: slog.New(slog.DiscardHandler), Address: e.URL(), Compare: true, Afresh: true}.Run(t.Context())
			require.NoError(t, err)
			require.True(t, r.Same(), "%+v", r)
			require.Equal(t, fmt.Sprint(s.author.execs), ask(t, e.HTTP(), "SELECT count() FROM agents.usage_events"))
			t.Logf("%d events, %d rows, %d hours, %d days: none different", v.Events, r.Differences.Made, v.Hours, v.Days)
			stop()
		})
	}
}

func TestThePageAboutMeteringHasEveryFault(t *testing.T) {
	page, err := os.ReadFile("../../../docs/METERING.md")
	require.NoError(t, err)
	var want, got []string
	for _, f := range faults {
		want = append(want, f.name)
	}
	table := regexp.MustCompile(`(?s)\| fault \|.*?\n\n`).Find(page)
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| the same`).FindAllSubmatch(table, -1) {
		got = append(got, string(m[1]))
	}
	require.Equal(t, want, got)
}
