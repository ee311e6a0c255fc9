package dlq_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

var operator = dlq.Operator{Name: "ann", Note: "the disk is larger now"}

func stored(t *testing.T, f *natstest.Fixture, stream string) uint64 {
	t.Helper()
	s, err := f.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	return s.CachedInfo().State.Msgs
}

func decisions(t *testing.T, log eventlog.Log, i dlq.Info) []envelope.Recorded {
	t.Helper()
	h, err := log.Load(t.Context(), i.Aggregate())
	require.NoError(t, err)
	require.Equal(t, "acme", h.Aggregate.Tenant)
	return h.Events
}

func TestARedrivenCommandIsTheSameMessageAgain(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	q := dlq.New(f.JS, log)
	id := bury(t, f, command(1), "payload")
	r, err := q.Redrive(t.Context(), id, operator)
	require.NoError(t, err)
	require.False(t, r.Again)
	s, err := f.JS.Stream(t.Context(), topology.StreamCommands)
	require.NoError(t, err)
	m, err := s.GetMsg(t.Context(), r.Seq)
	require.NoError(t, err)
	require.Equal(t, command(1).Subject, m.Subject)
	require.Equal(t, "payload", string(m.Data))
	require.Equal(t, "c-1", m.Header.Get("Sandtrail-Correlation"))
	require.Empty(t, m.Header.Get("Sandtrail-Dead-Reason"))
	require.Zero(t, stored(t, f, topology.StreamDead))

	events := decisions(t, log, command(1))
	require.Len(t, events, 1)
	body, ok := events[0].Body.(*eventsv1.LetterRedriven)
	require.True(t, ok)
	require.Equal(t, "operator:ann", events[0].Actor)
	require.Equal(t, "c-1", events[0].Correlation)
	require.Equal(t, operator.Note, body.GetNote())
	sum := sha256.Sum256([]byte("payload"))
	require.Equal(t, sum[:], body.GetLetter().GetSha256())
	require.Equal(t, command(1).LetterID(), body.GetLetter().GetLetterId())
	require.Equal(t, "m-1", body.GetLetter().GetMessageId())

	_, err = q.Redrive(t.Context(), id, operator)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func TestRedrivesAtTheSameTimeHaveOneEffect(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	id := bury(t, f, command(1), "payload")
	var group sync.WaitGroup
	var first, done atomic.Int32
	for range 12 {
		group.Go(func() {
			r, err := dlq.New(f.JS, log).Redrive(t.Context(), id, operator)
			switch {
			case err == nil && !r.Again:
				first.Add(1)
				done.Add(1)
			case err == nil:
				done.Add(1)
			default:
				// It came when all was over.
				if fault.CodeOf(err) != fault.NotFound {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	require.EqualValues(t, 1, first.Load())
	require.Positive(t, done.Load())
	require.EqualValues(t, 1, stored(t, f, topology.StreamCommands))
	require.Zero(t, stored(t, f, topology.StreamDead))
	require.Len(t, decisions(t, log, command(1)), 1)
}

// broken is a log whose appends succeed and whose answers are lost, as for an operator who is killed there.
type broken struct{ eventlog.Log }

func (b broken) Append(ctx context.Context, agg subject.Aggregate, after eventlog.Tail, events ...envelope.Event) ([]envelope.Recorded, error) {
	if _, err := b.Log.Append(ctx, agg, after, events...); err != nil {
		return nil, err
	}
	return nil, errors.New("killed")
}

func TestAnInterruptedRedriveIsFinishedByTheNext(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	id := bury(t, f, command(1), "payload")
	_, err := dlq.New(f.JS, broken{log}).Redrive(t.Context(), id, operator)
	require.ErrorContains(t, err, "killed")
	require.Zero(t, stored(t, f, topology.StreamCommands))
	require.EqualValues(t, 1, stored(t, f, topology.StreamDead))

	q := dlq.New(f.JS, log)
	_, err = q.Drop(t.Context(), id, operator)
	require.True(t, fault.Is(err, fault.ReasonIllegalState), "what was decided stands: %v", err)
	r, err := q.Redrive(t.Context(), id, operator)
	require.NoError(t, err)
	require.True(t, r.Again)
	require.EqualValues(t, 1, stored(t, f, topology.StreamCommands))
	require.Zero(t, stored(t, f, topology.StreamDead))
	require.Len(t, decisions(t, log, command(1)), 1)
}

func TestDropIsRecordedAndFinal(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	q := dlq.New(f.JS, log)
	id := bury(t, f, command(1), "payload")
	_, err := dlq.New(f.JS, broken{log}).Drop(t.Context(), id, operator)
	require.ErrorContains(t, err, "killed")
	_, err = q.Redrive(t.Context(), id, operator)
	require.True(t, fault.Is(err, fault.ReasonIllegalState), "%v", err)
	require.Zero(t, stored(t, f, topology.StreamCommands))
	_, err = q.Drop(t.Context(), id, operator)
	require.NoError(t, err)
	_, err = q.Drop(t.Context(), id, operator)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
	require.Zero(t, stored(t, f, topology.StreamDead))
	events := decisions(t, log, command(1))
	require.Len(t, events, 1)
	require.IsType(t, &eventsv1.LetterDropped{}, events[0].Body)
}

// event is a letter of an event of consumer view-v1.
func event() dlq.Info {
	i := command(7)
	i.Service, i.Consumer, i.Stream, i.Subject = "lifecycle", "view-v1", topology.StreamEvents, subject.Sandbox("acme", "s1").Subject()
	return i
}

func TestARedrivenEventIsHandledAgainAndNeverPublished(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	q := dlq.New(f.JS, log)
	id := bury(t, f, event(), "payload")
	_, err := q.Redrive(t.Context(), id, operator)
	require.True(t, fault.Is(err, fault.ReasonWorkerUnavailable), "nobody runs the consumer: %v", err)
	require.Empty(t, decisions(t, log, event()))

	var (
		got  []uint64
		fail error
	)
	stop, err := dlq.Answer(t.Context(), f.NC, "view-v1", slog.New(slog.DiscardHandler), func(_ context.Context, seq uint64) error {
		got = append(got, seq)
		if fail == nil {
			panic("hunter2")
		}
		return fail
	})
	require.NoError(t, err)
	defer stop()
	for _, c := range []struct {
		fail   error
		reason fault.Reason
	}{
		{nil, dlq.CausePanic},
		{errors.New("hunter2"), fault.ReasonInternal},
		{fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "not in this state").Because(errors.New("hunter2")), fault.ReasonIllegalState},
	} {
		fail = c.fail
		_, err = q.Redrive(t.Context(), id, operator)
		require.True(t, fault.Is(err, c.reason), "%v", err)
		require.NotContains(t, err.Error(), "hunter2")
		require.Empty(t, decisions(t, log, event()), "what was not taken is not redriven")
		require.EqualValues(t, 1, stored(t, f, topology.StreamDead), "the letter stays")
	}
	require.Equal(t, []uint64{7, 7, 7}, got)
}

func TestAnEventThatItsConsumerTakesIsRedriven(t *testing.T) {
	f := natstest.Start(t)
	log := jslog.New(f.JS)
	q := dlq.New(f.JS, log)
	id := bury(t, f, event(), "payload")
	calls := 0
	stop, err := dlq.Answer(t.Context(), f.NC, "view-v1", slog.New(slog.DiscardHandler), func(context.Context, uint64) error {
		calls++
		return nil
	})
	require.NoError(t, err)
	defer stop()
	r, err := q.Redrive(t.Context(), id, operator)
	require.NoError(t, err)
	require.Zero(t, r.Seq)
	require.Equal(t, 1, calls)
	require.Len(t, decisions(t, log, event()), 1)
	require.EqualValues(t, 1, stored(t, f, topology.StreamEvents), "nothing but the decision was written to the log")
	_, err = q.Show(t.Context(), id)
	require.Equal(t, fault.NotFound, fault.CodeOf(err))
}

func TestOperatorsAreNamed(t *testing.T) {
	f := natstest.Start(t)
	q := dlq.New(f.JS, jslog.New(f.JS))
	id := bury(t, f, command(1), "payload")
	for _, bad := range []dlq.Operator{{}, {Name: "a b"}, {Name: "ann", Note: string(make([]byte, dlq.MaxNote+1))}} {
		_, err := q.Redrive(t.Context(), id, bad)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
		_, err = q.Drop(t.Context(), id, bad)
		require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
	}
}

func TestALetterOfNobodysTenantIsNobodys(t *testing.T) {
	for s, tenant := range map[string]string{
		"cmd.sandbox.acme.s": "acme", "cmd.worker.w1.acme.s": "acme", "cmd.exec.w1.acme.s.x": "acme", "evt.acme.sandbox.s": "acme",
		"evt.acme.tenant": "acme", "out.acme.s.x": "acme", "cmd.sandbox": subject.NoTenant, "cmd": subject.NoTenant, "": subject.NoTenant,
		"cmd.worker.w1": subject.NoTenant, "foo.acme": subject.NoTenant, "evt.a b.x": subject.NoTenant, "evt._none.sandbox.s": subject.NoTenant,
	} {
		require.Equal(t, tenant, subject.TenantOf(s), s)
		require.NoError(t, dlq.Info{Consumer: "c", Subject: s}.Aggregate().Validate())
	}
	require.False(t, subject.ValidTenant(subject.NoTenant))
}
