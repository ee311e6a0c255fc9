package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// A command that is delivered once more, behind a later one, changes nothing.
func TestLabelsAreThoseOfTheLastCommand(t *testing.T) {
	d := newDesk(t, w1())
	id := ids.New()
	data, err := proto.Marshal(&commandsv1.SandboxCommand{
		CommandId: "c", TenantId: tenant, SandboxId: id,
		Command: &commandsv1.SandboxCommand_Create{Create: &commandsv1.CreateSandbox{Image: "i", Limits: limits(time.Hour), Labels: map[string]string{"team": "a"}}},
	})
	require.NoError(t, err)
	require.NoError(t, d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 1}))
	label := func(labels map[string]string) *commandsv1.SandboxCommand {
		return &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Label{Label: &commandsv1.LabelSandbox{Labels: labels}}}
	}
	first := label(map[string]string{"team": "b", "tier": "1"})
	require.Nil(t, d.ask(id, first).GetError())
	require.Nil(t, d.ask(id, label(map[string]string{"team": "c"})).GetError())
	data, err = proto.Marshal(first)
	require.NoError(t, err)
	require.NoError(t, d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 2}))
	s, err := history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"team": "c"}, s.Labels)
	require.Equal(t, map[string]string{"team": "a"}, s.Requested.GetLabels(), "what was requested stands")
	before := s.Seq
	require.Nil(t, d.ask(id, label(map[string]string{"team": "c"})).GetError())
	require.Nil(t, d.ask(id, label(nil)).GetError())
	s, err = history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	require.Empty(t, s.Labels)
	require.Empty(t, s.View().GetRequested().GetLabels())
	require.Equal(t, before+1, s.Seq, "the same labels are no event")

	_, err = history.Record(t.Context(), d.log, tenant, id, "end", history.Meta{Time: d.now()}, func(sandbox.Sandbox) sandbox.Command { return sandbox.Destroy{} })
	require.NoError(t, err)
	require.Equal(t, string(fault.ReasonIllegalState), d.ask(id, label(map[string]string{"late": "1"})).GetError().GetReason())
	require.Equal(t, string(fault.ReasonSandboxNotFound), d.ask(ids.New(), label(nil)).GetError().GetReason())
}
