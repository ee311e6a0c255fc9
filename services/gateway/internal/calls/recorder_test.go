package calls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/audit"
	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
)

var (
	errScope  = fault.New(fault.PermissionDenied, fault.ReasonScope, "not you")
	errNoKey  = fault.New(fault.Unauthorized, fault.ReasonKeyMissing, "who are you")
	errBroken = errors.New("boom")
)

func newRecorder(t testing.TB, f *natstest.Fixture) *Recorder {
	t.Helper()
	r, err := New(f.NC, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	return r
}

func value(t *testing.T, c prometheus.Collector) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	all, err := registry.Gather()
	require.NoError(t, err)
	return all[0].GetMetric()[0].GetCounter().GetValue()
}

// by is the context of a call of somebody.
func (r *Recorder) by(t *testing.T, tenantID, actor, method string) context.Context {
	t.Helper()
	return principal.With(r.Begin(t.Context(), GRPC, method), principal.Principal{Tenant: tenantID, Actor: actor, Scopes: tenant.All})
}

// held are the calls that a recorder counts, and what it holds for that.
func (r *Recorder) held() (calls uint64, kinds int) {
	for _, c := range r.kinds {
		calls += c.GetCount()
	}
	return calls, len(r.kinds)
}

// Whoever has no credential is counted, in as many records as there are things to be refused, however long it knocks.
func TestStrangersTakeNoRoom(t *testing.T) {
	r := newRecorder(t, natstest.Start(t))
	const knocks = 50_000
	for i := range knocks {
		ctx := r.Begin(t.Context(), HTTP, []string{"create", "status", "none"}[i%3])
		About(ctx, subject.Sandbox("acme", ids.New())) // nothing says so before there is a credential
		r.Ended(ctx, time.Now(), errNoKey)
	}
	calls, kinds := r.held()
	require.EqualValues(t, knocks, calls)
	require.Equal(t, 3, kinds)
	require.Empty(t, r.queue)
	for k := range r.kinds {
		require.Equal(t, subject.NoTenant, k.tenant)
	}
	r.Ended(r.Begin(t.Context(), HTTP, "health"), time.Now(), nil)
	require.EqualValues(t, knocks, func() uint64 { calls, _ := r.held(); return calls }(), "what anybody may have is no call of somebody")
}

// One tenant with ever new actors is counted without them at last, and every call still is.
func TestATenantsActorsTakeNoRoom(t *testing.T) {
	r := newRecorder(t, natstest.Start(t))
	const each = 20
	sent := 0
	for actor := range 2000 {
		for range each {
			r.Ended(r.by(t, "acme", fmt.Sprintf("jwt:%d", actor), "GetExec"), time.Now(), errScope)
			sent++
		}
	}
	calls, kinds := r.held()
	require.Equal(t, sent, int(calls)+len(r.queue)) //nolint:gosec // small
	require.LessOrEqual(t, kinds, tenantKinds+1)
	require.GreaterOrEqual(t, len(r.queue), burst)
	require.Less(t, len(r.queue), sent/2)
	require.Contains(t, r.kinds, kind{tenant: "acme", api: GRPC, action: "GetExec", outcome: Refused, code: "permission_denied", reason: string(fault.ReasonScope)})
}

// With everything full a call is only a number.
func TestAllThatIsHeldIsBounded(t *testing.T) {
	r := newRecorder(t, natstest.Start(t))
	const tenants = queued + 2*kindsMost
	for i := range tenants {
		r.Ended(r.by(t, fmt.Sprintf("t%d", i), "key:k", "GetExec"), time.Now(), nil)
	}
	require.Len(t, r.queue, queued)
	_, kinds := r.held()
	require.Equal(t, kindsMost, kinds)
	require.LessOrEqual(t, len(r.rates), ratedMost)
	require.InDelta(t, kindsMost, value(t, r.dropped), 0)
	require.InDelta(t, queued, value(t, r.told), 0)
}

