package metering_test

import (
	"math"
	"math/big"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/metering"
)

func TestAmountsAreReadAndWrittenExactly(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "0.036": 36_000_000, "1": 1_000_000_000, "12.5": 12_500_000_000, "0.000000001": 1, "18446744073.709551615": math.MaxUint64,
	} {
		n, err := metering.ParseNanos(text)
		require.NoError(t, err, text)
		require.Equal(t, want, n, text)
		require.Equal(t, text, metering.FormatNanos(new(big.Int).SetUint64(n)))
	}
	require.Equal(t, "-0.5", metering.FormatNanos(big.NewInt(-500_000_000)))
	for _, text := range []string{"", "-1", "+1", "1e3", ".5", "1.", "0.0000000001", "18446744073.709551616", "1,5", " 1", "0x1", "999999999999999999999"} {
		_, err := metering.ParseNanos(text)
		require.Error(t, err, text)
	}
}

func TestEveryUnitHasDenominations(t *testing.T) {
	for _, unit := range []string{metering.Milliseconds, metering.CPUMicroseconds, metering.MiBMilliseconds, metering.Bytes, metering.Count} {
		all := metering.Denominations(unit)
		require.Equal(t, uint64(1), all[0].Units, unit)
		for _, d := range all {
			name, ok := metering.Denominate(unit, d.Units)
			require.True(t, ok)
			require.Equal(t, d.Name, name)
			_, err := strconv.ParseUint(d.Name, 10, 64)
			require.Error(t, err, "a name that is a number cannot be told from one")
		}
	}
	_, ok := metering.Denominate(metering.Bytes, 7)
	require.False(t, ok)
	require.Empty(t, metering.Denominations("none"))
}
