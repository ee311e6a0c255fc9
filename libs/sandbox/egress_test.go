package sandbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func allowing(hosts ...string) *eventsv1.Egress {
	e := &eventsv1.Egress{}
	for _, h := range hosts {
		e.Allow = append(e.Allow, &eventsv1.EgressRule{Host: h})
	}
	return e
}

// The history of a sandbox stays bounded however often somebody changes its egress, and a view has that of now.
func TestAnEgressChangesABoundedNumberOfTimes(t *testing.T) {
	agg := subject.Sandbox("acme", sandboxID)
	h, state := eventlog.History{Aggregate: agg}, sandbox.Sandbox{ID: sandboxID, Tenant: "acme"}
	do := func(c sandbox.Command) error {
		bodies, err := sandbox.Decide(state, c)
		for _, r := range record(t, agg, h.Tail(), start.Add(time.Second), fmt.Sprint(len(h.Events)), bodies...) {
			var everr error
			state, everr = state.Evolve(r)
			require.NoError(t, everr)
			h.Events = append(h.Events, r)
		}
		return err
	}
	set := func(hosts ...string) error { return do(sandbox.SetEgress{Egress: allowing(hosts...)}) }
	require.True(t, fault.Is(set("a.example"), fault.ReasonSandboxNotFound))
	c := create()
	c.Egress = allowing("first.example")
	require.NoError(t, do(c))
	require.Equal(t, "first.example", state.View().GetRequested().GetEgress().GetAllow()[0].GetHost())
	require.NoError(t, set("first.example"))
	require.Len(t, h.Events, 1, "what it is already is no change")
	for i := range sandbox.MaxEgressSets {
		require.NoError(t, set(fmt.Sprintf("h%d.example", i)))
	}
	last := fmt.Sprintf("h%d.example", sandbox.MaxEgressSets-1)
	require.Equal(t, fault.ResourceExhausted, fault.CodeOf(set("more.example")))
	require.NoError(t, set(last))
	require.Len(t, h.Events, 1+sandbox.MaxEgressSets)
	require.Equal(t, last, state.View().GetRequested().GetEgress().GetAllow()[0].GetHost())
	require.Equal(t, "first.example", state.Requested.GetEgress().GetAllow()[0].GetHost(), "what was requested stands")
	require.True(t, proto.Equal(state.Egress, sandbox.FromView(state.View()).Egress))
	require.NoError(t, do(sandbox.Destroy{}))
	require.True(t, fault.Is(set("late.example"), fault.ReasonIllegalState))
}

func TestAnEgressThatIsNone(t *testing.T) {
	s := sandbox.Sandbox{ID: sandboxID, State: sandbox.Ready}
	_, err := sandbox.Decide(s, sandbox.SetEgress{})
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	_, err = sandbox.Decide(s, sandbox.SetEgress{Egress: allowing("127.0.0.1")})
	require.Contains(t, fault.From(err).Fields, "egress.allow[0].host")
	bodies, err := sandbox.Decide(s, sandbox.SetEgress{Egress: &eventsv1.Egress{}})
	require.NoError(t, err)
	require.Len(t, bodies, 1, "one without rules allows nothing, and asks are recorded")
}
