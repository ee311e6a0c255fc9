package topology_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/topology"
)

func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func configOf(t *testing.T, js jetstream.JetStream, stream string) jetstream.StreamConfig {
	t.Helper()
	s, err := js.Stream(limited(t), stream)
	require.NoError(t, err)
	return s.CachedInfo().Config
}

func TestEnsureTwiceChangesNothing(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	diff, err := topology.Diff(ctx, f.JS, f.Options)
	require.NoError(t, err)
	require.Empty(t, diff, "right after the first Ensure")
	diff, err = topology.DiffWorker(ctx, f.JS, natstest.Worker, f.Options)
	require.NoError(t, err)
	require.Empty(t, diff)

	updates, err := f.NC.SubscribeSync("$JS.EVENT.ADVISORY.*.*.>")
	require.NoError(t, err)
	before := configOf(t, f.JS, topology.StreamEvents)
	require.NotEmpty(t, before.Metadata[topology.MetaIncarnation])
	require.NoError(t, topology.Ensure(ctx, f.JS, f.Options))
	require.NoError(t, topology.EnsureWorker(ctx, f.JS, natstest.Worker, f.Options))
	require.Equal(t, before, configOf(t, f.JS, topology.StreamEvents))
	require.NoError(t, f.NC.Flush())
	pending, _, err := updates.Pending()
	require.NoError(t, err)
	require.Zero(t, pending, "the server announces whatever is created or updated")
}

func TestDiffSeesAPlantedDifferenceAndEnsureMendsIt(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	config := configOf(t, f.JS, topology.StreamEvents)
	incarnation := config.Metadata[topology.MetaIncarnation]
	config.Duplicates = time.Minute
	_, err := f.JS.UpdateStream(ctx, config)
	require.NoError(t, err)
	require.NoError(t, f.JS.DeleteConsumer(ctx, topology.StreamEvents, topology.ConsumerGC))

	diff, err := topology.Diff(ctx, f.JS, f.Options)
	require.NoError(t, err)
	require.Equal(t, []topology.Difference{
		{Name: "EVT", Field: "duplicate_window", Want: "600000000000", Have: "60000000000"},
		{Name: topology.ConsumerGC, Field: "exists", Want: "true", Have: "false"},
	}, diff)
	require.Equal(t, time.Minute, configOf(t, f.JS, topology.StreamEvents).Duplicates, "Diff changes nothing")

	require.NoError(t, topology.Ensure(ctx, f.JS, f.Options))
	diff, err = topology.Diff(ctx, f.JS, f.Options)
	require.NoError(t, err)
	require.Empty(t, diff)
	require.Equal(t, incarnation, configOf(t, f.JS, topology.StreamEvents).Metadata[topology.MetaIncarnation])
}

func TestEventsCannotBeDeleted(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	ack, err := f.JS.Publish(ctx, "evt.acme.tenant", []byte("x"))
	require.NoError(t, err)
	s, err := f.JS.Stream(ctx, topology.StreamEvents)
	require.NoError(t, err)
	require.Error(t, s.DeleteMsg(ctx, ack.Sequence))
	require.Error(t, s.SecureDeleteMsg(ctx, ack.Sequence))
	config := s.CachedInfo().Config
	config.DenyDelete = false
	_, err = f.JS.UpdateStream(ctx, config)
	require.Error(t, err, "nor can it be allowed again")
	_, err = s.GetMsg(ctx, ack.Sequence)
	require.NoError(t, err)
}

func TestEnsureRefusesToLoseEvents(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	for range 4 {
		_, err := f.JS.Publish(ctx, "evt.acme.tenant", make([]byte, 100_000))
		require.NoError(t, err)
	}
	err := topology.Ensure(ctx, f.JS, topology.Options{EventsMaxBytes: 200_000})
	require.Equal(t, fault.FailedPrecondition, fault.CodeOf(err), "%v", err)
	s, err := f.JS.Stream(ctx, topology.StreamEvents)
	require.NoError(t, err)
	require.EqualValues(t, 4, s.CachedInfo().State.Msgs)
}

func TestEnsureGivesTheLogMoreRoom(t *testing.T) {
	f := natstest.StartWith(t, natsserver.Options{}, topology.Options{EventsMaxBytes: 1 << 20})
	ctx := limited(t)
	_, err := f.JS.Publish(ctx, "evt.acme.tenant", []byte("x"))
	require.NoError(t, err)
	larger := topology.Options{EventsMaxBytes: 2 << 20, OutputMaxAge: 14 * 24 * time.Hour}
	diff, err := topology.Diff(ctx, f.JS, larger)
	require.NoError(t, err)
	require.Equal(t, []topology.Difference{
		{Name: "EVT", Field: "max_bytes", Want: "2097152", Have: "1048576"},
		{Name: "OUT", Field: "max_age", Want: "1209600000000000", Have: "604800000000000"},
	}, diff)
	require.NoError(t, topology.Ensure(ctx, f.JS, larger))
	diff, err = topology.Diff(ctx, f.JS, larger)
	require.NoError(t, err)
	require.Empty(t, diff)
	s, err := f.JS.Stream(ctx, topology.StreamEvents)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.CachedInfo().State.Msgs)
}

