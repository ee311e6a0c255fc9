package journal_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

func out(chunk, offset uint64, data string) *computev1.ExecEvent {
	return &computev1.ExecEvent{Chunk: chunk, Offset: offset, Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: []byte(data)}}}
}

func sum(data string) string {
	s := sha256.Sum256([]byte(data))
	return hex.EncodeToString(s[:])
}

func TestAnswersSayOnlyWhatTheClientKnows(t *testing.T) {
	beat := &computev1.ExecEvent{Event: &computev1.ExecEvent_Heartbeat{Heartbeat: &computev1.Heartbeat{}}}
	for name, c := range map[string]struct {
		op     journal.Op
		events []*computev1.ExecEvent
		err    error
		want   journal.Answer
		lost   bool
	}{
		"no error":                        {op: journal.Create, want: journal.Acknowledged},
		"refused for good":                {op: journal.Create, err: status.Error(codes.ResourceExhausted, "quota"), want: journal.Refused},
		"another request had the key":     {op: journal.Create, err: status.Error(codes.AlreadyExists, "key"), want: journal.Refused},
		"the connection broke":            {op: journal.Destroy, err: status.Error(codes.Unavailable, "eof"), want: journal.Unknown},
		"the deadline came":               {op: journal.Cancel, err: status.Error(codes.DeadlineExceeded, "late"), want: journal.Unknown},
		"a bug of ours":                   {op: journal.Create, err: status.Error(codes.Internal, "bug"), want: journal.Unknown},
		"an exec broken before any event": {op: journal.Exec, err: status.Error(codes.Unavailable, "eof"), want: journal.Unknown},
		"an exec broken behind an event":  {op: journal.Exec, events: []*computev1.ExecEvent{out(1, 0, "x")}, err: status.Error(codes.Unavailable, "eof"), want: journal.Acknowledged},
		"an exec broken behind a beat":    {op: journal.Exec, events: []*computev1.ExecEvent{beat}, err: status.Error(codes.Unavailable, "eof"), want: journal.Unknown},
		"an exec refused behind a beat":   {op: journal.Exec, events: []*computev1.ExecEvent{beat}, err: status.Error(codes.FailedPrecondition, "failed"), want: journal.Refused},
		"an exec that is lost":            {op: journal.Exec, err: status.Error(codes.DataLoss, "lost"), want: journal.Acknowledged, lost: true},
		"a create that says lost":         {op: journal.Create, err: status.Error(codes.DataLoss, "lost"), want: journal.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			o := journal.New(1).Begin(journal.Call{Op: c.op})
			o.Header(metadata.Pairs("sandtrail-exec-id", "x"))
			for _, e := range c.events {
				o.Event(e)
			}
			got := o.Done(c.err)
			require.Equal(t, c.want, got.Answer)
			require.Equal(t, c.lost, got.End != nil && got.End.Lost)
			require.Equal(t, c.err != nil, got.Code != "")
		})
	}
}

func TestJournalOfManyClientsIsReadBackAsItWas(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Start(dir, 42)
	require.NoError(t, err)
	_, err = journal.Start(dir, 43)
	require.Error(t, err, "a journal is never continued by another run")
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for i := range 20 {
				o := j.Begin(journal.Call{Client: fmt.Sprint(c), Op: journal.Exec, Program: &journal.Program{Token: fmt.Sprint(c, "-", i)}})
				o.Header(metadata.Pairs("sandtrail-exec-id", fmt.Sprint("exec", c, "-", i)))
				o.Event(out(1, 0, "one"))
				o.Event(out(2, 3, "three"))
				o.Event(&computev1.ExecEvent{Event: &computev1.ExecEvent_Completed{Completed: &computev1.ExecCompleted{ExitCode: 7}}})
				o.Done(nil)
			}
		})
	}
	clients.Wait()
	open := j.Begin(journal.Call{Op: journal.Destroy, Sandbox: "s"})
	open.Sandbox("s")
	require.NoError(t, j.Close())
	have := j.History()
	require.Len(t, have.Calls, 161)
	read, err := journal.Read(dir)
	require.NoError(t, err)
	require.Equal(t, have, read)
	require.Equal(t, uint64(42), read.Seed)
	require.Equal(t, []journal.Piece{
		{Number: 1, Stream: "stdout", From: 0, To: 3, SHA256: sum("one")}, {Number: 2, Stream: "stdout", From: 3, To: 8, SHA256: sum("three")},
	}, read.Calls[0].Seen)
	require.Empty(t, read.Calls[160].Answer, "it was never answered")
}

func TestJournalOfAKilledRunIsReadUpToItsEnd(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Start(dir, 1)
	require.NoError(t, err)
	j.Begin(journal.Call{Op: journal.Create}).Done(nil)
	path := filepath.Join(dir, journal.FileName)
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for n := range whole {
		require.NoError(t, os.WriteFile(path, whole[:n], 0o600))
		h, err := journal.Read(dir)
		require.NoError(t, err, "%s", whole[:n])
		require.LessOrEqual(t, len(h.Calls), 1)
	}
	require.NoError(t, os.WriteFile(path, append([]byte("{}\n"), whole...), 0o600))
	_, err = journal.Read(dir)
	require.Error(t, err, "what is none of its lines is not passed over")
}
