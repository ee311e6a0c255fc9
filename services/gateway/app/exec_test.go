package app_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/topology"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

func uintText(n uint64) string { return strconv.FormatUint(n, 10) }

// lines writes n numbered lines to stdout, and returns them.
func lines(x *execution, from, n int) string {
	var all strings.Builder
	for i := range n {
		line := strconv.Itoa(from+i) + "\n"
		x.write(chunks.Stdout, []byte(line))
		all.WriteString(line)
	}
	return all.String()
}

func TestExecStreamsBothStreamsAndItsEnd(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.peer.script("both", func(x *execution) {
		x.write(chunks.Stdout, []byte("out\xff"))
		x.write(chunks.Stderr, []byte("err"))
		x.write(chunks.Stdout, []byte("more"))
		x.complete(3)
	})
	r := drainStream(w.exec(t.Context(), box, "both"))
	require.Equal(t, "out\xffmore", r.out.String())
	require.Equal(t, "err", r.err.String())
	r.inOrder(t, 1, 3)
	require.EqualValues(t, 3, r.completed.GetExitCode())
	require.NotEmpty(t, r.completed.GetUsageEventId())
	require.Equal(t, r.execID, r.completed.GetExecId())

	got, err := w.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: r.execID})
	require.NoError(t, err)
	require.Equal(t, "completed", got.GetState())
	require.Equal(t, r.completed.GetUsageEventId(), got.GetCompleted().GetUsageEventId())
}

// The id in the header is one that every other call knows.
func TestExecIsKnownOnceItsHeaderArrives(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		h, err := w.exec(ctx, box, "wait").Header()
		require.NoError(t, err)
		_, err = w.CancelExec(t.Context(), &computev1.CancelExecRequest{SandboxId: box, ExecId: h.Get("sandtrail-exec-id")[0]})
		require.NoError(t, err)
		cancel()
	}
}

// Live messages that are lost, repeated, reordered, late, malformed or of unknown place change nothing.
func TestExecOverABadNetwork(t *testing.T) {
	w := newWorld(t, nil)
	w.mute(topology.StreamOutput, topology.StreamEvents)
	box := w.create(t.Context())
	const n = 300
	random := rand.New(rand.NewPCG(1, 2))
	var want string
	w.peer.script("noisy", func(x *execution) {
		var late []*nats.Msg
		var all strings.Builder
		for i := range n {
			line := strconv.Itoa(i) + "\n"
			all.WriteString(line)
			m := x.write(chunks.Stdout, []byte(line))
			switch random.IntN(6) {
			case 0: // lost
			case 1:
				late = append(late, m)
			case 2:
				_ = x.p.nc.PublishMsg(m)
				_ = x.p.nc.PublishMsg(m)
			case 3:
				bad := nats.NewMsg(m.Subject)
				bad.Header.Set(chunks.HeaderChunk, "nonsense")
				_ = x.p.nc.PublishMsg(bad)
			default:
				_ = x.p.nc.PublishMsg(m)
			}
			if len(late) > 3 {
				for _, j := range random.Perm(len(late)) {
					_ = x.p.nc.PublishMsg(late[j])
				}
				late = nil
			}
		}
		want = all.String()
		x.complete(0) // its live message is lost too
	})
	r := drainStream(w.exec(t.Context(), box, "noisy"))
	require.NotNil(t, r.completed, "%v", r.failure)
	require.Equal(t, want, r.out.String())
	r.inOrder(t, 1, n)
}

