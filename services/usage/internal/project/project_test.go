package project_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
	"github.com/sandtrail/sandtrail/services/usage/internal/enginetest"
	"github.com/sandtrail/sandtrail/services/usage/internal/project"
)

func TestMain(m *testing.M) { enginetest.Main(m) }

const (
	patience = 30 * time.Second
	// quickstart is the query as users are told to write it.
	quickstart = `SELECT id, event_type, cpu_ms, memory_peak_bytes, wall_time_ms
FROM   agents.usage_events
WHERE  session_id = 'session-uuid-001'
ORDER  BY occurred_at DESC
LIMIT  1;`
	totals = "SELECT (SELECT (count(), uniqExact(id), sum(cpu_ms), sum(wall_time_ms)) FROM agents.usage_events)," +
		" (SELECT (count(), sum(cpu_ms), sum(uptime_ms)) FROM agents.sandbox_usage)"
)

var start = time.Date(2026, 5, 31, 23, 59, 0, 0, time.UTC)

// ask sends a query over HTTP as the user without a password.
func ask(t testing.TB, url, query string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(query))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(b))
	return strings.TrimSpace(string(b))
}

func message(t testing.TB, subj string, at time.Time, body proto.Message) *nats.Msg {
	t.Helper()
	m, _, err := envelope.Encode(subj, envelope.Event{Meta: envelope.Meta{ID: ids.New(), Time: at}, Body: body}, nil)
	require.NoError(t, err)
	return m
}

// publish stores events; what it cares for is the projection, so their digests are not chained.
func publish(t testing.TB, js jetstream.JetStream, messages ...*nats.Msg) {
	t.Helper()
	var last jetstream.PubAckFuture
	for _, m := range messages {
		var err error
		last, err = js.PublishMsgAsync(m)
		require.NoError(t, err)
	}
	select {
	case <-last.Ok():
	case err := <-last.Err():
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(patience):
		require.Fail(t, "events were not stored")
	}
}

// life is the story of the n-th sandbox: execs of 1, 2, … ms of CPU, cumulative samples, and an end in the next month.
func life(t testing.TB, n, execs int) []*nats.Msg {
	t.Helper()
	tenant, sandbox := fmt.Sprintf("tenant-%d", n%3), ids.Derive("test", fmt.Sprint(n))
	subj := subject.Sandbox(tenant, sandbox).Subject()
	all := []*nats.Msg{
		message(t, subj, start, &eventsv1.SandboxRequested{SandboxId: sandbox, SessionId: fmt.Sprintf("session-%d", n), OrgId: "org"}),
		message(t, subj, start, &eventsv1.SandboxReady{}),
	}
	var total uint64
	for i := 1; i <= execs; i++ {
		cpu := uint64(i)
		total += cpu
		all = append(all, message(t, subject.Exec(tenant, sandbox, ids.New()).Subject(), start.Add(time.Duration(i)*time.Second),
			&eventsv1.ExecCompleted{WallTimeUs: cpu * 2000, Reason: "exited", Usage: &commonv1.UsageMetrics{CpuMs: cpu}}))
		if i%5 == 0 {
			all = append(all, message(t, subj, start.Add(time.Duration(i)*time.Second),
				&eventsv1.SandboxUsageSampled{Usage: &commonv1.UsageMetrics{CpuMs: total}, UptimeMs: uint64(i) * 1000}))
		}
	}
	end := &commonv1.UsageMetrics{CpuMs: total}
	return append(all,
		message(t, subj, start.Add(time.Hour), &eventsv1.SandboxFailed{Reason: "sandbox_lost", UptimeMs: 3_600_000, Usage: end}),
		message(t, subj, start.Add(2*time.Hour), &eventsv1.SandboxDestroyed{Reason: "failed", UptimeMs: 3_600_000, Usage: end}))
}

// sum is what totals gives for lives of so many sandboxes and execs.
func sum(sandboxes, execs int) string {
	cpu := sandboxes * execs * (execs + 1) / 2
	return fmt.Sprintf("(%d,%d,%d,%d)\t(%d,%d,%d)", sandboxes*execs, sandboxes*execs, cpu, 2*cpu, sandboxes, cpu, sandboxes*3_600_000)
}

