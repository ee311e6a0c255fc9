package app_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/topology"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// reader follows an exec over as many streams as it takes, each from behind its last whole chunk, as any client may.
type reader struct {
	computev1.ComputeServiceClient
	box, exec string
	last      uint64
	out       bytes.Buffer
	completed *computev1.ExecCompleted
	streams   int
	// taken is told of each chunk.
	taken func()
}

// follow reads one stream until it ends somehow.
func (r *reader) follow(ctx context.Context, command string) error {
	r.streams++
	var s grpc.ServerStreamingClient[computev1.ExecEvent]
	var err error
	if r.exec == "" {
		s, err = r.ExecCommand(keyed(ctx, "the-key"), &computev1.ExecCommandRequest{SandboxId: r.box, Command: command})
	} else {
		s, err = r.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: r.exec, AfterChunk: r.last})
	}
	if err != nil {
		return err
	}
	for {
		e, err := s.Recv()
		if h, herr := s.Header(); r.exec == "" && herr == nil && len(h.Get("sandtrail-exec-id")) > 0 {
			r.exec = h.Get("sandtrail-exec-id")[0]
		}
		if err != nil {
			return err
		}
		if n := e.GetChunk(); n > 0 {
			if n != r.last+1 {
				return fmt.Errorf("chunk %d behind %d", n, r.last)
			}
			r.last = n
			r.out.Write(e.GetStdout().GetData())
			if r.taken != nil {
				r.taken()
			}
		}
		r.completed = e.GetCompleted()
	}
}

// Connections are cut at a random byte, thousands of times, in headers, chunks, pings and ends. Attached again behind the last whole
// chunk a client has every byte once, and the command ran once.
func TestConnectionsCutAtAnyByte(t *testing.T) {
	cuts := int64(2000)
	if testing.Short() {
		cuts = 200
	}
	w := newWorld(t, nil, func(c *app.Config) { c.DisconnectGrace = time.Hour })
	box := w.create(t.Context())
	random := rand.New(rand.NewPCG(3, 4))
	var mu sync.Mutex
	l := newLine(t, w.app.GRPC(), func() int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(6000)
	})
	var want bytes.Buffer
	enough, room := make(chan struct{}), make(chan struct{}, 30)
	w.peer.script("long", func(x *execution) {
		for i := 0; ; i++ {
			select {
			case <-enough:
				x.complete(7)
				return
			case room <- struct{}{}: // little ahead of the reader, so that most cuts meet chunks that have just come
			}
			line := []byte(strings.Repeat(fmt.Sprintf("%d é\n", i), 1+i%200))
			want.Write(line)
			x.write(chunks.Stdout, line)
		}
	})
	r := &reader{ComputeServiceClient: computev1.NewComputeServiceClient(w.through(l)), box: box, taken: func() { <-room }}
	var once sync.Once
	for r.completed == nil {
		err := r.follow(t.Context(), "long")
		require.NotContains(t, err.Error(), "behind")
		require.NotEqual(t, codes.InvalidArgument, status.Code(err))
		require.Less(t, int64(r.streams), 100*cuts, "no progress: %v", err)
		if l.cuts.Load() >= cuts {
			once.Do(func() { close(enough) })
		}
	}
	require.EqualValues(t, 7, r.completed.GetExitCode())
	require.True(t, bytes.Equal(want.Bytes(), r.out.Bytes()), "%d bytes of %d, or others", r.out.Len(), want.Len())
	require.GreaterOrEqual(t, l.cuts.Load(), cuts)
	require.Len(t, w.peer.running, 1)
	require.Equal(t, 1, w.peer.count("cmd.exec."), "what is attached to again is not run again")
	t.Logf("%d cuts, %d streams, %d chunks, %d bytes", l.cuts.Load(), r.streams, r.last, r.out.Len())
}

