package sample_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

func TestQuantiles(t *testing.T) {
	v := sample.Values{4, 1, 3, 2}
	require.InDelta(t, 2.5, v.Median(), 1e-9)
	require.InDelta(t, 4, v.Max(), 0)
	require.InDelta(t, 1, v.Quantile(0), 0)
	require.Equal(t, sample.Values{4, 1, 3, 2}, v, "the order of taking is kept")
	require.True(t, math.IsNaN(sample.Values{}.Median()), "nothing has no median")
}

func TestSlicesCountEveryUnitOnce(t *testing.T) {
	s := sample.NewSlices(10)
	for _, total := range []float64{4, 9, 12, 20, 23, 60} {
		s.Mark(total)
	}
	require.Len(t, s.Rates(), 3, "at 12, at 23 and at 60")
	for _, r := range s.Rates() {
		require.Positive(t, r)
	}
}
