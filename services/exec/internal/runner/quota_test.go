package runner

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/quota"
	tenants "github.com/sandtrail/sandtrail/libs/tenant"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// held are quotas that nobody changes.
type held tenants.Quotas

func (h held) Of(context.Context, string) (tenants.Quotas, error) { return tenants.Quotas(h), nil }

// allowance are quotas, and a budget that may be used up.
type allowance struct {
	held
	poor *atomic.Bool
}

func (a allowance) Admit(context.Context, string) error {
	if !a.poor.Load() {
		return nil
	}
	return fault.New(fault.ResourceExhausted, fault.ReasonBudgetExhausted, "the budget is used up").WithRetry(time.Hour)
}

// bounded is a service that holds the tenant to quotas.
func (r *rig) bounded(q tenants.Quotas) *service {
	r.t.Helper()
	shares, err := quota.NewShares(r.t.Context(), r.JS, "w1", nil)
	require.NoError(r.t, err)
	r.quotas, r.shares = held(q), shares
	return r.service(nil)
}

func TestExecsOverTheTenantsQuotaAreRefused(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, forever)
	s := r.bounded(tenants.Quotas{tenants.Execs: 2})
	one, two := r.exec(spec(), nil).send(), r.exec(spec(), nil).send()
	require.Nil(t, one.outcome().GetError())
	require.Nil(t, two.outcome().GetError())
	refused := r.exec(spec(), nil).send()
	o := refused.outcome().GetError()
	require.Equal(t, "quota", o.GetReason())
	require.Equal(t, "execs", o.GetQuota())
	require.EqualValues(t, 1, o.GetRetryAfterSeconds())
	require.Empty(t, refused.types(), "it never was")
	one.cancel()
	one.wait()
	require.Eventually(t, func() bool { return r.exec(spec(), nil).send().outcome().GetError() == nil }, 10*time.Second, 5*time.Millisecond, "a place is free when an exec has ended")

	// Who starts anew counts what goes on.
	s.stop()
	r.bounded(tenants.Quotas{tenants.Execs: 2})
	require.Equal(t, "execs", r.exec(spec(), nil).send().outcome().GetError().GetQuota())
}

// A command that is delivered again behind its own beginning is not refused, whatever else runs by then.
func TestAnExecThatHasBegunIsNeverRefused(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, forever)
	s := r.bounded(tenants.Quotas{tenants.Execs: 0})
	x := r.exec(spec(), nil)
	x.fenced()
	m := x.message()
	m.Attempt = 2
	go func() { _ = s.runner.Handle(r.t.Context(), m) }()
	require.Nil(t, x.outcome().GetError())
	y := r.exec(spec(), nil)
	m = y.message()
	m.Attempt = 2
	require.NoError(t, s.runner.Handle(r.t.Context(), m))
	require.Equal(t, "execs", y.outcome().GetError().GetQuota())
}

// Of a tenant whose budget is used up nothing begins, and what has begun goes on: also where its command is delivered again.
func TestExecsOverTheTenantsBudgetAreRefused(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, forever)
	s := r.bounded(tenants.Quotas{})
	one := r.exec(spec(), nil).send()
	require.Nil(t, one.outcome().GetError())
	r.poor.Store(true)
	refused := r.exec(spec(), nil).send()
	o := refused.outcome().GetError()
	require.Equal(t, "budget_exhausted", o.GetReason())
	require.EqualValues(t, 3600, o.GetRetryAfterSeconds())
	require.Empty(t, refused.types(), "it never was")
	begun := r.exec(spec(), nil)
	begun.fenced()
	m := begun.message()
	m.Attempt = 2
	go func() { _ = s.runner.Handle(r.t.Context(), m) }()
	require.Nil(t, begun.outcome().GetError())
	one.cancel()
	one.wait()
	r.poor.Store(false)
	require.Nil(t, r.exec(spec(), nil).send().outcome().GetError())
}

func TestOutputIsBoundedByTheTenantsQuota(t *testing.T) {
	r := newRig(t)
	r.starting()
	r.markReady()
	startKeeper(t, r.state, r.box, brief)
	r.bounded(tenants.Quotas{tenants.Output: 50_000})
	over := &eventsv1.ExecSpec{Command: "true", OutputLimitBytes: 50_001}
	require.Equal(t, "output_bytes", r.exec(over, nil).send().outcome().GetError().GetQuota())
	s := r.exec(spec(), nil).send().wait()
	require.EqualValues(t, 50_000, s.Spec.GetOutputLimitBytes())
	require.EqualValues(t, lot-100_000, s.Completed.GetStdout().GetDroppedBytes())
	less := &eventsv1.ExecSpec{Command: "true", OutputLimitBytes: 1000}
	require.EqualValues(t, 1000, r.exec(less, nil).send().wait().Spec.GetOutputLimitBytes())
}
