package quota

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// MaxSandboxes of one tenant at once, whatever its quota says, so that its entry stays below the bucket's size of a value.
const MaxSandboxes = 8000

// minute is what creates are counted over: whole seconds, so that the window is up to one second longer and never shorter.
const minute = 61

// Size is what a sandbox takes of a tenant's quotas beside its place.
type Size struct {
	CPUMillis, MemoryBytes, WorkspaceBytes uint64
}

// Holder is a sandbox that takes up quota.
type Holder struct {
	// Since is unix seconds.
	Since     int64  `json:"s"`
	CPU       uint64 `json:"c,omitempty"`
	Memory    uint64 `json:"m,omitempty"`
	Workspace uint64 `json:"w,omitempty"`
}

// Ledger is a tenant's sandboxes, and in which seconds how many were accepted.
type Ledger struct {
	Holders map[string]Holder `json:"h,omitempty"`
	Creates map[int64]uint64  `json:"r,omitempty"`
}

// Clone shares nothing with l.
func (l Ledger) Clone() Ledger {
	c := Ledger{Holders: maps.Clone(l.Holders), Creates: maps.Clone(l.Creates)}
	if c.Holders == nil {
		c.Holders = map[string]Holder{}
	}
	if c.Creates == nil {
		c.Creates = map[int64]uint64{}
	}
	return c
}

// Used is what is in use at now.
func (l Ledger) Used(now time.Time) tenant.Quotas {
	used := tenant.Quotas{
		tenant.Sandboxes: uint64(len(l.Holders)), tenant.CPU: 0, tenant.Memory: 0, tenant.Workspace: 0, tenant.Creates: 0,
	}
	for _, h := range l.Holders {
		used[tenant.CPU] += h.CPU
		used[tenant.Memory] += h.Memory
		used[tenant.Workspace] += h.Workspace
	}
	for at, n := range l.Creates {
		if at > now.Unix()-minute {
			used[tenant.Creates] += n
		}
	}
	return used
}

// take adds a sandbox, or says which limit it would go over.
func (l *Ledger) take(id, sandbox string, size Size, limits tenant.Quotas, now time.Time) error {
	used := l.Used(now)
	wants := tenant.Quotas{
		tenant.Sandboxes: 1, tenant.Creates: 1, tenant.CPU: size.CPUMillis, tenant.Memory: size.MemoryBytes, tenant.Workspace: size.WorkspaceBytes,
	}
	for _, q := range tenant.AllQuotas() {
		limit, bounded := limits.Limit(q)
		if q == tenant.Sandboxes && (!bounded || limit > MaxSandboxes) {
			limit, bounded = MaxSandboxes, true
		}
		if want, counted := wants[q]; !counted || !bounded || want <= limit && used[q] <= limit-want {
			continue
		}
		switch q {
		case tenant.Creates:
			return Exceeded(id, q, limit, used[q], 1, l.room(now))
		default:
			return Exceeded(id, q, limit, used[q], wants[q], wait, slices.Sorted(maps.Keys(l.Holders))...)
		}
	}
	l.put(sandbox, size, now)
	l.Creates[now.Unix()]++
	maps.DeleteFunc(l.Creates, func(at int64, _ uint64) bool { return at <= now.Unix()-minute })
	return nil
}

func (l *Ledger) put(sandbox string, size Size, now time.Time) {
	l.Holders[sandbox] = Holder{Since: now.Unix(), CPU: size.CPUMillis, Memory: size.MemoryBytes, Workspace: size.WorkspaceBytes}
}

// room is when the oldest create of the window leaves it.
func (l Ledger) room(now time.Time) time.Duration {
	var oldest int64
	for at := range l.Creates {
		if at > now.Unix()-minute && (oldest == 0 || at < oldest) {
			oldest = at
		}
	}
	if oldest == 0 {
		return minute * time.Second
	}
	return max(time.Second, time.Duration(oldest+minute-now.Unix())*time.Second)
}

// Ledgers are those of all tenants.
type Ledgers struct {
	entries *bucket.Entries[Ledger]
	now     func() time.Time
}

// NewLedgers counts in the bucket of quotas.
func NewLedgers(ctx context.Context, js jetstream.JetStream, now func() time.Time) (*Ledgers, error) {
	entries, err := bucket.NewEntries[Ledger](ctx, js, topology.BucketQuota)
	if err != nil {
		return nil, err
	}
	return &Ledgers{entries: entries, now: now}, nil
}

