package quota

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// keysEnd is what the entries of tenants' keys end with, in the bucket that holds the keys: they are forgotten with them.
	keysEnd = ".keys"
	// keysBlock is how many keys a process sets aside for a tenant at once, at most.
	keysBlock = 256
	// keysPart of the limit is the other bound of that.
	keysPart = 100
	// refusedFor is how long a refusal is repeated without asking again.
	refusedFor = time.Second
	// keysTenants bounds the tenants whose blocks are remembered; over it all are forgotten, as after a restart.
	keysTenants = 4096
)

// Hours say how many idempotency keys were set aside for a tenant, by the hour since 1970 in which that was.
type Hours map[int64]uint64

// Clone shares nothing with h.
func (h Hours) Clone() Hours {
	if h == nil {
		return Hours{}
	}
	return maps.Clone(h)
}

func hourOf(t time.Time) int64 { return t.Unix() / int64(time.Hour/time.Second) }

// gone is when all keys of an hour are forgotten.
func gone(hour int64) time.Time {
	return time.Unix((hour+1)*int64(time.Hour/time.Second), 0).Add(topology.IdemTTL)
}

// Used is how many keys may be remembered at now.
func (h Hours) Used(now time.Time) uint64 {
	var n uint64
	for hour, keys := range h {
		if now.Before(gone(hour)) {
			n += keys
		}
	}
	return n
}

// room is after how long the oldest of them are forgotten.
func (h Hours) room(now time.Time) time.Duration {
	after := topology.IdemTTL
	for hour := range h {
		if left := gone(hour).Sub(now); left > 0 {
			after = min(after, left)
		}
	}
	return max(after, time.Second)
}

// Keys bounds how many idempotency keys each tenant has in their bucket, over all processes and restarts: a process sets a block aside by
// compare and set, and within it a key costs nothing. Blocks that are lost with their process count all the same.
type Keys struct {
	js   jetstream.JetStream
	book *Book
	now  func() time.Time

	mu      sync.Mutex
	entries *bucket.Entries[Hours]
	tenants map[string]*block
}

// block is what is set aside for a tenant here.
type block struct {
	// turn is held by whoever looks at the rest or changes it.
	turn chan struct{}
	left uint64
	// refusal is the answer until then.
	refusal error
	until   time.Time
}

// NewKeys counts for one process. book says what tenants may have.
func NewKeys(js jetstream.JetStream, book *Book, now func() time.Time) *Keys {
	return &Keys{js: js, book: book, now: now, tenants: map[string]*block{}}
}

// Take counts a key of a tenant that is new. It is refused at the tenant's quota, with tenant.Keys as its name; other errors are Unavailable.
func (k *Keys) Take(ctx context.Context, id string) error {
	b := k.of(id)
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return shownErr(ctx.Err())
	}
	defer func() { <-b.turn }()
	if b.left == 0 {
		if k.now().Before(b.until) {
			return b.refusal
		}
		n, err := k.aside(ctx, id)
		if err != nil {
			if fault.Is(err, fault.ReasonQuota) {
				b.refusal, b.until = err, k.now().Add(refusedFor)
			}
			return err
		}
		b.left = n
	}
	b.left--
	return nil
}

// Give takes a key back that was not new.
func (k *Keys) Give(id string) {
	b := k.of(id)
	b.turn <- struct{}{}
	b.left++
	<-b.turn
}

func (k *Keys) of(id string) *block {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.tenants[id]
	if b == nil {
		if len(k.tenants) >= keysTenants {
			clear(k.tenants)
		}
		b = &block{turn: make(chan struct{}, 1)}
		k.tenants[id] = b
	}
	return b
}

// aside sets keys aside, at least one.
func (k *Keys) aside(ctx context.Context, id string) (uint64, error) {
	all, err := k.book.Of(ctx, id)
	if err != nil {
		return 0, err
	}
	limit, bounded := all.Limit(tenant.Keys)
	if !bounded {
		return keysBlock, nil
	}
	entries, err := k.open(ctx)
	if err != nil {
		return 0, shownErr(err)
	}
	var n uint64
	err = entries.Change(ctx, id+keysEnd, func(h *Hours) (bool, error) {
		now := k.now()
		maps.DeleteFunc(*h, func(hour int64, _ uint64) bool { return !now.Before(gone(hour)) })
		used := h.Used(now)
		if used >= limit {
			return false, Exceeded(id, tenant.Keys, limit, used, 1, h.room(now))
		}
		n = min(max(limit/keysPart, 1), keysBlock, limit-used)
		(*h)[hourOf(now)] += n
		return true, nil
	})
	return n, shownErr(err)
}

// open opens the bucket, once.
func (k *Keys) open(ctx context.Context) (*bucket.Entries[Hours], error) {
	k.mu.Lock()
	entries := k.entries
	k.mu.Unlock()
	if entries != nil {
		return entries, nil
	}
	entries, err := bucket.NewEntries[Hours](ctx, k.js, topology.BucketIdem)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entries == nil {
		k.entries = entries
	}
	return k.entries, nil
}

// usedKeys is how many keys of a tenant may be remembered.
func usedKeys(ctx context.Context, js jetstream.JetStream, id string, now time.Time) (uint64, error) {
	entries, err := bucket.NewEntries[Hours](ctx, js, topology.BucketIdem)
	if err != nil {
		return 0, err
	}
	h, err := entries.Get(ctx, id+keysEnd)
	return h.Used(now), err
}
