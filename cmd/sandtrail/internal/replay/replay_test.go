package replay_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/replay"
	"github.com/sandtrail/sandtrail/libs/cursor"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// log has events of two tenants, one that no program here knows and one that is none.
func log(t *testing.T, n int) *natstest.Fixture {
	t.Helper()
	f := natstest.Start(t)
	for i := range n {
		tenant := []string{"acme", "globex"}[i%2]
		m, _, err := envelope.Encode(subject.Exec(tenant, "s", fmt.Sprint("x", i)).Subject(), envelope.Event{
			Meta: envelope.Meta{ID: ids.New(), Tenant: tenant, Time: time.Date(2026, 11, 30, 0, 0, i, 0, time.UTC)}, Body: &eventsv1.ExecCompleted{ExitCode: int32(i)},
		}, nil)
		require.NoError(t, err)
		if i == n/2 {
			m.Header.Set(envelope.HeaderType, "sandtrail.events.v9.Unheard")
		}
		_, err = f.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	_, err := f.JS.PublishMsg(t.Context(), &nats.Msg{Subject: "evt.acme.sandbox.s", Data: []byte("none")})
	require.NoError(t, err)
	return f
}

func plan(t *testing.T, f *natstest.Fixture, into string) replay.Plan {
	t.Helper()
	b, err := cursor.BoundsOf(t.Context(), f.JS)
	require.NoError(t, err)
	return replay.Plan{Log: b.Log, Into: into, From: 1, To: b.Last, Subjects: subject.Events, Types: []string{}}
}

func begin(t *testing.T, p replay.Plan) replay.State {
	t.Helper()
	s, err := replay.Continue(p, replay.State{}, false, p.To)
	require.NoError(t, err)
	return s
}

var errKilled = errors.New("killed")

// mortal is a sink that dies with its n-th event.
type mortal struct {
	replay.Sink
	left int
}

func (m *mortal) Take(ctx context.Context, e replay.Event) ([]byte, error) {
	if m.left--; m.left < 0 {
		return nil, errKilled
	}
	return m.Sink.Take(ctx, e)
}

// However a replay is interrupted, its end has the same digests, and the file is the same, byte for byte.
func TestAnInterruptedReplayComesToTheSameEnd(t *testing.T) {
	const n = 40
	f := log(t, n)
	p := plan(t, f, "jsonl")
	path := filepath.Join(t.TempDir(), "whole")
	whole, err := replay.OpenLines(path, 0)
	require.NoError(t, err)
	want, err := replay.Run(t.Context(), replay.Job{JS: f.JS, Sink: whole}, begin(t, p))
	require.NoError(t, err)
	require.NoError(t, whole.Close())
	lines, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, n+1, strings.Count(string(lines), "\n"))
	require.EqualValues(t, n+1, want.Events)
	require.EqualValues(t, 1, want.Unknown)
	require.EqualValues(t, 1, want.Unreadable)
	require.EqualValues(t, n-1, want.ByType["sandtrail.events.v1.ExecCompleted"])
	require.True(t, want.Done)

	for lives := 1; lives < n; lives += 3 {
		dir := t.TempDir()
		file, c := filepath.Join(dir, "lines"), replay.Checkpoint(filepath.Join(dir, "checkpoint"))
		var end replay.State
		deaths := 0
		for !end.Done {
			was, there, err := c.Load()
			require.NoError(t, err)
			from, err := replay.Continue(plan(t, f, "jsonl"), was, there, p.To)
			require.NoError(t, err)
			if from.Bytes == 0 {
				_ = os.Remove(file) // begun, and nothing of it counts
			}
			l, err := replay.OpenLines(file, from.Bytes)
			require.NoError(t, err)
			end, err = replay.Run(t.Context(), replay.Job{JS: f.JS, Sink: &mortal{l, lives}, Save: c.Save, SaveEvery: 1 + lives/2}, from)
			if err != nil {
				require.ErrorIs(t, err, errKilled)
				// What it had written and not stored stays behind, as when a process dies.
				require.NoError(t, l.Flush(t.Context()))
				deaths++
			}
			require.NoError(t, l.Close())
			require.Less(t, deaths, 2*n)
		}
		require.Equal(t, want, end, "dying behind %d events", lives)
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(lines), string(got))
		if lives < n/2 {
			require.NotZero(t, deaths)
		}
	}
}