func TestAttachFromAnyChunk(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	more := make(chan struct{})
	const half = 20
	w.peer.script("long", func(x *execution) {
		lines(x, 0, half)
		<-more
		lines(x, half, half)
		x.complete(0)
	})
	first := w.exec(t.Context(), box, "long")
	h, err := first.Header()
	require.NoError(t, err)
	id := h.Get("sandtrail-exec-id")[0]
	var wg sync.WaitGroup
	after := []uint64{0, 1, half - 1, half, half + 5, 2 * half, 2*half + 100}
	got := make([]*transcript, len(after))
	for i, a := range after {
		s, err := w.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id, AfterChunk: a})
		require.NoError(t, err)
		_, err = s.Header()
		require.NoError(t, err)
		wg.Go(func() { got[i] = drainStream(s) })
	}
	close(more)
	wg.Wait()
	drainStream(first).inOrder(t, 1, 2*half)
	for i, a := range after {
		require.NotNil(t, got[i].completed, "after %d: %v", a, got[i].failure)
		if a > 2*half {
			require.Empty(t, got[i].chunks, "a cursor beyond the head has nothing yet")
			continue
		}
		got[i].inOrder(t, a+1, 2*half)
	}
}

// Cut at random places and attached again, every byte comes once.
func TestCutAndAttachedAgain(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	const n = 400
	w.peer.script("long", func(x *execution) {
		lines(x, 0, n)
		x.complete(0)
	})
	ctx, cancel := context.WithCancel(t.Context())
	s := w.exec(ctx, box, "long")
	h, err := s.Header()
	require.NoError(t, err)
	id := h.Get("sandtrail-exec-id")[0]
	all := &transcript{}
	for all.completed == nil {
		for range rand.IntN(60) {
			e, err := s.Recv()
			if err != nil {
				break
			}
			if e.GetChunk() > 0 {
				all.chunks = append(all.chunks, e.GetChunk())
			}
			all.completed = e.GetCompleted()
		}
		cancel()
		if all.completed != nil {
			break
		}
		ctx, cancel = context.WithCancel(t.Context())
		s, err = w.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: id, AfterChunk: uint64(len(all.chunks))})
		require.NoError(t, err)
	}
	cancel()
	all.inOrder(t, 1, n)
}

func TestCursorBelowWhatIsKept(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.peer.script("old", func(x *execution) {
		lines(x, 0, 10)
		x.complete(0)
	})
	id := drainStream(w.exec(t.Context(), box, "old")).execID
	out, err := w.JS.Stream(t.Context(), topology.StreamOutput)
	require.NoError(t, err)
	require.NoError(t, out.DeleteMsg(t.Context(), 1))
	require.NoError(t, out.DeleteMsg(t.Context(), 2))

	attach := func(after uint64) *transcript {
		s, err := w.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id, AfterChunk: after})
		require.NoError(t, err)
		return drainStream(s)
	}
	r := attach(0)
	d := detail(t, r.failure)
	require.Equal(t, "cursor_expired", d.GetReason())
	require.Equal(t, "the oldest position is 2", d.GetFields()["after_chunk"])
	require.Empty(t, r.chunks)
	require.Nil(t, r.completed)
	r = attach(2)
	require.NotNil(t, r.completed)
	r.inOrder(t, 3, 10)

	require.NoError(t, out.Purge(t.Context()))
	r = attach(5)
	require.Equal(t, "cursor_expired", detail(t, r.failure).GetReason())
	require.Nil(t, r.completed, "missing output is no completion")
	require.NotNil(t, attach(10).completed, "who has all of it misses nothing")
}

func TestLostIsAnError(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.peer.script("lost", func(x *execution) {
		x.write(chunks.Stdout, []byte("so far"))
		x.lose()
	})
	r := drainStream(w.exec(t.Context(), box, "lost"))
	require.Equal(t, codes.DataLoss, status.Code(r.failure))
	require.Equal(t, "exec_lost", detail(t, r.failure).GetReason())
	require.Equal(t, "so far", r.out.String())
	require.Nil(t, r.completed)
}

func TestRefusedExec(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	for range 2 { // repeated with its key it is refused again, not waited for
		r := drainStream(w.exec(keyed(t.Context(), "k"), box, "refused"))
		require.Equal(t, "too_many_execs", detail(t, r.failure).GetReason())
	}
}

