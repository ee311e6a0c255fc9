package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/quota"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/sandbox/views"
	"github.com/sandtrail/sandtrail/libs/subject"
	quotas "github.com/sandtrail/sandtrail/libs/tenant"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/worker"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/history"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/scheduler"
)

const tenant = "acme"

// desk is a scheduler on a real log whose worker beats but does nothing.
type desk struct {
	t      *testing.T
	f      *natstest.Fixture
	log    *jslog.Log
	places *scheduler.Places
	s      *scheduler.Scheduler
	at     atomic.Int64
}

func newDesk(t *testing.T, workers ...*commandsv1.WorkerStatus) *desk {
	t.Helper()
	f := natstest.Start(t)
	d := &desk{t: t, f: f, log: jslog.New(f.JS)}
	d.at.Store(time.Now().UnixNano())
	kv, err := f.JS.KeyValue(t.Context(), topology.BucketWorker)
	require.NoError(t, err)
	for _, w := range workers {
		data, err := proto.Marshal(w)
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), w.GetWorker(), data)
		require.NoError(t, err)
	}
	known := scheduler.NewWorkers(slog.New(slog.DiscardHandler), d.now)
	go func() { _ = known.Run(t.Context(), f.JS) }()
	require.Eventually(t, func() bool { fresh, _ := known.Fresh(); return len(fresh) == len(workers) }, 10*time.Second, 5*time.Millisecond)
	d.places, err = scheduler.NewPlaces(t.Context(), f.JS, d.now)
	require.NoError(t, err)
	d.s = d.scheduler(known, 50*time.Millisecond)
	return d
}

func (d *desk) scheduler(known *scheduler.Workers, wait time.Duration) *scheduler.Scheduler {
	d.t.Helper()
	s, err := scheduler.New(d.t.Context(), scheduler.Config{
		Quotas: quotas.Quotas{quotas.Sandboxes: 1}, StartDeadline: time.Minute, WorkerWait: wait,
		Limits: scheduler.Limits{Default: &eventsv1.Limits{MemoryBytes: 1 << 20}, WorkspaceBytes: 1 << 30, MountPath: "/workspace"},
	}, d.f.NC, d.f.JS, d.log, d.places, known, slog.New(slog.DiscardHandler), d.now)
	require.NoError(d.t, err)
	return s
}

func (d *desk) now() time.Time { return time.Unix(0, d.at.Load()) }

func w1() *commandsv1.WorkerStatus {
	return &commandsv1.WorkerStatus{Worker: natstest.Worker, MaxSandboxes: 10, MemoryBytes: 1 << 30, CpuMillis: 1000}
}

// create hands a create to the scheduler as its attempt-th delivery and returns what was answered.
func (d *desk) create(id, command string, attempt int) *commandsv1.Outcome {
	d.t.Helper()
	inbox := d.f.NC.NewInbox()
	sub, err := d.f.NC.SubscribeSync(inbox)
	require.NoError(d.t, err)
	data := d.command(id, command, inbox)
	require.NoError(d.t, d.s.Handle(d.t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: attempt}))
	m, err := sub.NextMsg(5 * time.Second)
	require.NoError(d.t, err)
	out := &commandsv1.Outcome{}
	require.NoError(d.t, proto.Unmarshal(m.Data, out))
	return out
}

func (d *desk) command(id, command, replyTo string) []byte {
	d.t.Helper()
	data, err := proto.Marshal(&commandsv1.SandboxCommand{
		CommandId: command, TenantId: tenant, SandboxId: id, ReplyTo: replyTo,
		Command: &commandsv1.SandboxCommand_Create{Create: &commandsv1.CreateSandbox{Image: "i"}},
	})
	require.NoError(d.t, err)
	return data
}

func (d *desk) state(id string) string {
	d.t.Helper()
	s, err := history.Load(d.t.Context(), d.log, tenant, id)
	require.NoError(d.t, err)
	return s.State
}

