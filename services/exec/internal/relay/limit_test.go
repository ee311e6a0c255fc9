package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
)

// box is a toolbox with one program: its output is in a real spool, as in a keeper.
type box struct {
	*spool.Spool
	done chan struct{}
	end  *toolboxv1.End
	// first holds the program back until somebody attaches.
	first *spool.Reader
	// attaches counts readers; refuse makes one fail.
	mu       sync.Mutex
	attaches int
	refuse   func(n int) bool
}

func newBox(dir string, capacity uint64) *box {
	b := &box{Spool: spool.New(spool.Options{Dir: dir, Cap: capacity}), done: make(chan struct{})}
	b.first, _ = b.Reader(0, 0) // there are no files yet that could not be opened
	return b
}

// exit ends the program.
func (b *box) exit() {
	b.End()
	b.end = &toolboxv1.End{Reason: "exited", Stdout: b.StreamEnd(Stdout), Stderr: b.StreamEnd(Stderr)}
	close(b.done)
}

func (b *box) attach(ctx context.Context, stdout, stderr uint64) (Stream, error) {
	b.mu.Lock()
	b.attaches++
	refused := b.refuse != nil && b.refuse(b.attaches)
	b.mu.Unlock()
	if refused {
		return nil, errors.New("not now")
	}
	r, err := b.Reader(stdout, stderr)
	if err != nil {
		return nil, err
	}
	b.first.Close()
	ctx, cancel := context.WithCancel(ctx)
	s := &attachedBox{box: b, reader: r, ctx: ctx, cancel: cancel, buf: make([]byte, 64<<10)}
	s.recv = s.event
	return s, nil
}

type attachedBox struct {
	bytesOf
	box    *box
	reader *spool.Reader
	ctx    context.Context
	cancel context.CancelFunc
	buf    []byte
}

func (a *attachedBox) Close() {
	a.cancel()
	a.reader.Close()
}

func (a *attachedBox) event() (*toolboxv1.AttachEvent, error) {
	piece, err := a.reader.Next(a.ctx, a.buf)
	switch {
	case errors.Is(err, io.EOF):
		<-a.box.done
		return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: a.box.end}}, nil
	case err != nil:
		return nil, err
	case piece.SkipTo > 0:
		return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: piece.Stream, From: piece.Offset, To: piece.SkipTo}}}, nil
	}
	return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{
		Stream: piece.Stream, Offset: piece.Offset, Data: bytes.Clone(piece.Data),
	}}}, nil
}

// recorded is what stands in OUT of one stream: its bytes, gaps left out, and its gaps.
func recorded(t require.TestingT, js jetstream.JetStream, x Exec) (map[string][]byte, map[string][][2]uint64) {
	got, gaps, at, n := map[string][]byte{}, map[string][][2]uint64{}, map[string]uint64{}, uint64(0)
	err := transcript.Read(context.Background(), js, x.Subject, 1, func(c transcript.Chunk) error {
		n++
		require.Equal(t, n, c.Number)
		require.Equal(t, at[c.Stream], c.Offset, "chunk %d of %s", n, c.Stream)
		if c.GapTo > 0 {
			gaps[c.Stream] = append(gaps[c.Stream], [2]uint64{c.Offset, c.GapTo})
			at[c.Stream] = c.GapTo
			return nil
		}
		got[c.Stream] = append(got[c.Stream], c.Data...)
		at[c.Stream] += uint64(len(c.Data))
		return nil
	})
	require.NoError(t, err)
	return got, gaps
}

func pattern(n int, salt byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ salt
	}
	return b
}

