package app_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gc/app"
)

var start = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// world is a real log with histories written by hand, and a clock that the test sets.
type world struct {
	t   *testing.T
	f   *natstest.Fixture
	log eventlog.Log
	at  atomic.Int64
	app *app.App
}

func newWorld(t *testing.T) *world {
	f := natstest.Start(t)
	w := &world{t: t, f: f, log: jslog.New(f.JS)}
	w.set(start)
	a, err := app.New(t.Context(), app.Config{Every: 50 * time.Millisecond},
		app.Deps{NC: f.NC, Log: slog.New(slog.DiscardHandler), Now: w.now})
	require.NoError(t, err)
	w.app = a
	return w
}

func (w *world) now() time.Time   { return time.Unix(0, w.at.Load()).UTC() }
func (w *world) set(at time.Time) { w.at.Store(at.UnixNano()) }

// live carries commands out on a new sandbox of one hour and stores its view.
func (w *world) live(commands ...sandbox.Command) sandbox.Sandbox {
	w.t.Helper()
	id := ids.New()
	agg := subject.Sandbox("acme", id)
	create := sandbox.Create{
		CommandID: "create", At: start, SandboxID: id, Image: "i", Limits: &eventsv1.Limits{MaxRuntimeMs: 3_600_000},
		Placement: &eventsv1.Placement{Worker: natstest.Worker},
	}
	var s sandbox.Sandbox
	for i, c := range append([]sandbox.Command{create}, commands...) {
		h, err := eventlog.Execute(w.t.Context(), w.log, agg, func(h eventlog.History) ([]envelope.Event, error) {
			s, err := sandbox.Fold(h)
			require.NoError(w.t, err)
			bodies, err := sandbox.Decide(s, c)
			return sandbox.Events(sandbox.CommandMeta{ID: ids.Derive(id, string(rune('a'+i))), Time: w.now(), Tenant: "acme"}, bodies...), err
		})
		require.NoError(w.t, err)
		s, err = sandbox.Fold(h)
		require.NoError(w.t, err)
	}
	w.view(s.View())
	return s
}

func (w *world) view(v *commandsv1.SandboxView) {
	w.t.Helper()
	kv, err := w.f.JS.KeyValue(w.t.Context(), topology.BucketSandbox)
	require.NoError(w.t, err)
	data, err := proto.Marshal(v)
	require.NoError(w.t, err)
	_, err = kv.Put(w.t.Context(), v.GetTenantId()+"."+v.GetSandboxId(), data)
	require.NoError(w.t, err)
}

// destroyed is a sandbox whose workspace is kept for a day.
func (w *world) destroyed() sandbox.Sandbox {
	w.t.Helper()
	after := start.Add(24 * time.Hour)
	s := w.live(sandbox.Destroy{}, sandbox.MarkDestroyed{At: start, DeleteAfter: after})
	w.workspace(s.ID, sandbox.ReleaseWorkspace{SandboxID: s.ID, Worker: natstest.Worker, DeleteAfter: after})
	return s
}

func (w *world) workspace(id string, c sandbox.WorkspaceCommand) {
	w.t.Helper()
	_, err := eventlog.Execute(w.t.Context(), w.log, subject.Workspace("acme", id), func(h eventlog.History) ([]envelope.Event, error) {
		disk, err := sandbox.FoldWorkspace(h)
		require.NoError(w.t, err)
		bodies, err := sandbox.DecideWorkspace(disk, c)
		return sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Time: w.now(), Tenant: "acme"}, bodies...), err
	})
	require.NoError(w.t, err)
}

func (w *world) once(dry bool) []app.Finding {
	w.t.Helper()
	found, err := w.app.Once(w.t.Context(), dry)
	require.NoError(w.t, err)
	return found
}

// commands are the subjects of all commands in the stream.
func (w *world) commands() []string {
	w.t.Helper()
	s, err := w.f.JS.Stream(w.t.Context(), topology.StreamCommands)
	require.NoError(w.t, err)
	info, err := s.Info(w.t.Context(), jetstream.WithSubjectFilter(">"))
	require.NoError(w.t, err)
	var out []string
	for subj := range info.State.Subjects {
		out = append(out, subj)
	}
	return out
}