// run starts a projector and returns what stops it and waits for its end.
func run(t testing.TB, js jetstream.JetStream, sink project.Sink) (stop func() error, metrics *prometheus.Registry) {
	t.Helper()
	metrics = prometheus.NewRegistry()
	p, err := project.New(t.Context(), project.Config{JS: js, Sink: sink, Log: slog.New(slog.DiscardHandler), Registerer: metrics})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = func() error {
		cancel()
		return <-ended
	}
	t.Cleanup(cancel)
	return stop, metrics
}

// stand is the checkpoint's sequence; 0 without one.
func stand(t testing.TB, js jetstream.JetStream) uint64 {
	t.Helper()
	kv, err := js.KeyValue(context.Background(), topology.BucketCheckpoint)
	if err != nil {
		return 0
	}
	e, err := kv.Get(context.Background(), topology.CheckpointUsage)
	if err != nil {
		return 0
	}
	var c struct{ Seq uint64 }
	if json.Unmarshal(e.Value(), &c) != nil {
		return 0
	}
	return c.Seq
}

// awaitDone waits until the checkpoint is where the log is.
func awaitDone(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	require.Eventually(t, func() bool {
		s, err := js.Stream(context.Background(), topology.StreamEvents)
		return err == nil && stand(t, js) >= s.CachedInfo().State.LastSeq
	}, patience, 20*time.Millisecond)
}

// again makes the next projector read the log from its first event.
func again(t testing.TB, js jetstream.JetStream) {
	t.Helper()
	kv, err := js.KeyValue(t.Context(), topology.BucketCheckpoint)
	require.NoError(t, err)
	require.NoError(t, kv.Delete(t.Context(), topology.CheckpointUsage))
}

func TestTheQuickstartsQueryGivesTheOneRightRow(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	sandbox, usage := ids.New(), ids.New()
	subj := subject.Sandbox("acme-tenant-uuid", sandbox).Subject()
	now := time.Now()
	publish(t, n.JS,
		message(t, subj, now.Add(-2*time.Second), &eventsv1.SandboxRequested{SandboxId: sandbox, SessionId: "session-uuid-001"}),
		message(t, subject.Exec("acme-tenant-uuid", sandbox, ids.New()).Subject(), now, &eventsv1.ExecCompleted{
			WallTimeUs: 412_345, UsageEventId: usage, Usage: &commonv1.UsageMetrics{CpuMs: 110, MemoryPeakBytes: 18874368},
		}),
		message(t, subj, now.Add(time.Second), &eventsv1.SandboxDestroyed{UptimeMs: 3000, Usage: &commonv1.UsageMetrics{CpuMs: 110}}))
	for range 3 {
		stop, _ := run(t, n.JS, c)
		awaitDone(t, n.JS)
		require.NoError(t, stop())
		require.Equal(t, usage+"\texec_command\t110\t18874368\t412", ask(t, e.HTTP(), quickstart))
		require.Equal(t, "1\t1", ask(t, e.HTTP(), "SELECT count(), countIf(tenant_id = 'acme-tenant-uuid') FROM agents.usage_events WHERE session_id = 'session-uuid-001'"))
		require.Equal(t, "session-uuid-001\tdestroyed\t3000", ask(t, e.HTTP(), "SELECT session_id, outcome, uptime_ms FROM agents.sandbox_usage"))
		again(t, n.JS)
	}
}

func TestARowIsReadableWithinTwoSeconds(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	run(t, n.JS, enginetest.Open(t, e.URL()))
	var took []time.Duration
	for i := range 11 {
		usage := ids.New()
		publish(t, n.JS, message(t, subject.Exec("acme", ids.New(), ids.New()).Subject(), time.Now(), &eventsv1.ExecCompleted{UsageEventId: usage}))
		stored := time.Now()
		require.Eventually(t, func() bool {
			return ask(t, e.HTTP(), "SELECT count() FROM agents.usage_events WHERE id = '"+usage+"'") == "1"
		}, 2*time.Second, 5*time.Millisecond, "event %d", i)
		took = append(took, time.Since(stored))
	}
	slices.Sort(took)
	t.Logf("median of %d: %s, worst: %s", len(took), took[len(took)/2], took[len(took)-1])
}

