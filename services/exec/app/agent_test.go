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

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/toolbox/agent/agenttest"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

// agentWorld has one sandbox that is ready, with a real agent.
type agentWorld struct {
	*world
	box  *agenttest.Box
	cert string
	priv string
}

func newAgentWorld(t *testing.T, box *agenttest.Box, pinned bool) *agentWorld {
	w := &agentWorld{world: &world{
		Fixture: natstest.Start(t), t: t, fake: &toolboxtest.Fake{SandboxID: box.SandboxID}, key: filepath.Join(t.TempDir(), "key"),
	}, box: box}
	w.log = jslog.New(w.JS)
	w.cert, w.priv = agenttest.CallerFiles(t, box.Authority)
	e := &eventsv1.Endpoint{Address: box.Agent.Address, Runtime: box.Agent.Name, Uid: box.Agent.UID}
	if pinned {
		e.KeySha256 = box.Agent.KeySHA256
	}
	w.sandbox(
		sandbox.Create{CommandID: ids.New(), At: time.Now(), SandboxID: box.SandboxID, Image: "i", Placement: &eventsv1.Placement{Worker: "w1"}},
		sandbox.Start{Worker: "w1", Attempt: 1}, sandbox.MarkReady{Worker: "w1", Hostname: "h", Endpoint: e},
	)
	return w
}

// serve runs the service, which has no directory of keepers, until the returned function stops it.
func (w *agentWorld) serve(grace time.Duration) (stop func()) {
	a, err := New(w.t.Context(), Config{
		NATSURL: w.URL, AgentCert: w.cert, AgentKey: w.priv, Worker: "w1", SealKeyFile: w.key, ToolboxGrace: grace,
	}, Deps{})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(w.t, <-done)
	}
}

func TestServiceEndToEndWithAnAgent(t *testing.T) {
	w := newAgentWorld(t, agenttest.Host(t), true)
	stop := w.serve(time.Minute)
	agg := w.run("echo started >>count; seq 1 50000; while [ ! -e gate ]; do sleep 0.05; done; seq 50001 100000; exit 7")
	require.Eventually(t, func() bool { return len(w.stdout(agg)) > 100_000 }, 60*time.Second, 10*time.Millisecond)
	// The program goes on while no service is there, and the next one finds it by the log alone.
	stop()
	require.NoError(t, os.WriteFile(filepath.Join(w.box.Workspace, "gate"), nil, 0o600))
	stop = w.serve(time.Minute)
	defer func() { stop() }()
	x := w.wait(agg)
	require.Equal(t, int32(7), x.Completed.GetExitCode())
	require.Equal(t, "agent", x.Completed.GetUsageMethod())
	var want []byte
	for i := 1; i <= 100_000; i++ {
		want = fmt.Appendf(want, "%d\n", i)
	}
	require.Equal(t, string(want), string(w.stdout(agg)))
	count, err := os.ReadFile(filepath.Join(w.box.Workspace, "count"))
	require.NoError(t, err)
	require.Equal(t, "started\n", string(count), "it was started once")

	data, err := proto.Marshal(&commandsv1.FileCall{
		TenantId: "acme", SandboxId: w.box.SandboxID, Call: &commandsv1.FileCall_Read{Read: &commandsv1.ReadPart{Path: "count"}},
	})
	require.NoError(t, err)
	m, err := w.NC.Request(subject.Files("w1", "acme", w.box.SandboxID), data, 20*time.Second)
	require.NoError(t, err)
	reply := &commandsv1.FileReply{}
	require.NoError(t, proto.Unmarshal(m.Data, reply))
	require.Equal(t, "started\n", string(reply.GetData()), "%v", reply.GetError())
}

// The address of a pod that is gone is given to another one. Whether it is known by its key or only by its name and uid: what ran in
// the first is lost at once, and no call reaches the second.
func TestWhatRanBehindAnAddressThatIsAnotherPodsNowIsLost(t *testing.T) {
	for name, pinned := range map[string]bool{"by its key": true, "by its uid": false} {
		t.Run(name, func(t *testing.T) {
			first := agenttest.Host(t)
			w := newAgentWorld(t, first, pinned)
			// Only silence has the grace.
			stop := w.serve(time.Hour)
			defer stop()
			agg := w.run("echo on; sleep 600")
			require.Eventually(t, func() bool { return len(w.stdout(agg)) == 3 }, 60*time.Second, 5*time.Millisecond)
			first.Kill(t)
			second := agenttest.HostUnder(t, first.Authority, "-listen", first.Agent.Address)
			x := w.wait(agg)
			require.Equal(t, string(fault.ReasonSandboxLost), x.Lost.GetReason())
			require.Contains(t, x.Lost.GetMessage(), "belongs to another one")
			require.Equal(t, uint64(3), x.Lost.GetStdoutBytes())
			require.NotEqual(t, first.Agent.UID, second.Agent.UID)

			data, err := proto.Marshal(&commandsv1.FileCall{
				TenantId: "acme", SandboxId: first.SandboxID, Call: &commandsv1.FileCall_Read{Read: &commandsv1.ReadPart{Path: "count"}},
			})
			require.NoError(t, err)
			m, err := w.NC.Request(subject.Files("w1", "acme", first.SandboxID), data, 20*time.Second)
			require.NoError(t, err)
			reply := &commandsv1.FileReply{}
			require.NoError(t, proto.Unmarshal(m.Data, reply))
			require.Equal(t, string(fault.ReasonToolboxUnavailable), reply.GetError().GetReason())
		})
	}
}

func TestAgentCredentialsAreChecked(t *testing.T) {
	err := Config{StateDir: "/s", SealKeyFile: "/k", AgentCert: "/c"}.Validate()
	require.ErrorContains(t, err, "AgentCert, AgentKey")
	require.NoError(t, Config{SealKeyFile: "/k", AgentCert: "/c", AgentKey: "/k"}.Validate(), "no keepers, no directory")
	_, err = New(t.Context(), Config{SealKeyFile: "/k", AgentCert: "/none", AgentKey: "/none"}, Deps{})
	require.ErrorContains(t, err, "read the certificate for agents")
}
