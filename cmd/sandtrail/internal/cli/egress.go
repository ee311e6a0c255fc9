package cli

import (
	"strconv"
	"strings"
)

// egress reads rules as they are given on the command line, NAME, *.NAME or ADDRESS/BITS, each with :PORT,PORT or without. A range of IPv6 addresses that
// has ports stands in brackets. What is wrong with names and ranges the server says.
func egress(rules []string) (map[string]any, error) {
	allow := []any{}
	for _, text := range rules {
		rule := map[string]any{}
		what := text
		if i := strings.LastIndexByte(text, ':'); i >= 0 && (strings.HasSuffix(text[:i], "]") || !strings.Contains(text[:i], ":")) {
			what = text[:i]
			numbers := []uint64{}
			for p := range strings.SplitSeq(text[i+1:], ",") {
				n, err := strconv.ParseUint(p, 10, 16)
				if err != nil || n == 0 {
					return nil, usagef("--egress: %q is no port", p)
				}
				numbers = append(numbers, n)
			}
			rule["ports"] = numbers
		}
		what = strings.TrimSuffix(strings.TrimPrefix(what, "["), "]")
		if strings.ContainsAny(what, "/:") {
			rule["cidr"] = what
		} else {
			rule["host"] = what
		}
		allow = append(allow, rule)
	}
	return map[string]any{"allow": allow}, nil
}