func TestRecordOfACall(t *testing.T) {
	r := newRecorder(t, natstest.Start(t))
	recorded := func(ctx context.Context, err error) *eventsv1.CallEnded {
		return record(ctx, ctx.Value(key{}).(*call), time.Now(), time.Now(), err)
	}
	box, exec := ids.New(), ids.New()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want *eventsv1.CallEnded
	}{
		"answered": {
			r.by(t, "acme", "key:k7", "GetExec"), nil,
			&eventsv1.CallEnded{TenantId: "acme", Actor: "key:k7", KeyId: "k7", Api: GRPC, Action: "GetExec", Outcome: OK},
		},
		"refused": {
			r.by(t, "acme", "jwt:agent", "GetExec"), errScope,
			&eventsv1.CallEnded{
				TenantId: "acme", Actor: "jwt:agent", Api: GRPC, Action: "GetExec", Outcome: Refused, Code: "permission_denied", Reason: string(fault.ReasonScope),
			},
		},
		"failed": {
			r.by(t, "acme", "dev", "GetExec"), errBroken,
			&eventsv1.CallEnded{TenantId: "acme", Actor: "dev", Api: GRPC, Action: "GetExec", Outcome: Failed, Code: "internal", Reason: "internal"},
		},
		"by a stranger": {
			r.Begin(t.Context(), HTTP, "write_file"), errNoKey,
			&eventsv1.CallEnded{TenantId: subject.NoTenant, Api: HTTP, Action: "WriteFile", Outcome: Refused, Code: "unauthorized", Reason: string(fault.ReasonKeyMissing)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := recorded(c.ctx, c.err)
			got.BeganAt, got.DurationUs = nil, 0
			c.want.Count = 1
			require.True(t, proto.Equal(c.want, got), "%v", got)
		})
	}
	ctx := r.by(t, "acme", "key:k", "GetExec")
	About(ctx, subject.Exec("acme", box, exec))
	got := recorded(ctx, nil)
	require.Equal(t, []string{box, exec}, []string{got.GetSandboxId(), got.GetExecId()})
	About(ctx, subject.Exec("acme", "no id", "nor this"))
	got = recorded(ctx, nil)
	require.Equal(t, []string{box, exec}, []string{got.GetSandboxId(), got.GetExecId()}, "what is no id is not kept")
	r.Ended(ctx, time.Now(), nil)
	r.Ended(ctx, time.Now(), errScope)
	r.Ended(t.Context(), time.Now(), nil)
	require.Len(t, r.queue, 1, "a call has one record, and none where none has begun")
}

// Records of a gateway go on through an outage of the log, each once and in chains that hold; what ended before a stop in order is stored.
func TestRecordsAreStoredOnceThroughAnOutageAndAStop(t *testing.T) {
	f := natstest.Start(t)
	r := newRecorder(t, f)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx, 10*time.Second) }()
	const n = 300
	tell := func(from int) {
		for i := from; i < from+n; i++ {
			r.Ended(r.by(t, []string{"acme", "globex"}[i%2], "key:k", fmt.Sprintf("M%d", i)), time.Now(), nil)
		}
	}
	tell(0)
	f.Stop()
	tell(n)
	f.Resume()
	tell(2 * n)
	r.Ended(r.Begin(t.Context(), HTTP, "create"), time.Now(), errNoKey) // counts are not waited for
	open := r.by(t, "acme", "key:k", "Last")
	stop()
	r.Ended(open, time.Now(), nil)
	<-done
	got, checked := map[string]int{}, audit.NewCalls()
	err := directget.Each(t.Context(), f.JS, topology.StreamCalls, subject.Calls, 1, func(m directget.Message) error {
		c := &eventsv1.CallEnded{}
		if err := proto.Unmarshal(m.Data, c); err != nil {
			return err
		}
		got[c.GetAction()]++
		return checked.Add(m)
	})
	require.NoError(t, err)
	require.Len(t, got, 3*n+2)
	for action, times := range got {
		require.Equal(t, 1, times, action)
	}
	report := checked.Report()
	require.True(t, report.OK(), "%v", report.Findings)
	require.EqualValues(t, 3, report.Chains)
	require.Zero(t, value(t, r.dropped))
}

// BenchmarkCall is what a call pays for its record, which others write.
func BenchmarkCall(b *testing.B) {
	r := newRecorder(b, natstest.Start(b))
	ctx := principal.With(b.Context(), principal.Principal{Tenant: "acme", Actor: "key:k", Scopes: tenant.All})
	done, stop := context.WithCancel(b.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(done, time.Second) }()
	for b.Loop() {
		r.Ended(r.Begin(ctx, GRPC, "GetExec"), time.Now(), nil)
	}
	stop()
	<-ended
}
