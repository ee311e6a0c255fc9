package principal

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
)

const (
	// look is how often the leader of the log is asked whether keys have changed. Live events wake it at once; one that is lost costs
	// this long.
	look = 400 * time.Millisecond
	// stale is how old the last such answer may be: what was revoked may not work a second later.
	stale = 900 * time.Millisecond
	// staleWait is how long a call waits for a newer one before it is refused.
	staleWait = 3 * time.Second
	// gather is how long a question for a key that nobody has heard of waits for others like it, so that a flood of wrong keys asks the
	// leader no more than one caller would.
	gather = 20 * time.Millisecond
	// flush is how often it is recorded which keys were used.
	flush = 15 * time.Second
)

// Ring are the API keys that stand in the log, as a view in memory that is made at the start and follows.
type Ring struct {
	js  jetstream.JetStream
	log *slog.Logger

	mu      sync.Mutex
	tenants map[string]tenant.Tenant
	byHash  map[[sha256.Size]byte]*held
	// seq is the last event that was read; at is when the leader of the log said that there is no newer one.
	seq uint64
	at  time.Time
	// fresh is closed, and another one put in its place, whenever at moves.
	fresh chan struct{}
	// wanted asks for a newer one at once.
	wanted chan struct{}
	used   map[string]time.Time
}

// held is a key that works.
type held struct {
	tenant string
	key    tenant.Key
	// valid ends when the key does.
	valid context.Context //nolint:containedctx // it is the key's life, not a call's
	end   context.CancelCauseFunc
	timer *time.Timer
}

// NewRing makes an empty one; Run fills it.
func NewRing(js jetstream.JetStream, log *slog.Logger) *Ring {
	return &Ring{
		js: js, log: log, tenants: map[string]tenant.Tenant{}, byHash: map[[sha256.Size]byte]*held{}, fresh: make(chan struct{}),
		wanted: make(chan struct{}, 1), used: map[string]time.Time{},
	}
}

