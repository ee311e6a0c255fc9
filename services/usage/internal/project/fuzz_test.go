package project

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/feed"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// FuzzQuick: the quick way makes the row of the general one, or says that it does not know.
func FuzzQuick(f *testing.F) {
	corpus, err := os.ReadFile("../../../../proto/corpus/v1/ExecCompleted.binpb")
	require.NoError(f, err)
	plain, err := proto.Marshal(&eventsv1.ExecCompleted{
		ExitCode: 1, Reason: "exited", WallTimeUs: 5000, UsageEventId: ids.Derive("u"), SessionId: "s", UsageMethod: "cgroup",
		Stdout: &eventsv1.Output{Bytes: 1, Sha256: make([]byte, 32)},
	})
	require.NoError(f, err)
	at := time.Unix(1_780_000_000, 7).UTC().Format(time.RFC3339Nano)
	for _, data := range [][]byte{corpus, plain, append(plain, plain...), plain[:len(plain)/2], {}, {0x32, 0x00}, {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}} {
		f.Add(ids.Derive("e"), "1", at, strings.Repeat("ab", 32), "acme", data)
	}
	f.Add(strings.ToUpper(ids.Derive("e")), "+1", "2026-01-01T00:00:00+14:00", "", "", plain)
	f.Add("x", "", "", "xyz", "other", plain)
	agg := subject.Exec("acme", ids.Derive("s"), ids.Derive("x"))
	owner := Owner{Session: "session", Org: "org"}
	f.Fuzz(func(t *testing.T, id, schema, when, digest, tenant string, data []byte) {
		h := envelope.Head{ID: id, Type: typeCompleted, Schema: schema, Time: when, Digest: digest, Tenant: tenant}
		m := feed.Message{Subject: agg.Subject(), Seq: 7, Data: data}
		var got clickhouse.Row
		if !newWords().quick(&got, m, h, agg, owner) {
			return
		}
		e, err := envelope.DecodeHead(m.Subject, m.Seq, h, data)
		require.NoError(t, err)
		want, err := Map(e, agg, owner)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// FuzzMap: an event of any type and body makes a row that a block takes, or is refused.
func FuzzMap(f *testing.F) {
	for _, m := range costing {
		name := m.ProtoReflect().Descriptor().FullName()
		data, err := os.ReadFile("../../../../proto/corpus/v1/" + string(name.Name()) + ".binpb")
		require.NoError(f, err)
		f.Add(string(name), ids.Derive("e"), ids.Derive("s"), ids.Derive("x"), "2026-01-01T00:00:00Z", data)
	}
	f.Add("", "", "", "", "", []byte{})
	f.Fuzz(func(t *testing.T, typ, id, sandbox, exec, when string, data []byte) {
		h := envelope.Head{ID: id, Type: typ, Schema: "1", Time: when}
		for _, agg := range []subject.Aggregate{subject.Exec("acme", sandbox, exec), subject.Sandbox("acme", sandbox)} {
			e, err := envelope.DecodeHead(agg.Subject(), 7, h, data)
			if err != nil || e.Body == nil {
				continue
			}
			row, err := Map(e, agg, Owner{})
			if err != nil {
				continue
			}
			b := clickhouse.Rows(row)
			require.Equal(t, row, b.Row(0))
			require.False(t, row.OccurredAt.Before(earliest) || row.OccurredAt.After(latest))
		}
	})
}

// FuzzCheckpoint: what stands in the bucket is a checkpoint that is written again as it was, or it counts as none.
func FuzzCheckpoint(f *testing.F) {
	whole, err := json.Marshal(checkpoint{Incarnation: "i", Seq: 7, Version: 1, Stored: time.Unix(1, 2).UTC(), Projector: "p"})
	require.NoError(f, err)
	for _, s := range []string{string(whole), "", "null", "{}", "[]", `{"seq":-1}`, `{"seq":1e3}`, `{"seq":18446744073709551616}`, `{"SEQ":7,"seq":8}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := readCheckpoint(data)
		if c == (checkpoint{}) {
			return
		}
		again, err := json.Marshal(c)
		require.NoError(t, err)
		twin := readCheckpoint(again)
		require.True(t, c.Stored.Equal(twin.Stored))
		c.Stored, twin.Stored = time.Time{}, time.Time{}
		require.Equal(t, c, twin)
	})
}