func TestARepeatedCommandGetsTheSameAnswer(t *testing.T) {
	d := newDesk(t, w1())
	first, second := ids.New(), ids.New()
	accepted := d.create(first, "c1", 1)
	require.Nil(t, accepted.GetError())
	require.Equal(t, accepted.GetSequence(), d.create(first, "c1", 2).GetSequence())
	require.Equal(t, string(fault.ReasonConflict), d.create(first, "c2", 1).GetError().GetReason(), "an id is taken once")

	refused := d.create(second, "c3", 1)
	require.Equal(t, string(fault.ReasonQuota), refused.GetError().GetReason())
	// The place is free now, but this command was answered already.
	require.NoError(t, d.places.Release(t.Context(), tenant, natstest.Worker, first))
	again := d.create(second, "c3", 2)
	require.Equal(t, refused.GetError().GetReason(), again.GetError().GetReason())
	require.Equal(t, refused.GetError().GetMessage(), again.GetError().GetMessage())
	require.Empty(t, d.state(second))
	require.Nil(t, d.create(second, "c4", 1).GetError(), "another command is another question")
}

// Who has one create refused after the other takes no more room than for so many of them, and the last ones are remembered all the same.
func TestRefusalsOfATenantTakeBoundedRoom(t *testing.T) {
	const slots, many = 1024, 1500
	d := newDesk(t, w1())
	holder, last := ids.New(), ""
	require.Nil(t, d.create(holder, "holder", 1).GetError())
	for i := range many {
		last = ids.New()
		require.Equal(t, string(fault.ReasonQuota), d.create(last, fmt.Sprintf("r%d", i), 1).GetError().GetReason())
	}
	s, err := d.f.JS.Stream(t.Context(), subject.BucketStream(topology.BucketIdem))
	require.NoError(t, err)
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, info.State.Msgs, uint64(slots))
	require.Greater(t, info.State.Msgs, uint64(slots/2), "different ones are remembered side by side")

	require.NoError(t, d.places.Release(t.Context(), tenant, natstest.Worker, holder))
	require.Equal(t, string(fault.ReasonQuota), d.create(last, fmt.Sprintf("r%d", many-1), 2).GetError().GetReason())
	require.Nil(t, d.create(ids.New(), "another", 2).GetError(), "what was refused to another command is not its answer")
}

// A delivery that was given up by the server refuses while the next one waits for a worker, which then comes.
func TestTwoDeliveriesOfACreateAtOnceGiveOneAnswer(t *testing.T) {
	d := newDesk(t)
	known := scheduler.NewWorkers(slog.New(slog.DiscardHandler), d.now)
	go func() { _ = known.Run(t.Context(), d.f.JS) }()
	id, inbox := ids.New(), d.f.NC.NewInbox()
	answers, err := d.f.NC.SubscribeSync(inbox)
	require.NoError(t, err)
	second := d.patient(known, id, d.command(id, "c1", inbox))
	refused := d.create(id, "c1", 1).GetError()
	require.Equal(t, string(fault.ReasonNoWorker), refused.GetReason())

	data, err := proto.Marshal(w1())
	require.NoError(t, err)
	kv, err := d.f.JS.KeyValue(t.Context(), topology.BucketWorker)
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), natstest.Worker, data)
	require.NoError(t, err)
	require.NoError(t, <-second)
	m, err := answers.NextMsg(20 * time.Second)
	require.NoError(t, err)
	out := &commandsv1.Outcome{}
	require.NoError(t, proto.Unmarshal(m.Data, out))
	require.Equal(t, refused.GetReason(), out.GetError().GetReason(), "what was refused once is not made")
	require.Empty(t, d.state(id))
	d.requireNoPlaces()
}

// patient hands a second delivery of a create to a scheduler that waits for workers, and returns once it has found no sandbox.
func (d *desk) patient(known *scheduler.Workers, id string, data []byte) <-chan error {
	d.t.Helper()
	asked, err := d.f.NC.SubscribeSync("$JS.API.STREAM.MSG.GET." + subject.BucketStream(topology.BucketIdem))
	require.NoError(d.t, err)
	require.NoError(d.t, d.f.NC.Flush())
	s, m := d.scheduler(known, time.Minute), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: data, Attempt: 2}
	done := make(chan error, 1)
	go func() { done <- s.Handle(d.t.Context(), m) }()
	_, err = asked.NextMsg(20 * time.Second)
	require.NoError(d.t, err, "it looks for an earlier refusal")
	return done
}

