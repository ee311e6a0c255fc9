package output

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// The end of an exec may be known before a replica shows its last chunks: they are on their way, not gone.
func TestChunksThatAReplicaDoesNotShowYetAreNotTakenForExpired(t *testing.T) {
	r := newRig(t)
	const n = 5
	for i := range n {
		r.chunk(uint64(i+1), 10)
	}
	r.record(&eventsv1.ExecCompleted{LastChunk: n, Stdout: &eventsv1.Output{}, Stderr: &eventsv1.Output{}})
	h, err := r.log.Load(t.Context(), r.exec)
	require.NoError(t, err)
	behind := r.Behind(t, r.NC, 2*time.Second)
	f, err := Open(behind, jslog.New(behind), nil, r.exec, 0, Timing{})
	require.NoError(t, err)
	defer f.Close()
	f.end = &h.Events[len(h.Events)-1]
	var numbers []uint64
	end, err := f.Run(t.Context(), true, nil, func(i Item) error {
		if i.Chunk != nil {
			numbers = append(numbers, i.Chunk.Number)
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, h.Tail().Seq, end.Seq)
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, numbers)
}