func TestHeartbeatsOnASilentStream(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.peer.set(func() { w.peer.down = true }) // not even accepted yet
	s := w.exec(t.Context(), box, "wait")
	last := time.Now()
	for range 3 {
		e, err := s.Recv()
		require.NoError(t, err)
		require.NotNil(t, e.GetHeartbeat())
		require.Less(t, time.Since(last), beat*15/10+500*time.Millisecond)
		last = time.Now()
	}
}

func TestDisconnectCancelsAfterTheGrace(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	state := func(id string) string {
		x, err := w.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: id})
		require.NoError(t, err)
		return x.GetState()
	}
	open := func(detach bool) (id string, cut func()) {
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		s, err := w.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: box, Command: "wait", Detach: detach})
		require.NoError(t, err)
		h, err := s.Header()
		require.NoError(t, err)
		return h.Get("sandtrail-exec-id")[0], cancel
	}
	detached, cutDetached := open(true)
	watched, cutWatched := open(false)
	alone, cutAlone := open(false)
	// The other reader is at another gateway.
	_, conn := w.gateway(w.connect())
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	s, err := computev1.NewComputeServiceClient(conn).AttachExec(ctx, &computev1.AttachExecRequest{ExecId: watched})
	require.NoError(t, err)
	_, err = s.Recv() // a heartbeat: it reads
	require.NoError(t, err)
	cutDetached()
	cutWatched()
	cutAlone()
	w.until(func() bool { return state(alone) == "completed" })
	require.Equal(t, "running", state(detached))
	require.Equal(t, "running", state(watched))
	leave()
	w.until(func() bool { return state(watched) == "completed" })
	require.Equal(t, "running", state(detached))
	_, err = w.CancelExec(t.Context(), &computev1.CancelExecRequest{ExecId: detached})
	require.NoError(t, err)
	require.Equal(t, "completed", state(detached))
}

// A command that nobody has taken yet does not run for a caller who is long gone.
func TestDisconnectBeforeTheWorkerTookIt(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	w.peer.set(func() { w.peer.down = true })
	ctx, cancel := context.WithCancel(t.Context())
	s := w.exec(ctx, box, "wait")
	_, err := s.Recv()
	require.NoError(t, err)
	cancel()
	w.until(func() bool { return w.peer.count("cmd.exec.") >= 2 })
}

func TestOneWorkerTwoGateways(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	_, conn := w.gateway(w.connect())
	other := computev1.NewComputeServiceClient(conn)
	more := make(chan struct{})
	w.peer.script("long", func(x *execution) {
		lines(x, 0, 50)
		<-more
		lines(x, 50, 50)
		x.complete(0)
	})
	ctx := keyed(t.Context(), "one")
	a := w.exec(ctx, box, "long")
	b, err := other.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: box, Command: "long"})
	require.NoError(t, err)
	_, err = a.Header()
	require.NoError(t, err)
	_, err = b.Header()
	require.NoError(t, err)
	close(more)
	ra, rb := drainStream(a), drainStream(b)
	ra.inOrder(t, 1, 100)
	rb.inOrder(t, 1, 100)
	require.Equal(t, ra.execID, rb.execID)
	require.Equal(t, ra.completed.GetUsageEventId(), rb.completed.GetUsageEventId())
	require.Len(t, w.peer.running, 1)
}

func TestExecGoesOnOverAnOutageOfNATS(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	half, more := make(chan struct{}), make(chan struct{})
	w.peer.script("long", func(x *execution) {
		lines(x, 0, 50)
		close(half)
		<-more
		lines(x, 50, 50)
		x.complete(0)
	})
	s := w.exec(t.Context(), box, "long")
	<-half
	w.Stop()
	done := make(chan *transcript, 1)
	go func() { done <- drainStream(s) }()
	w.Resume()
	w.until(w.NC.IsConnected)
	close(more)
	r := <-done
	require.NotNil(t, r.completed, "%v", r.failure)
	r.inOrder(t, 1, 100)
}
