package stored

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNobodyHoldsMoreThanItsShare(t *testing.T) {
	s := NewShares(100, 60)
	greedy, other := s.Of("greedy"), s.Of("other")
	require.True(t, greedy.Take(60))
	require.False(t, greedy.Take(1))
	require.True(t, other.Take(40))
	require.False(t, other.Take(1), "all of it is taken")
	greedy.Give(60)
	require.True(t, other.Take(20))
	other.Give(60)
	require.Empty(t, s.held)
	require.Equal(t, 100, s.free)
}
