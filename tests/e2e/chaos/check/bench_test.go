package check_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// BenchmarkAll judges a made-up clean run: 1,000 sandboxes with 10 execs each, without views and rows.
func BenchmarkAll(b *testing.B) {
	h, e := madeUp(b, 1000, 10)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			require.Empty(b, check.All(h, e))
		}
		b.ReportMetric(float64(len(e.Events)), "events")
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			require.Empty(b, check.Open(e))
		}
	})
	b.Run("save and load", func(b *testing.B) {
		for b.Loop() {
			dir := b.TempDir()
			require.NoError(b, e.Save(dir))
			_, err := evidence.Load(dir)
			require.NoError(b, err)
		}
	})
}

func madeUp(b *testing.B, sandboxes, execs int) (journal.History, evidence.Evidence) {
	b.Helper()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var h journal.History
	e := evidence.Evidence{Taken: at.Add(time.Hour), Transcripts: []evidence.Transcript{}, Witnesses: []evidence.Witness{}}
	digests := map[string][]byte{}
	add := func(agg subject.Aggregate, body proto.Message) {
		m, d, err := envelope.Encode(agg.Subject(), envelope.Event{Meta: envelope.Meta{ID: ids.New(), Tenant: tenant, Time: at}, Body: body}, digests[agg.Subject()])
		require.NoError(b, err)
		digests[agg.Subject()] = d
		e.Events = append(e.Events, evidence.Event{Seq: uint64(len(e.Events) + 1), Subject: agg.Subject(), Header: m.Header, Data: m.Data, Stored: at})
	}
	for n := range sandboxes {
		id, key := ids.New(), fmt.Sprint("create-", n)
		box := subject.Sandbox(tenant, id)
		h.Calls = append(h.Calls, journal.Call{Op: journal.Create, Tenant: tenant, Key: key, Sandbox: id, Answer: journal.Acknowledged})
		add(box, &eventsv1.SandboxRequested{SandboxId: id, Labels: map[string]string{journal.Label: key}, Placement: &eventsv1.Placement{Worker: worker}})
		add(box, &eventsv1.SandboxStarting{Worker: worker, Attempt: 1})
		add(box, &eventsv1.SandboxReady{Worker: worker})
		w := evidence.Witness{Sandbox: id, Starts: map[string]int{}}
		for i := range execs {
			p := journal.Program{Token: fmt.Sprintf("p-%d-%d", n, i), StdoutLines: 50, Width: 200}
			x := subject.Exec(tenant, id, ids.New())
			whole := p.Output("stdout")
			sum := sha256.Sum256(whole)
			piece := journal.Piece{Number: 1, Stream: "stdout", To: uint64(len(whole)), SHA256: hex.EncodeToString(sum[:])}
			digest := journal.Digest{Bytes: piece.To, SHA256: piece.SHA256}
			command, args := p.Command()
			add(x, &eventsv1.ExecStarted{SandboxId: id, ExecId: x.ID, Worker: worker, Spec: &eventsv1.ExecSpec{Command: command, Args: args}})
			add(x, &eventsv1.ExecCompleted{
				Reason: "exited", LastChunk: 1, UsageEventId: ids.New(), Usage: &commonv1.UsageMetrics{CpuMs: 7},
				Stdout: &eventsv1.Output{Bytes: piece.To, Sha256: sum[:]}, Stderr: &eventsv1.Output{},
			})
			r, err := e.Events[len(e.Events)-1].Decode()
			require.NoError(b, err)
			h.Calls = append(h.Calls, journal.Call{
				Op: journal.Exec, Tenant: tenant, Key: p.Token, Sandbox: id, Exec: x.ID, Program: &p, Answer: journal.Acknowledged, Seen: []journal.Piece{piece},
				End: &journal.End{Reason: "exited", UsageEventID: r.Body.(*eventsv1.ExecCompleted).GetUsageEventId(), Stdout: digest},
			})
			e.Transcripts = append(e.Transcripts, evidence.Transcript{Tenant: tenant, Sandbox: id, Exec: x.ID, Chunks: []journal.Piece{piece}, Stdout: digest})
			w.Starts[p.Token] = 1
		}
		add(box, &eventsv1.SandboxDestroying{Reason: "requested"})
		add(box, &eventsv1.SandboxDestroyed{Reason: "requested"})
		e.Witnesses = append(e.Witnesses, w)
	}
	return h, e
}
