package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// MaxPlaces bounds how many sandboxes one worker or tenant may be allowed, so that an entry stays below the bucket's 256 KiB.
const MaxPlaces = 1500

// Places counts who takes up a place of a worker or of a tenant's quota. Each count is one entry of a bucket, changed by compare
// and set: it is exact with any number of schedulers. What it holds can be rebuilt from the log.
type Places struct {
	kv  jetstream.KeyValue
	now func() time.Time

	mu    sync.Mutex
	known map[string]*count
}

// count is what this process last saw of an entry. Its mutex makes callers here queue instead of losing races.
type count struct {
	mu       sync.Mutex
	revision uint64
	holders  map[string]Holder
	fresh    bool
}

// Holder is a sandbox that takes up a place.
type Holder struct {
	Tenant string `json:"t"`
	// Since is unix seconds.
	Since int64 `json:"s"`
}

// FullError says who holds the places.
type FullError struct {
	Limit   int
	Holders []string
}

func (e *FullError) Error() string { return fmt.Sprintf("all %d places are taken", e.Limit) }

// casAttempts bounds the races lost against other processes before the caller is told to try again.
const casAttempts = 50

// NewPlaces counts in the bucket place.
func NewPlaces(ctx context.Context, js jetstream.JetStream, now func() time.Time) (*Places, error) {
	kv, err := js.KeyValue(ctx, topology.BucketPlace)
	if err != nil {
		return nil, fmt.Errorf("open the bucket of places: %w", err)
	}
	return &Places{kv: kv, now: now, known: map[string]*count{}}, nil
}

// OfWorker is the key of a worker's places, OfTenant that of a tenant's.
func OfWorker(worker string) string { return "worker." + worker }

// OfTenant is the key of a tenant's places.
func OfTenant(tenant string) string { return "tenant." + tenant }

// Take takes a place for a sandbox, or gives *FullError. A sandbox that has one already keeps it.
func (p *Places) Take(ctx context.Context, key, tenant, id string, limit int) error {
	return p.change(ctx, key, func(h map[string]Holder) (bool, error) {
		if _, ok := h[id]; ok {
			return false, nil
		}
		if len(h) >= limit {
			return false, &FullError{Limit: limit, Holders: slices.Sorted(maps.Keys(h))}
		}
		h[id] = Holder{Tenant: tenant, Since: p.now().Unix()}
		return true, nil
	})
}

// Free gives a place back. Without one nothing happens.
func (p *Places) Free(ctx context.Context, key, id string) error {
	return p.change(ctx, key, func(h map[string]Holder) (bool, error) {
		_, ok := h[id]
		delete(h, id)
		return ok, nil
	})
}

// Release gives back every place of a sandbox of which nothing runs any more.
func (p *Places) Release(ctx context.Context, tenant, worker, id string) error {
	return errors.Join(p.Free(ctx, OfWorker(worker), id), p.Free(ctx, OfTenant(tenant), id))
}

// Used is how many places of a key are taken, as of this process's last look.
func (p *Places) Used(ctx context.Context, key string) (int, error) {
	h, err := p.Holders(ctx, key)
	return len(h), err
}

// Holders reads who holds the places of a key.
func (p *Places) Holders(ctx context.Context, key string) (map[string]Holder, error) {
	var out map[string]Holder
	err := p.change(ctx, key, func(h map[string]Holder) (bool, error) {
		out = maps.Clone(h)
		return false, nil
	})
	return out, err
}

// Keys lists every key that was ever counted.
func (p *Places) Keys(ctx context.Context) ([]string, error) {
	l, err := p.kv.ListKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the places: %w", err)
	}
	defer func() { _ = l.Stop() }()
	var keys []string
	for k := range l.Keys() {
		keys = append(keys, k)
	}
	return keys, nil
}

func (p *Places) count(key string) *count {
	p.mu.Lock()
	defer p.mu.Unlock()
	c, ok := p.known[key]
	if !ok {
		c = &count{}
		p.known[key] = c
	}
	return c
}

// change applies f to the holders of a key until its result is stored. What f refuses or leaves alone is only believed when it
// was decided on a fresh reading.
func (p *Places) change(ctx context.Context, key string, f func(map[string]Holder) (bool, error)) error {
	c := p.count(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh = false
	for range casAttempts {
		if c.holders == nil {
			if err := p.read(ctx, key, c); err != nil {
				return unavailable(err)
			}
		}
		next := maps.Clone(c.holders)
		changed, err := f(next)
		if (err != nil || !changed) && !c.fresh {
			c.holders = nil
			continue
		}
		if err == nil && !changed {
			return nil
		}
		// A refusal is written too, unchanged: a reading from a replica may be old, only a write that succeeds proves it was not.
		stored := p.write(ctx, key, c, next)
		if stored == nil {
			return err
		}
		c.holders = nil
		if !lost(stored) {
			return unavailable(stored)
		}
	}
	return fault.New(fault.Unavailable, fault.ReasonConflict, "too many sandboxes are created at the same time").WithRetry(time.Second)
}

func (p *Places) read(ctx context.Context, key string, c *count) error {
	e, err := p.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		c.holders, c.revision, c.fresh = map[string]Holder{}, 0, true
		return nil
	}
	if err != nil {
		return err
	}
	holders := map[string]Holder{}
	if err := json.Unmarshal(e.Value(), &holders); err != nil {
		return fmt.Errorf("read places of %s: %w", key, err)
	}
	c.holders, c.revision, c.fresh = holders, e.Revision(), true
	return nil
}

func (p *Places) write(ctx context.Context, key string, c *count, next map[string]Holder) error {
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	var revision uint64
	if c.revision == 0 {
		revision, err = p.kv.Create(ctx, key, data)
	} else {
		revision, err = p.kv.Update(ctx, key, data, c.revision)
	}
	if err != nil {
		return err
	}
	c.holders, c.revision = next, revision
	return nil
}

// lost reports whether somebody else has changed the entry first.
func lost(err error) bool {
	var api *jetstream.APIError
	if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == wrongSequence) {
		return true
	}
	return errors.Is(err, jetstream.ErrKeyExists)
}

// wrongSequence is the server's second code for a lost race, which replicated streams answer.
const wrongSequence jetstream.ErrorCode = 10164

func unavailable(err error) error {
	return fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the places cannot be counted now").Because(err).WithRetry(time.Second)
}
