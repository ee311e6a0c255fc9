package audit

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNothingIsSignedWhereNothingHappens(t *testing.T) {
	w := newWorld(t)
	require.Zero(t, w.sign().Size, "the log is empty")
	w.live(2)
	first := w.sign()
	require.EqualValues(t, 6, first.Size)
	require.EqualValues(t, 7, first.Seq)
	require.Equal(t, first.Note, w.sign().Note)
	require.EqualValues(t, 7, w.open().LastSeq)
	w.live(1)
	require.EqualValues(t, 10, w.sign().Size)
}

func TestALongLogIsSignedInSteps(t *testing.T) {
	w := newWorld(t)
	w.live(5)
	x := w.writer()
	x.most = 4
	c, err := x.Sign(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, c.Size, uint64(15))
	r := verify(t, &list{w.entries()}, Options{Keys: w.keys})
	require.True(t, r.OK(), "%v", show(r))
	require.Greater(t, r.Checkpoints, uint64(3))
}

// Two that sign at once for a moment, because a lease was lost, leave a log that is whole.
func TestSeveralMaySignAtOnce(t *testing.T) {
	w := newWorld(t)
	w.live(10)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.writer().Sign(t.Context()) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	r := verify(t, &list{w.entries()}, Options{Keys: w.keys})
	require.True(t, r.OK(), "%v", show(r))
}

// A checkpoint that is not ours is not built upon: whoever can write to the log would have us sign a tree of theirs.
func TestAForgedCheckpointIsNotBuiltUpon(t *testing.T) {
	w := newWorld(t)
	w.live(2)
	ours := w.key
	w.key, _ = newKey(t)
	w.sign()
	w.key = ours
	w.live(1)
	c := w.sign()
	require.EqualValues(t, 10, c.Size)
	r := verify(t, &list{w.entries()}, Options{Keys: w.keys})
	require.EqualValues(t, 1, r.Checkpoints)
	require.EqualValues(t, 10, r.SignedTo)
	require.Equal(t, map[Kind]int{Forged: 1}, r.Total, "the other's is told, and nothing else")
}
