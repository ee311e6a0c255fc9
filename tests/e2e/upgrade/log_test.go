package upgrade

import (
	"encoding/hex"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// comes is the type of an event that no version has.
const comes = "sandtrail.events.v1.OfAVersionToCome"

// replays folds every history in the log with this version's code and checks its chain. Which version wrote what is mixed.
func replays(t *testing.T, s *stack.Stack) {
	t.Helper()
	stream, err := s.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(subject.Events))
	require.NoError(t, err)
	require.NotEmpty(t, info.State.Subjects)
	log := jslog.New(s.JS)
	for subj := range info.State.Subjects {
		agg, err := subject.ParseEvent(subj)
		require.NoError(t, err)
		h, err := log.Load(t.Context(), agg)
		require.NoError(t, err)
		require.NoError(t, eventlog.Verify(h), subj)
		if n := len(h.Events); n > 0 && h.Events[n-1].Type == comes {
			h.Events = h.Events[:n-1]
		}
		switch agg.Kind {
		case subject.KindSandbox:
			_, err = sandbox.Fold(h)
		case subject.KindExec:
			_, err = sandbox.FoldExec(h)
		case subject.KindWorkspace:
			_, err = sandbox.FoldWorkspace(h)
		}
		require.NoError(t, err, subj)
	}
}

// future appends what a later version would write to a sandbox that is over and to an exec that has ended. What lists
// and bills skips it; who decides refuses, since it cannot know what the event allows. From this version on the one thing itself
// is shown as well.
func future(t *testing.T, s *stack.Stack, show bool) {
	t.Helper()
	id := s.Ready(t)
	r := s.Exec(t, id, "true")
	s.Destroy(t, id)
	over := func() bool { return listed(t, s, id).GetStatus() == computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED }
	require.Eventually(t, over, time.Minute, 50*time.Millisecond)
	appendUnknown(t, s, subject.Sandbox("acme", id))
	appendUnknown(t, s, subject.Exec("acme", id, r.ID))

	require.True(t, over())
	if show {
		require.Contains(t, s.SandboxEvents(t, id), "OfAVersionToCome")
		require.Equal(t, []string{"ExecStarted", "ExecCompleted", "OfAVersionToCome"}, s.ExecEvents(t, id, r.ID))
		require.Equal(t, computev1.SandboxStatus_SANDBOX_STATUS_DESTROYED, s.Describe(t, id).GetStatus())
		require.Equal(t, r.Completed.GetUsageEventId(), s.Receipt(t, r.ID).GetCompleted().GetUsageEventId())
	}
	for _, decide := range []func() error{
		func() error {
			_, err := s.API.DestroySandbox(t.Context(), &computev1.DestroySandboxRequest{SandboxId: id})
			return err
		},
		func() error {
			_, err := s.API.CancelExec(t.Context(), &computev1.CancelExecRequest{ExecId: r.ID})
			return err
		},
	} {
		err := decide()
		require.Equal(t, codes.Internal, status.Code(err), "%v", err)
		require.ErrorContains(t, err, "not known to this version")
	}
	// What stands behind it in the log is read as ever.
	whole(t, s)
}

// listed is a sandbox as the list of all shows it, ended ones among them.
func listed(t *testing.T, s *stack.Stack, id string) *computev1.DescribeSandboxResponse {
	t.Helper()
	list, err := s.API.ListSandboxes(t.Context(), &computev1.ListSandboxesRequest{})
	require.NoError(t, err)
	for _, b := range list.GetSandboxes() {
		if b.GetSandboxId() == id {
			return b
		}
	}
	require.Fail(t, "it is not in the list", id)
	return nil
}

// appendUnknown appends an event of a type that nobody knows, chained like any other.
func appendUnknown(t *testing.T, s *stack.Stack, agg subject.Aggregate) {
	t.Helper()
	h, err := jslog.New(s.JS).Load(t.Context(), agg)
	require.NoError(t, err)
	tail := h.Tail()
	m := nats.NewMsg(agg.Subject())
	m.Data = []byte{0x0a, 0x01, 'x'}
	m.Header.Set(envelope.HeaderID, ids.New())
	m.Header.Set(envelope.HeaderType, comes)
	m.Header.Set(envelope.HeaderSchema, strconv.Itoa(1))
	m.Header.Set(envelope.HeaderTenant, agg.Tenant)
	m.Header.Set(envelope.HeaderTime, time.Now().UTC().Format(time.RFC3339Nano))
	m.Header.Set(envelope.HeaderDigest, hex.EncodeToString(envelope.Digest(tail.Digest, m.Header, m.Data)))
	_, err = s.JS.PublishMsg(t.Context(), m, jetstream.WithExpectLastSequencePerSubject(tail.Seq))
	require.NoError(t, err)
}
