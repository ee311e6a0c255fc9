package spool

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// content is the byte that every test writes at an offset of a stream, so that any piece can be checked by itself.
func content(stream uint32, offset uint64) byte {
	x := (offset + 1) * 0x9e3779b97f4a7c15
	return byte(x>>56) ^ byte(stream)
}

func fill(buf []byte, stream uint32, from uint64) []byte {
	for i := range buf {
		buf[i] = content(stream, from+uint64(i))
	}
	return buf
}

// never is a context that has ended: Next then gives what is there and does not wait.
func never() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// now reads everything that is there now and checks it: right bytes, each offset of a stream once and in order.
func now(t require.TestingT, r *Reader, buf []byte) (pieces []Piece, end error) {
	at := r.at
	for {
		p, err := r.Next(never(), buf)
		if err != nil {
			return pieces, err
		}
		require.Equal(t, at[p.Stream-1], p.Offset)
		if len(p.Data) == 0 {
			require.Greater(t, p.SkipTo, p.Offset)
			at[p.Stream-1] = p.SkipTo
		} else {
			require.True(t, bytes.Equal(fill(make([]byte, len(p.Data)), p.Stream, p.Offset), p.Data),
				"stream %d at %d", p.Stream, p.Offset)
			at[p.Stream-1] += uint64(len(p.Data))
		}
		p.Data = bytes.Clone(p.Data)
		pieces = append(pieces, p)
	}
}

// TestAgainstModel drives one spool with random writes, readers and trims. The model is only sizes: what was written to each
// stream, what head and tail must still hold of it, and what no reader can have seen.
func TestAgainstModel(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		capacity := uint64(rapid.SampledFrom([]int{1 << 10, 5000, 20_000, 64 << 10}).Draw(t, "cap"))
		p := New(Options{Dir: dir, Cap: capacity})
		defer func() { require.NoError(t, p.Remove()) }()
		var total, trimmed [2]uint64
		buf := make([]byte, rapid.IntRange(1, 9000).Draw(t, "buffer"))

		// check attaches at random offsets and compares every byte with what must be there.
		check := func(t *rapid.T) {
			var from [2]uint64
			for i := range from {
				from[i] = rapid.Uint64Range(0, total[i]+10).Draw(t, "offset")
			}
			r, err := p.Reader(from[0], from[1])
			require.NoError(t, err)
			defer r.Close()
			pieces, _ := now(t, r, buf)
			var got [2]uint64
			for _, piece := range pieces {
				got[piece.Stream-1] += uint64(len(piece.Data))
			}
			for i := range from {
				require.Equal(t, kept(total[i], capacity, max(trimmed[i], from[i])), got[i], "stream %d from %d", i+1, from[i])
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "stream")
				n := rapid.OneOf(rapid.IntRange(1, 100), rapid.IntRange(1, 30_000)).Draw(t, "bytes")
				require.NoError(t, p.Append(uint32(i+1), fill(make([]byte, n), uint32(i+1), total[i])))
				total[i] += uint64(n)
			},
			"read": check,
			"trim": func(t *rapid.T) {
				for i := range trimmed {
					trimmed[i] = max(trimmed[i], rapid.Uint64Range(0, total[i]).Draw(t, "trim"))
				}
				p.Trim(trimmed[0], trimmed[1])
			},
			"": func(t *rapid.T) {
				out, errs := p.Bytes()
				require.Equal(t, [2]uint64{out, errs}, total)
				for id := Stdout; id <= Stderr; id++ {
					var sum uint64
					for _, g := range p.StreamEnd(id).Gaps {
						sum += g.To - g.From
					}
					require.Equal(t, p.StreamEnd(id).DroppedBytes, sum)
				}
			},
		})
		p.End()
		check(t)
		require.ErrorIs(t, p.Append(Stdout, []byte("x")), ErrEnded)
	})
}

// kept is how many bytes of a stream can be read from an offset on.
func kept(total, capacity, from uint64) uint64 {
	head := capacity / 2
	tailFrom := head
	if total > capacity {
		tailFrom = total - (capacity - head)
	}
	var n uint64
	if end := min(head, total); from < end {
		n += end - from
	}
	if start := max(from, tailFrom); start < total {
		n += total - start
	}
	return n
}

func TestGapIsExactWhereNobodyRead(t *testing.T) {
	p := New(Options{Dir: t.TempDir(), Cap: 64 << 10})
	const total = 1_000_003
	require.NoError(t, p.Append(Stdout, fill(make([]byte, total), Stdout, 0)))
	p.End()
	end := p.StreamEnd(Stdout)
	require.EqualValues(t, total, end.Bytes)
	require.EqualValues(t, total-64<<10, end.DroppedBytes)
	require.Len(t, end.Gaps, 1)
	require.EqualValues(t, 32<<10, end.Gaps[0].From)
	require.EqualValues(t, total-32<<10, end.Gaps[0].To)

	r, err := p.Reader(0, 0)
	require.NoError(t, err)
	pieces, err := now(t, r, make([]byte, 64<<10))
	require.Equal(t, io.EOF, err)
	skip := pieces[slices.IndexFunc(pieces, func(p Piece) bool { return p.SkipTo > 0 })]
	require.Equal(t, end.Gaps[0].From, skip.Offset)
	require.Equal(t, end.Gaps[0].To, skip.SkipTo)
}