func (d *desk) requireNoPlaces() {
	d.t.Helper()
	holders, err := d.places.Holders(d.t.Context(), scheduler.OfWorker(natstest.Worker))
	require.NoError(d.t, err)
	require.Empty(d.t, holders, "its place is free again")
	counted, err := d.places.Quotas.Holders(d.t.Context(), tenant)
	require.NoError(d.t, err)
	require.Empty(d.t, counted, "so is its tenant's quota")
}

// A delivery that stood still for as long as the sandbox lived takes no place for it.
func TestADeliveryBehindTheSandboxsEndLeavesNoPlaceTaken(t *testing.T) {
	d := newDesk(t, w1())
	known := scheduler.NewWorkers(slog.New(slog.DiscardHandler), d.now)
	id := ids.New()
	second := d.patient(known, id, d.command(id, "c1", ""))
	require.Nil(t, d.create(id, "c1", 1).GetError())
	for _, c := range []sandbox.Command{sandbox.Destroy{}, sandbox.MarkDestroyed{At: d.now()}} {
		_, err := history.Record(t.Context(), d.log, tenant, id, fmt.Sprintf("%T", c), history.Meta{Time: d.now()}, func(sandbox.Sandbox) sandbox.Command { return c })
		require.NoError(t, err)
	}
	require.NoError(t, d.places.Release(t.Context(), tenant, natstest.Worker, id))
	go func() { _ = known.Run(t.Context(), d.f.JS) }()
	require.NoError(t, <-second)
	require.Equal(t, sandbox.Destroyed, d.state(id))
	d.requireNoPlaces()
}

func TestTheWorkerWithTheFewestSandboxesThatFitsIsChosen(t *testing.T) {
	small := &commandsv1.WorkerStatus{Worker: "small", MaxSandboxes: 10, MemoryBytes: 1 << 10}
	full := &commandsv1.WorkerStatus{Worker: "full", MaxSandboxes: 1, MemoryBytes: 1 << 30}
	d := newDesk(t, small, full, w1())
	require.NoError(t, d.places.Take(t.Context(), scheduler.OfWorker("full"), tenant, ids.New(), 1))
	id := ids.New()
	require.Nil(t, d.create(id, "c", 1).GetError())
	s, err := history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	require.Equal(t, natstest.Worker, s.Worker)
	require.Equal(t, []string{
		"2 of 3 workers fit", "fewest sandboxes: 1 of 10 places with this one", "small: a sandbox may have 1024 bytes of memory there, not 1048576", "full: has 1 sandboxes",
	}, s.Requested.GetPlacement().GetReasons())
}

func TestWithoutAWorkerACreateIsRefusedAndMayBeTriedAgain(t *testing.T) {
	out := newDesk(t).create(ids.New(), "c", 1)
	require.Equal(t, string(fault.ReasonNoWorker), out.GetError().GetReason())
	require.NotZero(t, out.GetError().GetRetryAfterSeconds())
}

// Right after an outage of the broker nothing is heard of workers that run: that is no reason to refuse for good.
func TestACreateIsNotRefusedWhileWorkersCannotBeHeard(t *testing.T) {
	d := newDesk(t)
	deaf := scheduler.NewWorkers(slog.New(slog.DiscardHandler), d.now)
	d.s = d.scheduler(deaf, 50*time.Millisecond)
	id := ids.New()
	err := d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, id), Data: d.command(id, "c", ""), Attempt: 1})
	require.Equal(t, fault.ReasonLogUnavailable, fault.From(err).Reason, "it is tried again")

	go func() { _ = deaf.Run(t.Context(), d.f.JS) }()
	kv, err := d.f.JS.KeyValue(t.Context(), topology.BucketWorker)
	require.NoError(t, err)
	data, err := proto.Marshal(w1())
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), natstest.Worker, data)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return deaf.Listening() > 0 }, 10*time.Second, 5*time.Millisecond)
	require.Nil(t, d.create(id, "c", 2).GetError())
}

