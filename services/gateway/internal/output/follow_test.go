package output

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/transcript"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	patience = 20 * time.Second
	tick     = 5 * time.Millisecond
)

// rig is a server with one exec that runs.
type rig struct {
	*natstest.Fixture
	t    *testing.T
	log  *jslog.Log
	exec subject.Aggregate
}

func newRig(t *testing.T) *rig {
	t.Helper()
	f := natstest.Start(t)
	r := &rig{Fixture: f, t: t, log: jslog.New(f.JS), exec: subject.Exec("acme", ids.New(), ids.New())}
	r.record(&eventsv1.ExecStarted{SandboxId: r.exec.Sandbox, ExecId: r.exec.ID, Spec: &eventsv1.ExecSpec{Command: "x"}})
	return r
}

func (r *rig) record(body proto.Message) {
	r.t.Helper()
	h, err := r.log.Load(r.t.Context(), r.exec)
	require.NoError(r.t, err)
	meta := sandbox.CommandMeta{ID: ids.New(), Time: time.Now(), Tenant: r.exec.Tenant}
	_, err = r.log.Append(r.t.Context(), r.exec, h.Tail(), sandbox.Events(meta, body)...)
	require.NoError(r.t, err)
}

// chunk stores one of n bytes.
func (r *rig) chunk(number uint64, n int) {
	r.t.Helper()
	m := transcript.Encode(subject.Output(r.exec.Tenant, r.exec.Sandbox, r.exec.ID), transcript.Chunk{
		Number: number, Stream: transcript.Stdout, Data: bytes.Repeat([]byte{byte(number)}, n), Time: time.Now(),
	})
	_, err := r.JS.PublishMsg(r.t.Context(), m)
	require.NoError(r.t, err)
}

// A reader that does not read costs maxQueue, whatever is written meanwhile; then it gets all of it.
func TestDeadReaderCostsAQueue(t *testing.T) {
	r := newRig(t)
	f, err := Open(r.JS, r.log, nil, r.exec, 0, Timing{})
	require.NoError(t, err)
	defer f.Close()
	const n, size = 240, 200 << 10
	stuck, read := make(chan struct{}), make(chan struct{})
	var numbers []uint64
	done := make(chan error, 1)
	go func() {
		_, err := f.Run(t.Context(), true, nil, func(i Item) error {
			if i.Chunk == nil {
				return nil
			}
			if i.Chunk.Number == 1 {
				close(stuck)
				<-read
			}
			if len(i.Chunk.Data) != size || i.Chunk.Data[0] != byte(i.Chunk.Number) {
				return errors.New("wrong bytes")
			}
			numbers = append(numbers, i.Chunk.Number)
			return nil
		})
		done <- err
	}()
	r.chunk(1, size)
	<-stuck
	most := 0
	for i := range uint64(n - 1) {
		r.chunk(i+2, size)
		f.queue.mu.Lock()
		most = max(most, f.queue.bytes)
		f.queue.mu.Unlock()
	}
	r.record(&eventsv1.ExecCompleted{Reason: sandbox.ReasonExited, LastChunk: n})
	require.Eventually(t, func() bool {
		f.queue.mu.Lock()
		defer f.queue.mu.Unlock()
		return f.queue.missed && len(f.queue.messages) == 0
	}, patience, tick, "48 MiB are more than a queue holds")
	require.Positive(t, most)
	require.LessOrEqual(t, most, maxQueue)
	close(read)
	require.NoError(t, <-done)
	require.Len(t, numbers, n)
	for i, got := range numbers {
		require.EqualValues(t, i+1, got)
	}
}

func TestQueueNeverBlocks(t *testing.T) {
	q := newQueue(nil)
	m := &nats.Msg{Subject: "s", Data: make([]byte, 1<<20)}
	for range 100 {
		q.put(m)
		require.LessOrEqual(t, q.bytes, maxQueue)
	}
	got, missed := q.take()
	require.Nil(t, got)
	require.True(t, missed)
	q.put(m)
	got, missed = q.take()
	require.Same(t, m, got)
	require.False(t, missed)
}

// An outage of the log that lasts is told; it is neither an end nor silence.
func TestLongOutageIsUnavailable(t *testing.T) {
	r := newRig(t)
	r.chunk(1, 1)
	f, err := Open(r.JS, r.log, nil, r.exec, 0, Timing{Beat: 50 * time.Millisecond, Resync: 20 * time.Millisecond, Patience: 300 * time.Millisecond})
	require.NoError(t, err)
	defer f.Close()
	got, beats := make(chan uint64, 1), 0
	done := make(chan error, 1)
	go func() {
		_, err := f.Run(t.Context(), false, nil, func(i Item) error {
			if i.Chunk != nil {
				got <- i.Chunk.Number
			} else {
				beats++
			}
			return nil
		})
		done <- err
	}()
	require.EqualValues(t, 1, <-got)
	r.Stop()
	err = <-done
	require.True(t, fault.Is(err, fault.ReasonLogUnavailable), "%v", err)
	require.GreaterOrEqual(t, beats, 3)
}

func TestRunEndsWithItsReader(t *testing.T) {
	r := newRig(t)
	r.chunk(1, 1)
	f, err := Open(r.JS, r.log, nil, r.exec, 0, Timing{})
	require.NoError(t, err)
	defer f.Close()
	gone := errors.New("gone")
	_, err = f.Run(t.Context(), false, nil, func(Item) error { return gone })
	require.ErrorIs(t, err, gone)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Run(ctx, true, nil, func(Item) error { return nil })
	require.ErrorIs(t, err, context.Canceled)
	_, err = f.Run(t.Context(), true, settled(fault.New(fault.NotFound, fault.ReasonExecNotFound, "no")), func(Item) error { return nil })
	require.True(t, fault.Is(err, fault.ReasonExecNotFound))
}

func settled(err error) <-chan error {
	c := make(chan error, 1)
	c <- err
	return c
}
