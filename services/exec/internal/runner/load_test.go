package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/sandbox"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// BenchmarkExecTrue is our whole share of an exec: from its command to its recorded end, with a program that ends at once.
func BenchmarkExecTrue(b *testing.B) {
	r := newRig(b)
	r.starting()
	r.markReady()
	startKeeper(b, r.state, r.box, func(context.Context, *process) *toolboxv1.End { return exited(0) })
	s := r.service(nil)
	live, err := r.NC.SubscribeSync("live.evt.acme.exec.>")
	require.NoError(b, err)
	for b.Loop() {
		x := r.exec(spec(), nil).send()
		for {
			m, err := live.NextMsg(10 * time.Second)
			require.NoError(b, err)
			if strings.HasSuffix(m.Header.Get("Sandtrail-Type"), "ExecCompleted") && strings.HasSuffix(m.Subject, x.agg.ID) {
				break
			}
		}
	}
	b.StopTimer()
	s.stop()
}

// BenchmarkOutput is 64 KiB writes of one program, through the toolbox's socket into OUT.
func BenchmarkOutput(b *testing.B) {
	r := newRig(b)
	r.starting()
	r.markReady()
	piece := make([]byte, 64<<10)
	for i := range piece {
		piece[i] = byte(rand.Uint32())
	}
	startKeeper(b, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		for range b.N {
			p.write(1, piece)
		}
		return exited(0)
	})
	r.service(nil)
	b.SetBytes(int64(len(piece)))
	b.ResetTimer()
	x := r.exec(spec(), nil).send()
	require.Eventually(b, func() bool { return x.state().Over() }, 5*time.Minute, time.Millisecond)
	require.Equal(b, uint64(b.N*len(piece)), x.state().Completed.GetStdout().GetBytes())
	require.Zero(b, x.state().Completed.GetStdout().GetDroppedBytes())
}

// BenchmarkOutputRaw is what nats.go publishes of the same pieces to the same stream.
func BenchmarkOutputRaw(b *testing.B) {
	r := newRig(b)
	piece := make([]byte, 64<<10)
	for i := range piece {
		piece[i] = byte(rand.Uint32())
	}
	b.SetBytes(int64(len(piece)))
	const window = 256
	var acks []jetstream.PubAckFuture
	for b.Loop() {
		f, err := r.JS.PublishAsync("out.acme.s.x", piece)
		require.NoError(b, err)
		if acks = append(acks, f); len(acks) == window {
			<-acks[0].Ok()
			acks = acks[1:]
		}
	}
	<-r.JS.PublishAsyncComplete()
}

func TestManyAtOnceLoseNothing(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	const n, lines = 200, 500
	k := startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		for i := range lines {
			p.write(1, fmt.Appendf(nil, "%s %d\n", p.start.GetExecId(), i))
		}
		return exited(0)
	})
	r.service(func(c *Config) { c.MaxExecsPerSandbox = n })
	r.exec(spec(), nil).send().wait()
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return runtime.NumGoroutine() + len(fds)
	}
	before := count()
	var all []*exec
	for range n {
		all = append(all, r.exec(spec(), nil).send())
	}
	for _, x := range all {
		require.Equal(t, sandbox.ReasonExited, x.wait().Completed.GetReason())
		require.Equal(t, 1, k.started(x.agg.ID))
		var want []byte
		for i := range lines {
			want = fmt.Appendf(want, "%s %d\n", x.agg.ID, i)
		}
		require.Equal(t, string(want), string(x.output()["stdout"]))
	} // Nothing stays behind: goroutines and descriptors are as many as after one.
	for _, x := range all {
		require.NoError(t, x.inbox.Unsubscribe())
	}
	require.Eventually(t, func() bool { return count() <= before+20 }, 10*time.Second, 10*time.Millisecond, "%d before", before)
}