// Who comes back near the end of a long transcript is not made to wait for all of it to be read again.
func TestComingBackCostsWhatIsNew(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	const n, size = 300, 100 << 10
	w.peer.script("long", func(x *execution) {
		for i := range n {
			x.write(chunks.Stdout, bytes.Repeat([]byte{byte(i)}, size))
		}
		x.complete(0)
	})
	id := drainStream(w.exec(t.Context(), box, "long")).execID
	nc := w.connect()
	_, conn := w.gateway(nc)
	client := computev1.NewComputeServiceClient(conn)
	for _, after := range []uint64{n, n - 1, n - 5, n / 2, 1} {
		before := nc.Stats().InBytes
		s, err := client.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id, AfterChunk: after})
		require.NoError(t, err)
		r := drainStream(s)
		require.NotNil(t, r.completed, "%v", r.failure)
		r.inOrder(t, after+1, n)
		read := nc.Stats().InBytes - before
		require.Less(t, read, (n-after)*(size+2000)+16*size, "after chunk %d", after)
	}
}

// A character whose bytes lie in two chunks arrives as it was: output is bytes, whatever they mean.
func TestCharacterOverAChunkBoundary(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	text := []byte("grüße, 世界\n")
	w.peer.script("bytes", func(x *execution) {
		for _, b := range text {
			x.write(chunks.Stdout, []byte{b})
		}
		x.complete(0)
	})
	r := drainStream(w.exec(t.Context(), box, "bytes"))
	require.Equal(t, string(text), r.out.String())
	r.inOrder(t, 1, uint64(len(text)))
}

// Many readers that have stopped reading cost the gateway a bounded sum, whether what waits for each is little or much; then they get all
// of it.
func TestDeadReadersCostBoundedMemory(t *testing.T) {
	const readers, few, many, size = 100, 18, 200, 200 << 10
	w := newWorld(t, nil, func(c *app.Config) { c.DisconnectGrace = time.Hour })
	box := w.create(t.Context())
	more := make(chan int)
	w.peer.script("flood", func(x *execution) {
		x.write(chunks.Stdout, []byte("first\n"))
		for n := range more {
			for i := range n {
				x.write(chunks.Stdout, bytes.Repeat([]byte{byte(i)}, size))
			}
		}
		x.complete(0)
	})
	alive := w.exec(t.Context(), box, "flood")
	h, err := alive.Header()
	require.NoError(t, err)
	id := h.Get("sandtrail-exec-id")[0]
	// A window that does not grow: what clients in this process buffer is not the gateway's.
	conn, err := grpc.NewClient(w.app.GRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(64<<10), grpc.WithInitialConnWindowSize(64<<20))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	deaf := computev1.NewComputeServiceClient(conn)
	var dead []grpc.ServerStreamingClient[computev1.ExecEvent]
	for range readers {
		s, err := deaf.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id})
		require.NoError(t, err)
		e, err := s.Recv()
		require.NoError(t, err)
		require.EqualValues(t, 1, e.GetChunk())
		dead = append(dead, s)
	}
	before, bounded := heap(), true
	last := uint64(1)
	// What each queue would take by itself, and what none would.
	for _, n := range []int{few, many - few} {
		more <- n
		last += uint64(n)
		for got := uint64(0); got < last; {
			e, err := alive.Recv()
			require.NoError(t, err)
			got = max(got, e.GetChunk())
		}
		// The gateway's bound, for each a chunk that is being sent and one behind it, and what the log's server holds in this same process.
		// What is on its way to the queues is not in them yet.
		grown := int64(0)
		bounded = bounded && assert.Eventually(t, func() bool {
			grown = int64(heap()) - int64(before)
			return grown < 160<<20
		}, patience, 50*time.Millisecond)
		t.Logf("%d readers, %d MiB written: %d MiB of heap more", readers, last*size>>20, grown>>20)
	}
	close(more)
	require.True(t, bounded)
	var wg sync.WaitGroup
	for _, s := range append(dead[:5], alive) {
		wg.Go(func() {
			r := drainStream(s)
			if r.completed == nil || len(r.chunks) > 0 && r.chunks[len(r.chunks)-1] != last {
				t.Errorf("%d chunks, then %v", len(r.chunks), r.failure)
			}
		})
	}
	wg.Wait()
}

