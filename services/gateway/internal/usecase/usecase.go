// Package usecase is what callers can do, without regard to how they ask: every API of the gateway is a thin layer over it.
// It holds no state: what it answers comes from the log, what it does are commands.
package usecase

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/logclock"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/telemetry"
	scopes "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/turns"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	"github.com/sandtrail/sandtrail/services/gateway/internal/calls"
	"github.com/sandtrail/sandtrail/services/gateway/internal/principal"
	"github.com/sandtrail/sandtrail/services/gateway/internal/stored"
)

// Log is the event log with the search that development mode needs.
type Log interface {
	eventlog.Log
	// Find names the one aggregate whose subject matches filter; not_found otherwise.
	Find(ctx context.Context, filter string) (subject.Aggregate, error)
}

// Sealer encrypts what a command may not show.
type Sealer interface {
	Seal(plain, associated []byte) ([]byte, error)
}

// Limits are the defaults and bounds of requests.
type Limits struct {
	// WorkspaceBytes unless a request says otherwise, and the most it may ask for.
	WorkspaceBytes, MaxWorkspaceBytes uint64
	// MaxCPUMillis and MaxMemoryBytes that a request may ask for.
	MaxCPUMillis   uint32
	MaxMemoryBytes uint64
	// MaxFileBytes of a file, or of all that an archive holds, that one call writes.
	MaxFileBytes int64
	// MaxRuntime of a sandbox unless a request says otherwise, and the most it may ask for.
	Runtime, MaxRuntime time.Duration
	// ExecTimeout unless a request says otherwise, and the most it may ask for.
	ExecTimeout, MaxExecTimeout time.Duration
	// StartWait is how long a call waits for a sandbox to become ready.
	StartWait time.Duration
	// DestroyWait is how long a destroy waits until the sandbox is observed gone.
	DestroyWait time.Duration
	// DisconnectGrace is how long a command goes on after its last reader went away.
	DisconnectGrace time.Duration
	// Heartbeat is the longest silence on a stream.
	Heartbeat time.Duration
	// Quotas of tenants that have none of their own, for who asks: lifecycle and exec hold everybody to them.
	Quotas scopes.Quotas
	// OutagePatience is how long who follows an exec is not told that the log cannot be reached.
	OutagePatience time.Duration
}

// UseCases is the gateway's behaviour.
type UseCases struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	log    Log
	seal   Sealer
	limits Limits
	logger *slog.Logger
	// base outlives single calls: work that must go on after a caller left hangs on it.
	base context.Context
	// idem is the bucket of idempotency keys, once it has been opened; lease that of leases.
	idem, lease atomic.Pointer[jetstream.KeyValue]

	tenantsMu sync.Mutex
	// tenants are the aggregates of sandboxes by id, for callers who name no tenant.
	tenants map[string]subject.Aggregate
	hints   hints
	seen    seen
	uses    uses
	tunnels tunnels
	quotas  *quota.Book
	// allowed counts the idempotency keys of each tenant.
	allowed *quota.Keys
	// decisions shares among tenants what decides about their sandboxes.
	decisions *turns.Turns
	// clock is the log's, once somebody wanted to know.
	clockMu sync.Mutex
	clock   *logclock.Clock
	// memory is what all streams of events and output hold together.
	memory *stored.Memory
}

// streamMemory is that many bytes: enough for sixteen readers that fall behind as far as they may, or sixty-four that read pages.
const streamMemory = 64 << 20

// New puts the use cases together. base ends when the gateway stops.
func New(base context.Context, nc *nats.Conn, js jetstream.JetStream, log Log, seal Sealer, limits Limits, logger *slog.Logger) *UseCases {
	u := &UseCases{
		nc: nc, js: js, log: log, seal: seal, limits: limits, logger: logger, base: base, tenants: map[string]subject.Aggregate{},
		decisions: turns.New(decisionSlots, decisionShare, waitingMost),
		quotas:    quota.NewBook(log, limits.Quotas), memory: stored.NewMemory(streamMemory),
	}
	u.allowed = quota.NewKeys(js, u.quotas, time.Now)
	u.hints.ready = map[subject.Aggregate]hint{}
	u.seen.upTo = map[subject.Aggregate]uint64{}
	if err := u.hints.follow(base, nc); err != nil {
		logger.WarnContext(base, "sandboxes are remembered as ready for some seconds after their end", "error", err)
	}
	return u
}

