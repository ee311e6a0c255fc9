package usecase

import (
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
)

// FuzzQuantity: a size is refused, or it is the least number of whole bytes that is not below what was written.
func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"0", "5Gi", "1.5G", "0.000000001", "999999999999999999P", "18446744073709551615", "5 bananas", "-1", "9e99", "", "1.", "٣", "1Ki\n", "0x10", "1_0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseQuantity(s)
		if err != nil {
			require.NotContains(t, err.Error(), "panic")
			return
		}
		number := strings.TrimRight(s, "kKMGTPi")
		exact, ok := new(big.Rat).SetString(number)
		require.True(t, ok, "%q", s)
		exact.Mul(exact, new(big.Rat).SetInt64(suffixes[s[len(number):]]))
		got := new(big.Rat).SetInt(new(big.Int).SetUint64(n))
		require.GreaterOrEqual(t, got.Cmp(exact), 0, "%q", s)
		require.Negative(t, new(big.Rat).Sub(got, exact).Cmp(big.NewRat(1, 1)), "%q", s)
	})
}

// FuzzCursor: a page's cursor is the one that a list gave, spelled in no other way, or it is refused as a mistake of the caller.
func FuzzCursor(f *testing.F) {
	f.Add(place{7, ids.Derive("a")}.cursor())
	f.Add("")
	f.Add("NyBh")
	f.Add(strings.ToUpper(place{-1, ids.Derive("a")}.cursor()))
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseCursor(s)
		if err != nil {
			require.Equal(t, fault.InvalidArgument, fault.CodeOf(err))
			return
		}
		if s != "" {
			require.Equal(t, s, p.cursor())
			require.True(t, ids.Valid(p.id))
		}
	})
}
