package runner

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

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
