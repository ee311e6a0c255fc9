package topology_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// things by kind and name.
func things(all []topology.Thing) map[string]topology.Thing {
	by := map[string]topology.Thing{}
	for _, t := range all {
		by[string(t.Kind)+" "+t.Name] = t
	}
	return by
}

func settled(all []topology.Thing) bool {
	for _, t := range all {
		if !t.Settled() {
			return false
		}
	}
	return true
}

// spoil makes a difference of each kind: a setting, a missing bucket, a missing consumer, a change that would lose messages, and things
// that nobody declares.
func spoil(t *testing.T, f *natstest.Fixture) {
	t.Helper()
	ctx := limited(t)
	require.NoError(t, topology.EnsureWorker(ctx, f.JS, "w1", topology.Options{}))
	out := configOf(t, f.JS, topology.StreamOutput)
	out.MaxMsgSize = 4096
	_, err := f.JS.UpdateStream(ctx, out)
	require.NoError(t, err)
	require.NoError(t, f.JS.DeleteKeyValue(ctx, topology.BucketPlace))
	require.NoError(t, f.JS.DeleteConsumer(ctx, topology.StreamCommands, topology.ConsumerExec("w1")))
	_, err = f.JS.Publish(ctx, subject.Tenant("acme").Subject(), make([]byte, 4<<10))
	require.NoError(t, err)
	_, err = f.JS.CreateStream(ctx, jetstream.StreamConfig{Name: "mine", Subjects: []string{"mine.>"}})
	require.NoError(t, err)
	_, err = f.JS.CreateConsumer(ctx, topology.StreamEvents, jetstream.ConsumerConfig{Durable: "billing", AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
}

func TestSurveyTellsOfEachThingHowItStandsAndChangesNothing(t *testing.T) {
	f := natstest.Start(t)
	spoil(t, f)
	small := topology.Options{EventsMaxBytes: 1 << 10}
	for range 2 {
		all, err := topology.Survey(limited(t), f.JS, small, "w2")
		require.NoError(t, err)
		require.False(t, settled(all))
		by := things(all)
		for what, want := range map[string]topology.State{
			"stream CMD": topology.Same, "stream OUT": topology.Different, "stream EVT": topology.Refused, "stream mine": topology.Unknown,
			"bucket exec": topology.Same, "bucket place": topology.Missing, "consumer billing": topology.Unknown,
			"consumer " + topology.ConsumerScheduler: topology.Same, "consumer " + topology.ConsumerWorker("w1"): topology.Same,
			"consumer " + topology.ConsumerExec("w1"): topology.Missing, "consumer " + topology.ConsumerWorker("w2"): topology.Missing,
		} {
			require.Equal(t, want, by[what].State, "%s: %+v", what, by[what])
		}
		require.Contains(t, by["stream EVT"].Why, "max_bytes")
		require.Len(t, by["stream OUT"].Differences, 1)
		require.Equal(t, "max_msg_size", by["stream OUT"].Differences[0].Field)
	}
}

func TestApplyDoesAllThatCanBeDoneBesideWhatIsRefused(t *testing.T) {
	f := natstest.Start(t)
	spoil(t, f)
	all, err := topology.Apply(limited(t), f.JS, topology.Options{EventsMaxBytes: 1 << 10}, "w2")
	require.NoError(t, err)
	by := things(all)
	require.Equal(t, topology.Refused, by["stream EVT"].State)
	require.Equal(t, topology.Changed, by["stream OUT"].State)
	require.Equal(t, topology.Made, by["bucket place"].State)
	require.Equal(t, topology.Made, by["consumer "+topology.ConsumerExec("w2")].State)

	all, err = topology.Survey(limited(t), f.JS, topology.Options{}, "w2")
	require.NoError(t, err)
	require.True(t, settled(all), "%+v", all)
	by = things(all)
	require.Equal(t, topology.Unknown, by["stream mine"].State, "what nobody declares is left alone")
	require.EqualValues(t, 1, events(t, f))
}

// What the server does not change is told, and is not the end of it.
func TestApplyTellsWhatTheServerRefuses(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	require.NoError(t, f.JS.DeleteConsumer(ctx, topology.StreamCommands, topology.ConsumerScheduler))
	_, err := f.JS.CreateConsumer(ctx, topology.StreamCommands, jetstream.ConsumerConfig{
		Durable: topology.ConsumerScheduler, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy, MaxWaiting: 7,
		FilterSubject: subject.SandboxCommands(),
	})
	require.NoError(t, err)
	require.NoError(t, f.JS.DeleteConsumer(ctx, topology.StreamEvents, topology.ConsumerGC))
	all, err := topology.Apply(ctx, f.JS, topology.Options{})
	require.NoError(t, err)
	by := things(all)
	require.Equal(t, topology.Refused, by["consumer "+topology.ConsumerScheduler].State)
	require.Contains(t, by["consumer "+topology.ConsumerScheduler].Why, "max waiting")
	require.Equal(t, topology.Made, by["consumer "+topology.ConsumerGC].State)
}

func TestSurveyOfAnEmptyServerFindsAllMissing(t *testing.T) {
	f := natstest.Start(t)
	ctx := limited(t)
	for _, name := range topology.Streams() {
		require.NoError(t, f.JS.DeleteStream(ctx, name))
	}
	all, err := topology.Survey(ctx, f.JS, topology.Options{})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, thing := range all {
		require.Equal(t, topology.Missing, thing.State, "%+v", thing)
	}
	_, err = topology.Survey(ctx, f.JS, topology.Options{}, "a.b")
	require.Error(t, err)
}

func events(t *testing.T, f *natstest.Fixture) uint64 {
	t.Helper()
	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	return s.CachedInfo().State.Msgs
}
