package tenant

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Quota names one bound on what a tenant uses.
type Quota string

// The quotas. All but Output, Creates and Keys are sums over what the tenant has at once.
const (
	// Sandboxes that are not over yet.
	Sandboxes Quota = "sandboxes"
	// Creates that were accepted in any 60 seconds.
	Creates Quota = "creates_per_minute"
	// Execs that were accepted and have not ended.
	Execs Quota = "execs"
	// CPU is thousandths of a core, Memory and Workspace are bytes: what the sandboxes may use, not what they do use.
	CPU       Quota = "cpu_millis"
	Memory    Quota = "memory_bytes"
	Workspace Quota = "workspace_bytes"
	// Output is how many bytes of each stream of one command are recorded as they come.
	Output Quota = "output_bytes"
	// Keys for idempotency that are remembered, which each is for a day: no more new ones than that in any 24 to 25 hours.
	Keys Quota = "idempotency_keys"
)

// Unbounded as a limit says that there is none, also where the deployment has one.
const Unbounded uint64 = math.MaxUint64

// AllQuotas are all there are, in the order in which they are shown.
func AllQuotas() []Quota {
	return []Quota{Sandboxes, Creates, Execs, CPU, Memory, Workspace, Output, Keys}
}

// Known reports whether q is one of them.
func (q Quota) Known() bool { return slices.Contains(AllQuotas(), q) }

// Quotas are limits by their names. What is not there is not bounded.
type Quotas map[Quota]uint64

// Limit is that of a quota; false: there is none.
func (q Quotas) Limit(name Quota) (uint64, bool) {
	limit, ok := q[name]
	return limit, ok && limit != Unbounded
}

// Over are the quotas of a tenant where these are the deployment's: its own where it has one.
func (q Quotas) Over(deployment Quotas) Quotas {
	all := Quotas{}
	maps.Copy(all, deployment)
	maps.Copy(all, q)
	return all
}

// Validate says which names are those of no quota.
func (q Quotas) Validate() error {
	for name := range q {
		if !name.Known() {
			return fmt.Errorf("quota: %q is none of %v", name, AllQuotas())
		}
	}
	return nil
}

// ParseQuotas takes them as a configuration has them: by names, in numbers.
func ParseQuotas(given map[string]uint64) Quotas {
	q := Quotas{}
	for name, limit := range given {
		q[Quota(name)] = limit
	}
	return q
}

// SetQuota changes limits of a tenant that is there. Those in Unset are the deployment's again.
type SetQuota struct {
	Set   Quotas
	Unset []Quota
	Note  string
}

func (c SetQuota) decide(t Tenant) ([]proto.Message, error) {
	if !t.Exists() {
		return nil, notThere(t.ID)
	}
	if err := text("note", c.Note, MaxNote); err != nil {
		return nil, err
	}
	next := c.Set.Over(t.Quotas)
	for _, name := range c.Unset {
		delete(next, name)
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(c.Set)), c.Unset) {
		if !name.Known() {
			return nil, invalid("limits", fmt.Sprintf("%.64q is no quota", string(name)))
		}
	}
	if maps.Equal(next, t.Quotas) {
		return nil, nil
	}
	e := &eventsv1.QuotaSet{Note: c.Note}
	for _, name := range slices.Sorted(maps.Keys(next)) {
		e.Limits = append(e.Limits, &eventsv1.QuotaLimit{Name: string(name), Limit: next[name]})
	}
	return []proto.Message{e}, nil
}

// quotasOf are those of an event. One that this version does not know bounds nothing here.
func quotasOf(e *eventsv1.QuotaSet) Quotas {
	q := Quotas{}
	for _, l := range e.GetLimits() {
		q[Quota(l.GetName())] = l.GetLimit()
	}
	return q
}
