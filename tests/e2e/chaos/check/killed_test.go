package check_test

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
	toolbox "github.com/sandtrail/sandtrail/toolbox/client"
)

// finish attaches again and again behind what was seen, until the end of the exec or an answer that no further call changes.
func (c client) finish(exec string, after uint64) journal.Call {
	for {
		call := c.attach(exec, after)
		if call.End != nil || call.Answer == journal.Refused {
			return call
		}
		if n := len(call.Seen); n > 0 {
			after = call.Seen[n-1].Number
		}
		c.rest()
	}
}

// rest keeps a client that is turned away from asking without a pause.
func (c client) rest() {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-c.t.Context().Done():
	}
}

// process finds the one of a role.
func process(t *testing.T, s *stack.Stack, sandbox, role string) int {
	t.Helper()
	h, err := evidence.LookAtHost(worker, s.State, nil)
	require.NoError(t, err)
	i := slices.IndexFunc(h.Found, func(r evidence.Resource) bool { return r.Sandbox == sandbox && r.Role == role })
	require.GreaterOrEqual(t, i, 0, "no %s of sandbox %s", role, sandbox)
	return h.Found[i].PID
}

// ended waits until a program has ended that no service reads.
func ended(t *testing.T, s *stack.Stack, sandbox, exec string) {
	t.Helper()
	keeper := toolbox.New(toolbox.KeeperDialer(s.State, sandbox), "")
	require.Eventually(t, func() bool {
		list, err := keeper.List(t.Context(), &toolboxv1.List{})
		require.NoError(t, err)
		i := slices.IndexFunc(list.GetExecs(), func(x *toolboxv1.ExecState) bool { return x.GetExecId() == exec })
		require.GreaterOrEqual(t, i, 0, "its keeper does not know it")
		return list.GetExecs()[i].GetEnd() != nil
	}, time.Minute, 50*time.Millisecond)
}

func TestRunWithKilledProcessesHasNoViolation(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	s := stack.Processes(t, stack.Extra{"lifecycle": {"--max-sandboxes", fmt.Sprint(places)}})
	j := journal.New(2)
	c := client{t: t, api: s.API, j: j, name: "c1"}
	var boxes []string
	var begun []journal.Call
	for i := range places {
		box := c.create(fmt.Sprintf("create-%d", i)).Sandbox
		boxes = append(boxes, box)
		begun = append(begun, c.exec(box, "", journal.Program{
			Token: fmt.Sprintf("long-%d", i), StdoutLines: 300, StderrLines: 300, Width: 100, Step: 10 * time.Millisecond, ExitCode: 5,
		}, 20))
	}
	sample, err := evidence.SampleHost(worker, s.State)
	require.NoError(t, err)
	require.ElementsMatch(t, boxes, sample.Sandboxes)
	require.NoError(t, syscall.Kill(process(t, s, boxes[0], evidence.RoleSentry), syscall.SIGKILL))
	require.NoError(t, syscall.Kill(process(t, s, boxes[1], evidence.RoleKeeper), syscall.SIGKILL))
	// More than is kept while nobody reads it: a part of it is dropped, and told.
	flood := c.exec(boxes[2], "", journal.Program{Token: "flood", StdoutLines: 1600, Width: 32 << 10}, 1)
	begun = append(begun, flood)
	s.Kill("exec")
	ended(t, s, boxes[2], flood.Exec)
	for _, service := range []string{"lifecycle", "usage", "gateway"} {
		s.Kill(service)
		s.Respawn(service)
	}
	s.Respawn("exec")
	ends := make([]journal.Call, len(begun))
	var clients sync.WaitGroup
	for i, call := range begun {
		c := client{t: t, api: s.API, j: j, name: fmt.Sprintf("c%d", i+2)}
		clients.Go(func() { ends[i] = c.finish(call.Exec, call.Seen[len(call.Seen)-1].Number) })
	}
	clients.Wait()
	require.True(t, ends[0].End.Lost)
	require.True(t, ends[1].End.Lost)
	require.Equal(t, int32(5), ends[2].End.ExitCode)
	require.Zero(t, ends[3].End.ExitCode)
	require.NotZero(t, ends[3].End.Stdout.Dropped)

	collect := func() evidence.Evidence {
		e, err := evidence.Collect(t.Context(), evidence.Sources{
			JS: s.JS, ClickHouse: s.ClickHouse, StateDirs: map[string]string{worker: s.State},
			Limits: evidence.Limits{Sandboxes: map[string]int{worker: places}}, Samples: []evidence.Sample{sample},
		}, check.Open)
		require.NoError(t, err)
		t.Logf("%+v", e.Settled)
		return e
	}
	require.Empty(t, check.All(j.History(), collect()), "while sandboxes live")
	for _, box := range boxes {
		require.Equal(t, journal.Acknowledged, c.destroy(box).Answer)
	}
	require.Empty(t, check.All(j.History(), collect()), "once all are destroyed")
}