func TestAWorkspaceIsKeptBeforeItsDeleteAfterAndRemovedBehindIt(t *testing.T) {
	w := newWorld(t)
	s := w.destroyed()
	w.set(start.Add(24*time.Hour - time.Nanosecond))
	require.Empty(t, w.once(false))
	require.Empty(t, w.commands())

	w.set(start.Add(24 * time.Hour))
	found := w.once(true)
	require.Len(t, found, 1)
	require.Equal(t, app.Finding{
		Kind: "workspace", ID: s.ID, Tenant: "acme", Action: "delete", Reason: "it was to be kept until 2026-01-03T03:00:00Z",
	}, found[0])
	require.Empty(t, w.commands(), "a dry run changes nothing")

	require.Equal(t, found, w.once(false))
	require.Equal(t, found, w.once(false), "it is over until somebody removed it")
	require.Equal(t, []string{subject.WorkerCommand(natstest.Worker, "acme", s.ID)}, w.commands())
	stream, err := w.f.JS.Stream(t.Context(), topology.StreamCommands)
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(1), info.State.Msgs, "one command for one finding")

	w.workspace(s.ID, sandbox.MarkWorkspaceDeleted{At: w.now(), SandboxID: s.ID, Reason: sandbox.ReasonDeleteAfter})
	require.Empty(t, w.once(false), "the log outranks a view that is behind it")
	v := s.View()
	v.WorkspaceDeletedAt = timestamppb.New(w.now())
	w.view(v)
	require.Empty(t, w.once(false))
}

func TestASandboxIsDestroyedWhenItsTimeIsOverAndNotBefore(t *testing.T) {
	w := newWorld(t)
	s := w.live(sandbox.Start{Worker: natstest.Worker, Attempt: 1}, sandbox.MarkReady{Worker: natstest.Worker})
	w.set(s.ExpiresAt.Add(-time.Nanosecond))
	require.Empty(t, w.once(false))
	w.set(s.ExpiresAt)
	found := w.once(false)
	require.Len(t, found, 1)
	require.Equal(t, "destroy", found[0].Action)
	require.Equal(t, []string{subject.SandboxCommand("acme", s.ID)}, w.commands())
}

// A sandbox that was given more time ends at its new end, also where its view does not know of it yet.
func TestASandboxThatWasExtendedEndsAtItsNewEnd(t *testing.T) {
	w := newWorld(t)
	s := w.live(sandbox.Start{Worker: natstest.Worker, Attempt: 1}, sandbox.MarkReady{Worker: natstest.Worker})
	old, first := s.View(), s.ExpiresAt
	s = w.live(sandbox.Start{Worker: natstest.Worker, Attempt: 1}, sandbox.Extend{At: start, ExpiresAt: first.Add(time.Hour)})
	old.SandboxId = s.ID
	for _, v := range []*commandsv1.SandboxView{old, s.View()} {
		w.view(v)
		w.set(first)
		for _, f := range w.once(true) {
			require.NotEqual(t, s.ID, f.ID)
		}
	}
	w.set(first.Add(time.Hour))
	var found []string
	for _, f := range w.once(true) {
		found = append(found, f.ID)
	}
	require.Contains(t, found, s.ID)
}

func TestALiveSandboxWithAnOldViewIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	s := w.live(sandbox.Start{Worker: natstest.Worker, Attempt: 1}, sandbox.MarkReady{Worker: natstest.Worker})
	lie := s.View()
	lie.State, lie.WorkspaceDeleteAfter = sandbox.Destroyed, timestamppb.New(start)
	w.view(lie)
	w.set(start.Add(time.Minute))
	require.Empty(t, w.once(false))
	require.Empty(t, w.commands())
}

func TestAnEndThatDoesNotComeIsAskedForAgain(t *testing.T) {
	w := newWorld(t)
	s := w.live(sandbox.Destroy{})
	w.set(start.Add(10*time.Minute - time.Nanosecond))
	require.Empty(t, w.once(false))
	w.set(start.Add(10 * time.Minute))
	found := w.once(false)
	require.Len(t, found, 1)
	require.Equal(t, "end", found[0].Action)
	require.True(t, strings.HasSuffix(w.commands()[0], s.ID))
}

func TestNewsBringTheNextPassForward(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a pass")
	}
	w := newWorld(t)
	slow, err := app.New(t.Context(), app.Config{Every: time.Hour}, app.Deps{NC: w.f.NC, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- slow.Run(ctx) }()
	// The first pass has nothing to find; only news can tell of a sandbox whose time ends within the hour.
	w.set(time.Now())
	id := w.brief(3 * time.Second)
	require.Eventually(t, func() bool { return len(w.commands()) == 1 }, 20*time.Second, 50*time.Millisecond)
	require.True(t, strings.HasSuffix(w.commands()[0], id))
	cancel()
	require.NoError(t, <-done)
}

// brief is a sandbox whose time is over in d.
func (w *world) brief(d time.Duration) string {
	w.t.Helper()
	id := ids.New()
	agg := subject.Sandbox("acme", id)
	bodies, err := sandbox.Decide(sandbox.Sandbox{ID: id}, sandbox.Create{
		CommandID: id, At: w.now(), SandboxID: id, Image: "i", Limits: &eventsv1.Limits{MaxRuntimeMs: uint64(d.Milliseconds())},
		Placement: &eventsv1.Placement{Worker: natstest.Worker},
	})
	require.NoError(w.t, err)
	recorded, err := w.log.Append(w.t.Context(), agg, eventlog.Tail{}, sandbox.Events(sandbox.CommandMeta{ID: id, Time: w.now(), Tenant: "acme"}, bodies...)...)
	require.NoError(w.t, err)
	s, err := sandbox.Fold(eventlog.History{Aggregate: agg, Events: recorded})
	require.NoError(w.t, err)
	w.view(s.View())
	return id
}

