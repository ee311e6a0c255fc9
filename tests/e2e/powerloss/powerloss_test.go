package powerloss

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if Serve() {
		return
	}
	if code, moved := Apart(); moved {
		os.Exit(code)
	}
	code := m.Run()
	if err := stack.Clean(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = 1
	}
	os.Exit(code)
}

const (
	patience = 2 * time.Minute
	writers  = 4
	// slack is what a flush itself may take on a busy machine, beside the interval.
	slack = 3 * time.Second
)

// rig is a server, or three, under a load of appends.
type rig struct {
	t     *testing.T
	nodes []*Node
	nc    *nats.Conn
	js    jetstream.JetStream
	log   eventlog.Log

	mu    sync.Mutex
	acked map[subject.Aggregate][]ack
}

// ack is an event that a writer was told is stored.
type ack struct {
	seq    uint64
	digest []byte
	at     time.Time
}

func newRig(t *testing.T, replicas int, o natsserver.Options) *rig {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: mounts disks and cuts their power; needs root")
	}
	r := &rig{t: t, acked: map[subject.Aggregate][]ack{}}
	below := t.TempDir()
	ports := freePorts(t, 2*replicas)
	var routes, urls []string
	for i := range replicas {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	for i := range replicas {
		d, err := NewDisk(below, fmt.Sprintf("d%d", i))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Unmount()) })
		o.Name, o.Port = fmt.Sprintf("n%d", i), ports[replicas+i]
		if replicas > 1 {
			o.Cluster = &natsserver.Cluster{Name: "test", Port: ports[i], Routes: routes}
		}
		n, err := Start(d, o)
		require.NoError(t, err)
		t.Cleanup(n.Kill)
		r.nodes = append(r.nodes, n)
		urls = append(urls, n.URL)
	}
	var err error
	r.nc, err = nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(t, err)
	t.Cleanup(r.nc.Close)
	r.js, err = jetstream.New(r.nc)
	require.NoError(t, err)
	r.log = jslog.New(r.js)
	r.ensure(topology.Options{Replicas: replicas})
	for _, n := range r.nodes {
		require.NoError(t, n.Flush())
	}
	return r
}

func freePorts(t *testing.T, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// ensure makes the topology; a cluster may need some attempts until it has its leaders.
func (r *rig) ensure(o topology.Options) {
	r.t.Helper()
	r.eventually("the topology", func(ctx context.Context) error { return topology.Ensure(ctx, r.js, o) })
}

// eventually tries until it works, each try in a time of its own.
func (r *rig) eventually(what string, try func(context.Context) error) {
	r.t.Helper()
	var last error
	require.Eventually(r.t, func() bool {
		ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
		defer cancel()
		last = try(ctx)
		return last == nil
	}, patience, 50*time.Millisecond, "%s: %v", what, last)
}

// load appends to sandboxes of its own from every writer, for as long as it lasts, and then does act while they go on. It returns
// when act began, with every writer stopped.
func (r *rig) load(lasts time.Duration, act func()) time.Time {
	r.t.Helper()
	ctx, stop := context.WithCancel(r.t.Context())
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() { r.write(ctx) })
	}
	timer := time.NewTimer(lasts)
	defer timer.Stop()
	<-timer.C
	at := time.Now()
	act()
	stop()
	wg.Wait()
	return at
}

// write appends one event after the other until the first that fails. A sandbox gets 50 events, then the next one begins.
func (r *rig) write(ctx context.Context) {
	for ctx.Err() == nil {
		agg := subject.Sandbox("acme", ids.New())
		var tail eventlog.Tail
		for range 50 {
			recorded, err := r.log.Append(ctx, agg, tail, event())
			if err != nil {
				return
			}
			now := time.Now()
			last := recorded[len(recorded)-1]
			tail = eventlog.Tail{Seq: last.Seq, Digest: last.Digest}
			r.mu.Lock()
			r.acked[agg] = append(r.acked[agg], ack{seq: last.Seq, digest: last.Digest, at: now})
			r.mu.Unlock()
		}
	}
}

func event() envelope.Event {
	return envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: time.Now()}, Body: &eventsv1.SandboxUsageSampled{UptimeMs: rand.Uint64()}}
}

// cut takes the power away from nodes, one right after the other.
func (r *rig) cut(nodes ...*Node) {
	r.t.Helper()
	for _, n := range nodes {
		require.NoError(r.t, n.Disk.Cut())
	}
	for _, n := range nodes {
		n.Kill()
	}
}