func TestFirstWriteIsAPieceOfItsOwn(t *testing.T) {
	p := New(Options{Dir: t.TempDir()})
	for _, s := range []string{"a", "b", "c"} {
		require.NoError(t, p.Append(Stdout, []byte(s)))
	}
	r, err := p.Reader(0, 0)
	require.NoError(t, err)
	buf := make([]byte, 10)
	first, err := r.Next(never(), buf)
	require.NoError(t, err)
	require.Equal(t, "a", string(first.Data))
	second, err := r.Next(never(), buf)
	require.NoError(t, err)
	require.Equal(t, "bc", string(second.Data))
}

func TestOrderOfTheStreamsIsKept(t *testing.T) {
	p := New(Options{Dir: t.TempDir()})
	write := func(stream uint32, s string) { require.NoError(t, p.Append(stream, []byte(s))) }
	write(Stdout, "one ")
	write(Stderr, "two ")
	write(Stdout, "three ")
	write(Stderr, "four")
	p.End()
	r, err := p.Reader(0, 0)
	require.NoError(t, err)
	var all []byte
	for {
		piece, err := r.Next(t.Context(), make([]byte, 64))
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		all = append(all, piece.Data...)
	}
	require.Equal(t, "one two three four", string(all))
}

// A program that alternates between its streams must not make the record of their order grow, nor lose a byte by that.
func TestManyAlternatingWritesStayBounded(t *testing.T) {
	p := New(Options{Dir: t.TempDir(), Cap: 256 << 10})
	var total [2]uint64
	for i := range 100_000 {
		s := i % 2
		require.NoError(t, p.Append(uint32(s+1), fill(make([]byte, 3), uint32(s+1), total[s])))
		total[s] += 3
		require.LessOrEqual(t, len(p.order.runs), maxRuns)
	}
	p.End()
	r, err := p.Reader(0, 0)
	require.NoError(t, err)
	pieces, err := now(t, r, make([]byte, 32<<10))
	require.Equal(t, io.EOF, err)
	var got uint64
	for _, piece := range pieces {
		require.Empty(t, piece.SkipTo)
		got += uint64(len(piece.Data))
	}
	require.Equal(t, total[0]+total[1], got)
}

// One live reader gets every byte of an output far over the cap, readers that come and go at random offsets get right bytes,
// and neither memory nor disk grows.
func TestLongOutputThroughALiveReader(t *testing.T) {
	const size, capacity = 1 << 30, 8 << 20
	dir := t.TempDir()
	p := New(Options{Dir: dir, Cap: capacity, Hold: 1 << 20})
	live, err := p.Reader(0, 0)
	require.NoError(t, err)
	defer live.Close()
	// The pattern repeats, so that the test does not spend its time making it.
	const period = 1 << 16
	pattern := make([]byte, 2*period)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range period {
		pattern[i] = byte(rng.Uint32())
	}
	copy(pattern[period:], pattern[:period])

	var wg sync.WaitGroup
	wg.Go(func() {
		defer p.End()
		for written := 0; written < size; written += 32 << 10 {
			at := written % period
			if p.Append(Stdout, pattern[at:at+32<<10]) != nil {
				return
			}
		}
	})
	visitors, leave := context.WithCancel(t.Context())
	var wrong sync.Once
	var reached atomic.Uint64
	bad := make(chan Piece, 1)
	for seed := range uint64(2) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 3))
			buf := make([]byte, 20_000)
			for visitors.Err() == nil {
				// Not ahead of the live reader: the furthest one holds the writer, and the others may be overrun.
				r, err := p.Reader(rng.Uint64N(reached.Load()+1), 0)
				if err != nil {
					return
				}
				for range 3 {
					piece, err := r.Next(visitors, buf)
					at := piece.Offset % period
					if err == nil && !bytes.Equal(piece.Data, pattern[at:at+uint64(len(piece.Data))]) {
						wrong.Do(func() { bad <- piece })
					}
				}
				r.Close()
			}
		})
	}

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	buf := make([]byte, 32<<10)
	var got uint64
	started := time.Now()
	for {
		piece, err := live.Next(t.Context(), buf)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, got, piece.Offset)
		at := got % period
		require.True(t, bytes.Equal(piece.Data, pattern[at:at+uint64(len(piece.Data))]), "at %d", got)
		got += uint64(len(piece.Data))
		reached.Store(got)
	}
	t.Logf("%.0f MB/s", size/1e6/time.Since(started).Seconds())
	leave()
	wg.Wait()
	require.Empty(t, bad)
	require.EqualValues(t, size, got)
	require.Zero(t, p.StreamEnd(Stdout).DroppedBytes)
	runtime.GC()
	runtime.ReadMemStats(&after)
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(1<<20))
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "garbage for each piece")
	info, err := os.Stat(filepath.Join(dir, "stdout"))
	require.NoError(t, err)
	require.LessOrEqual(t, info.Size(), int64(capacity))
}