func TestASandboxWhoseWorkerIsGoneFailsBehindItsStartDeadline(t *testing.T) {
	d := newDesk(t, w1())
	id := ids.New()
	require.Nil(t, d.create(id, "c", 1).GetError())
	live := views.New(slog.New(slog.DiscardHandler), views.Live)
	go func() { _ = live.Run(t.Context(), d.f.JS) }()
	s, err := history.Load(t.Context(), d.log, tenant, id)
	require.NoError(t, err)
	data, err := proto.Marshal(s.View())
	require.NoError(t, err)
	kv, err := d.f.JS.KeyValue(t.Context(), topology.BucketSandbox)
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), tenant+"."+id, data)
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, ok := live.Get(id); return ok }, 10*time.Second, 5*time.Millisecond)

	require.NoError(t, d.s.Sweep(t.Context(), live))
	require.Equal(t, sandbox.Requested, d.state(id))
	d.at.Add(int64(time.Minute))
	require.NoError(t, d.s.Sweep(t.Context(), live))
	require.Equal(t, sandbox.Failed, d.state(id))
	used, err := d.places.Quotas.Holders(t.Context(), tenant)
	require.NoError(t, err)
	require.Empty(t, used)
}

func TestASweepBringsPlacesInLineWithTheLog(t *testing.T) {
	d := newDesk(t, w1())
	live := views.New(slog.New(slog.DiscardHandler), views.Live)
	go func() { _ = live.Run(t.Context(), d.f.JS) }()
	ghost, id := ids.New(), ids.New()
	require.Nil(t, d.create(id, "c", 1).GetError())
	key := scheduler.OfWorker(natstest.Worker)
	require.NoError(t, d.places.Take(t.Context(), key, tenant, ghost, 10))
	require.NoError(t, d.places.Quotas.Take(t.Context(), tenant, ghost, quota.Size{}, nil))
	require.NoError(t, d.s.Sweep(t.Context(), live))
	holders := func() (of []string) {
		h, err := d.places.Holders(t.Context(), key)
		require.NoError(t, err)
		counted, err := d.places.Quotas.Holders(t.Context(), tenant)
		require.NoError(t, err)
		return slices.Concat(slices.Collect(maps.Keys(h)), slices.Collect(maps.Keys(counted)))
	}
	require.ElementsMatch(t, []string{id, ghost, id, ghost}, holders(), "it may be about to be recorded")
	d.at.Add(int64(time.Hour))
	require.NoError(t, d.s.Sweep(t.Context(), live))
	require.Equal(t, []string{id, id}, holders(), "what the log confirms stays, with or without a view")
}

func TestPlacesAreExactOverManyCounters(t *testing.T) {
	f := natstest.Start(t)
	const limit, counters, each = 20, 4, 25
	var got atomic.Int64
	var wg sync.WaitGroup
	for range counters {
		p, err := scheduler.NewPlaces(t.Context(), f.JS, time.Now)
		require.NoError(t, err)
		for range each {
			wg.Go(func() {
				for {
					err := p.Take(context.WithoutCancel(t.Context()), "worker.w", tenant, ids.New(), limit)
					var full *scheduler.FullError
					switch {
					case err == nil:
						got.Add(1)
						return
					case errors.As(err, &full):
						return
					case fault.CodeOf(err) != fault.Unavailable:
						panic(fmt.Sprint("unexpected: ", err))
					}
				}
			})
		}
	}
	wg.Wait()
	require.EqualValues(t, limit, got.Load())
}

func TestACommandForAnotherSandboxThanItsSubjectSaysIsPoison(t *testing.T) {
	d := newDesk(t, w1())
	data, err := proto.Marshal(&commandsv1.SandboxCommand{CommandId: "c", TenantId: "other", SandboxId: ids.New()})
	require.NoError(t, err)
	err = d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, ids.New()), Data: data, Attempt: 1})
	require.True(t, fault.Is(err, dlq.CauseMisaddressed), "%v", err)
	err = d.s.Handle(t.Context(), worker.Message{Subject: subject.SandboxCommand(tenant, ids.New()), Data: []byte{0xff}, Attempt: 1})
	require.True(t, fault.Is(err, dlq.CauseUndecodable), "%v", err)
}