// Run follows the log until ctx ends.
func (r *Ring) Run(ctx context.Context) {
	defer r.rest()
	wake := make(chan struct{}, 1)
	sub, err := r.js.Conn().Subscribe(subject.Live(subject.AllTenants()), func(*nats.Msg) {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	if err == nil {
		defer sub.Unsubscribe() //nolint:errcheck // the connection is closing if this fails
	}
	tick, record := time.NewTicker(look), time.NewTicker(flush)
	defer tick.Stop()
	defer record.Stop()
	failing := false
	for {
		err := r.read(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			r.log.WarnContext(ctx, "API keys cannot be read from the log; calls with keys that stand there are refused meanwhile", "error", err)
		}
		failing = err != nil
		select {
		case <-wake:
		case <-tick.C:
		case <-r.wanted:
			_ = pause.For(ctx, gather)
		case <-record.C:
			r.record(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// read takes in what is new. A log that ends before what was read has lost its end with its server's power: then all is read anew.
func (r *Ring) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, staleWait)
	defer cancel()
	asked := time.Now()
	last, err := directget.LeaderLast(ctx, r.js, topology.StreamEvents, subject.AllTenants())
	if err != nil {
		return err
	}
	var upTo uint64
	if last != nil {
		upTo = last.Seq
	}
	r.mu.Lock()
	from := r.seq
	r.mu.Unlock()
	if upTo < from {
		r.forget()
		from = 0
	}
	if upTo > from {
		if err := r.take(ctx, from+1, upTo); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = asked
	close(r.fresh)
	r.fresh = make(chan struct{})
	return nil
}

// take reads the events from a sequence on, up to one: what a replica does not have yet is asked of the leader.
func (r *Ring) take(ctx context.Context, from, upTo uint64) error {
	apply := func(m directget.Message) error {
		r.apply(m)
		return nil
	}
	if err := directget.Each(ctx, r.js, topology.StreamEvents, subject.AllTenants(), from, apply); err != nil {
		return err
	}
	for {
		r.mu.Lock()
		read := r.seq
		r.mu.Unlock()
		if read >= upTo {
			return nil
		}
		m, err := directget.Leader(ctx, r.js, topology.StreamEvents, subject.AllTenants(), max(read+1, from))
		if err != nil || m == nil {
			return err
		}
		r.apply(*m)
	}
}

// apply takes in one event. One that cannot be read changes nothing: it makes no key work.
func (r *Ring) apply(m directget.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Seq <= r.seq {
		return
	}
	r.seq = m.Seq
	agg, err := subject.ParseEvent(m.Subject)
	if err != nil {
		return
	}
	e, err := envelope.Decode(m.Subject, m.Seq, m.Header, m.Data)
	if err != nil {
		r.log.Error("an event about API keys cannot be read", "sequence", m.Seq, "error", err)
		return
	}
	t, ok := r.tenants[agg.Tenant]
	if !ok {
		t.ID = agg.Tenant
	}
	t = t.Evolve(e)
	r.tenants[agg.Tenant] = t
	for _, k := range t.Keys {
		r.hold(agg.Tenant, k)
	}
}

// hold makes a key work for as long as it is good. Call it with the lock held.
func (r *Ring) hold(id string, k tenant.Key) {
	h, known := r.byHash[k.Digest]
	if !k.Works(time.Now()) {
		if known && h.key.ID == k.ID && h.tenant == id {
			r.drop(h)
		}
		return
	}
	if known && (h.tenant != id || h.key.ID != k.ID) {
		return // the first who has a digest keeps it: nobody takes a key over by naming it
	}
	if !known {
		h = &held{tenant: id}
		h.valid, h.end = context.WithCancelCause(context.Background())
		r.byHash[k.Digest] = h
	}
	h.key = k
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if end := k.End(); !end.IsZero() {
		h.timer = time.AfterFunc(time.Until(end), func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.byHash[k.Digest] == h && !h.key.Works(time.Now()) {
				r.drop(h)
			}
		})
	}
}

func (r *Ring) drop(h *held) {
	delete(r.byHash, h.key.Digest)
	if h.timer != nil {
		h.timer.Stop()
	}
	h.end(ended())
}

func ended() *fault.Error {
	return fault.New(fault.Unauthorized, fault.ReasonKeyInvalid, "the API key was revoked, or its time is over")
}

// rest stops the clocks. Keys are good for the calls that are still under way.
func (r *Ring) rest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.byHash {
		if h.timer != nil {
			h.timer.Stop()
		}
	}
}

// forget lets no key work and ends the calls that came with one.
func (r *Ring) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.byHash {
		r.drop(h)
	}
	r.tenants, r.seq, r.at = map[string]tenant.Tenant{}, 0, time.Time{}
}

// find gives the key with a digest. Where it is not known how the log stands now, it waits for that, and gives unavailable if it does not
// come: a key may have been revoked meanwhile. A key that is not there may have been made a moment ago, so it is missing only once the log
// was read after the call came.
func (r *Ring) find(ctx context.Context, digest [sha256.Size]byte) (*held, error) {
	came := time.Now()
	end := time.NewTimer(staleWait)
	defer end.Stop()
	for {
		r.mu.Lock()
		h, at, fresh := r.byHash[digest], r.at, r.fresh
		if time.Since(at) < stale && (h != nil || at.After(came)) {
			if h != nil {
				r.used[h.tenant+"."+h.key.ID] = time.Now()
			}
			r.mu.Unlock()
			return h, nil
		}
		r.mu.Unlock()
		select {
		case r.wanted <- struct{}{}:
		default:
		}
		select {
		case <-fresh:
		case <-end.C:
			return nil, fault.New(fault.Unavailable, fault.ReasonLogUnavailable, "the event log cannot be reached; try again").WithRetry(time.Second)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// record stores when keys were used, for people. It is a courtesy: what cannot be stored is forgotten.
func (r *Ring) record(ctx context.Context) {
	r.mu.Lock()
	used := r.used
	r.used = map[string]time.Time{}
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	for key, at := range used {
		_, err := r.js.Publish(ctx, subject.BucketKey(topology.BucketKey, key), []byte(at.UTC().Format(time.RFC3339)))
		if err != nil {
			r.log.DebugContext(ctx, "when keys were used is not recorded", "error", err)
			return
		}
	}
}