func TestReaderHoldsTheWriterBack(t *testing.T) {
	p := New(Options{Dir: t.TempDir(), Cap: 1 << 20, Hold: 10_000})
	r, err := p.Reader(0, 0)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- p.Append(Stdout, fill(make([]byte, 100_000), Stdout, 0)) }()
	written := func() uint64 { out, _ := p.Bytes(); return out }
	require.Eventually(t, func() bool { return written() == 10_000 }, 5*time.Second, time.Millisecond)
	require.Never(t, func() bool { return written() > 10_000 }, 50*time.Millisecond, 5*time.Millisecond)
	_, err = r.Next(t.Context(), make([]byte, 5000))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return written() > 10_000 }, 5*time.Second, time.Millisecond)
	require.LessOrEqual(t, written(), uint64(15_000))

	r.Close()
	require.NoError(t, <-done)
	require.EqualValues(t, 100_000, written())
}

func TestReleaseAndEndFreeAWriter(t *testing.T) {
	for name, c := range map[string]struct {
		free func(*Spool)
		want error
	}{
		"release": {(*Spool).Release, nil},
		"end":     {(*Spool).End, ErrEnded},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(Options{Dir: t.TempDir(), Cap: 1 << 20, Hold: 1000})
			_, err := p.Reader(0, 0)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() { done <- p.Append(Stderr, make([]byte, 5000)) }()
			require.Eventually(t, func() bool { _, n := p.Bytes(); return n == 1000 }, 5*time.Second, time.Millisecond)
			c.free(p)
			require.Equal(t, c.want, <-done)
		})
	}
}

// A full disk costs the output, told as a gap, and nothing else.
func TestOutputThatCannotBeStoredIsAGap(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "later")
	p := New(Options{Dir: dir, Cap: 1 << 20})
	require.NoError(t, p.Append(Stdout, fill(make([]byte, 5000), Stdout, 0)))
	require.NoError(t, p.Append(Stdout, fill(make([]byte, 60_000), Stdout, 5000)))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, p.Append(Stdout, fill(make([]byte, 100), Stdout, 65_000)))
	p.End()
	end := p.StreamEnd(Stdout)
	require.EqualValues(t, 65_100, end.Bytes)
	require.EqualValues(t, 60_000, end.DroppedBytes)
	r, err := p.Reader(0, 0)
	require.NoError(t, err)
	pieces, err := now(t, r, make([]byte, 64<<10))
	require.Equal(t, io.EOF, err)
	require.Len(t, pieces, 3)
	require.EqualValues(t, 5000, pieces[1].Offset)
	require.EqualValues(t, 65_000, pieces[1].SkipTo)
	require.Len(t, pieces[2].Data, 100)
}

func TestEndedSpoolHoldsNoDescriptorUntilRead(t *testing.T) {
	dir := t.TempDir()
	p := New(Options{Dir: dir, Cap: 1 << 20})
	require.NoError(t, p.Append(Stdout, fill(make([]byte, 50_000), Stdout, 0)))
	p.End()
	require.Nil(t, p.streams[0].file)
	r, err := p.Reader(49_000, 0)
	require.NoError(t, err)
	pieces, err := now(t, r, make([]byte, 64<<10))
	require.Equal(t, io.EOF, err)
	require.Len(t, pieces, 1)
	r.Close()
	require.Nil(t, p.streams[0].file)

	require.NoError(t, p.Remove())
	_, err = p.Reader(0, 0)
	require.ErrorIs(t, err, fs.ErrClosed)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestRangesStaySortedAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ranges
		covered := map[uint64]bool{}
		for range rapid.IntRange(0, 300).Draw(t, "adds") {
			from := rapid.Uint64Range(0, 1000).Draw(t, "from")
			to := from + rapid.Uint64Range(1, 5).Draw(t, "length")
			r.add(from, to)
			for o := from; o < to; o++ {
				covered[o] = true
			}
			require.LessOrEqual(t, len(r), maxRanges)
		}
		for i := range len(r) - 1 {
			require.Less(t, r[i].to, r[i+1].from)
		}
		for o := range covered {
			_, ok := r.at(o)
			require.True(t, ok)
		}
	})
}