func heap() uint64 {
	runtime.GC() // what pools hold
	runtime.GC() // and what they held then
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// alone runs the test in a process of its own, and true is for that process: what tests before it have left behind is no matter of its memory.
func alone(t *testing.T) bool {
	t.Helper()
	const mark = "SANDTRAIL_TEST_ALONE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=5m")
	c.Env = append(os.Environ(), mark+"="+t.Name())
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name()+" ", "%s", out)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "peak") {
			t.Log(strings.TrimSpace(line))
		}
	}
	return false
}

// heapPeak is the most heap that was held each time another 16 MiB had been written to it.
// It collects first: with what is garbage already, a heap is as large as the collector lets it be, which is more the more tests ran before.
type heapPeak struct {
	mu           sync.Mutex
	passed, most uint64
}

func (p *heapPeak) Write(b []byte) (int, error) {
	const each = 16 << 20
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.passed
	if p.passed += uint64(len(b)); p.passed/each != before/each {
		p.most = max(p.most, heap())
	}
	return len(b), nil
}

// below requires that less than room bytes were held beyond those of before.
func (p *heapPeak) below(t testing.TB, before, room uint64) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotZero(t, p.most, "nothing was measured")
	t.Logf("before %d MiB, peak %d MiB", before>>20, p.most>>20)
	require.Less(t, p.most, before+room)
}

// footprint is how many goroutines and descriptors this process has.
func footprint(t testing.TB) int {
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return runtime.NumGoroutine() + len(fds)
}

// Streams of every kind that ended, by themselves or by their clients' leaving, leave nothing behind.
func TestTenThousandStreamsLeaveNothing(t *testing.T) {
	streams := 10_000
	if testing.Short() {
		streams = 1000
	}
	w := newWorld(t, nil, func(c *app.Config) { c.DisconnectGrace = 10 * time.Millisecond })
	box := w.create(t.Context())
	w.peer.script("three", func(x *execution) {
		lines(x, 0, 3)
		x.complete(0)
	})
	ended := drainStream(w.exec(t.Context(), box, "three")).execID
	running, err := w.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: "wait", Detach: true})
	require.NoError(t, err)
	h, err := running.Header()
	require.NoError(t, err)
	open := h.Get("sandtrail-exec-id")[0]
	kinds := []func(ctx context.Context) error{
		func(ctx context.Context) error { // read to its end
			s, err := w.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: ended})
			if err != nil {
				return err
			}
			if r := drainStream(s); r.completed == nil || len(r.chunks) != 3 {
				return r.failure
			}
			return nil
		},
		func(ctx context.Context) error { // left in the middle
			s, err := w.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: ended})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
		func(ctx context.Context) error { // left while it waits
			s, err := w.AttachExec(ctx, &computev1.AttachExecRequest{ExecId: open})
			if err == nil && rand.IntN(50) == 0 {
				_, err = s.Recv() // a heartbeat
			}
			return err
		},
		func(ctx context.Context) error {
			s, err := w.WatchEvents(ctx, &computev1.WatchEventsRequest{SandboxId: box})
			if err == nil {
				_, err = s.Recv()
			}
			return err
		},
	}
	run := func(n int) {
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := worker; i < n; i += 8 {
					ctx, cancel := context.WithCancel(t.Context())
					if err := kinds[i%len(kinds)](ctx); err != nil {
						t.Errorf("stream %d: %v", i, err)
					}
					cancel()
				}
			})
		}
		wg.Wait()
	}
	run(200) // what is made once
	settled := footprint(t)
	require.Eventually(t, func() bool { last := settled; settled = footprint(t); return settled >= last }, patience, 50*time.Millisecond)
	run(streams)
	require.Eventually(t, func() bool { return footprint(t) <= settled+10 }, patience, 20*time.Millisecond, "%d before", settled)
	t.Logf("%d goroutines and descriptors, %d before", footprint(t), settled)
}

