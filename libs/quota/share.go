package quota

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/bucket"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// slack is how many execs a service sets aside at most for a tenant beyond those that run.
	slack = 8
	// settle is how often a part is brought in line with what runs.
	settle = time.Second
	// renew is how often a part that stays the same is said again, forgotten after how long without that it counts no more.
	renew, forgotten = 20 * time.Second, 2 * time.Minute
)

// Part is what one exec service has set aside of a tenant's execs.
type Part struct {
	N uint64 `json:"n"`
	// At is unix seconds.
	At int64 `json:"t"`
}

// Parts are those of all exec services, by their names.
type Parts map[string]Part

// Clone shares nothing with p.
func (p Parts) Clone() Parts {
	if p == nil {
		return Parts{}
	}
	return maps.Clone(p)
}

// Used is what is set aside at now, but for one service.
func (p Parts) Used(now time.Time, but string) uint64 {
	var n uint64
	for name, part := range p {
		if name != but && now.Sub(time.Unix(part.At, 0)) < forgotten {
			n += part.N
		}
	}
	return n
}

// Shares is one exec service's part of every tenant's execs. Within it an exec costs nothing; the part grows and shrinks by compare and set, so that
// all parts together are never over a tenant's limit.
type Shares struct {
	name    string
	entries *bucket.Entries[Parts]
	log     *slog.Logger
	now     func() time.Time

	mu      sync.Mutex
	tenants map[string]*share
}

// share of one tenant. Where the tenant has a limit, used grows up to reserved only, and reserved is never over what the entry has.
type share struct {
	used, reserved uint64
	// said is what the entry has, as far as is known here, and since when.
	said   uint64
	saidAt time.Time
	// told: the entry was written or read in this life.
	told bool
}

// NewShares counts in the bucket of quotas under the name of a service, which it has again after a restart and no other has. Call Run.
func NewShares(ctx context.Context, js jetstream.JetStream, name string, log *slog.Logger) (*Shares, error) {
	entries, err := bucket.NewEntries[Parts](ctx, js, topology.BucketQuota)
	if err != nil {
		return nil, err
	}
	return &Shares{name: name, entries: entries, log: log, now: time.Now, tenants: map[string]*share{}}, nil
}

// of gives a tenant's share. Call it with the lock held.
func (s *Shares) of(id string) *share {
	x, ok := s.tenants[id]
	if !ok {
		x = &share{}
		s.tenants[id] = x
	}
	return x
}

// Take counts an exec of a tenant, or gives the fault of the limit. Free it once it has ended.
func (s *Shares) Take(ctx context.Context, id string, limits tenant.Quotas) error {
	limit, bounded := limits.Limit(tenant.Execs)
	for range growths {
		s.mu.Lock()
		x := s.of(id)
		if !bounded || x.used < x.reserved && x.used < limit {
			x.used++
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		if err := s.grow(ctx, id, limit); err != nil {
			return shownErr(err)
		}
	}
	return shownErr(bucket.ErrContended)
}

// growths bounds how often a part is made larger and others take what was gained.
const growths = 32

// grow makes the part one larger than what runs, and some more where there is plenty.
func (s *Shares) grow(ctx context.Context, id string, limit uint64) error {
	var n uint64
	return s.entries.ChangeThen(ctx, ExecsKey(id), func(p *Parts) (bool, error) {
		others := p.Used(s.now(), s.name)
		s.mu.Lock()
		defer s.mu.Unlock()
		x := s.of(id)
		n = max(x.used, x.reserved)
		switch {
		case x.used < x.reserved && x.used < limit:
			return false, nil // one has ended meanwhile
		case others >= limit || n >= limit-others:
			return false, Exceeded(id, tenant.Execs, limit, others+x.used, 1, settle)
		}
		n += 1 + min(slack, (limit-others-n-1)/4)
		(*p)[s.name] = Part{N: n, At: s.now().Unix()}
		return true, nil
	}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x := s.of(id)
		x.reserved, x.said, x.saidAt, x.told = n, n, s.now(), true
	})
}

// Add counts an exec that runs already, over every limit too.
func (s *Shares) Add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(id).used++
}

// Free counts an exec no longer.
func (s *Shares) Free(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(id).used--
}

// Run brings the parts in line with what runs until ctx ends: what an earlier process of this name had set aside is given back first.
// Execs that are found again must have been added before.
func (s *Shares) Run(ctx context.Context) error {
	tick := time.NewTicker(settle)
	defer tick.Stop()
	inherited := false
	for {
		err := errors.Join(s.inherit(ctx, &inherited), s.settleAll(ctx))
		if err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "what execs take of quotas is not up to date", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// inherit finds the tenants of which an earlier process of this name had a part.
func (s *Shares) inherit(ctx context.Context, done *bool) error {
	if *done {
		return nil
	}
	keys, err := s.entries.Keys(ctx)
	if err != nil {
		return err
	}
	for _, key := range keys {
		id, execs := strings.CutSuffix(key, execsEnd)
		if !execs {
			continue
		}
		parts, err := s.entries.Get(ctx, key)
		if err != nil {
			return err
		}
		s.mu.Lock()
		if x := s.of(id); !x.told {
			x.said, x.told = parts[s.name].N, true
		}
		s.mu.Unlock()
	}
	*done = true
	return nil
}

func (s *Shares) settleAll(ctx context.Context) error {
	s.mu.Lock()
	var due []string
	for id, x := range s.tenants {
		switch {
		case x.used != x.said || x.reserved > x.used || x.said > 0 && s.now().Sub(x.saidAt) >= renew:
			due = append(due, id)
		case x.used == 0:
			delete(s.tenants, id)
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, id := range due {
		errs = append(errs, s.settle(ctx, id))
	}
	return errors.Join(errs...)
}

// settle makes the part as large as what runs. What is given back can be taken by nobody here from the moment of the decision on.
func (s *Shares) settle(ctx context.Context, id string) error {
	var n uint64
	at := s.now()
	return s.entries.ChangeThen(ctx, ExecsKey(id), func(p *Parts) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		x := s.of(id)
		n = x.used
		x.reserved = min(x.reserved, n)
		if n == 0 {
			delete(*p, s.name)
		} else {
			(*p)[s.name] = Part{N: n, At: at.Unix()}
		}
		return true, nil
	}, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x := s.of(id)
		x.reserved, x.said, x.saidAt, x.told = n, n, at, true
	})
}
