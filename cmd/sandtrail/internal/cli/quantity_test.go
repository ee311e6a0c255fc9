package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is no size, or no number of cores, is a mistake of the caller that names its flag; it is never taken for another number.
func TestQuantitiesThatAreNone(t *testing.T) {
	for _, s := range []string{
		"", "5 bananas", "-1", "+1", "9e99", "1e3", "NaN", "Inf", "0x10", "1_000", "5 Gi", "5gi", "5Gib", "1.5", "1,5Gi", "Gi", ".", "1.2.3", "\u0665Gi",
		"99999999999999999999", "99999999999Ti", "5Gi\n", " 5Gi",
	} {
		_, err := memory(s)
		require.ErrorContains(t, err, "--memory", "%q", s)
	}
	for _, s := range []string{"", "5 bananas", "-1", "9e99", "1.0005", "0.5m", "1Gi", "mm", "4294968", "NaN", "m"} {
		_, err := cpu(s)
		require.ErrorContains(t, err, "--cpu", "%q", s)
	}
	for s, want := range map[string]uint64{"0": 0, "1.5Gi": 3 << 29, "2G": 2e9, "512Mi": 512 << 20} {
		n, err := memory(s)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}
