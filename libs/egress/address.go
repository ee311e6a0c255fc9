package egress

import "net/netip"

// special are ranges that are no part of the public internet, beside those that netip knows by name, as IANA's registries of special-purpose
// addresses have them. Those that hold an IPv4 address inside are among them: what they lead to cannot be seen.
var special = func() (all []netip.Prefix) {
	for _, s := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
		"240.0.0.0/4", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10",
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

// named are the ranges that netip knows by name.
var named = func() (all []netip.Prefix) {
	for _, s := range []string{
		"10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "224.0.0.0/4", "::1/128", "fc00::/7", "fe80::/10", "ff00::/8",
	} {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}()

// Public reports whether an address is one of the public internet. An IPv4 address that an IPv6 one stands for is judged as the IPv4 address.
func Public(a netip.Addr) bool {
	a = a.Unmap()
	if !a.IsValid() || a.Zone() != "" || !a.IsGlobalUnicast() || a.IsPrivate() {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// hidden reports whether no address of a range is public.
func hidden(p netip.Prefix) bool {
	for _, ranges := range [][]netip.Prefix{special, named} {
		for _, r := range ranges {
			if r.Bits() <= p.Bits() && r.Contains(p.Addr()) {
				return true
			}
		}
	}
	return false
}
