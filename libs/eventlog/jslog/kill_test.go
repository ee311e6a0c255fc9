package jslog

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// serverDir makes this test binary a server on the directory, to be killed.
const serverDir = "SANDTRAIL_TEST_SERVER_DIR"

// serve runs a server until somebody kills it, or its parent is gone.
func serve(dir string) {
	s, err := natsserver.Start(natsserver.Options{Dir: dir, Port: -1})
	if err != nil {
		fmt.Fprintln(os.Stdout, "error:", err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, s.URL())
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

func killable(t *testing.T, dir string) (*exec.Cmd, string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverDir+"="+dir)
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(url)
}

// A server that is killed in the middle of it all loses nothing that it acknowledged, and leaves no half of a batch.
func TestAcknowledgedEventsSurviveAKill(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd, url := killable(t, dir)
	nc, err := nats.Connect(url, nats.NoReconnect())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, topology.Ensure(ctx, js, topology.Options{}))

	const writers, enough = 6, 150
	var (
		acked  atomic.Int64
		wg     sync.WaitGroup
		tails  = make([]eventlog.History, writers)
		aggs   = make([]subject.Aggregate, writers)
		killed = make(chan struct{})
	)
	for i := range writers {
		aggs[i] = sandbox()
		wg.Go(func() {
			log := New(js)
			log.attempts, log.timeout = 1, 2*time.Second
			for {
				n := 1 + i%3 // one event, and batches of two and three
				got, err := log.Append(ctx, aggs[i], tails[i].Tail(), newEvents(n)...)
				if err != nil {
					return
				}
				tails[i].Events = append(tails[i].Events, got...)
				if acked.Add(1) == enough {
					close(killed)
				}
			}
		})
	}
	<-killed
	require.NoError(t, cmd.Process.Kill())
	wg.Wait()
	_ = cmd.Wait()

	s, err := natsserver.Start(natsserver.Options{Dir: dir})
	require.NoError(t, err)
	defer s.Shutdown()
	nc, err = s.Connect()
	require.NoError(t, err)
	defer nc.Close()
	js, err = jetstream.New(nc)
	require.NoError(t, err)
	diff, err := topology.Diff(ctx, js, topology.Options{})
	require.NoError(t, err)
	require.Empty(t, diff)
	for i, agg := range aggs {
		h, err := New(js).Load(ctx, agg)
		require.NoError(t, err)
		want := idsOf(tails[i].Events)
		require.Equal(t, want, idsOf(h.Events[:len(want)]), "acknowledged, and gone")
		require.Zero(t, len(h.Events)%(1+i%3), "half of a batch")
		require.LessOrEqual(t, len(h.Events)-len(want), 1+i%3, "at most the append that got no answer")
		mustAppend(t, New(js), agg, h.Tail(), 1)
	}
}
