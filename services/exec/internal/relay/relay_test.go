package relay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/transcript"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

const testSubject = "out.acme.s1.x1"

var testExec = Exec{ID: "x1", Subject: testSubject}

type budget struct{ *semaphore.Weighted }

// broker is a JetStream of its own with stream OUT.
func broker(t testing.TB) (jetstream.JetStream, *server.Server) {
	t.Helper()
	s, err := server.NewServer(&server.Options{JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoLog: true, NoSigs: true})
	require.NoError(t, err)
	go s.Start()
	require.True(t, s.ReadyForConnections(10*time.Second))
	nc, err := nats.Connect("", nats.InProcessServer(s))
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "OUT", Subjects: []string{"out.>"}, AllowDirect: true, Duplicates: 10 * time.Minute,
		RePublish: &jetstream.RePublish{Source: ">", Destination: "live.>"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close(); s.Shutdown() })
	return js, s
}

// program is an output with both streams interleaved; attach serves it from any offset, as a toolbox does.
type program struct {
	writes []*toolboxv1.Data
	totals map[uint32][]byte
	end    *toolboxv1.End
	// sent counts bytes handed to the relay.
	mu   sync.Mutex
	sent int
	// cut, when over 0, breaks the stream after as many events; only once.
	cut int
}

func newProgram(n int, size func() int) *program {
	p := &program{totals: map[uint32][]byte{}}
	for range n {
		s := uint32(1)
		if rand.IntN(4) == 0 {
			s = 2
		}
		d := make([]byte, size())
		for i := range d {
			d[i] = byte(rand.Uint32())
		}
		p.writes = append(p.writes, &toolboxv1.Data{Stream: s, Offset: uint64(len(p.totals[s])), Data: d})
		p.totals[s] = append(p.totals[s], d...)
	}
	p.end = &toolboxv1.End{
		Reason: "exited", Stdout: &toolboxv1.StreamEnd{Bytes: uint64(len(p.totals[1]))},
		Stderr: &toolboxv1.StreamEnd{Bytes: uint64(len(p.totals[2]))},
	}
	return p
}

// bytesOf turns events that hold their bytes into those of a Stream.
type bytesOf struct {
	recv func() (*toolboxv1.AttachEvent, error)
	rest []byte
}

func (b *bytesOf) Next() (*toolboxv1.AttachEvent, int, error) {
	e, err := b.recv()
	if err != nil {
		return nil, 0, err
	}
	b.rest = e.GetData().GetData()
	return e, len(b.rest), nil
}

// Read gives few bytes at a time, as a connection may.
func (b *bytesOf) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1+rand.IntN(32<<10))], b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

type attached struct {
	bytesOf
	p     *program
	at    int
	skip  map[uint32]uint64
	left  int
	close chan struct{}
	once  sync.Once
}

func (p *program) attach(_ context.Context, stdout, stderr uint64) (Stream, error) {
	a := &attached{p: p, skip: map[uint32]uint64{1: stdout, 2: stderr}, left: p.cut, close: make(chan struct{})}
	a.recv = a.event
	return a, nil
}

func (a *attached) Close() { a.once.Do(func() { close(a.close) }) }

func (a *attached) event() (*toolboxv1.AttachEvent, error) {
	select {
	case <-a.close:
		return nil, errors.New("closed")
	default:
	}
	for a.at < len(a.p.writes) {
		w := a.p.writes[a.at]
		a.at++
		from := a.skip[w.Stream]
		if w.Offset+uint64(len(w.Data)) <= from {
			continue
		}
		if a.left > 0 {
			if a.left--; a.left == 0 {
				return nil, io.EOF
			}
		}
		cut := max(from, w.Offset) - w.Offset
		d := &toolboxv1.Data{Stream: w.Stream, Offset: w.Offset + cut, Data: bytes.Clone(w.Data[cut:])}
		a.p.mu.Lock()
		a.p.sent += len(d.Data)
		a.p.mu.Unlock()
		return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: d}}, nil
	}
	return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: a.p.end}}, nil
}

