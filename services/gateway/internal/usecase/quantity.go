package usecase

import (
	"fmt"
	"math/big"
	"regexp"
)

var (
	quantity = regexp.MustCompile(`^([0-9]{1,18})(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$`)
	suffixes = map[string]int64{
		"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50,
		"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
	}
)

// ParseQuantity reads a Kubernetes quantity of bytes (5Gi, 1.5G, 1024), rounded up to whole bytes.
func ParseQuantity(s string) (uint64, error) {
	m := quantity.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("must be a Kubernetes quantity such as 5Gi or 500M")
	}
	r, ok := new(big.Rat).SetString(m[1] + m[2])
	if !ok {
		return 0, fmt.Errorf("must be a Kubernetes quantity such as 5Gi or 500M")
	}
	r.Mul(r, new(big.Rat).SetInt64(suffixes[m[3]]))
	n := new(big.Int).Add(r.Num(), new(big.Int).Sub(r.Denom(), big.NewInt(1)))
	n.Quo(n, r.Denom())
	if !n.IsUint64() {
		return 0, fmt.Errorf("is larger than any disk")
	}
	return n.Uint64(), nil
}