// requireKept checks what a limit leaves of a stream's output: all of it up to the limit, and of the rest the last bytes.
func requireKept(t require.TestingT, name string, wrote []byte, limit uint64, got []byte, gaps [][2]uint64, out *eventsv1.Output) {
	total := uint64(len(wrote))
	tail := min(limit, TailBytes)
	want, missing := wrote, [][2]uint64(nil)
	if total > limit && total-tail > limit {
		want = append(bytes.Clone(wrote[:limit]), wrote[total-tail:]...)
		missing = [][2]uint64{{limit, total - tail}}
	}
	require.True(t, bytes.Equal(want, got), "%s: %d bytes of %d are recorded with a limit of %d, want %d", name, len(got), total, limit, len(want))
	require.Equal(t, missing, gaps, name)
	require.Equal(t, total, out.GetBytes(), name)
	require.Equal(t, total-uint64(len(want)), out.GetDroppedBytes(), name)
	require.Len(t, out.GetGaps(), len(missing))
	for i, g := range missing {
		gap := out.GetGaps()[i]
		require.Equal(t, [2]uint64{gap.GetFrom(), gap.GetTo()}, g)
	}
	sum := sha256.Sum256(want)
	require.Equal(t, sum[:], out.GetSha256(), name)
}

// Whatever two streams write around their limit, in whatever pieces, and wherever relays are stopped and others go on: recorded are the
// first bytes up to the limit and the last ones, each once, and one gap that says exactly what lies between.
func TestOverTheLimitHeadAndTailAreKept(t *testing.T) {
	js, _ := broker(t)
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		limit := rapid.SampledFrom([]uint64{1, 1000, 70_000, 300_000, 1_200_000}).Draw(rt, "limit")
		x := Exec{ID: ids.New(), Limit: limit}
		x.Subject = "out.acme.s1." + x.ID
		b := newBox(dir, 0)
		defer b.Remove()
		wrote := map[uint32][]byte{}
		for _, s := range streams {
			around := int(limit) + rapid.IntRange(-2000, 3_000_000).Draw(rt, "bytes")
			wrote[s] = pattern(max(around, 0), byte(s))
		}
		piece := rapid.IntRange(1000, 200_000).Draw(rt, "piece")
		stopAt := rapid.SliceOfN(rapid.IntRange(1, 20), 0, 5).Draw(rt, "stops")
		var writers sync.WaitGroup
		writers.Go(func() {
			var both sync.WaitGroup
			for s, data := range wrote {
				both.Go(func() {
					for rest := data; len(rest) > 0; {
						n := min(piece, len(rest))
						_ = b.Append(s, rest[:n])
						rest = rest[n:]
					}
				})
			}
			both.Wait()
			b.exit()
		})
		r := newRelay(t, js, Options{Interval: time.Millisecond})
		var pos Position
		for runs := 0; ; runs++ {
			require.Less(rt, runs, 100, "no end")
			ctx, cancel := context.WithCancel(t.Context())
			if len(stopAt) > 0 {
				// Stopped by the n-th chunk it stores, wherever that is.
				sub, err := js.Conn().Subscribe("live."+x.Subject, countdown(stopAt[0], cancel))
				require.NoError(rt, err)
				defer sub.Unsubscribe()
				stopAt = stopAt[1:]
			}
			at, err := r.Position(t.Context(), x)
			require.NoError(rt, err)
			var end *toolboxv1.End
			pos, end, err = r.Run(ctx, x, at, b.attach)
			cancel()
			if err == nil {
				require.NotNil(rt, end)
				break
			}
			// Stopped, or what a stopped one still had on its way came in between.
		}
		writers.Wait()
		got, gaps := recorded(rt, js, x)
		for _, s := range streams {
			requireKept(rt, Name(s), wrote[s], limit, got[Name(s)], gaps[Name(s)], pos.Output(s))
		}
	})
}