// A client that vanished without a word is noticed by a probe, and its command ends like that of one that hung up.
func TestVanishedClientIsNoticed(t *testing.T) {
	w := newWorld(t, nil, func(c *app.Config) { c.Probe, c.ProbeTimeout = time.Second, time.Second })
	box := w.create(t.Context())
	l := newLine(t, w.app.GRPC(), func() int { return -1 })
	// Quiet, and in the middle of a flood that nobody takes.
	w.peer.script("flood", func(x *execution) {
		for range 40 {
			x.write(chunks.Stdout, make([]byte, 100<<10))
		}
	})
	client := computev1.NewComputeServiceClient(w.through(l))
	var execs []string
	for _, command := range []string{"wait", "flood"} {
		s, err := client.ExecCommand(t.Context(), &computev1.ExecCommandRequest{SandboxId: box, Command: command})
		require.NoError(t, err)
		h, err := s.Header()
		require.NoError(t, err)
		execs = append(execs, h.Get("sandtrail-exec-id")[0])
	}
	l.frozen.Store(true)
	for _, id := range execs {
		w.until(func() bool {
			x, err := w.GetExec(t.Context(), &computev1.GetExecRequest{ExecId: id})
			return err == nil && x.GetState() == "completed" && x.GetCompleted().GetReason() == "cancelled"
		})
	}
}

// Whoever follows one sandbox of a busy tenant hears of progress while the log of the others is read, and goes on from there when cut.
func TestALongLogOfOthersIsNoSilence(t *testing.T) {
	w := newWorld(t, nil, func(c *app.Config) { c.Heartbeat = time.Millisecond })
	box := w.create(t.Context())
	other := w.create(t.Context())
	for range 10 {
		for range 500 {
			_, err := w.JS.PublishAsync("evt.acme.exec."+other+".x", []byte("not for this one"))
			require.NoError(t, err)
		}
		<-w.JS.PublishAsyncComplete()
	}
	s, err := w.WatchEvents(t.Context(), &computev1.WatchEventsRequest{SandboxId: box, NoFollow: true})
	require.NoError(t, err)
	beats, last := 0, uint64(0)
	for {
		e, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Greater(t, e.GetSequence(), last)
		last = e.GetSequence()
		if e.GetHeartbeat() {
			beats++
		}
	}
	require.Positive(t, beats)
}

// What was given up while it was read is told with the place from which on it goes on; it is neither silence nor an end.
func TestGivenUpWhileItRuns(t *testing.T) {
	w := newWorld(t, nil)
	box := w.create(t.Context())
	more := make(chan struct{})
	w.peer.script("long", func(x *execution) {
		lines(x, 0, 50)
		<-more
		lines(x, 50, 1)
		x.complete(0)
	})
	s := w.exec(t.Context(), box, "long")
	for range 50 {
		_, err := s.Recv()
		require.NoError(t, err)
	}
	h, err := s.Header()
	require.NoError(t, err)
	id := h.Get("sandtrail-exec-id")[0]
	out, err := w.JS.Stream(t.Context(), topology.StreamOutput)
	require.NoError(t, err)
	require.NoError(t, out.Purge(t.Context(), jetstream.WithPurgeSubject("out.acme."+box+"."+id), jetstream.WithPurgeKeep(5)))

	late, err := w.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id, AfterChunk: 10})
	require.NoError(t, err)
	r := drainStream(late)
	d := detail(t, r.failure)
	require.Equal(t, "cursor_expired", d.GetReason())
	require.Equal(t, "the oldest position is 45", d.GetFields()["after_chunk"])
	close(more)
	again, err := w.AttachExec(t.Context(), &computev1.AttachExecRequest{ExecId: id, AfterChunk: 45})
	require.NoError(t, err)
	r = drainStream(again)
	require.NotNil(t, r.completed, "%v", r.failure)
	r.inOrder(t, 46, 51)
	rest := drainStream(s)
	require.NotNil(t, rest.completed, "who read along misses nothing")
	rest.inOrder(t, 51, 51)
}