// A log that was compressed block by block goes on uncompressed, and what stands in the old blocks is read as before.
func TestALogWrittenCompressedIsReadToItsEnd(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	earlier := configOf(t, f.JS, topology.StreamEvents)
	earlier.Compression = jetstream.S2Compression
	_, err := f.JS.UpdateStream(ctx, earlier)
	require.NoError(t, err)
	f.Restart()
	var want []string
	write := func() {
		for range 12 { // blocks hold 8 MiB, and only a full one is compressed
			body := strings.Repeat(strconv.Itoa(len(want)%10), topology.MaxEventSize-1<<10)
			_, err := f.JS.Publish(ctx, "evt.acme.tenant", []byte(body))
			require.NoError(t, err)
			want = append(want, body[:1])
		}
	}
	write()
	require.NoError(t, topology.Ensure(ctx, f.JS, f.Options))
	write()
	f.Restart()
	write()
	s, err := f.JS.Stream(ctx, topology.StreamEvents)
	require.NoError(t, err)
	require.Equal(t, jetstream.NoCompression, s.CachedInfo().Config.Compression)
	for i, first := range want {
		m, err := s.GetMsg(ctx, uint64(i+1))
		require.NoError(t, err)
		require.Equal(t, strings.Repeat(first, topology.MaxEventSize-1<<10), string(m.Data), "message %d", i+1)
	}
}

func TestEnsureAtTheSameTime(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	for _, name := range []string{topology.StreamEvents, topology.StreamOutput} {
		require.NoError(t, f.JS.DeleteStream(ctx, name))
	}
	const n = 8
	done := make(chan error, n)
	for range n {
		go func() { done <- topology.Ensure(ctx, f.JS, f.Options) }()
	}
	for range n {
		require.NoError(t, <-done)
	}
	diff, err := topology.Diff(ctx, f.JS, f.Options)
	require.NoError(t, err)
	require.Empty(t, diff)
}

func TestWorkersDoNotTakeEachOthersCommands(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	require.NoError(t, topology.EnsureWorker(ctx, f.JS, "w2", f.Options))
	err := topology.EnsureWorker(ctx, f.JS, "w.>", f.Options)
	require.Equal(t, fault.InvalidArgument, fault.CodeOf(err), "a name must not widen a filter")

	_, err = f.JS.Publish(ctx, "cmd.worker.w2.acme.s1", []byte("for w2"))
	require.NoError(t, err)
	pending := func(worker string) uint64 {
		c, err := f.JS.Consumer(ctx, topology.StreamCommands, topology.ConsumerWorker(worker))
		require.NoError(t, err)
		return c.CachedInfo().NumPending
	}
	// The server counts a little behind the publish.
	require.Eventually(t, func() bool { return pending("w2") == 1 }, 20*time.Second, 5*time.Millisecond)
	require.Zero(t, pending("w1"))
}

func TestStoredEventsAreRepeatedLive(t *testing.T) {
	f := natstest.Start(t)
	live, err := f.NC.SubscribeSync("live.>")
	require.NoError(t, err)
	require.NoError(t, f.NC.Flush())
	for _, s := range []string{"evt.acme.sandbox.s1", "out.acme.s1.x1"} {
		_, err := f.JS.PublishMsg(limited(t), &nats.Msg{Subject: s, Data: []byte("x")})
		require.NoError(t, err)
		m, err := live.NextMsg(5 * time.Second)
		require.NoError(t, err)
		require.Equal(t, "live."+s, m.Subject)
	}
}

func TestWhatJetStreamGivesUpOnIsKept(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	_, err := f.JS.Publish(ctx, "cmd.worker.w1.acme.s1", []byte("poison"))
	require.NoError(t, err)
	c, err := f.JS.Consumer(ctx, topology.StreamCommands, topology.ConsumerWorker("w1"))
	require.NoError(t, err)
	m, err := c.Next()
	require.NoError(t, err)
	require.NoError(t, m.TermWithReason("no use"))
	s, err := f.JS.Stream(ctx, topology.StreamAdvisories)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := s.Info(ctx)
		return err == nil && info.State.Msgs == 1
	}, 10*time.Second, 5*time.Millisecond)
}

// What is stored must fit through the limits that the producers were promised, and not more.
func TestMessageSizesAreBounded(t *testing.T) {
	f := natstest.Start(t)
	for s, limit := range map[string]int{
		"evt.acme.tenant": topology.MaxEventSize, "out.acme.s1.x1": topology.MaxChunkSize,
		"cmd.worker.w1.acme.s1": topology.MaxCommandSize,
	} {
		_, err := f.JS.Publish(limited(t), s, make([]byte, limit))
		require.NoError(t, err, s)
		_, err = f.JS.Publish(limited(t), s, make([]byte, limit+1))
		require.Error(t, err, s)
	}
}

// Heartbeats and leases that nobody renews must go by themselves, and whoever watches must hear of it.
func TestLeasesRunOut(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	kv, err := f.JS.KeyValue(ctx, topology.BucketLease)
	require.NoError(t, err)
	_, err = kv.Create(ctx, "k", []byte("mine"), jetstream.KeyTTL(time.Second))
	require.NoError(t, err)
	w, err := kv.Watch(ctx, "k", jetstream.UpdatesOnly())
	require.NoError(t, err)
	select {
	case e := <-w.Updates():
		require.NotEqual(t, jetstream.KeyValuePut, e.Operation())
	case <-ctx.Done():
		require.FailNow(t, "nobody was told")
	}
	require.NoError(t, w.Stop())
	_, err = kv.Create(ctx, "k", []byte("yours"))
	require.NoError(t, err)
	status, err := kv.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, topology.LeaseTTL, status.TTL())
}