// locate finds the sandbox that the caller may see. One of another tenant is not found, like one that never was.
func (u *UseCases) locate(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	agg, err := u.aggregate(ctx, p, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return u.load(ctx, agg)
}

// aggregate is that of the sandbox which the caller means by an id; it need not exist.
func (u *UseCases) aggregate(ctx context.Context, p principal.Principal, id string) (subject.Aggregate, error) {
	agg, err := subject.Sandbox(p.Tenant, id), error(nil)
	if p.Development() {
		agg, err = u.anyTenant(ctx, id)
	}
	if err == nil {
		calls.About(ctx, agg)
	}
	return agg, err
}

// tenantsMost bounds the sandboxes whose tenant is remembered; over it all are forgotten, which costs one search each.
const tenantsMost = 4096

// anyTenant finds a sandbox whose tenant the caller did not say. A sandbox never changes its tenant, so it is searched for once.
func (u *UseCases) anyTenant(ctx context.Context, id string) (subject.Aggregate, error) {
	u.tenantsMu.Lock()
	agg, known := u.tenants[id]
	u.tenantsMu.Unlock()
	if known {
		return agg, nil
	}
	agg, err := u.log.Find(ctx, subject.AnyTenantSandbox(id))
	switch {
	case fault.CodeOf(err) == fault.NotFound:
		return agg, notFound(id)
	case err != nil:
		return agg, err
	}
	u.tenantsMu.Lock()
	defer u.tenantsMu.Unlock()
	if len(u.tenants) >= tenantsMost {
		clear(u.tenants)
	}
	u.tenants[id] = agg
	return agg, nil
}

func (u *UseCases) load(ctx context.Context, agg subject.Aggregate) (sandbox.Sandbox, error) {
	return u.folded(ctx, agg, sandbox.Fold)
}

// show is locate for who only looks: an event of a later version does not hide a sandbox.
func (u *UseCases) show(ctx context.Context, p principal.Principal, id string) (sandbox.Sandbox, error) {
	agg, err := u.aggregate(ctx, p, id)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	return u.folded(ctx, agg, sandbox.Show)
}

func (u *UseCases) folded(ctx context.Context, agg subject.Aggregate, fold func(eventlog.History) (sandbox.Sandbox, error)) (sandbox.Sandbox, error) {
	h, err := u.history(ctx, agg)
	if err != nil {
		return sandbox.Sandbox{}, err
	}
	if len(h.Events) == 0 {
		return sandbox.Sandbox{}, notFound(agg.ID)
	}
	return fold(h)
}

func notFound(id string) error {
	return fault.Newf(fault.NotFound, fault.ReasonSandboxNotFound, "there is no sandbox %s", id)
}

// over says why nothing more can be done with a sandbox, or nil while something can.
func over(s sandbox.Sandbox) error {
	switch s.State {
	case sandbox.Failed:
		return fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxFailed, "the sandbox failed: %s", orElse(s.Message, s.Reason))
	case sandbox.Destroying, sandbox.Destroyed:
		return fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxDestroyed, "the sandbox was destroyed (%s)", orElse(s.Reason, "requested"))
	}
	return nil
}

// resting says that nothing runs in a sandbox before somebody starts it, or nil.
func resting(s sandbox.Sandbox) error {
	if s.State != sandbox.Stopping && s.State != sandbox.Stopped {
		return nil
	}
	return fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxStopped, "the sandbox is %s; start it first", s.State)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// waitReady returns the sandbox once it is ready; a sandbox that failed, is destroyed or stopped is an error at once.
func (u *UseCases) waitReady(ctx context.Context, s sandbox.Sandbox) (sandbox.Sandbox, error) {
	if s.State == sandbox.Ready {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, u.limits.StartWait)
	defer cancel()
	return u.await(ctx, s, func(s sandbox.Sandbox) (bool, error) {
		return s.State == sandbox.Ready, errors.Join(over(s), resting(s))
	})
}

