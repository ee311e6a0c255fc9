package egress

import (
	"net/netip"
	"strconv"
	"strings"
)

// Target is what a program asks for: a name or an address, and a port.
type Target struct {
	// Name in small letters, without a dot at its end; empty where an address was asked for.
	Name string
	Addr netip.Addr
	Port uint16
}

// Host is the name or the address.
func (t Target) Host() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Addr.String()
}

const (
	// maxName bounds a name, maxLabel each of its labels, in bytes (RFC 1035).
	maxName, maxLabel = 253, 63
)

// ParseTarget reads HOST:PORT, or HOST where there is a port to take otherwise, which is not 0. A host is a name of at least two labels, an IPv4
// address of four decimal numbers, or an IPv6 address in brackets. Everything else is refused, with what other programs take for an address:
// numbers with fewer parts, in octal or in hexadecimal, IPv4 inside of IPv6, zones. None of it ever reaches a resolver.
func ParseTarget(text string, otherwise uint16) (Target, bool) {
	host, port := text, ""
	if i := strings.LastIndexByte(text, ':'); i >= 0 && i > strings.LastIndexByte(text, ']') {
		host, port = text[:i], text[i+1:]
		if port == "" {
			return Target{}, false
		}
	}
	t := Target{Port: otherwise}
	if port != "" {
		n, ok := parsePort(port)
		if !ok {
			return Target{}, false
		}
		t.Port = n
	}
	if t.Port == 0 {
		return Target{}, false
	}
	if strings.HasPrefix(host, "[") {
		a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
		if err != nil || !strings.HasSuffix(host, "]") || !a.Is6() || a.Is4In6() || a.Zone() != "" {
			return Target{}, false
		}
		t.Addr = a
		return t, true
	}
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		t.Addr = a
		return t, true
	}
	name, ok := parseName(host)
	t.Name = name
	return t, ok
}

// parsePort reads 1 to 65535, in digits alone and without zeros in front.
func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && s[0] != '0' && s[0] != '+'
}

// parseName reads a name as hosts have them: at least two labels of letters, digits, - and _, of which the last is no number in any notation.
// One dot at the end is left out. Names in other scripts are written as they stand in the DNS (xn--…).
func parseName(s string) (string, bool) {
	s = strings.TrimSuffix(s, ".")
	if len(s) > maxName || !strings.Contains(s, ".") {
		return "", false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if !validLabel(label) {
			return "", false
		}
		last = label
	}
	if number(last) {
		return "", false
	}
	return strings.ToLower(s), true
}

func validLabel(s string) bool {
	if s == "" || len(s) > maxLabel || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// number reports whether the last label of a host makes others take the host for an IPv4 address: digits, or 0x and what may follow it (the URL
// standard's "ends in a number").
func number(label string) bool {
	if len(label) >= 2 && label[0] == '0' && (label[1] == 'x' || label[1] == 'X') {
		return strings.Trim(label[2:], "0123456789abcdefABCDEF") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