func TestTheLoopFindsWhatBecomesDue(t *testing.T) {
	w := newWorld(t)
	s := w.destroyed()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.app.Run(ctx) }()
	require.Never(t, func() bool { return len(w.commands()) > 0 }, 200*time.Millisecond, 20*time.Millisecond)
	w.set(start.Add(25 * time.Hour))
	require.Eventually(t, func() bool { return len(w.commands()) == 1 }, 30*time.Second, 20*time.Millisecond)
	require.True(t, strings.HasSuffix(w.commands()[0], s.ID))
	cancel()
	require.NoError(t, <-done)
}

func TestANegativeIntervalIsRefused(t *testing.T) {
	require.Error(t, app.Config{Every: -1}.Validate())
}

func TestViewsOfWhatHasLongBeenOverAreForgotten(t *testing.T) {
	w := newWorld(t)
	live := w.live(sandbox.Start{Worker: natstest.Worker, Attempt: 1}, sandbox.MarkReady{Worker: natstest.Worker})
	// A view of a live sandbox that says it is long over.
	lie := live.View()
	lie.State, lie.WorkspaceDeletedAt = sandbox.Destroyed, timestamppb.New(start)
	w.view(lie)
	s := w.destroyed()
	gone := start.Add(25 * time.Hour)
	w.set(gone)
	w.workspace(s.ID, sandbox.MarkWorkspaceDeleted{At: gone, SandboxID: s.ID, Reason: sandbox.ReasonDeleteAfter})
	v := s.View()
	v.WorkspaceDeletedAt = timestamppb.New(gone)
	w.view(v)
	kv, err := w.f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	views := func() int {
		keys, err := kv.Keys(t.Context())
		require.NoError(t, err)
		return len(keys)
	}
	forgotten := func(found []app.Finding) (views []app.Finding) {
		for _, f := range found {
			if f.Kind == "view" {
				views = append(views, f)
			}
		}
		return views
	}
	w.set(gone.Add(topology.ReceiptTTL - time.Nanosecond))
	require.Empty(t, forgotten(w.once(false)))
	require.Equal(t, 2, views())
	w.set(gone.Add(topology.ReceiptTTL))
	want := []app.Finding{{Kind: "view", ID: s.ID, Tenant: "acme", Action: "forget", Reason: "its workspace was removed at 2026-01-03T04:00:00Z"}}
	require.Equal(t, want, forgotten(w.once(true)))
	require.Equal(t, 2, views(), "a dry run changes nothing")
	require.Equal(t, want, forgotten(w.once(false)))
	require.Equal(t, 1, views())
	require.Empty(t, forgotten(w.once(false)))
	stream, err := w.f.JS.Stream(t.Context(), subject.BucketStream(topology.BucketSandbox))
	require.NoError(t, err)
	require.Equal(t, uint64(1), stream.CachedInfo().State.Msgs, "no mark of it is left in the bucket")
	h, err := w.log.Load(t.Context(), subject.Sandbox("acme", s.ID))
	require.NoError(t, err)
	require.NotEmpty(t, h.Events, "the log has it for ever")
}

func TestTwoAtOnceAskOnceForEachThing(t *testing.T) {
	w := newWorld(t)
	const each = 20
	want := map[string]bool{}
	for range each {
		live := w.live(sandbox.Start{Worker: natstest.Worker, Attempt: 1}, sandbox.MarkReady{Worker: natstest.Worker})
		want[subject.SandboxCommand("acme", live.ID)] = true
		want[subject.WorkerCommand(natstest.Worker, "acme", w.destroyed().ID)] = true
	}
	ctx, cancel := context.WithCancel(t.Context())
	other, err := app.New(t.Context(), app.Config{Every: 20 * time.Millisecond}, app.Deps{NC: w.f.NC, Log: slog.New(slog.DiscardHandler), Now: w.now})
	require.NoError(t, err)
	done := make(chan error, 2)
	for _, a := range []*app.App{w.app, other} {
		go func() { done <- a.Run(ctx) }()
	}
	w.set(start.Add(25 * time.Hour))
	stored := func() uint64 {
		s, err := w.f.JS.Stream(t.Context(), topology.StreamCommands)
		require.NoError(t, err)
		return s.CachedInfo().State.LastSeq
	}
	require.Eventually(t, func() bool { return stored() >= 2*each }, 20*time.Second, 20*time.Millisecond)
	require.Never(t, func() bool { return stored() > 2*each }, time.Second, 50*time.Millisecond, "a thing was asked for twice")
	cancel()
	for range 2 {
		require.NoError(t, <-done)
	}
	for _, s := range w.commands() {
		require.True(t, want[s], s)
	}
	require.Len(t, w.commands(), 2*each)
}