// await loads the sandbox again whenever it changed, until done says so. Live messages only wake it: what counts is the log.
func (u *UseCases) await(ctx context.Context, s sandbox.Sandbox, done func(sandbox.Sandbox) (bool, error)) (sandbox.Sandbox, error) {
	agg := subject.Sandbox(s.Tenant, s.ID)
	wake := make(chan struct{}, 1)
	sub, err := u.nc.Subscribe(subject.Live(agg.Subject()), func(*nats.Msg) { poke(wake) })
	if err != nil {
		return s, unreachable(err)
	}
	defer sub.Unsubscribe() //nolint:errcheck // the connection is closing if this fails
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		now, err := u.load(ctx, agg)
		if err != nil {
			return s, waited(ctx, s, err)
		}
		s = now
		if ok, err := done(s); ok || err != nil {
			return s, err
		}
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return s, waited(ctx, s, ctx.Err())
		}
	}
}

// poke wakes whoever waits for c, a channel with room for one.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func waited(ctx context.Context, s sandbox.Sandbox, err error) error {
	if ctx.Err() == nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fault.Newf(fault.DeadlineExceeded, fault.ReasonTimeout, "the sandbox is still %s; ask again later", s.State).WithRetry(5 * time.Second)
}

func unreachable(err error) error { return stored.Unreachable(err) }

// order publishes a command. Publishing it again is the same command to whoever takes it, because its id is: the message id only
// covers retries within this call, so that every caller gets an outcome of its own.
func (u *UseCases) order(ctx context.Context, subj string, command proto.Message) (err error) {
	data, err := proto.Marshal(command)
	if err != nil {
		return fault.From(err)
	}
	ctx, end := span(ctx, "command.publish", subj, trace.SpanKindProducer)
	defer func() { end(err) }()
	m := nats.NewMsg(subj)
	m.Data = data
	telemetry.Inject(ctx, m.Header)
	// The server stores what has the same id once.
	id := jetstream.WithMsgID(ids.New())
	err = again(ctx, func(ctx context.Context) error {
		_, err := u.js.PublishMsg(ctx, m, id, jetstream.WithRetryAttempts(3))
		return err
	})
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fault.New(fault.InvalidArgument, fault.ReasonTooLarge, "the request is larger than this deployment can carry").Because(err)
	case err != nil:
		return unreachable(err)
	}
	return nil
}

// nextMsg waits for an answer until ctx ends.
type nextMsg func(context.Context) (*nats.Msg, error)

// outcome waits for the answer to a command about an aggregate until ctx ends: the refusal, or nil. answered is false where none came,
// which says nothing: the log knows.
func (u *UseCases) outcome(ctx context.Context, agg subject.Aggregate, next nextMsg) (answered bool, err error) {
	m, err := next(ctx)
	if err != nil {
		return false, nil //nolint:nilerr // see above
	}
	o := &commandsv1.Outcome{}
	if err := proto.Unmarshal(m.Data, o); err != nil {
		return false, fault.From(err)
	}
	if o.GetError() != nil {
		return true, fault.FromDetail(o.GetError())
	}
	u.seen.put(agg, o.GetSequence())
	return true, nil
}

// inbox receives the answer to one command, of which the first counts. A subscription that is read in calls would set half a
// megabyte aside for it.
type inbox struct {
	Subject string
	sub     *nats.Subscription
	answers chan *nats.Msg
}

func (u *UseCases) inbox() (*inbox, error) {
	in := &inbox{Subject: u.nc.NewInbox(), answers: make(chan *nats.Msg, 1)}
	var err error
	in.sub, err = u.nc.Subscribe(in.Subject, func(m *nats.Msg) {
		select {
		case in.answers <- m:
		default:
		}
	})
	if err != nil {
		return nil, unreachable(err)
	}
	return in, nil
}

func (in *inbox) next(ctx context.Context) (*nats.Msg, error) {
	select {
	case m := <-in.answers:
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (in *inbox) close() { _ = in.sub.Unsubscribe() } // the connection is closing if this fails

func now() *timestamppb.Timestamp { return timestamppb.New(time.Now().UTC()) }