// stored reads all chunks of the exec and checks that numbers and offsets have no hole and no repeat.
func stored(t testing.TB, js jetstream.JetStream) (map[uint32][]byte, int) {
	t.Helper()
	var st jetstream.Stream
	var info *jetstream.StreamInfo
	// A cluster may have no leader for a moment.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		var err error
		st, err = js.Stream(t.Context(), "OUT")
		require.NoError(c, err)
		info, err = st.Info(t.Context())
		require.NoError(c, err)
	}, time.Minute, 10*time.Millisecond)
	got, chunks := map[uint32][]byte{}, 0
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		var m *jetstream.RawStreamMsg
		// A replica may answer that has not caught up yet.
		require.Eventually(t, func() bool {
			var err error
			m, err = st.GetMsg(t.Context(), seq)
			return err == nil
		}, time.Minute, time.Millisecond)
		chunks++
		require.Equal(t, strconv.Itoa(chunks), m.Header.Get(transcript.HeaderChunk))
		s := uint32(Stdout)
		if m.Header.Get(transcript.HeaderStream) == "stderr" {
			s = Stderr
		}
		require.Equal(t, strconv.Itoa(len(got[s])), m.Header.Get(transcript.HeaderOffset), "chunk %d", chunks)
		got[s] = append(got[s], m.Data...)
	}
	return got, chunks
}

func newRelay(t testing.TB, js jetstream.JetStream, o Options) *Relay {
	t.Helper()
	r, err := New(t.Context(), js, "OUT", o)
	require.NoError(t, err)
	return r
}

// finish runs until the end, from the stored position after every error, as a supervisor does.
func finish(t testing.TB, r *Relay, p *program) (Position, int) {
	t.Helper()
	for runs := 1; ; runs++ {
		pos, err := r.Position(t.Context(), testExec)
		require.NoError(t, err)
		pos, end, err := r.Run(t.Context(), testExec, pos, p.attach)
		if err == nil {
			require.Same(t, p.end, end)
			return pos, runs
		}
		require.Less(t, runs, 1000, "no end: %v", err)
	}
}

func requireWhole(t testing.TB, js jetstream.JetStream, p *program, pos Position) {
	t.Helper()
	got, chunks := stored(t, js)
	require.Equal(t, uint64(chunks), pos.Chunk)
	for _, s := range []uint32{Stdout, Stderr} {
		require.True(t, bytes.Equal(p.totals[s], got[s]), "%s differs: %d bytes of %d", Name(s), len(got[s]), len(p.totals[s]))
		out := pos.Output(s)
		sum := sha256.Sum256(p.totals[s])
		require.Equal(t, sum[:], out.GetSha256())
		require.Equal(t, uint64(len(p.totals[s])), out.GetBytes())
		require.Zero(t, out.GetDroppedBytes())
	}
}

func TestOutputIsStoredOnceInOrderOverCutStreams(t *testing.T) {
	js, _ := broker(t)
	p := newProgram(400, func() int { return 1 + rand.IntN(20_000) })
	p.cut = 23
	pos, runs := finish(t, newRelay(t, js, Options{}), p)
	require.Greater(t, runs, 5)
	requireWhole(t, js, p, pos)
}

// However fast a second write comes, the first one of each stream is a chunk of its own.
func TestFirstWriteOfAStreamIsAChunkOfItsOwn(t *testing.T) {
	q := newQueue(Options{}.withDefaults())
	for i, w := range []struct {
		stream uint32
		text   string
	}{{1, "one\n"}, {1, "two\n"}, {1, "three\n"}, {2, "error\n"}, {2, "more\n"}} {
		offset := uint64(0)
		for _, s := range q.segs {
			if s.stream == w.stream {
				offset = s.offset + uint64(len(s.data))
			}
		}
		_, err := q.put(t.Context(), w.stream, offset, len(w.text), strings.NewReader(w.text))
		require.NoError(t, err, i)
	}
	var got []string
	for _, s := range q.segs {
		got = append(got, string(s.data))
	}
	require.Equal(t, []string{"one\n", "two\nthree\n", "error\n", "more\n"}, got)
}

