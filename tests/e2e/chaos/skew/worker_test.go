package skew_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/skew"
)

// workEnv makes this program take one command of the NATS server that it names, which is not to be done before its third attempt.
const workEnv = "SANDTRAIL_TEST_WORKER"

func work(url string) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tries := 0
	c := worker.Config{Service: "lifecycle", Stream: topology.StreamCommands, Consumer: topology.ConsumerScheduler}
	err = worker.Run(ctx, js, c, func(context.Context, worker.Message) error {
		if tries++; tries < 3 {
			return worker.RetryAfter(10*time.Millisecond, errors.New("not yet"))
		}
		cancel()
		return nil
	})
	if tries < 3 {
		return errors.Join(errors.New("it was not given again"), err)
	}
	return nil
}

// By the clock of a host that is two days ahead every command is older than its stream keeps any.
func TestACommandIsNotDeadBecauseAHostsClockIsAhead(t *testing.T) {
	f := natstest.Start(t)
	_, err := f.JS.Publish(t.Context(), subject.SandboxCommand("acme", "s"), []byte("payload"))
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workEnv+"="+f.URL)
	cmd.Stderr = os.Stderr
	var c skew.Clock
	require.NoError(t, c.Set(48*time.Hour))
	require.NoError(t, c.Start(cmd))
	require.NoError(t, cmd.Wait())
	dead, err := f.JS.Stream(t.Context(), topology.StreamDead)
	require.NoError(t, err)
	require.Zero(t, dead.CachedInfo().State.Msgs, "nothing is set aside")
}
