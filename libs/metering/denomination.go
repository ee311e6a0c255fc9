package metering

import (
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// Denomination is a number of units that people name prices for.
type Denomination struct {
	Name string
	// Units is how many units of the meter it is.
	Units uint64
}

const (
	hourMillis = 3_600_000
	mibOfGiB   = 1024
)

var denominations = map[string][]Denomination{
	Milliseconds:    {{"ms", 1}, {"second", 1000}, {"hour", hourMillis}},
	CPUMicroseconds: {{"cpu-us", 1}, {"core-second", 1_000_000}, {"core-hour", 3_600_000_000}},
	MiBMilliseconds: {{"mib-ms", 1}, {"gib-second", mibOfGiB * 1000}, {"gib-hour", mibOfGiB * hourMillis}},
	Bytes:           {{"byte", 1}, {"gb", 1_000_000_000}, {"gib", 1 << 30}},
	Count:           {{"one", 1}, {"thousand", 1000}, {"million", 1_000_000}},
}

// Denominations are those of a unit, the smallest first; none of what is no unit.
func Denominations(unit string) []Denomination { return slices.Clone(denominations[unit]) }

// Denominate is the name of a number of units; false where it has none.
func Denominate(unit string, units uint64) (string, bool) {
	for _, d := range denominations[unit] {
		if d.Units == units {
			return d.Name, true
		}
	}
	return "", false
}

// decimals are those of a billionth.
const decimals = 9

var decimal = regexp.MustCompile(`^[0-9]{1,20}(\.[0-9]{1,9})?$`)

// ParseNanos reads an amount such as 0.036 as billionths. An error: it is none, is negative, has more than nine decimals, or does not fit.
func ParseNanos(s string) (uint64, error) {
	if !decimal.MatchString(s) {
		return 0, fmt.Errorf("%q is no amount of at most nine decimals", s)
	}
	whole, rest, _ := strings.Cut(s, ".")
	n, ok := new(big.Int).SetString(whole+rest+strings.Repeat("0", decimals-len(rest)), 10)
	if !ok || !n.IsUint64() {
		return 0, fmt.Errorf("%q is too large an amount", s)
	}
	return n.Uint64(), nil
}

// FormatNanos is billionths as an amount, without zeros at its end.
func FormatNanos(n *big.Int) string {
	s := new(big.Int).Abs(n).String()
	if len(s) <= decimals {
		s = strings.Repeat("0", decimals-len(s)+1) + s
	}
	whole, rest := s[:len(s)-decimals], strings.TrimRight(s[len(s)-decimals:], "0")
	if rest != "" {
		whole += "." + rest
	}
	if n.Sign() < 0 {
		whole = "-" + whole
	}
	return whole
}
