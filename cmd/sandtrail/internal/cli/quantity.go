package cli

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// units of a Kubernetes quantity, in bytes.
var units = map[string]int64{
	"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// decimal reads a plain decimal number: digits, perhaps a point and more digits.
func decimal(s string) (*big.Rat, bool) {
	if s == "" || len(s) > 32 || strings.Trim(s, "0123456789.") != "" {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

// memory is that of --memory, size that of any flag: like 512Mi, 1.5Gi, 2G or a number of bytes; a part of a byte is a mistake.
func memory(s string) (uint64, error) { return size("--memory", s) }

func size(flag, s string) (uint64, error) {
	number := strings.TrimRight(s, "kKMGTi")
	unit, known := units[s[len(number):]]
	r, ok := decimal(number)
	if !ok || !known {
		return 0, usagef("%s: %q is not a size such as 512Mi or 2Gi", flag, s)
	}
	r.Mul(r, new(big.Rat).SetInt64(unit))
	if !r.IsInt() || !r.Num().IsUint64() {
		return 0, usagef("%s: %q is not a whole number of bytes", flag, s)
	}
	return r.Num().Uint64(), nil
}

// cpu is a number of cores like 1.5, or thousandths of one like 500m.
func cpu(s string) (uint32, error) {
	number, milli := strings.CutSuffix(s, "m")
	r, ok := decimal(number)
	if !ok {
		return 0, usagef("--cpu: %q is not a number of cores such as 1.5 or 500m", s)
	}
	if !milli {
		r.Mul(r, new(big.Rat).SetInt64(1000))
	}
	if !r.IsInt() || !r.Num().IsUint64() || r.Num().Uint64() > math.MaxUint32 {
		return 0, usagef("--cpu: %q is not a whole number of thousandths of a core", s)
	}
	return uint32(r.Num().Uint64()), nil //nolint:gosec // bounded above
}

// quantity writes a size with the largest binary unit that keeps it exact, as servers do.
func quantity(n uint64) string {
	suffixes := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	i := 0
	for n > 0 && n%1024 == 0 && i < len(suffixes)-1 {
		n, i = n/1024, i+1
	}
	return strconv.FormatUint(n, 10) + suffixes[i]
}
