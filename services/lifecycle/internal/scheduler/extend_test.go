package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// ask hands a command about a sandbox to the scheduler and returns what was answered.
func (d *desk) ask(id string, cmd *commandsv1.SandboxCommand) *commandsv1.Outcome {
	d.t.Helper()
	sub, err := d.f.NC.SubscribeSync(d.f.NC.NewInbox())
	require.NoError(d.t, err)
	cmd.CommandId, cmd.TenantId, cmd.SandboxId, cmd.ReplyTo = ids.New(), tenant, id, sub.Subject
	data, err := proto.Marshal(cmd)
	require.NoError(d.t, err)
	require.NoError(d.t, d.s.Handle(d.t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 1}))
	m, err := sub.NextMsg(5 * time.Second)
	require.NoError(d.t, err)
	out := &commandsv1.Outcome{}
	require.NoError(d.t, proto.Unmarshal(m.Data, out))
	return out
}

func (d *desk) extend(id string, until time.Time) *commandsv1.Outcome {
	d.t.Helper()
	return d.ask(id, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Extend{Extend: &commandsv1.ExtendSandbox{ExpiresAt: timestamppb.New(until)}}})
}

func (d *desk) expire(id string) {
	d.t.Helper()
	out := d.ask(id, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Destroy{Destroy: &commandsv1.DestroySandbox{Reason: sandbox.ReasonExpired}}})
	require.Nil(d.t, out.GetError())
}

// Of more time and expiry one wins, and the log says which: who asks for the end because the time was over finds that it is not, and who asks for
// more time behind it is refused.
func TestMoreTimeAndExpiryExcludeEachOther(t *testing.T) {
	d := newDesk(t, w1())
	id := ids.New()
	data, err := proto.Marshal(&commandsv1.SandboxCommand{
		CommandId: "c", TenantId: tenant, SandboxId: id,
		Command: &commandsv1.SandboxCommand_Create{Create: &commandsv1.CreateSandbox{Image: "i", Limits: limits(time.Minute)}},
	})
	require.NoError(t, err)
	require.NoError(t, d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 1}))
	made, err := history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	until := made.ExpiresAt.Add(time.Hour)
	require.Nil(t, d.extend(id, until).GetError())
	d.at.Store(made.ExpiresAt.UnixNano())
	d.expire(id) // by a look at the log before it was extended
	require.NotEqual(t, sandbox.Destroying, d.state(id))
	require.Nil(t, d.extend(id, made.ExpiresAt).GetError(), "an earlier time changes nothing")
	s, err := history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	require.Equal(t, until, s.ExpiresAt)

	d.at.Store(until.UnixNano())
	require.Equal(t, string(fault.ReasonSandboxExpired), d.extend(id, until.Add(time.Hour)).GetError().GetReason())
	d.expire(id)
	require.Equal(t, sandbox.Destroying, d.state(id))
	require.Equal(t, string(fault.ReasonIllegalState), d.extend(id, until.Add(time.Hour)).GetError().GetReason())
	require.Equal(t, string(fault.ReasonSandboxNotFound), d.extend(ids.New(), until).GetError().GetReason())
}

func limits(runtime time.Duration) *eventsv1.Limits {
	return &eventsv1.Limits{MemoryBytes: 1 << 20, MaxRuntimeMs: uint64(runtime.Milliseconds())}
}

// Of use and the end of what is idle one is first, and the log says which: use behind the end is refused, and an end that goes by an older look finds
// that it was used.
func TestUseAndAnIdleEndExcludeEachOther(t *testing.T) {
	d := newDesk(t, w1())
	id := ids.New()
	data, err := proto.Marshal(&commandsv1.SandboxCommand{
		CommandId: "c", TenantId: tenant, SandboxId: id,
		Command: &commandsv1.SandboxCommand_Create{Create: &commandsv1.CreateSandbox{Image: "i", Limits: &eventsv1.Limits{IdleTimeoutMs: 60_000}}},
	})
	require.NoError(t, err)
	require.NoError(t, d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 1}))
	record := func(c sandbox.Command) sandbox.Sandbox {
		s, err := history.Record(t.Context(), d.log, tenant, id, fmt.Sprintf("%T", c), history.Meta{Time: d.now()}, func(sandbox.Sandbox) sandbox.Command { return c })
		require.NoError(t, err)
		return s
	}
	use := func(id string) *commandsv1.Outcome {
		return d.ask(id, &commandsv1.SandboxCommand{Command: &commandsv1.SandboxCommand_Use{Use: &commandsv1.UseSandbox{}}})
	}
	record(sandbox.Start{Worker: natstest.Worker, Attempt: 1})
	ready := record(sandbox.MarkReady{Worker: natstest.Worker})
	d.at.Add(int64(time.Minute))
	require.True(t, ready.Idle(d.now()))
	require.Nil(t, use(id).GetError())
	now, err := history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	require.False(t, now.Idle(d.now()))
	require.Nil(t, use(id).GetError())
	record(sandbox.Destroy{Reason: sandbox.ReasonIdle})
	require.Equal(t, string(fault.ReasonSandboxDestroyed), use(id).GetError().GetReason())
	require.Equal(t, string(fault.ReasonSandboxNotFound), use(ids.New()).GetError().GetReason())
}
