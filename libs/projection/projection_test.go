package projection_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/projection"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// view is a projection whose state outlives its runners, as a table would.
type view struct {
	mu      sync.Mutex
	version int
	state   map[string]uint64 // last sequence of each subject
	applied int
	order   []uint64
	// fail is asked before each event, bad about each event by its sequence.
	fail func(applied int) error
	bad  func(seq uint64) error
}

func newView() *view { return &view{version: 1, state: map[string]uint64{}} }

func (v *view) Name() string       { return "test" }
func (v *view) Version() int       { return v.version }
func (v *view) Subjects() []string { return []string{subject.AllSandboxes()} }

func (v *view) Apply(_ context.Context, e envelope.Recorded) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fail != nil {
		if err := v.fail(v.applied); err != nil {
			return err
		}
	}
	if v.bad != nil {
		if err := v.bad(e.Seq); err != nil {
			return err
		}
	}
	v.applied++
	v.order = append(v.order, e.Seq)
	v.state[e.Subject] = e.Seq
	return nil
}

func (v *view) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.applied
}

func (v *view) snapshot() map[string]uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.state)
}

func publish(t *testing.T, f *natstest.Fixture, n int) uint64 {
	t.Helper()
	var last uint64
	for i := range n {
		m, _, err := envelope.Encode(subject.Sandbox("acme", fmt.Sprint("s", i%5)).Subject(), envelope.Event{
			Meta: envelope.Meta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, Body: &eventsv1.SandboxReady{},
		}, nil)
		require.NoError(t, err)
		ack, err := f.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		last = ack.Sequence
	}
	return last
}

func run(t *testing.T, f *natstest.Fixture, v *view, o projection.Options) (*projection.Runner, func()) {
	t.Helper()
	r := projection.New(f.JS, v, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
	})
	t.Cleanup(stop)
	return r, stop
}

func wait(t *testing.T, r *projection.Runner, seq uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, r.WaitFor(ctx, seq))
}

func TestStartsAgainWhereItStopped(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	last := publish(t, f, 20)
	r, stop := run(t, f, v, projection.Options{})
	wait(t, r, last)
	require.Equal(t, 20, v.count())
	stop()

	last = publish(t, f, 10)
	r, stop = run(t, f, v, projection.Options{})
	wait(t, r, last)
	require.Equal(t, 30, v.count(), "nothing twice after an orderly stop")
	stop()

	v.version = 2
	r, _ = run(t, f, v, projection.Options{})
	wait(t, r, last)
	require.Equal(t, 60, v.count(), "another version starts from nothing")
}

func TestKilledInTheMiddleGivesTheSameState(t *testing.T) {
	f := natstest.Start(t)
	last := publish(t, f, 1200)
	whole := newView()
	r, stop := run(t, f, whole, projection.Options{})
	wait(t, r, last)
	stop()

	// Another version, so another checkpoint. It hangs in an event behind its first checkpoint and never comes back, as a
	// killed process would: nothing is stored on its way out.
	killed := newView()
	killed.version = 2
	hung, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	killed.fail = func(applied int) error {
		if applied < 700 {
			return nil
		}
		once.Do(func() { close(hung) })
		<-release
		return errors.New("killed")
	}
	_, stop = run(t, f, killed, projection.Options{})
	resume := sync.OnceFunc(func() { close(release) })
	t.Cleanup(resume)
	select {
	case <-hung:
	case <-time.After(patience):
		require.FailNow(t, "the event that hangs did not come")
	}
	again := newView()
	again.version, again.state = 2, maps.Clone(killed.state) // Apply hangs, so nobody else uses it
	r, _ = run(t, f, again, projection.Options{})
	wait(t, r, last)
	require.Equal(t, whole.snapshot(), again.snapshot())
	// A slow machine stores checkpoints by time as well, and the next by number comes so many events behind that one.
	require.GreaterOrEqual(t, again.count(), 500, "what was not applied is")
	require.LessOrEqual(t, again.count(), 1200-(700-projection.SaveEvery), "it went on behind the checkpoint")
	resume()
	stop()
}

func TestFailuresAreTriedAgainInOrder(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	failures := 0
	v.fail = func(applied int) error {
		if applied == 5 && failures < 3 {
			failures++
			return errors.New("not yet")
		}
		return nil
	}
	r, _ := run(t, f, v, projection.Options{})
	last := publish(t, f, 10)
	wait(t, r, last)
	for i, seq := range v.order {
		require.EqualValues(t, i+1, seq)
	}
	require.Len(t, v.order, 10)
}

