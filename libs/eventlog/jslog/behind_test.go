package jslog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func TestWhatAReplicaDoesNotShowYetIsNotTakenForMissing(t *testing.T) {
	t.Run("one server", func(t *testing.T) { notMissing(t, natstest.Start(t)) })
	t.Run("three servers", func(t *testing.T) { notMissing(t, natstest.Cluster(t)) })
}

func notMissing(t *testing.T, f *natstest.Fixture) {
	truth, behind := jslog.New(f.JS), jslog.New(f.Behind(t, f.NC, time.Second))
	// fresh is a sandbox that was recorded a moment ago. That the replica does not show it is tried each time: the machine may be slow.
	fresh := func() (subject.Aggregate, uint64) {
		for {
			agg := subject.Sandbox("acme", ids.New())
			stored, err := truth.Append(t.Context(), agg, eventlog.Tail{}, event())
			require.NoError(t, err)
			h, err := behind.Load(t.Context(), agg)
			require.NoError(t, err)
			if len(h.Events) == 0 {
				return agg, stored[0].Seq
			}
		}
	}
	agg, seq := fresh()
	last, err := behind.LastSeq(t.Context(), agg)
	require.NoError(t, err)
	require.Equal(t, seq, last)

	agg, seq = fresh()
	h, err := eventlog.Current(t.Context(), behind, agg)
	require.NoError(t, err)
	require.Equal(t, seq, h.Tail().Seq)

	agg, seq = fresh()
	h, err = eventlog.Known(t.Context(), behind, agg)
	require.NoError(t, err)
	require.Equal(t, seq, h.Tail().Seq)

	agg, _ = fresh()
	found, err := behind.Find(t.Context(), subject.AnyTenantSandbox(agg.ID))
	require.NoError(t, err)
	require.Equal(t, agg, found)

	absent := errors.New("there is no such sandbox")
	agg, seq = fresh()
	h, err = eventlog.Execute(t.Context(), behind, agg, func(h eventlog.History) ([]envelope.Event, error) {
		if len(h.Events) == 0 {
			return nil, absent
		}
		return nil, nil
	})
	require.NoError(t, err, "a refusal on a past that a replica showed")
	require.Equal(t, seq, h.Tail().Seq)

	agg, seq = fresh()
	h, err = eventlog.Execute(t.Context(), behind, agg, func(h eventlog.History) ([]envelope.Event, error) {
		return []envelope.Event{event()}, nil
	})
	require.NoError(t, err, "an append behind a past that a replica showed")
	require.Len(t, h.Events, 2)
	require.Equal(t, seq, h.Events[0].Seq)

	unknown := subject.Sandbox("acme", ids.New())
	h, err = eventlog.Known(t.Context(), behind, unknown)
	require.NoError(t, err)
	require.Empty(t, h.Events)
	_, err = behind.Find(t.Context(), subject.AnyTenantSandbox(unknown.ID))
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	_, err = eventlog.Execute(t.Context(), behind, unknown, func(eventlog.History) ([]envelope.Event, error) { return nil, absent })
	require.ErrorIs(t, err, absent)
}

func event() envelope.Event {
	return sandbox.Events(sandbox.CommandMeta{ID: ids.New(), Time: time.Now(), Tenant: "acme"},
		&eventsv1.SandboxRequested{ExpiresAt: timestamppb.Now()})[0]
}
