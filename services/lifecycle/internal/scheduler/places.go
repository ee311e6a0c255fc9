package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// MaxPlaces bounds how many sandboxes one worker may be allowed, so that an entry stays below the bucket's 256 KiB.
const MaxPlaces = 1500

// Places counts who takes up a place of a worker, and beside it what tenants use of their quotas. Each count is one entry of a bucket,
// changed by compare and set: it is exact with any number of schedulers. What it holds can be rebuilt from the log.
type Places struct {
	// Quotas count what tenants' sandboxes use.
	Quotas *quota.Ledgers

	entries *bucket.Entries[holders]
	now     func() time.Time
}

// holders are the sandboxes that take up places, by their ids.
type holders map[string]Holder

// Clone shares nothing with h.
func (h holders) Clone() holders {
	if h == nil {
		return holders{}
	}
	return maps.Clone(h)
}

// Holder is a sandbox that takes up a place.
type Holder struct {
	Tenant string `json:"t"`
	// Since is unix seconds.
	Since int64 `json:"s"`
}

// FullError says that a worker has no place left.
type FullError struct{ Limit int }

func (e *FullError) Error() string { return fmt.Sprintf("all %d places are taken", e.Limit) }

// NewPlaces counts in the buckets of places and of quotas.
func NewPlaces(ctx context.Context, js jetstream.JetStream, now func() time.Time) (*Places, error) {
	entries, err := bucket.NewEntries[holders](ctx, js, topology.BucketPlace)
	if err != nil {
		return nil, err
	}
	quotas, err := quota.NewLedgers(ctx, js, now)
	if err != nil {
		return nil, err
	}
	return &Places{Quotas: quotas, entries: entries, now: now}, nil
}

// OfWorker is the key of a worker's places.
func OfWorker(worker string) string { return "worker." + worker }

// Take takes a place for a sandbox, or gives *FullError. A sandbox that has one already keeps it.
func (p *Places) Take(ctx context.Context, key, tenant, id string, limit int) error {
	return p.change(ctx, key, func(h holders) (bool, error) {
		if _, ok := h[id]; ok {
			return false, nil
		}
		if len(h) >= limit {
			return false, &FullError{Limit: limit}
		}
		h[id] = Holder{Tenant: tenant, Since: p.now().Unix()}
		return true, nil
	})
}

// Free gives a place back. Without one nothing happens.
func (p *Places) Free(ctx context.Context, key, id string) error {
	return p.change(ctx, key, func(h holders) (bool, error) {
		_, ok := h[id]
		delete(h, id)
		return ok, nil
	})
}

// Release gives back all that a sandbox takes up of which nothing runs any more.
func (p *Places) Release(ctx context.Context, tenant, worker, id string) error {
	return errors.Join(p.Free(ctx, OfWorker(worker), id), p.Quotas.Free(ctx, tenant, id))
}

// Rest gives back what a sandbox does not take up while it is stopped: its place, its CPU and its memory.
func (p *Places) Rest(ctx context.Context, tenant, worker, id string) error {
	return errors.Join(p.Free(ctx, OfWorker(worker), id), p.Quotas.Rest(ctx, tenant, id))
}

// Undo is Release for one that never came to be.
func (p *Places) Undo(ctx context.Context, tenant, worker, id string) error {
	return errors.Join(p.Free(ctx, OfWorker(worker), id), p.Quotas.Undo(ctx, tenant, id))
}

// Used is how many places of a key are taken, as of this process's last look.
func (p *Places) Used(ctx context.Context, key string) (int, error) {
	h, err := p.Holders(ctx, key)
	return len(h), err
}

// Holders reads who holds the places of a key.
func (p *Places) Holders(ctx context.Context, key string) (map[string]Holder, error) {
	var out map[string]Holder
	err := p.change(ctx, key, func(h holders) (bool, error) {
		out = maps.Clone(h)
		return false, nil
	})
	return out, err
}

// Keys lists every key that was ever counted.
func (p *Places) Keys(ctx context.Context) ([]string, error) {
	keys, err := p.entries.Keys(ctx)
	slices.Sort(keys)
	return keys, err
}

// change applies f to the holders of a key until its result is stored.
func (p *Places) change(ctx context.Context, key string, f func(holders) (bool, error)) error {
	err := p.entries.Change(ctx, key, func(h *holders) (bool, error) { return f(*h) })
	var full *FullError
	switch {
	case err == nil, errors.As(err, &full):
		return err
	case errors.Is(err, bucket.ErrContended):
		return fault.New(fault.Unavailable, fault.ReasonConflict, "too many sandboxes are created at the same time").WithRetry(time.Second).Because(err)
	default:
		return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the places cannot be counted now").Because(err).WithRetry(time.Second)
	}
}

func unavailable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the places cannot be counted now").Because(err).WithRetry(time.Second)
}