func TestDigestsTellReplaysApart(t *testing.T) {
	f := log(t, 10)
	digest := func(change func(*replay.Plan)) replay.State {
		p := plan(t, f, "dry-run")
		change(&p)
		s, err := replay.Run(t.Context(), replay.Job{JS: f.JS, Sink: replay.Nothing{}}, begin(t, p))
		require.NoError(t, err)
		return s
	}
	all := digest(func(*replay.Plan) {})
	require.Equal(t, all, digest(func(*replay.Plan) {}))
	seen := map[string]bool{all.Digest: true}
	for name, c := range map[string]struct {
		change func(*replay.Plan)
		events uint64
	}{
		"from":   {func(p *replay.Plan) { p.From = 2 }, 10},
		"to":     {func(p *replay.Plan) { p.To-- }, 10},
		"tenant": {func(p *replay.Plan) { p.Subjects = subject.OfTenant("globex") }, 5},
		"type":   {func(p *replay.Plan) { p.Types = []string{"ExecCompleted"} }, 9},
		"none":   {func(p *replay.Plan) { p.Subjects = subject.OfTenant("nobody") }, 0},
	} {
		s := digest(c.change)
		require.Equal(t, c.events, s.Events, name)
		require.False(t, seen[s.Digest], name)
		seen[s.Digest] = true
		require.True(t, s.Done)
	}
}

func TestACheckpointOfAnotherReplayIsRefused(t *testing.T) {
	f := log(t, 4)
	p := plan(t, f, "jsonl")
	was := begin(t, p)
	for name, change := range map[string]func(*replay.Plan){
		"log": func(p *replay.Plan) { p.Log = "another" }, "into": func(p *replay.Plan) { p.Into = "dry-run" }, "from": func(p *replay.Plan) { p.From = 2 },
		"to": func(p *replay.Plan) { p.To-- }, "filter": func(p *replay.Plan) { p.Subjects = "evt.acme.>" }, "type": func(p *replay.Plan) { p.Types = []string{"X"} },
	} {
		other := p
		change(&other)
		_, err := replay.Continue(other, was, true, p.To)
		require.True(t, fault.Is(err, fault.ReasonConflict), name)
	}
	p.To = 0
	s, err := replay.Continue(p, was, true, 99)
	require.NoError(t, err, "an end that is not given is where it was to end")
	require.Equal(t, was, s)

	path := filepath.Join(t.TempDir(), "c")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, _, err = replay.Checkpoint(path).Load()
	require.True(t, fault.Is(err, fault.ReasonMalformed), "%v", err)
	bad := was
	bad.Digest = "00"
	_, err = replay.Run(t.Context(), replay.Job{JS: f.JS, Sink: replay.Nothing{}}, bad)
	require.Error(t, err)
}

func TestFilesThatDoNotFitTheCheckpointAreRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lines")
	require.NoError(t, os.WriteFile(path, []byte("mine\n"), 0o600))
	_, err := replay.OpenLines(path, 0)
	require.True(t, fault.Is(err, fault.ReasonConflict), "never written over: %v", err)
	_, err = replay.OpenLines(path, 99)
	require.True(t, fault.Is(err, fault.ReasonConflict), "%v", err)
	_, err = replay.OpenLines(filepath.Join(t.TempDir(), "none"), 9)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTheRateIsABound(t *testing.T) {
	f := log(t, 60)
	start := time.Now()
	_, err := replay.Run(t.Context(), replay.Job{JS: f.JS, Sink: replay.Nothing{}, Rate: 100}, begin(t, plan(t, f, "dry-run")))
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(start), 400*time.Millisecond, "61 events at 100 a second, less what is made up for")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errKilled)
	_, err = replay.Run(ctx, replay.Job{JS: f.JS, Sink: replay.Nothing{}, Rate: 0.001}, begin(t, plan(t, f, "dry-run")))
	require.Error(t, err)
}
