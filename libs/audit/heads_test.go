package audit

import (
	"encoding/binary"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table is the same whether it lies in memory or in a file, and leaves nothing behind.
func TestHeadsOfMoreAggregatesThanMemoryIsFor(t *testing.T) {
	dir := t.TempDir()
	h := newHeads(dir)
	defer h.close()
	const n = inMemory
	digest := make([]byte, 32)
	for round := uint64(1); round <= 2; round++ {
		for i := range n {
			s, err := h.of("evt.acme.sandbox." + strconv.Itoa(i))
			require.NoError(t, err)
			if s.seq() != uint64(i)*(round-1)+round-1 || s.prior() != 0 {
				t.Fatalf("aggregate %d has %d, %d in round %d", i, s.seq(), s.prior(), round)
			}
			binary.BigEndian.PutUint64(digest, uint64(i))
			s.move(uint64(i)+1, digest)
		}
	}
	require.True(t, h.mapped)
	require.EqualValues(t, n, h.n)
	s, err := h.of("evt.acme.sandbox.77")
	require.NoError(t, err)
	require.EqualValues(t, 78, s.seq())
	require.Equal(t, s.before(), s.digest())
	require.EqualValues(t, 77, binary.BigEndian.Uint64(s.digest()))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names)
}

func TestHeadsSayWhereThereIsNoRoom(t *testing.T) {
	h := newHeads("/nowhere at all")
	defer h.close()
	var err error
	for i := 0; err == nil && i < 2*inMemory; i++ {
		var s head
		if s, err = h.of(strconv.Itoa(i)); err == nil {
			s.move(1, make([]byte, 32))
		}
	}
	require.ErrorIs(t, err, os.ErrNotExist)
}
