package ends

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

func end(code int) *toolboxv1.End {
	return &toolboxv1.End{ExitCode: int32(code), Reason: "exited", Stdout: &toolboxv1.StreamEnd{Bytes: uint64(code) << 30}} //nolint:gosec // small
}

func TestTheLastEndsAreRemembered(t *testing.T) {
	dir := t.TempDir()
	const most = 50
	e := newOf(dir, most)
	defer e.Close()
	id := func(i int) string { return fmt.Sprintf("exec-%d", i) }
	for i := range 7*most + 3 {
		require.False(t, e.Has(id(i)))
		_, err := e.Get(id(i))
		require.ErrorIs(t, err, ErrUnknown)
		require.NoError(t, e.Put(id(i), end(i)))
		for j := max(0, i-most+1); j <= i; j++ {
			require.True(t, e.Has(id(j)), "%d of %d", j, i)
			got, err := e.Get(id(j))
			require.NoError(t, err, "%d of %d", j, i)
			require.True(t, proto.Equal(end(j), got), "%d of %d", j, i)
		}
	}
	known := 0
	for i := range 7*most + 3 {
		if e.Has(id(i)) {
			known++
		}
	}
	require.LessOrEqual(t, known, 2*most, "what is remembered has a bound")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing has a name")
}

// A program whose end cannot be stored has run all the same.
func TestAnEndThatIsNotStoredIsKnown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	e := newOf(dir, 10)
	defer e.Close()
	require.ErrorIs(t, e.Put("a", end(1)), os.ErrNotExist)
	require.True(t, e.Has("a"))
	_, err := e.Get("a")
	require.ErrorIs(t, err, ErrUnreadable)
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, e.Put("b", end(2)))
	got, err := e.Get("b")
	require.NoError(t, err)
	require.EqualValues(t, 2, got.ExitCode)
	require.NoError(t, e.now.file.Truncate(e.now.size-1))
	_, err = e.Get("b")
	require.ErrorIs(t, err, ErrUnreadable)
	require.True(t, e.Has("b"))
}

func TestEndsComeAtOnce(t *testing.T) {
	const writers, each = 8, 200
	// All of them: while one rests between its two calls the others may put as many as they like.
	e := newOf(t.TempDir(), writers*each)
	defer e.Close()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("%d-%d", w, i)
				if err := e.Put(id, end(i)); err != nil {
					t.Error(err)
				}
				if got, err := e.Get(id); err != nil || got.ExitCode != int32(i) { //nolint:gosec // small
					t.Error(id, got, err)
				}
			}
		})
	}
	wg.Wait()
}
