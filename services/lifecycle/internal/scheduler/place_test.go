package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
)

// placed hands a create to the scheduler and returns where it was placed and why, or why it was refused.
func (d *desk) placed(c *commandsv1.CreateSandbox) (on string, reasons []string, refused string) {
	d.t.Helper()
	inbox, id := d.f.NC.NewInbox(), ids.New()
	sub, err := d.f.NC.SubscribeSync(inbox)
	require.NoError(d.t, err)
	c.Image = "i"
	data, err := proto.Marshal(&commandsv1.SandboxCommand{
		CommandId: ids.New(), TenantId: tenant, SandboxId: id, ReplyTo: inbox, Command: &commandsv1.SandboxCommand_Create{Create: c},
	})
	require.NoError(d.t, err)
	require.NoError(d.t, d.s.Handle(d.t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 1}))
	m, err := sub.NextMsg(time.Minute)
	require.NoError(d.t, err)
	out := &commandsv1.Outcome{}
	require.NoError(d.t, proto.Unmarshal(m.Data, out))
	if out.GetError() != nil {
		require.Equal(d.t, string(fault.ReasonNoWorker), out.GetError().GetReason())
		return "", nil, out.GetError().GetMessage()
	}
	s, err := history.Load(d.t.Context(), d.log, tenant, id)
	require.NoError(d.t, err)
	return s.Worker, s.Requested.GetPlacement().GetReasons(), ""
}

// fleet is one worker for each thing that can be asked for. The tenant may have one sandbox, so that each question is a desk of its own.
func fleet() []*commandsv1.WorkerStatus {
	like := func(name string, change func(*commandsv1.WorkerStatus)) *commandsv1.WorkerStatus {
		w := w1()
		w.Worker = name
		change(w)
		return w
	}
	return []*commandsv1.WorkerStatus{
		w1(),
		like("w2-eu", func(w *commandsv1.WorkerStatus) { w.Region = "eu" }),
		like("w3-cloud", func(w *commandsv1.WorkerStatus) { w.Provider, w.Labels = "cloud", map[string]string{"disk": "fast"} }),
		like("w5-closed", func(w *commandsv1.WorkerStatus) { w.Cordoned = "a new kernel" }),
		like("w4-theirs", func(w *commandsv1.WorkerStatus) { w.Tenants = []string{"somebody"} }),
	}
}

func TestASandboxIsPlacedWhereItWasAskedForAndItSaysWhyNotElsewhere(t *testing.T) {
	for on, c := range map[string]struct {
		ask  *commandsv1.CreateSandbox
		says []string
	}{
		natstest.Worker: {&commandsv1.CreateSandbox{OnProvider: "local"}, []string{
			"2 of 5 workers fit", "fewest sandboxes: 1 of 10 places with this one",
			`w3-cloud: of provider "cloud", not "local"`, "w4-theirs: for other tenants", "w5-closed: cordoned: a new kernel", "w2-eu: has 0 sandboxes",
		}},
		"w2-eu": {&commandsv1.CreateSandbox{Region: "eu"}, []string{
			"1 of 5 workers fit", "fewest sandboxes: 1 of 10 places with this one",
			`w1: in region "", not "eu"`, `w3-cloud: in region "", not "eu"`, `w4-theirs: in region "", not "eu"`, `w5-closed: in region "", not "eu"`,
		}},
		"w3-cloud": {&commandsv1.CreateSandbox{WorkerLabels: map[string]string{"disk": "fast"}}, []string{
			"1 of 5 workers fit", "fewest sandboxes: 1 of 10 places with this one",
			`w1: its label "disk" is "", not "fast"`, `w2-eu: its label "disk" is "", not "fast"`, "w4-theirs: for other tenants", "w5-closed: cordoned: a new kernel",
		}},
	} {
		t.Run(on, func(t *testing.T) {
			got, reasons, refused := newDesk(t, fleet()...).placed(c.ask)
			require.Empty(t, refused)
			require.Equal(t, on, got)
			require.Equal(t, c.says, reasons)
		})
	}
}

func TestARefusalSaysWhatStandsAgainstEachWorker(t *testing.T) {
	d := newDesk(t, fleet()...)
	for want, c := range map[string]*commandsv1.CreateSandbox{
		`w4-theirs: for other tenants`:              {Worker: "w4-theirs"},
		`w5-closed: cordoned: a new kernel`:         {Worker: "w5-closed"},
		`w1: not the worker "w9"`:                   {Worker: "w9"},
		`w2-eu: of provider "local", not "cloud"`:   {Region: "eu", OnProvider: "cloud"},
		`w3-cloud: its label "disk" is "fast", not`: {WorkerLabels: map[string]string{"disk": "slow"}},
	} {
		_, _, refused := d.placed(c)
		require.Contains(t, refused, "none of the 5 workers is one that was asked for")
		require.Contains(t, refused, want)
	}
}

func TestAPlacementInALargeFleetSaysABoundedNumberOfReasons(t *testing.T) {
	var all []*commandsv1.WorkerStatus
	for i := range 40 {
		all = append(all, &commandsv1.WorkerStatus{Worker: fmt.Sprintf("v%02d", i), MaxSandboxes: 10, MemoryBytes: 1 << 30, CpuMillis: 1000})
	}
	d := newDesk(t, append(all, w1())...)
	on, reasons, _ := d.placed(&commandsv1.CreateSandbox{Worker: natstest.Worker})
	require.Equal(t, natstest.Worker, on)
	require.Len(t, reasons, 2+16+1)
	require.Equal(t, "and 24 more workers", reasons[18])
}
