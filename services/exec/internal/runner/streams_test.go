package runner

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/subject"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/relay"
)

func footprint(t testing.TB) int {
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return runtime.NumGoroutine() + len(fds)
}

// The service takes up the output of a program ten thousand times, of one that has ended and of one that runs on: connections to the
// toolbox, goroutines and the room in its queues are given back, on both sides of the socket.
func TestTenThousandRelaysLeaveNothing(t *testing.T) {
	relays := 10_000
	if testing.Short() {
		relays = 1000
	}
	r := newRig(t)
	r.starting()
	r.markReady()
	end := make(chan struct{})
	k := startKeeper(t, r.state, r.box, func(_ context.Context, p *process) *toolboxv1.End {
		p.write(1, bytes.Repeat([]byte("x"), 100_000))
		if p.start.GetArgv()[0] == "quiet" {
			<-end
		}
		return exited(0)
	})
	t.Cleanup(func() { close(end) })
	s := r.service(nil)
	ended := r.exec(spec(), nil).send()
	ended.wait()
	quiet := spec()
	quiet.Command = "quiet"
	running := r.exec(quiet, nil).send()
	require.Nil(t, running.outcome().GetError())
	require.Eventually(t, func() bool { return len(running.output()["stdout"]) == 100_000 }, 10*time.Second, 10*time.Millisecond)

	once := func(x *exec, leave bool) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := relay.Exec{ID: x.agg.ID, Subject: subject.Output(tenant, r.box, x.agg.ID)}
		pos, err := s.runner.deps.Relay.Position(ctx, out)
		if err != nil {
			return err
		}
		if leave {
			defer time.AfterFunc(time.Duration(rand.IntN(2000))*time.Microsecond, cancel).Stop()
		}
		_, _, err = s.runner.deps.Relay.Run(ctx, out, pos, func(ctx context.Context, stdout, stderr uint64) (relay.Stream, error) {
			return s.runner.deps.Toolbox(r.box).Attach(ctx, &toolboxv1.Attach{ExecId: x.agg.ID, StdoutOffset: stdout, StderrOffset: stderr})
		})
		if leave && ctx.Err() != nil {
			return nil
		}
		return err
	}
	run := func(n int) {
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i := worker; i < n; i += 8 {
					x, leave := ended, false
					if i%2 == 1 {
						x, leave = running, true
					}
					if err := once(x, leave); err != nil {
						t.Errorf("relay %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	run(200)
	var before int
	require.Eventually(t, func() bool { last := before; before = footprint(t); return before == last }, 10*time.Second, 50*time.Millisecond)
	run(relays)
	require.Eventually(t, func() bool { return footprint(t) <= before+10 }, 20*time.Second, 20*time.Millisecond, "%d before", before)
	t.Logf("%d goroutines and descriptors, %d before", footprint(t), before)
	require.Equal(t, 1, k.started(running.agg.ID), "what is attached to is not started")
}