func TestSkipsWhatItDoesNotKnow(t *testing.T) {
	f := natstest.Start(t)
	reg := prometheus.NewRegistry()
	v := newView()
	r, _ := run(t, f, v, projection.Options{Registerer: reg})
	publish(t, f, 1)
	m := nats.NewMsg(subject.Sandbox("acme", "s1").Subject())
	m.Header.Set(envelope.HeaderID, ids.New())
	m.Header.Set(envelope.HeaderType, "events.v1.FromTheFuture")
	m.Header.Set(envelope.HeaderSchema, "1")
	m.Header.Set(envelope.HeaderTime, time.Now().UTC().Format(time.RFC3339Nano))
	_, err := f.JS.PublishMsg(t.Context(), m)
	require.NoError(t, err)
	_, err = f.JS.Publish(t.Context(), subject.Sandbox("acme", "s1").Subject(), []byte("no event at all"))
	require.NoError(t, err)
	wait(t, r, publish(t, f, 1))
	require.Equal(t, 2, v.count())
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP sandtrail_projection_events_total Events by what became of them: applied, unknown (a type of a newer program) or malformed.
# TYPE sandtrail_projection_events_total counter
sandtrail_projection_events_total{projection="test",result="applied"} 2
sandtrail_projection_events_total{projection="test",result="malformed"} 1
sandtrail_projection_events_total{projection="test",result="unknown"} 1
`), "sandtrail_projection_events_total"))
}

func TestWaitForAnEventOfOtherSubjects(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	r, _ := run(t, f, v, projection.Options{})
	publish(t, f, 1)
	ack, err := f.JS.Publish(t.Context(), subject.Tenant("acme").Subject(), nil)
	require.NoError(t, err)
	wait(t, r, ack.Sequence)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.Equal(t, fault.DeadlineExceeded, fault.CodeOf(r.WaitFor(ctx, ack.Sequence+1)))
}

func TestRebuild(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	last := publish(t, f, 50)
	r, stop := run(t, f, v, projection.Options{})
	wait(t, r, last)
	before := v.snapshot()
	v.mu.Lock()
	clear(v.state)
	v.mu.Unlock()
	require.NoError(t, r.Rebuild(ctx))
	require.Equal(t, 100, v.count())
	require.Equal(t, before, v.snapshot())
	stop()
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(r.Rebuild(ctx)))
}

func TestServerRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a reconnect")
	}
	f := natstest.Start(t)
	v := newView()
	r, _ := run(t, f, v, projection.Options{})
	wait(t, r, publish(t, f, 10))
	f.Restart()
	wait(t, r, publish(t, f, 10))
	require.Len(t, v.snapshot(), 5)
	require.GreaterOrEqual(t, v.count(), 20)
}

func TestStreamMadeAnew(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	r, _ := run(t, f, v, projection.Options{})
	wait(t, r, publish(t, f, 30))
	require.NoError(t, f.JS.DeleteStream(t.Context(), topology.StreamEvents))
	require.NoError(t, topology.Ensure(t.Context(), f.JS, f.Options))
	publish(t, f, 3)
	// The new stream's sequences are smaller than the checkpoint's.
	require.Eventually(t, func() bool { return v.count() == 33 }, patience, 20*time.Millisecond)
	require.EqualValues(t, 3, v.snapshot()["evt.acme.sandbox.s2"])
}

func TestRunRefuses(t *testing.T) {
	f := natstest.Start(t)
	v := newView()
	v.version = 0
	require.Error(t, projection.New(f.JS, v, projection.Options{}).Run(t.Context()))
	v.version = 1
	r, _ := run(t, f, v, projection.Options{})
	wait(t, r, publish(t, f, 1))
	require.ErrorContains(t, r.Run(t.Context()), "runs already")
}

// healing is a view that is put right where the log has lost what it had seen.
type healing struct {
	*view
	healed int
}

func (h *healing) Heal(context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.healed++
	clear(h.state)
	return nil
}

func TestEventsThatTheLogHasLostAreNotInTheView(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: restarts the server four times")
	}
	for name, again := range map[string]int{"a shorter log": 0, "a log that has grown again past the checkpoint": 20} {
		t.Run(name, func(t *testing.T) {
			f := natstest.Start(t)
			reg := prometheus.NewRegistry()
			v := &healing{view: newView()}
			start := func() (*projection.Runner, func()) {
				r := projection.New(f.JS, v, projection.Options{Registerer: reg})
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error, 1)
				go func() { done <- r.Run(ctx) }()
				stop := sync.OnceFunc(func() {
					cancel()
					require.NoError(t, <-done)
				})
				t.Cleanup(stop)
				return r, stop
			}
			kept := publish(t, f, 10)
			f.Lose(topology.StreamEvents, func() {
				r, stop := start()
				wait(t, r, publish(t, f, 10))
				stop()
			})
			require.Equal(t, 20, v.count())
			last := kept
			if again > 0 {
				last = publish(t, f, again)
			}
			r, _ := start()
			wait(t, r, last)
			require.Equal(t, 1, v.healed)
			for s, seq := range v.snapshot() {
				require.LessOrEqual(t, seq, last, s)
			}
			require.EqualValues(t, 20+last, v.count(), "every event is applied again")
			require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP sandtrail_projection_rewinds_total How often the log had lost events that the view had seen.
# TYPE sandtrail_projection_rewinds_total counter
sandtrail_projection_rewinds_total{projection="test"} 1
`), "sandtrail_projection_rewinds_total"))
		})
	}
}
