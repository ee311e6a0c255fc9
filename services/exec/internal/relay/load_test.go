package relay

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

func TestStoppedServerHoldsTheProgramBack(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	js, srv := broker(t)
	p := newProgram(2000, func() int { return 64 << 10 })
	const limit = 1 << 20
	b := budget{semaphore.NewWeighted(limit)}
	r := newRelay(t, js, Options{Budget: b})
	require.NoError(t, srv.DisableJetStream())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := r.Run(ctx, testExec, Position{}, p.attach)
		done <- err
	}()
	sent := func() int { p.mu.Lock(); defer p.mu.Unlock(); return p.sent }
	require.Eventually(t, func() bool { return sent() > 256<<10 }, 30*time.Second, time.Millisecond)
	require.Never(t, func() bool { return sent() > 2<<20 }, 300*time.Millisecond, 10*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.True(t, b.TryAcquire(limit), "all room is given back")
}

func TestLargeOutputInFlatMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes many seconds")
	}
	js, _ := broker(t)
	r := newRelay(t, js, Options{})
	const total = 256 << 20
	var peak uint64
	src := &zeros{total: total, each: func() {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapInuse)
	}}
	began := time.Now()
	pos, _, err := r.Run(t.Context(), testExec, Position{}, func(context.Context, uint64, uint64) (Stream, error) { return src, nil })
	require.NoError(t, err)
	require.Equal(t, uint64(total), pos.Stream(Stdout).End)
	t.Logf("%.0f MB/s in %d chunks, heap at most %d MiB", total/1e6/time.Since(began).Seconds(), pos.Chunk, peak>>20)
	require.Less(t, peak, uint64(200<<20))
}

// zeros is an output of a given length in writes of 64 KiB.
type zeros struct {
	total, at, left int
	each            func()
}

func (z *zeros) Close() {}

func (z *zeros) Next() (*toolboxv1.AttachEvent, int, error) {
	if z.at >= z.total {
		return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_End{End: &toolboxv1.End{
			Stdout: &toolboxv1.StreamEnd{Bytes: uint64(z.total)},
		}}}, 0, nil
	}
	d := &toolboxv1.Data{Stream: 1, Offset: uint64(z.at)}
	z.left = 64 << 10
	z.at += z.left
	if z.each != nil && z.at%(8<<20) == 0 {
		z.each()
	}
	return &toolboxv1.AttachEvent{Event: &toolboxv1.AttachEvent_Data{Data: d}}, z.left, nil
}

func (z *zeros) Read(p []byte) (int, error) {
	n := min(len(p), z.left)
	clear(p[:n])
	z.left -= n
	return n, nil
}

func BenchmarkRelay(b *testing.B) {
	for _, max := range []int{32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("chunk=%dKiB", max>>10), func(b *testing.B) {
			js, _ := broker(b)
			r := newRelay(b, js, Options{MaxChunk: max})
			b.SetBytes(64 << 10)
			src := &zeros{total: b.N * 64 << 10}
			b.ResetTimer()
			_, _, err := r.Run(b.Context(), testExec, Position{}, func(context.Context, uint64, uint64) (Stream, error) { return src, nil })
			require.NoError(b, err)
		})
	}
}

func BenchmarkRawAsync(b *testing.B) {
	js, _ := broker(b)
	data := make([]byte, 64<<10)
	b.SetBytes(64 << 10)
	for range b.N {
		_, err := js.PublishAsync(testSubject, data)
		require.NoError(b, err)
	}
	<-js.PublishAsyncComplete()
}
