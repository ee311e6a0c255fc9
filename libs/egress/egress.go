// Package egress decides where the programs of a sandbox may connect to. It is pure: it resolves nothing and dials nothing.
//
//	policy, wrong := egress.Read(requested)        // a policy, and what is wrong with it, by field
//	target, ok := egress.ParseTarget("a.example:443", 0)
//	policy.Allows(target)                          // by the name or the address that was asked for
//	egress.Public(address)                         // of every address that is dialled, whatever the policy says
//
// Who dials asks both, and dials the address that was judged. Without a rule nothing is allowed.
package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// MaxRules bounds the rules of a policy, MaxPorts the ports of each.
	MaxRules = 64
	MaxPorts = 16
)

// Reasons for which a connection is refused, or does not come about.
const (
	// NotAllowed: no rule of the sandbox allows it.
	NotAllowed = "not_allowed"
	// BadTarget: what was asked for is no name and no address as ParseTarget takes them, or the request cannot be read.
	BadTarget = "bad_target"
	// NotPublic: it is, or leads to, an address that is never allowed.
	NotPublic = "not_public"
	// Unresolved: the name leads nowhere.
	Unresolved = "unresolved"
	// Unreachable: nobody answers there.
	Unreachable = "unreachable"
	// Busy: there are too many connections.
	Busy = "busy"
)

// usual are the ports of a rule that names none.
var usual = []uint16{80, 443}

// Policy is what a sandbox may reach. The zero Policy allows nothing.
type Policy struct{ rules []rule }

// rule allows a name, the names below one, or a range of addresses.
type rule struct {
	// name is the name itself, or where below is set the part behind the star: "" is every name.
	name  string
	below bool
	cidr  netip.Prefix
	ports []uint16
}

// Read makes a policy of what was asked for; nil is the zero Policy. wrong says by field, such as allow[0].host, what is none; such rules allow
// nothing.
func Read(e *eventsv1.Egress) (p Policy, wrong map[string]string) {
	wrong = map[string]string{}
	if len(e.GetAllow()) > MaxRules {
		wrong["allow"] = fmt.Sprintf("has %d rules, of at most %d", len(e.GetAllow()), MaxRules)
		return p, wrong
	}
	for i, r := range e.GetAllow() {
		one := rule{}
		var field, what string
		switch {
		case (r.GetHost() == "") == (r.GetCidr() == ""):
			what = "must have either host or cidr"
		case r.GetHost() != "":
			field = ".host"
			what = one.host(r.GetHost())
		default:
			field = ".cidr"
			what = one.addresses(r.GetCidr())
		}
		if what != "" {
			wrong[fmt.Sprintf("allow[%d]%s", i, field)] = what
			continue
		}
		if what = one.at(r.GetPorts()); what != "" {
			wrong[fmt.Sprintf("allow[%d].ports", i)] = what
			continue
		}
		p.rules = append(p.rules, one)
	}
	return p, wrong
}

func (r *rule) host(s string) string {
	if s == "*" {
		r.below = true
		return ""
	}
	rest, below := strings.CutPrefix(s, "*.")
	name, ok := parseName(rest)
	if !ok || strings.HasSuffix(s, ".") {
		return "must be a name of at least two labels such as api.example.com, *.example.com for every name below one, or *; addresses are cidr"
	}
	r.name, r.below = name, below
	return ""
}

func (r *rule) addresses(s string) string {
	p, err := netip.ParsePrefix(s)
	if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	switch {
	case err != nil || p.Addr().Is4In6():
		return "must be a range of addresses as ADDRESS/BITS, or one address"
	case p.Masked() != p:
		return "has bits behind its length; the range is " + p.Masked().String()
	case hidden(p):
		return "is not on the public internet, of which everything else is refused always"
	}
	r.cidr = p
	return ""
}

func (r *rule) at(ports []uint32) string {
	if len(ports) > MaxPorts {
		return fmt.Sprintf("has %d ports, of at most %d", len(ports), MaxPorts)
	}
	for _, n := range ports {
		if n < 1 || n > 65535 {
			return "must be numbers from 1 to 65535"
		}
		r.ports = append(r.ports, uint16(n))
	}
	if len(ports) == 0 {
		r.ports = usual
	}
	return ""
}

// Allows reports whether a rule allows what was asked for. Rules for addresses are about addresses that are asked for as such: a name is only
// ever resolved where a rule allows the name, since the question itself tells somebody something.
func (p Policy) Allows(t Target) bool {
	return slices.ContainsFunc(p.rules, func(r rule) bool { return slices.Contains(r.ports, t.Port) && r.covers(t) })
}

func (r rule) covers(t Target) bool {
	switch {
	case t.Name == "":
		return r.cidr.IsValid() && r.cidr.Contains(t.Addr)
	case r.cidr.IsValid():
		return false
	case !r.below:
		return t.Name == r.name
	case r.name == "":
		return true
	}
	return strings.HasSuffix(t.Name, "."+r.name)
}