// check compares what stands in the log with what writers were told before the cut. It returns how many acknowledged events are
// gone, and how long before the cut the oldest of them was acknowledged.
func (r *rig) check(cut time.Time) (total, lost int, oldest time.Duration) {
	r.t.Helper()
	var last uint64
	r.eventually("the log answers", func(ctx context.Context) error {
		s, err := r.js.Stream(ctx, topology.StreamEvents)
		if err == nil {
			state := s.CachedInfo().State
			require.Equal(r.t, state.LastSeq, state.Msgs, "the log has no holes")
			last = state.LastSeq
		}
		return err
	})
	for agg, acks := range r.acked {
		h := r.history(agg, acks, last)
		require.NoError(r.t, eventlog.Verify(h))
		for i, a := range acks {
			if a.at.After(cut) {
				// Told while the power went: nothing is promised about it.
				break
			}
			total++
			if i < len(h.Events) {
				require.True(r.t, bytes.Equal(a.digest, h.Events[i].Digest), "what stands there is what was acknowledged")
				continue
			}
			require.Greater(r.t, a.seq, last, "what is lost is the end of the log, never a piece of it")
			lost++
			oldest = max(oldest, cut.Sub(a.at))
		}
	}
	require.Greater(r.t, total, 20, "the load was too small to show anything")
	return total, lost, oldest
}

// history loads what is left of one. A replica that is behind may answer first with less than the log has up to last, so that is
// asked for again for a while.
func (r *rig) history(agg subject.Aggregate, acks []ack, last uint64) (h eventlog.History) {
	r.t.Helper()
	due := 0
	for due < len(acks) && acks[due].seq <= last {
		due++
	}
	deadline := time.Now().Add(20 * time.Second)
	r.eventually("load a history", func(ctx context.Context) (err error) {
		h, err = r.log.Load(ctx, agg)
		if err == nil && len(h.Events) < due && time.Now().Before(deadline) {
			return errors.New("a replica is behind")
		}
		return err
	})
	return h
}

// goesOn appends behind what is left of some histories.
func (r *rig) goesOn() {
	r.t.Helper()
	most := 100
	for agg := range r.acked {
		if most--; most < 0 {
			break
		}
		r.eventually("append behind what is left", func(ctx context.Context) error {
			h, err := r.log.Load(ctx, agg)
			if err == nil {
				_, err = r.log.Append(ctx, agg, h.Tail(), event())
			}
			return err
		})
	}
}

func (r *rig) revive(nodes ...*Node) {
	r.t.Helper()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = n.Revive() })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(r.t, err)
	}
}

// moment is a random time to cut at, which a failure can be repeated with.
func moment(t *testing.T, from, to time.Duration) time.Duration {
	t.Helper()
	d := from + rand.N(to-from)
	t.Logf("cut after %s", d)
	return d
}

func TestOneServerKeepsWhatItsSettingPromises(t *testing.T) {
	for _, c := range []struct {
		name string
		o    natsserver.Options
		// most is how long before the cut an event may have been acknowledged that is lost.
		most time.Duration
	}{
		{"always", natsserver.Options{SyncAlways: true}, 0},
		{"every 500 ms", natsserver.Options{SyncInterval: 500 * time.Millisecond}, 500*time.Millisecond + slack},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1, c.o)
			for range 2 {
				at := r.load(moment(t, c.most+time.Second, c.most+3*time.Second), func() { r.cut(r.nodes...) })
				r.revive(r.nodes...)
				total, lost, oldest := r.check(at)
				t.Logf("%d of %d acknowledged events lost, the oldest acknowledged %s before", lost, total, oldest)
				require.LessOrEqual(t, oldest, c.most)
				differences, err := topology.Diff(t.Context(), r.js, topology.Options{})
				require.NoError(t, err)
				require.Empty(t, differences)
				r.goesOn()
				clear(r.acked)
			}
		})
	}
}

// The check itself: without flushes a loss of power loses what was acknowledged, and that is seen.
func TestALossOfPowerLosesWhatNobodyFlushed(t *testing.T) {
	r := newRig(t, 1, natsserver.Options{SyncInterval: time.Hour})
	at := r.load(moment(t, time.Second, 2*time.Second), func() { r.cut(r.nodes...) })
	r.revive(r.nodes...)
	total, lost, oldest := r.check(at)
	t.Logf("%d of %d acknowledged events lost, the oldest acknowledged %s before", lost, total, oldest)
	require.NotZero(t, lost)
	r.goesOn()
}

func TestThreeServersLoseNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		o    natsserver.Options
		cut  func(r *rig)
	}{
		{"always, and all three lose power", natsserver.Options{SyncAlways: true}, func(r *rig) {
			r.cut(r.nodes...)
			r.revive(r.nodes...)
		}},
		{"always, and one loses power", natsserver.Options{SyncAlways: true}, func(r *rig) {
			r.cut(r.nodes[rand.N(3)])
		}},
		{"every 2 min, and one loses all that it had", natsserver.Options{}, func(r *rig) {
			n := r.nodes[rand.N(3)]
			r.cut(n)
			require.NoError(r.t, n.Replace())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 3, c.o)
			at := r.load(moment(t, time.Second, 3*time.Second), func() { c.cut(r) })
			total, lost, oldest := r.check(at)
			t.Logf("%d of %d acknowledged events lost, the oldest acknowledged %s before", lost, total, oldest)
			require.Zero(t, lost)
			r.goesOn()
		})
	}
}
