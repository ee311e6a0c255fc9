package evidence_test

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

func TestEventsAreReadOnceAndAsTheyStand(t *testing.T) {
	f := natstest.Start(t)
	log, reader := jslog.New(f.JS), evidence.NewLog(f.JS)
	events, err := reader.Events(t.Context())
	require.NoError(t, err)
	require.Empty(t, events)
	agg := subject.Sandbox("acme", ids.New())
	tail := eventlog.Tail{}
	var stored []envelope.Recorded
	for range 1200 { // more than one page
		r, err := log.Append(t.Context(), agg, tail, envelope.Event{Meta: envelope.Meta{ID: ids.New(), Actor: "dev"}, Body: &eventsv1.SandboxStopping{}})
		require.NoError(t, err)
		stored = append(stored, r...)
		tail = eventlog.Tail{Seq: r[0].Seq, Digest: r[0].Digest}
		if len(stored) == 700 {
			events, err = reader.Events(t.Context())
			require.NoError(t, err)
			require.Len(t, events, 700)
		}
	}
	events, err = reader.Events(t.Context())
	require.NoError(t, err)
	require.Len(t, events, len(stored))
	var read []envelope.Recorded
	for i, e := range events {
		r, err := e.Decode()
		require.NoError(t, err)
		require.Equal(t, stored[i].ID, r.ID)
		require.Equal(t, stored[i].Digest, r.Digest)
		require.WithinDuration(t, time.Now(), e.Stored, time.Minute)
		require.NotContains(t, e.Header, "Nats-Stream", "what the read added is no part of the event")
		read = append(read, r)
	}
	require.NoError(t, eventlog.Verify(eventlog.History{Aggregate: agg, Events: read}))
}

func TestTranscriptsKeepPlacesAndDigestsOfChunks(t *testing.T) {
	f := natstest.Start(t)
	put := func(exec string, c transcript.Chunk) {
		_, err := f.JS.PublishMsg(t.Context(), transcript.Encode(subject.Output("acme", "box", exec), c))
		require.NoError(t, err)
	}
	put("b", transcript.Chunk{Number: 1, Stream: transcript.Stdout, Data: []byte("one")})
	put("a", transcript.Chunk{Number: 1, Stream: transcript.Stderr, Data: []byte("err")})
	put("b", transcript.Chunk{Number: 2, Stream: transcript.Stderr, Data: []byte("two")})
	put("b", transcript.Chunk{Number: 2, Stream: transcript.Stderr, Data: []byte("two")})
	put("b", transcript.Chunk{Number: 3, Stream: transcript.Stdout, Offset: 3, GapTo: 10})
	put("b", transcript.Chunk{Number: 4, Stream: transcript.Stdout, Offset: 10, Data: []byte("three")})
	all, err := evidence.NewLog(f.JS).Transcripts(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "a", all[0].Exec)
	require.Equal(t, evidence.Transcript{
		Tenant: "acme", Sandbox: "box", Exec: "b",
		Chunks: []journal.Piece{
			{Number: 1, Stream: "stdout", To: 3, SHA256: sum("one")},
			{Number: 2, Stream: "stderr", To: 3, SHA256: sum("two")},
			{Number: 2, Stream: "stderr", To: 3, SHA256: sum("two")},
			{Number: 3, Stream: "stdout", From: 3, To: 10, Gap: true},
			{Number: 4, Stream: "stdout", From: 10, To: 15, SHA256: sum("three")},
		},
		Stdout: journal.Digest{Bytes: 15, Dropped: 7, SHA256: sum("onethree")}, Stderr: journal.Digest{Bytes: 3, SHA256: sum("two")},
	}, all[1])
}

func sum(data string) string {
	s := sha256.Sum256([]byte(data))
	return hex.EncodeToString(s[:])
}

func TestBucketsGiveWhatIsThereNow(t *testing.T) {
	f := natstest.Start(t)
	for _, bucket := range evidence.Buckets() {
		kv, err := f.JS.KeyValue(t.Context(), bucket)
		require.NoError(t, err)
		for _, key := range []string{"a.b", "deleted", "purged"} {
			_, err = kv.Put(t.Context(), key, []byte("old"))
			require.NoError(t, err)
		}
		_, err = kv.Put(t.Context(), "a.b", []byte(bucket))
		require.NoError(t, err)
		require.NoError(t, kv.Delete(t.Context(), "deleted"))
		require.NoError(t, kv.Purge(t.Context(), "purged"))
	}
	all, err := evidence.NewLog(f.JS).Entries(t.Context())
	require.NoError(t, err)
	for _, bucket := range evidence.Buckets() {
		require.Len(t, all[bucket], 1)
		require.Equal(t, bucket, string(all[bucket]["a.b"].Data))
	}
	// A bucket that is added is collected too.
	named := map[string]bool{}
	for _, bucket := range evidence.Buckets() {
		named[subject.BucketStream(bucket)] = true
	}
	for _, stream := range topology.Streams() {
		if bucket := len(stream) > 3 && stream[:3] == "KV_"; bucket {
			require.True(t, named[stream], "bucket %s is not collected", stream)
		}
	}
}

func TestWaitingCommandsAndDeadLettersAreNamedAndNotOpened(t *testing.T) {
	f := natstest.Start(t)
	reader := evidence.NewLog(f.JS)
	for _, read := range []struct {
		at  string
		get func() ([]evidence.Message, error)
	}{
		{subject.SandboxCommand("acme", "x"), func() ([]evidence.Message, error) { return reader.Pending(t.Context()) }},
		{subject.DeadLetter("lifecycle", "c", "cmd.x"), func() ([]evidence.Message, error) { return reader.Dead(t.Context()) }},
	} {
		none, err := read.get()
		require.NoError(t, err)
		require.NotNil(t, none, "collected, and empty")
		require.Empty(t, none)
		m := nats.NewMsg(read.at)
		m.Data = []byte("sealed")
		m.Header.Set("Reason", "why")
		_, err = f.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		some, err := read.get()
		require.NoError(t, err)
		require.Len(t, some, 1)
		require.Equal(t, read.at, some[0].Subject)
		require.Equal(t, []string{"why"}, some[0].Header["Reason"])
		require.WithinDuration(t, time.Now(), some[0].Stored, time.Minute)
	}
}

func TestConsumersOfCommandsTellHowFarTheyHaveCome(t *testing.T) {
	f := natstest.Start(t)
	reader := evidence.NewLog(f.JS)
	for range 3 {
		_, err := f.JS.Publish(t.Context(), subject.SandboxCommand("acme", "x"), nil)
		require.NoError(t, err)
	}
	consumer, err := f.JS.Consumer(t.Context(), topology.StreamCommands, topology.ConsumerScheduler)
	require.NoError(t, err)
	batch, err := consumer.Fetch(2)
	require.NoError(t, err)
	for m := range batch.Messages() {
		require.NoError(t, m.DoubleAck(t.Context()))
	}
	all, err := reader.Consumers(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 3)
	require.Contains(t, all, evidence.Consumer{Name: topology.ConsumerScheduler, Filters: []string{subject.SandboxCommands()}, Acknowledged: 2})
	waiting, err := reader.Pending(t.Context())
	require.NoError(t, err)
	require.Len(t, waiting, 1)
}