// Whenever the drain takes segments, also those that are just being filled, and whatever the sizes are: each byte comes out once,
// in order, never more than a chunk at a time, and all room is given back.
func TestQueueGivesEachByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 1 << 20
		b := budget{semaphore.NewWeighted(limit)}
		maxChunk := rapid.IntRange(1, 70_000).Draw(t, "chunk")
		q := newQueue(Options{MaxChunk: maxChunk, QueueBytes: limit, Budget: b}.withDefaults())
		want, got := map[uint32][]byte{}, map[uint32][]byte{}
		take := func() {
			s, ok := q.next(t.Context(), time.Time{})
			require.True(t, ok)
			require.LessOrEqual(t, len(s.data), maxChunk)
			if s.gapTo > 0 {
				s.data = make([]byte, s.gapTo-s.offset)
			}
			require.Equal(t, uint64(len(got[s.stream])), s.offset)
			got[s.stream] = append(got[s.stream], s.data...)
			if s.gapTo == 0 {
				// A buffer that is used again too early shows.
				q.stored(s)
				clear(s.data)
			}
		}
		waiting := func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return len(q.segs) > 0
		}
		for range rapid.IntRange(1, 20).Draw(t, "writes") {
			stream := rapid.Uint32Range(Stdout, Stderr).Draw(t, "stream")
			offset, n := uint64(len(want[stream])), rapid.IntRange(1, 100_000).Draw(t, "bytes")
			if rapid.IntRange(0, 9).Draw(t, "gap") == 0 {
				q.putGap(stream, offset, offset+uint64(n))
				want[stream] = append(want[stream], make([]byte, n)...)
				continue
			}
			data := bytes.Repeat([]byte{byte(n) | 1, byte(stream)}, n)[:n]
			want[stream] = append(want[stream], data...)
			src := &meanwhile{Reader: bytes.NewReader(data), do: func() {
				if rapid.Bool().Draw(t, "take") && waiting() {
					take()
				}
			}}
			added, err := q.put(t.Context(), stream, offset, n, src)
			require.NoError(t, err)
			require.Equal(t, n, added)
		}
		for waiting() {
			take()
		}
		require.Equal(t, want, got)
		require.Zero(t, q.bytes)
		require.True(t, b.TryAcquire(limit), "all room is given back")
	})
}

// meanwhile does something before each read.
type meanwhile struct {
	io.Reader
	do func()
}

func (m *meanwhile) Read(p []byte) (int, error) {
	m.do()
	return m.Reader.Read(p[:min(len(p), 1+len(p)/2)])
}

func TestRelaysThatRaceStoreEachByteOnce(t *testing.T) {
	t.Run("one server", func(t *testing.T) {
		js, _ := broker(t)
		race(t, js)
	})
	t.Run("cluster", func(t *testing.T) { race(t, natstest.Cluster(t).JS) })
}

// A flood in whole chunks while the stream's leader moves, servers restart and two relays take the exec from each other: an
// acknowledgement may be lost at any point.
func TestFloodOverMovingLeaders(t *testing.T) {
	f := natstest.Cluster(t)
	p := newProgram(400, func() int { return 64 << 10 })
	var wg sync.WaitGroup
	var mu sync.Mutex
	var last Position
	for range 2 {
		r := newRelay(t, f.JS, Options{})
		wg.Go(func() {
			pos := persist(t, r, p)
			mu.Lock()
			defer mu.Unlock()
			if pos.Chunk >= last.Chunk {
				last = pos
			}
		})
	}
	for i := range 12 {
		if i%4 == 3 {
			f.Bounce(1 + i/4%2)
			continue
		}
		// Refused or unanswered while there is no leader: then it is moving anyway.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, _ = f.NC.RequestWithContext(ctx, "$JS.API.STREAM.LEADER.STEPDOWN.OUT", nil)
		cancel()
	}
	wg.Wait()
	requireWhole(t, f.JS, p, last)
}

// persist is finish where the position cannot be read at times.
func persist(t *testing.T, r *Relay, p *program) Position {
	for {
		pos, err := r.Position(t.Context(), testExec)
		if err == nil {
			if pos, _, err = r.Run(t.Context(), testExec, pos, p.attach); err == nil {
				return pos
			}
		}
		if t.Context().Err() != nil {
			return pos
		}
	}
}