// A program that writes for ever is neither held back nor does it cost memory, disk or the log more than its limit; who asks is told
// that it passed.
func TestFloodOverTheLimitCostsNothing(t *testing.T) {
	js, _ := broker(t)
	const limit, total = 4 << 20, 2 << 30
	b := newBox(t.TempDir(), 0)
	defer b.Remove()
	passed := make(chan uint32, 10)
	x := testExec
	x.Limit, x.Passed = limit, func(s uint32) { passed <- s }
	line := []byte(strings.Repeat("y\n", 32<<10))
	go func() {
		for n := 0; n < total; n += len(line) {
			_ = b.Append(Stdout, line)
		}
		_ = b.Append(Stderr, []byte("done\n"))
		b.exit()
	}()
	// What counts is what the flood adds: earlier tests leave a heap behind, and the collector lets one grow by its own percentage.
	held := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := held()
	stop, peak := make(chan struct{}), make(chan uint64)
	go func() {
		most := before
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-tick.C:
				most = max(most, held())
			case <-stop:
				peak <- most
				return
			}
		}
	}()
	pos, _, err := newRelay(t, js, Options{}).Run(t.Context(), x, Position{}, b.attach)
	close(stop)
	require.NoError(t, err)
	require.Equal(t, uint32(Stdout), <-passed)
	require.Empty(t, passed, "once for each attachment of a relay")
	got, gaps := recorded(t, js, x)
	require.Len(t, got["stdout"], limit+TailBytes)
	require.Equal(t, [][2]uint64{{limit, total - TailBytes}}, gaps["stdout"])
	require.Equal(t, "done\n", string(got["stderr"]))
	require.Equal(t, uint64(total-limit-TailBytes), pos.Output(Stdout).GetDroppedBytes())
	require.Less(t, <-peak-before, uint64(64<<20))
	out, err := js.Stream(t.Context(), "OUT")
	require.NoError(t, err)
	require.Less(t, out.CachedInfo().State.Bytes, uint64(limit+2*TailBytes))
}

// What a stream over its limit drops does not hold up or lose a byte of the other one.
func TestTheOtherStreamStaysWhole(t *testing.T) {
	js, _ := broker(t)
	b := newBox(t.TempDir(), 1<<20)
	defer b.Remove()
	x := testExec
	x.Limit = 3 << 20
	want := pattern(3<<20, 7)
	go func() {
		var both sync.WaitGroup
		both.Go(func() {
			for range 1000 {
				_ = b.Append(Stdout, make([]byte, 64<<10))
			}
		})
		both.Go(func() {
			for rest := want; len(rest) > 0; rest = rest[min(len(rest), 10_000):] {
				_ = b.Append(Stderr, rest[:min(len(rest), 10_000)])
			}
		})
		both.Wait()
		b.exit()
	}()
	pos, _, err := newRelay(t, js, Options{}).Run(t.Context(), x, Position{}, b.attach)
	require.NoError(t, err)
	got, gaps := recorded(t, js, x)
	require.True(t, bytes.Equal(want, got["stderr"]), "%d bytes", len(got["stderr"]))
	require.Empty(t, gaps["stderr"])
	require.Equal(t, uint64(1000*64<<10), pos.Output(Stdout).GetBytes())
	require.Len(t, gaps["stdout"], 1)
}

// The end of a program is not lost with its tail: a toolbox that is gone by then leaves a gap, one that comes back gives the tail.
func TestToolboxGoneBeforeTheTail(t *testing.T) {
	for name, c := range map[string]struct {
		back bool
		kept int
	}{"for good": {false, 1000}, "for a moment": {true, 2000}} {
		t.Run(name, func(t *testing.T) {
			js, _ := broker(t)
			b := newBox(t.TempDir(), 0)
			defer b.Remove()
			b.refuse = func(n int) bool { return n == 3 || n > 3 && !c.back }
			x := testExec
			x.Limit = 1000
			require.NoError(t, b.Append(Stdout, pattern(10_000, 1)))
			b.exit()
			pos, end, err := newRelay(t, js, Options{}).Run(t.Context(), x, Position{}, b.attach)
			require.NoError(t, err)
			require.NotNil(t, end)
			got, gaps := recorded(t, js, x)
			require.Len(t, got["stdout"], c.kept)
			require.Len(t, gaps["stdout"], 1)
			require.Equal(t, uint64(10_000), pos.Output(Stdout).GetBytes())
			require.Equal(t, uint64(10_000-c.kept), pos.Output(Stdout).GetDroppedBytes())
		})
	}
}

// countdown calls do with the n-th message.
func countdown(n int, do func()) func(*nats.Msg) {
	return func(*nats.Msg) {
		if n--; n == 0 {
			do()
		}
	}
}
