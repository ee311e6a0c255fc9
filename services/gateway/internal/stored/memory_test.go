package stored

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNobodyHoldsMoreThanItsShare(t *testing.T) {
	s := NewShares(100)
	greedy, other := s.Of("greedy"), s.Of("other")
	require.True(t, greedy.Take(50))
	require.False(t, greedy.Take(1))
	require.True(t, greedy.Take(0))
	require.True(t, other.Take(25))
	require.False(t, other.Take(1), "half of what is left is for others again")
	greedy.Give(50)
	require.True(t, other.Take(25))
	require.False(t, other.Take(1))
	other.Give(50)
	require.Empty(t, s.held)
	require.Equal(t, 100, s.free)
}

// Whatever order they come in, each of many who take all that they get leaves something to the next.
func TestManyWhoTakeAllLeaveRoomForOneMore(t *testing.T) {
	s := NewShares(1 << 20)
	for i := range 8 {
		one := s.Of(fmt.Sprint(i))
		taken := 0
		for one.Take(1) {
			taken++
		}
		require.Positive(t, taken, "number %d", i)
	}
	require.True(t, s.Of("the next").Take(1<<10))
}
