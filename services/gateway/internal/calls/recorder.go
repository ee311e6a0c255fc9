package calls

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// queued bounds the records that wait to be written, some 500 bytes each.
	queued = 8192
	// gather is how often what is only counted is recorded.
	gather = 10 * time.Second
	// kindsMost bounds what is counted apart within that time, and tenantKinds what is of one tenant: its further calls are counted without
	// their actors, and where there is no room for that either only the metric tells of them.
	kindsMost, tenantKinds = 4096, 256
	// perSecond calls of a tenant are told one by one, and burst at once; beyond that they are counted.
	perSecond, burst = 100, 1000
	// ratedMost bounds the tenants whose rate is known; over it all begin anew.
	ratedMost = 4096
)

// kind is what calls have in common that are counted together.
type kind struct {
	tenant, actor, key, api, action, outcome, code, reason string
}

// Recorder writes records of calls to their stream.
type Recorder struct {
	js    jetstream.JetStream
	log   *slog.Logger
	queue chan *eventsv1.CallEnded

	told, counted, dropped prometheus.Counter

	// open are the calls that have begun and not ended.
	open atomic.Int64

	mu    sync.Mutex
	rates map[string]*rate.Limiter
	kinds map[kind]*eventsv1.CallEnded
	// of is how many kinds a tenant has.
	of map[string]int

	// chains are of Run alone.
	chains chains
}

// New makes a recorder; Run writes what it takes in. It fails where its metrics are registered already.
func New(nc *nats.Conn, log *slog.Logger, registry prometheus.Registerer) (*Recorder, error) {
	// One of its own: an acknowledgement that does not come is given up, and nobody else waits behind it.
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(stored))
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sandtrail_call_records_total", Help: "Calls by what became of their records: told one by one, counted with others alike, or dropped.",
	}, []string{"how"})
	r := &Recorder{
		js: js, log: log, queue: make(chan *eventsv1.CallEnded, queued), rates: map[string]*rate.Limiter{},
		kinds: map[kind]*eventsv1.CallEnded{}, of: map[string]int{}, chains: chains{},
		told: records.WithLabelValues("told"), counted: records.WithLabelValues("counted"), dropped: records.WithLabelValues("dropped"),
	}
	return r, registry.Register(records)
}

// Begin makes ctx that of a call of an API, by what the API calls it: a route's id, a method's name or a tool's. Ended must be called behind
// it. A nil recorder records nothing.
func (r *Recorder) Begin(ctx context.Context, api, name string) context.Context {
	if r == nil {
		return ctx
	}
	r.open.Add(1)
	return begin(ctx, api, name)
}

// Ended takes in the call of ctx, which began then and ended now, with err or well, once. It never waits. One of a stranger, one of a tenant that
// makes too many, and one for which there is no room are counted together with others that are alike in everything but time and target.
func (r *Recorder) Ended(ctx context.Context, began time.Time, err error) {
	of, ok := ctx.Value(key{}).(*call)
	if r == nil || !ok || of.ended.Swap(true) {
		return
	}
	defer r.open.Add(-1)
	c := record(ctx, of, began, time.Now(), err)
	if c.GetActor() == "" && err == nil { // what anybody may have
		return
	}
	if c.GetActor() == "" || !r.allowed(c.GetTenantId()) {
		r.alike(c)
		return
	}
	select {
	case r.queue <- c:
		r.told.Inc()
	default:
		r.alike(c)
	}
}

func (r *Recorder) allowed(tenant string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l, ok := r.rates[tenant]
	if !ok {
		if len(r.rates) >= ratedMost {
			clear(r.rates)
		}
		l = rate.NewLimiter(perSecond, burst)
		r.rates[tenant] = l
	}
	return l.Allow()
}

// alike counts a call with those of its kind.
func (r *Recorder) alike(c *eventsv1.CallEnded) {
	k := kind{
		c.GetTenantId(), c.GetActor(), c.GetKeyId(), c.GetApi(), c.GetAction(), c.GetOutcome(), c.GetCode(), c.GetReason(),
	}
	if k.actor == "" {
		k.tenant = subject.NoTenant
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := r.kinds[k]
	if sum == nil && r.of[k.tenant] >= tenantKinds {
		k.actor, k.key = "", ""
		sum = r.kinds[k]
	}
	if sum == nil {
		if len(r.kinds) >= kindsMost {
			r.dropped.Inc()
			return
		}
		sum = &eventsv1.CallEnded{
			TenantId: k.tenant, Actor: k.actor, KeyId: k.key, Api: k.api, Action: k.action, Outcome: k.outcome, Code: k.code, Reason: k.reason,
			BeganAt: c.GetBeganAt(),
		}
		r.kinds[k] = sum
		r.of[k.tenant]++
	}
	sum.Count++
	sum.LastAt = timestamppb.Now()
	r.counted.Inc()
}

// gathered are the counts since the last time.
func (r *Recorder) gathered() []*eventsv1.CallEnded {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*eventsv1.CallEnded, 0, len(r.kinds))
	for _, c := range r.kinds {
		all = append(all, c)
	}
	clear(r.kinds)
	clear(r.of)
	return all
}
