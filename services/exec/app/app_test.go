package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/exec/internal/receipt"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

func TestValidateNamesEveryMistake(t *testing.T) {
	err := Config{Worker: "a.b", MaxExecs: -1, OutputMemory: 1, DefaultTimeout: 2, MaxTimeout: 1}.Validate()
	for _, field := range []string{"StateDir", "SealKeyFile", "Worker", "MaxExecs", "OutputMemory", "DefaultTimeout"} {
		require.ErrorContains(t, err, field)
	}
	require.NoError(t, Config{StateDir: "/s", SealKeyFile: "/k"}.Validate())
}

type world struct {
	*natstest.Fixture
	t    *testing.T
	log  *jslog.Log
	fake *toolboxtest.Fake
	key  string
}

func newWorld(t *testing.T) *world {
	w := &world{Fixture: natstest.Start(t), t: t, fake: toolboxtest.NewFake(t, ids.New()), key: filepath.Join(t.TempDir(), "key")}
	w.log = jslog.New(w.JS)
	w.sandbox(
		sandbox.Create{CommandID: ids.New(), At: time.Now(), SandboxID: w.fake.SandboxID, Image: "i", Placement: &eventsv1.Placement{Worker: "w1"}},
		sandbox.Start{Worker: "w1", Attempt: 1}, sandbox.MarkReady{Worker: "w1", Hostname: "h"},
	)
	return w
}

func (w *world) sandbox(commands ...sandbox.Command) {
	for _, c := range commands {
		_, err := eventlog.Execute(w.t.Context(), w.log, subject.Sandbox("acme", w.fake.SandboxID), func(h eventlog.History) ([]envelope.Event, error) {
			s, err := sandbox.Fold(h)
			require.NoError(w.t, err)
			bodies, err := sandbox.Decide(s, c)
			return sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Tenant: "acme", Time: time.Now()}, bodies...), err
		})
		require.NoError(w.t, err)
	}
}

// serve runs the service by URL until the returned function stops it.
func (w *world) serve() (stop func()) {
	a, err := New(w.t.Context(), Config{NATSURL: w.URL, StateDir: w.fake.StateDir, Worker: "w1", SealKeyFile: w.key, ToolboxGrace: time.Second}, Deps{})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(w.t, <-done)
	}
}

func (w *world) run(script string) subject.Aggregate {
	agg := subject.Exec("acme", w.fake.SandboxID, ids.New())
	data, err := proto.Marshal(&commandsv1.ExecCommand{
		CommandId: ids.New(), TenantId: "acme", SandboxId: agg.Sandbox, ExecId: agg.ID, Actor: "dev", Time: timestamppb.Now(),
		Command: &commandsv1.ExecCommand_Start{Start: &commandsv1.StartExec{
			Spec: &eventsv1.ExecSpec{Command: "/bin/sh", Args: []string{"-c", script}},
		}},
	})
	require.NoError(w.t, err)
	_, err = w.JS.Publish(w.t.Context(), subject.ExecCommand("w1", agg.Tenant, agg.Sandbox, agg.ID), data)
	require.NoError(w.t, err)
	return agg
}

func (w *world) state(agg subject.Aggregate) sandbox.Exec {
	h, err := w.log.Load(w.t.Context(), agg)
	require.NoError(w.t, err)
	x, err := sandbox.FoldExec(h)
	require.NoError(w.t, err)
	return x
}

func (w *world) wait(agg subject.Aggregate) sandbox.Exec {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.state(agg).Over() }, 30*time.Second, 5*time.Millisecond)
	return w.state(agg)
}

func (w *world) stdout(agg subject.Aggregate) (out []byte) {
	err := transcript.Read(w.t.Context(), w.JS, subject.Output(agg.Tenant, agg.Sandbox, agg.ID), 1, func(c transcript.Chunk) error {
		if c.Stream == transcript.Stdout {
			require.Equal(w.t, uint64(len(out)), c.Offset)
			out = append(out, c.Data...)
		}
		return nil
	})
	require.NoError(w.t, err)
	return out
}

func TestServiceEndToEnd(t *testing.T) {
	w := newWorld(t)
	stop := w.serve()
	counter := filepath.Join(t.TempDir(), "count")
	gate := filepath.Join(t.TempDir(), "gate")
	agg := w.run(fmt.Sprintf("echo started >>%s; seq 1 50000; while [ ! -e %s ]; do sleep 0.01; done; seq 50001 100000; exit 7", counter, gate))
	require.Eventually(t, func() bool { return len(w.stdout(agg)) > 100_000 }, 20*time.Second, 10*time.Millisecond)
	// The program goes on while no service is there.
	stop()
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	stop = w.serve()
	x := w.wait(agg)
	require.Equal(t, int32(7), x.Completed.GetExitCode())
	var want []byte
	for i := 1; i <= 100_000; i++ {
		want = fmt.Appendf(want, "%d\n", i)
	}
	require.Equal(t, string(want), string(w.stdout(agg)))
	count, err := os.ReadFile(counter)
	require.NoError(t, err)
	require.Equal(t, "started\n", string(count))

	kv, err := w.JS.KeyValue(t.Context(), topology.BucketExec)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		e, err := kv.Get(t.Context(), receipt.Key(agg))
		v := &commandsv1.ExecView{}
		return err == nil && proto.Unmarshal(e.Value(), v) == nil && proto.Equal(v, x.View())
	}, 10*time.Second, 10*time.Millisecond)

	// A signal makes 128+n, and a sandbox that goes takes its execs along.
	require.Equal(t, int32(128+9), w.wait(w.run("kill -9 $$")).Completed.GetExitCode())
	last := w.run("echo on; sleep 600")
	require.Eventually(t, func() bool { return len(w.stdout(last)) == 3 }, 10*time.Second, 5*time.Millisecond)
	w.fake.Die()

	// So do those whose worker is gone too: any service settles them.
	other := subject.Exec("acme", w.fake.SandboxID, ids.New())
	id := ids.New()
	bodies, err := sandbox.DecideExec(sandbox.Exec{}, sandbox.StartExec{
		CommandID: id, SandboxID: other.Sandbox, ExecID: other.ID, Worker: "gone", Spec: &eventsv1.ExecSpec{Command: "x"}, RequestedAt: time.Now(),
	})
	require.NoError(t, err)
	_, err = w.log.Append(t.Context(), other, eventlog.Tail{}, sandbox.Events(sandbox.CommandMeta{ID: id, Tenant: "acme", Time: time.Now()}, bodies...)...)
	require.NoError(t, err)
	w.sandbox(sandbox.Destroy{Reason: "requested"}, sandbox.MarkDestroyed{})
	require.Equal(t, "sandbox_destroyed", w.wait(last).Lost.GetReason())
	require.Equal(t, "sandbox_destroyed", w.wait(other).Lost.GetReason())
	stop()
}
