package transcripts

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	room  = 16 << 20
	piece = 64 << 10
)

var start = time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)

// rig is a log whose stream OUT has little room.
type rig struct {
	*natstest.Fixture
	t      *testing.T
	out    jetstream.Stream
	kv     jetstream.KeyValue
	keeper *Keeper
	n      int
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	f := natstest.StartWith(t, natsserver.Options{}, topology.Options{OutputMaxBytes: room})
	out, err := f.JS.Stream(t.Context(), topology.StreamOutput)
	require.NoError(t, err)
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketExec)
	require.NoError(t, err)
	o.Log = slog.New(slog.DiscardHandler)
	return &rig{Fixture: f, t: t, out: out, kv: kv, keeper: New(f.JS, o)}
}

// exec stores n chunks of a new exec, and its receipt where it has ended; it returns its subject.
func (r *rig) exec(tenant string, n int, over bool) string {
	r.t.Helper()
	r.n++
	v := &commandsv1.ExecView{
		TenantId: tenant, SandboxId: "box", ExecId: ids.New(), State: "running", StartedAt: timestamppb.New(start.Add(time.Duration(r.n) * time.Second)),
	}
	s := subject.Output(tenant, "box", v.GetExecId())
	for i := range n {
		end := uint64(i+1) * piece
		m := transcript.Encode(s, transcript.Chunk{
			Number: uint64(i + 1), Stream: transcript.Stdout, Offset: end - piece, Data: bytes.Repeat([]byte{byte(i)}, piece), Time: start, StdoutEnd: end,
		})
		_, err := r.JS.PublishMsg(r.t.Context(), m)
		require.NoError(r.t, err)
	}
	if over {
		v.State, v.EndedAt = "completed", timestamppb.New(start.Add(time.Duration(r.n)*time.Second))
		v.Completed = &eventsv1.ExecCompleted{LastChunk: uint64(n), Stdout: &eventsv1.Output{Bytes: uint64(n) * piece}}
	}
	data, err := proto.Marshal(v)
	require.NoError(r.t, err)
	_, err = r.kv.Put(r.t.Context(), tenant+".box."+v.GetExecId(), data)
	require.NoError(r.t, err)
	return s
}

func (r *rig) look() []Evicted {
	r.t.Helper()
	evicted, err := r.keeper.Look(r.t.Context())
	require.NoError(r.t, err)
	return evicted
}

// chunks is how many of a transcript are there.
func (r *rig) chunks(s string) int {
	r.t.Helper()
	info, err := r.out.Info(r.t.Context(), jetstream.WithSubjectFilter(s))
	require.NoError(r.t, err)
	return int(info.State.Subjects[s])
}

func (r *rig) bytes() uint64 {
	r.t.Helper()
	info, err := r.out.Info(r.t.Context())
	require.NoError(r.t, err)
	return info.State.Bytes
}

// A flood of one tenant, many times the room that there is, costs it its own oldest transcripts; those of others stay, although they are
// older than all of its.
func TestAFloodEvictsItsOwn(t *testing.T) {
	r := newRig(t, Options{})
	var quiet []string
	for range 5 {
		quiet = append(quiet, r.exec("quiet", 4, true))
	}
	waiting := r.exec("quiet", 1, false)
	var flood []string
	for range 60 {
		flood = append(flood, r.exec("flood", 16, true))
		for _, e := range r.look() {
			require.Equal(t, "flood", e.Tenant)
		}
	}
	for _, s := range quiet {
		require.Equal(t, 4, r.chunks(s))
	}
	require.Equal(t, 1, r.chunks(waiting))
	require.Less(t, r.bytes(), uint64(room))
	// What is left of the flood is its newest, whole.
	left := 0
	for i, s := range flood {
		n := r.chunks(s)
		require.Contains(t, []int{0, 16}, n, "a transcript is there or not")
		if n == 0 {
			require.Zero(t, left, "%d went before an older one", i)
		} else {
			left++
		}
	}
	require.Positive(t, left)
}

func TestNothingGoesWhileThereIsRoom(t *testing.T) {
	r := newRig(t, Options{})
	s := r.exec("big", 200, true)
	require.Less(t, r.bytes(), uint64(room*85/100))
	require.Empty(t, r.look())
	require.Equal(t, 200, r.chunks(s))
}

// One that is removed in several steps is removed whole.
func TestALargeTranscriptGoesWhole(t *testing.T) {
	r := newRig(t, Options{TenantBytes: 1 << 20})
	s := subject.Output("acme", "box", "many")
	for i := range 3*purgeChunks + 7 {
		m := transcript.Encode(s, transcript.Chunk{
			Number: uint64(i + 1), Stream: transcript.Stdout, Offset: uint64(i), Data: []byte("x"), Time: start, StdoutEnd: uint64(i + 1),
		})
		_, err := r.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	data, err := proto.Marshal(&commandsv1.ExecView{
		TenantId: "acme", SandboxId: "box", ExecId: "many", State: "completed", EndedAt: timestamppb.New(start),
		Completed: &eventsv1.ExecCompleted{LastChunk: 3*purgeChunks + 7, Stdout: &eventsv1.Output{Bytes: 8 << 20}},
	})
	require.NoError(t, err)
	_, err = r.kv.Put(t.Context(), "acme.box.many", data)
	require.NoError(t, err)
	r.exec("other", 17, true) // the stream has to be over the bound for it to be looked at
	require.Len(t, r.look(), 2)
	require.Zero(t, r.chunks(s))
}

// Where nothing of a tenant has ended, an exec that runs gives up its older chunks and keeps its last ones: the relay goes on behind them.
func TestAnExecThatRunsKeepsItsLastChunks(t *testing.T) {
	r := newRig(t, Options{})
	small := r.exec("small", 4, true)
	s := r.exec("flood", 230, false)
	evicted := r.look()
	require.Len(t, evicted, 1)
	require.True(t, evicted[0].Running)
	require.Equal(t, keepChunks, r.chunks(s))
	require.Equal(t, 4, r.chunks(small))
	last, err := r.out.GetLastMsgForSubject(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, "230", last.Header.Get(transcript.HeaderChunk))
	// What was said to be freed was.
	require.InDelta(t, float64((230-keepChunks)*(piece+overhead)), float64(evicted[0].Bytes), 230*overhead)
}

// Two that take up as much both give up; the room is shared, not taken.
func TestTheLargestGivesUpFirst(t *testing.T) {
	r := newRig(t, Options{})
	var of [2][]string
	for range 14 {
		for i, tenant := range []string{"a", "b"} {
			of[i] = append(of[i], r.exec(tenant, 8, true))
		}
	}
	gone := map[string]int{}
	for _, e := range r.look() {
		gone[e.Tenant]++
	}
	require.NotEmpty(t, gone)
	require.InDelta(t, gone["a"], gone["b"], 1)
	for _, execs := range of {
		require.Zero(t, r.chunks(execs[0]), "the oldest goes first")
		require.Equal(t, 8, r.chunks(execs[len(execs)-1]))
	}
}

func TestATenantHasABoundOfItsOwn(t *testing.T) {
	r := newRig(t, Options{TenantBytes: 20 * (piece + overhead)})
	other := r.exec("other", 19, true)
	first, second := r.exec("bounded", 15, true), r.exec("bounded", 15, true)
	evicted := r.look()
	require.Len(t, evicted, 1)
	require.Zero(t, r.chunks(first))
	require.Equal(t, 15, r.chunks(second))
	require.Equal(t, 19, r.chunks(other))
	require.Empty(t, r.look(), "and so it stays")
}