func race(t *testing.T, js jetstream.JetStream) {
	p := newProgram(300, func() int { return 1 + rand.IntN(3000) })
	var wg sync.WaitGroup
	var mu sync.Mutex
	var last Position
	for range 4 {
		r := newRelay(t, js, Options{MinChunk: 1 + rand.IntN(5000), Interval: time.Millisecond})
		wg.Go(func() {
			pos, _ := finish(t, r, p)
			mu.Lock()
			defer mu.Unlock()
			if pos.Chunk >= last.Chunk {
				last = pos
			}
		})
	}
	wg.Wait()
	requireWhole(t, js, p, last)
}

func TestRelayStoppedAtRandomPointsGoesOn(t *testing.T) {
	js, _ := broker(t)
	p := newProgram(500, func() int { return 1 + rand.IntN(8000) })
	r := newRelay(t, js, Options{})
	stops := 0
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rand.IntN(12))*time.Millisecond)
		pos, err := r.Position(t.Context(), testExec)
		require.NoError(t, err)
		pos, _, err = r.Run(ctx, testExec, pos, p.attach)
		cancel()
		if err == nil {
			requireWhole(t, js, p, pos)
			break
		}
		stops++
	}
	require.Positive(t, stops)
}

func TestGapIsAFact(t *testing.T) {
	js, _ := broker(t)
	events := []*toolboxv1.AttachEvent{
		{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Stream: 1, Data: []byte("head")}}},
		{Event: &toolboxv1.AttachEvent_Skip{Skip: &toolboxv1.Skip{Stream: 1, From: 4, To: 1000}}},
		{Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Stream: 1, Offset: 1000, Data: []byte("tail")}}},
		{Event: &toolboxv1.AttachEvent_End{End: &toolboxv1.End{Stdout: &toolboxv1.StreamEnd{Bytes: 1010}}}},
	}
	r := newRelay(t, js, Options{})
	_, end, err := r.Run(t.Context(), testExec, Position{}, func(context.Context, uint64, uint64) (Stream, error) {
		return newScript(events...), nil
	})
	require.NoError(t, err)
	require.NotNil(t, end)
	// What the next relay would read says the same.
	pos, err := r.Position(t.Context(), testExec)
	require.NoError(t, err)
	out, sum := pos.Output(Stdout), sha256.Sum256([]byte("headtail"))
	require.Equal(t, uint64(1010), out.GetBytes())
	require.Equal(t, uint64(996+6), out.GetDroppedBytes())
	require.Len(t, out.GetGaps(), 2)
	require.Equal(t, uint64(4), out.GetGaps()[0].GetFrom())
	require.Equal(t, uint64(1000), out.GetGaps()[0].GetTo())
	require.Equal(t, sum[:], out.GetSha256())
	st, err := js.Stream(t.Context(), "OUT")
	require.NoError(t, err)
	m, err := st.GetMsg(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, "1000", m.Header.Get(transcript.HeaderGapTo))
	require.Empty(t, m.Data)
}

type script struct {
	bytesOf
	events []*toolboxv1.AttachEvent
}

func newScript(events ...*toolboxv1.AttachEvent) *script {
	s := &script{events: events}
	s.recv = s.event
	return s
}

func (s *script) Close() {}

func (s *script) event() (*toolboxv1.AttachEvent, error) {
	if len(s.events) == 0 {
		return nil, io.EOF
	}
	e := s.events[0]
	s.events = s.events[1:]
	return e, nil
}

func TestStreamWithoutAnEndIsNoEnd(t *testing.T) {
	js, _ := broker(t)
	r := newRelay(t, js, Options{})
	pos, end, err := r.Run(t.Context(), testExec, Position{}, func(context.Context, uint64, uint64) (Stream, error) {
		return newScript(&toolboxv1.AttachEvent{
			Event: &toolboxv1.AttachEvent_Data{Data: &toolboxv1.Data{Stream: 1, Data: []byte("half")}},
		}), nil
	})
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Nil(t, end)
	require.Equal(t, uint64(4), pos.Stream(Stdout).End, "what came is stored")
}