func TestReplaysChangeNoTotal(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	for i := range 20 {
		publish(t, n.JS, life(t, i, 30)...)
	}
	for range 3 {
		stop, _ := run(t, n.JS, c)
		awaitDone(t, n.JS)
		require.NoError(t, stop())
		require.Equal(t, sum(20, 30), ask(t, e.HTTP(), totals))
		again(t, n.JS)
	}
	// Read by two at once, who insert the same rows until one of them stands by.
	run(t, n.JS, c)
	run(t, n.JS, c)
	awaitDone(t, n.JS)
	require.Equal(t, sum(20, 30), ask(t, e.HTTP(), totals))
}

// dying inserts, and then the connection to the log is gone before the checkpoint is stored, as if the process were killed.
type dying struct {
	project.Sink
	nc    *nats.Conn
	after atomic.Int32
}

func (d *dying) Insert(ctx context.Context, rows *clickhouse.Block) error {
	err := d.Sink.Insert(ctx, rows)
	if err == nil && d.after.Add(-1) == 0 {
		d.nc.Close()
	}
	return err
}

func TestAProjectorKilledBetweenInsertAndCheckpoint(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	c := enginetest.Open(t, e.URL())
	for i := range 20 {
		publish(t, n.JS, life(t, i, 30)...)
	}
	nc, err := nats.Connect(n.URL)
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	d := &dying{Sink: c, nc: nc}
	d.after.Store(1)
	p, err := project.New(t.Context(), project.Config{JS: js, Sink: d, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	require.ErrorIs(t, p.Run(t.Context()), nats.ErrConnectionClosed)
	require.NotEqual(t, "0", ask(t, e.HTTP(), "SELECT count() FROM agents.usage_events"), "it died before the insert")

	// More comes before the next one starts, so that the next batches are cut differently.
	publish(t, n.JS, life(t, 20, 30)...)
	run(t, n.JS, c)
	awaitDone(t, n.JS)
	require.Equal(t, sum(21, 30), ask(t, e.HTTP(), totals))
}

// failing takes the rows and says, every other time, that it did not.
type failing struct {
	project.Sink
	calls int
}

func (f *failing) Insert(ctx context.Context, rows *clickhouse.Block) error {
	f.calls++
	if f.calls%2 == 1 {
		return errors.Join(f.Sink.Insert(ctx, rows), errors.New("the answer was lost"))
	}
	return f.Sink.Insert(ctx, rows)
}

func TestAnInsertWithAnUnknownOutcomeIsRepeated(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	run(t, n.JS, &failing{Sink: enginetest.Open(t, e.URL())})
	for i := range 5 {
		publish(t, n.JS, life(t, i, 30)...)
	}
	awaitDone(t, n.JS)
	require.Equal(t, sum(5, 30), ask(t, e.HTTP(), totals))
}

func TestWhatHappensWhileClickHouseIsDownIsNotLost(t *testing.T) {
	n, dir := natstest.Start(t), t.TempDir()
	e := enginetest.Start(t, dir)
	native, web := port(t, e.Native()), port(t, e.HTTP())
	// The password changes with each start of an engine; the one of the second start is what a server keeps in reality.
	sink := &switching{}
	sink.to.Store(enginetest.Open(t, e.URL()))
	publish(t, n.JS, life(t, 0, 30)...)
	_, metrics := run(t, n.JS, sink)
	awaitDone(t, n.JS)

	e.Close()
	for i := 1; i < 10; i++ {
		publish(t, n.JS, life(t, i, 30)...)
	}
	require.Eventually(t, func() bool {
		return value(t, metrics, "sandtrail_usage_retries_total") >= 2 && value(t, metrics, "sandtrail_usage_pending_events") > 0
	}, patience, 50*time.Millisecond)

	e = enginetest.Start(t, dir, native, web)
	sink.to.Store(enginetest.Open(t, e.URL()))
	awaitDone(t, n.JS)
	require.Equal(t, sum(10, 30), ask(t, e.HTTP(), totals))
}

type switching struct {
	to atomic.Pointer[clickhouse.Conn]
}

func (s *switching) Clear(context.Context) error { return errors.New("ClickHouse is down") }

func (s *switching) Late(context.Context, string, uuid.UUID) error { return nil }

func (s *switching) Insert(ctx context.Context, rows *clickhouse.Block) error {
	return s.to.Load().Insert(ctx, rows)
}

func TestPoisonGoesToTheDeadLettersAndNothingElse(t *testing.T) {
	n, e := natstest.Start(t), enginetest.Start(t, "")
	subj := subject.Exec("acme", ids.New(), ids.New()).Subject()
	broken := message(t, subj, time.Now(), &eventsv1.ExecCompleted{})
	broken.Data = []byte{0xff}
	stranger := message(t, subj, time.Now(), &eventsv1.ExecCompleted{})
	stranger.Header.Set(envelope.HeaderTenant, "other")
	bare := nats.NewMsg(subj)
	future := message(t, subj, time.Now(), &eventsv1.ExecCompleted{})
	future.Header.Set(envelope.HeaderType, "sandtrail.events.v9.ExecImagined")
	letter := message(t, subject.Letter("acme", ids.New()).Subject(), time.Now(), &eventsv1.LetterDropped{})
	newer := message(t, "evt.acme.volume.v1", time.Now(), &eventsv1.SandboxReady{})
	publish(t, n.JS, broken, stranger, bare, future, letter, newer)
	publish(t, n.JS, life(t, 0, 10)...)
	_, metrics := run(t, n.JS, enginetest.Open(t, e.URL()))
	awaitDone(t, n.JS)
	require.Equal(t, sum(1, 10), ask(t, e.HTTP(), totals))
	letters, err := dlq.New(n.JS, nil).List(t.Context(), dlq.Filter{Service: "usage", Consumer: topology.CheckpointUsage})
	require.NoError(t, err)
	require.Len(t, letters, 3)
	for i, want := range []string{
		"it cannot be decoded: its bytes are no protobuf of that type", "the tenant of its header is not that of its subject", "it cannot be decoded",
	} {
		l := letters[i]
		require.Equal(t, want, l.Error)
		require.Equal(t, fmt.Sprint("poison ", 1, topology.StreamEvents, i+1, subj), fmt.Sprint(l.Reason+" ", l.Attempts, l.Stream, l.Seq, l.Subject))
		require.Equal(t, []nats.Header{broken.Header, stranger.Header, {}}[i].Get(envelope.HeaderID), l.MessageID)
		require.NotZero(t, l.Stored)
	}
	require.InDelta(t, 3, value(t, metrics, "sandtrail_usage_dead_letters_total"), 0)
	require.Positive(t, value(t, metrics, "sandtrail_usage_skipped_total"))
	_, err = dlq.New(n.JS, jslog.New(n.JS)).Redrive(t.Context(), letters[1].ID, dlq.Operator{Name: "ann"})
	require.True(t, fault.Is(err, fault.ReasonValidation), "what can never be a row stays: %v", err)
}

func TestMapGivesTheSameRowForTheSameEvent(t *testing.T) {
	agg := subject.Exec("acme", ids.New(), ids.New())
	e := envelope.Recorded{Meta: envelope.Meta{ID: ids.New(), Time: start}, Seq: 7, Body: &eventsv1.ExecLost{Reason: "sandbox_lost", WallTimeUs: 1999}}
	a, err := project.Map(e, agg, project.Owner{Session: "s"})
	require.NoError(t, err)
	b, err := project.Map(e, agg, project.Owner{Session: "s"})
	require.NoError(t, err)
	require.Equal(t, a, b)
	require.Equal(t, uuid.MustParse(ids.Usage(e.ID)), a.ID)
	require.Nil(t, a.ExitCode, "nothing is known about the exit of a lost exec")
	require.EqualValues(t, 1, a.WallMillis)
}

// port is the one at the end of an address.
func port(t testing.TB, address string) int {
	t.Helper()
	n, err := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
	require.NoError(t, err)
	return n
}

// value sums a metric over its labels.
func value(t testing.TB, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