// Take counts a sandbox of a tenant, or gives the fault of the limit that it would go over, with that quota's name. One that is counted
// already stays so.
func (l *Ledgers) Take(ctx context.Context, id, sandbox string, size Size, limits tenant.Quotas) error {
	return shownErr(l.entries.Change(ctx, SandboxesKey(id), func(x *Ledger) (bool, error) {
		if _, counted := x.Holders[sandbox]; counted {
			return false, nil
		}
		err := x.take(id, sandbox, size, limits, l.now())
		return err == nil, err
	}))
}

// Restore counts a sandbox that exists, over every limit too.
func (l *Ledgers) Restore(ctx context.Context, id, sandbox string, size Size) error {
	return shownErr(l.entries.Change(ctx, SandboxesKey(id), func(x *Ledger) (bool, error) {
		if _, counted := x.Holders[sandbox]; counted {
			return false, nil
		}
		x.put(sandbox, size, l.now())
		return true, nil
	}))
}

// Rest counts no CPU and no memory of a sandbox that is stopped. Its disk and the sandbox itself stay counted.
func (l *Ledgers) Rest(ctx context.Context, id, sandbox string) error {
	return l.rest(ctx, id, sandbox, func(Holder) bool { return true })
}

// RestOf is Rest unless the sandbox was counted anew since it was looked at.
func (l *Ledgers) RestOf(ctx context.Context, id, sandbox string, seen Holder) error {
	return l.rest(ctx, id, sandbox, func(h Holder) bool { return h == seen })
}

func (l *Ledgers) rest(ctx context.Context, id, sandbox string, may func(Holder) bool) error {
	return shownErr(l.entries.Change(ctx, SandboxesKey(id), func(x *Ledger) (bool, error) {
		h, counted := x.Holders[sandbox]
		if !counted || h.CPU == 0 && h.Memory == 0 || !may(h) {
			return false, nil
		}
		h.CPU, h.Memory = 0, 0
		x.Holders[sandbox] = h
		return true, nil
	}))
}

// Wake counts CPU and memory of a sandbox again that is started, or gives the fault of the limit that it would go over. It is no create.
// One that is counted with them already stays so, from now on.
func (l *Ledgers) Wake(ctx context.Context, id, sandbox string, size Size, limits tenant.Quotas) error {
	return shownErr(l.entries.Change(ctx, SandboxesKey(id), func(x *Ledger) (bool, error) {
		h := x.Holders[sandbox]
		if h.CPU == size.CPUMillis && h.Memory == size.MemoryBytes && h.Workspace == size.WorkspaceBytes {
			x.put(sandbox, size, l.now())
			return x.Holders[sandbox] != h, nil
		}
		delete(x.Holders, sandbox)
		used := x.Used(l.now())
		wants := tenant.Quotas{tenant.CPU: size.CPUMillis, tenant.Memory: size.MemoryBytes}
		for _, q := range tenant.AllQuotas() {
			limit, bounded := limits.Limit(q)
			if want, asked := wants[q]; asked && bounded && (want > limit || used[q] > limit-want) {
				return false, Exceeded(id, q, limit, used[q], want, wait, slices.Sorted(maps.Keys(x.Holders))...)
			}
		}
		x.put(sandbox, size, l.now())
		return true, nil
	}))
}

// Free counts a sandbox no longer. Its create stays one of its minute.
func (l *Ledgers) Free(ctx context.Context, id, sandbox string) error {
	return l.free(ctx, id, sandbox, false)
}

// Undo is Free for a sandbox that came never to be: its create counts no longer either.
func (l *Ledgers) Undo(ctx context.Context, id, sandbox string) error {
	return l.free(ctx, id, sandbox, true)
}

func (l *Ledgers) free(ctx context.Context, id, sandbox string, undo bool) error {
	return shownErr(l.entries.Change(ctx, SandboxesKey(id), func(x *Ledger) (bool, error) {
		h, counted := x.Holders[sandbox]
		delete(x.Holders, sandbox)
		if counted && undo {
			if n := x.Creates[h.Since]; n > 1 {
				x.Creates[h.Since] = n - 1
			} else {
				delete(x.Creates, h.Since)
			}
		}
		return counted, nil
	}))
}

// Holders are the sandboxes that are counted for a tenant.
func (l *Ledgers) Holders(ctx context.Context, id string) (map[string]Holder, error) {
	var out map[string]Holder
	err := l.entries.Change(ctx, SandboxesKey(id), func(x *Ledger) (bool, error) {
		out = x.Clone().Holders
		return false, nil
	})
	return out, shownErr(err)
}

// Tenants are those that anything was ever counted for.
func (l *Ledgers) Tenants(ctx context.Context) ([]string, error) {
	keys, err := l.entries.Keys(ctx)
	if err != nil {
		return nil, shownErr(err)
	}
	return slices.DeleteFunc(keys, func(k string) bool { return strings.HasSuffix(k, execsEnd) }), nil
}
