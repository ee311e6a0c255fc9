package usecase

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantity(t *testing.T) {
	for in, want := range map[string]uint64{
		"0": 0, "1024": 1024, "5Gi": 5 << 30, "1.5Gi": 3 << 29, "500M": 500e6, "1k": 1000, "0.1": 1, "1.000000001Ki": 1025, "2Pi": 2 << 50,
	} {
		got, err := ParseQuantity(in)
		require.NoError(t, err, in)
		require.Equal(t, want, got, in)
	}
	for _, in := range []string{"", "Gi", "5 Gi", "-1", "+1", "1e3", "5gi", "5GiB", "0x10", ".5Gi", "5.", "1_000", "9999999999999999999", "999999999999999999P", "５Gi"} {
		_, err := ParseQuantity(in)
		require.Error(t, err, in)
	}
}
