package egress_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/egress"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

func host(name string, ports ...uint32) *eventsv1.EgressRule {
	return &eventsv1.EgressRule{Host: name, Ports: ports}
}

func cidr(p string, ports ...uint32) *eventsv1.EgressRule {
	return &eventsv1.EgressRule{Cidr: p, Ports: ports}
}

func policy(t require.TestingT, rules ...*eventsv1.EgressRule) egress.Policy {
	p, wrong := egress.Read(&eventsv1.Egress{Allow: rules})
	require.Empty(t, wrong)
	return p
}

func allows(t *testing.T, p egress.Policy, text string) bool {
	t.Helper()
	target, ok := egress.ParseTarget(text, 443)
	require.True(t, ok, text)
	return p.Allows(target)
}

func TestRules(t *testing.T) {
	p := policy(t, host("API.example.com"), host("*.wild.example", 8443), cidr("93.184.216.0/24", 22, 443), cidr("2606:2800::/32"), cidr("1.1.1.1"))
	for _, text := range []string{
		"api.example.com", "API.EXAMPLE.COM.:80", "a.wild.example:8443", "a.b.wild.example:8443", "93.184.216.34:22", "93.184.216.34", "[2606:2800::1]:80", "1.1.1.1",
	} {
		require.True(t, allows(t, p, text), text)
	}
	for _, text := range []string{
		"example.com", "x.api.example.com", "api.example.com.evil.org", "api.example.com:22", "wild.example:8443", "notwild.example:8443", "a.wild.example",
		"93.184.217.1:22", "93.184.216.34:80", "[2606:2801::1]:80", "1.1.1.2",
	} {
		require.False(t, allows(t, p, text), text)
	}
	require.False(t, allows(t, egress.Policy{}, "api.example.com"), "the zero policy allows nothing")
	require.True(t, allows(t, policy(t, host("*")), "any.name.example:80"))
	require.False(t, allows(t, policy(t, host("*")), "1.1.1.1"), "addresses are not names")
	require.False(t, allows(t, policy(t, cidr("0.0.0.0/0"), cidr("::/0")), "any.name.example"), "names are not addresses")
}

func TestWhatIsWrongWithRules(t *testing.T) {
	for _, c := range []struct {
		rule  *eventsv1.EgressRule
		field string
	}{
		{&eventsv1.EgressRule{}, "allow[1]"},
		{&eventsv1.EgressRule{Host: "a.example", Cidr: "1.1.1.1/32"}, "allow[1]"},
		{host("127.0.0.1"), "allow[1].host"},
		{host("0x7f.1"), "allow[1].host"},
		{host("localhost"), "allow[1].host"},
		{host("*.com"), "allow[1].host"},
		{host("a.example."), "allow[1].host"},
		{host("*x.example.com"), "allow[1].host"},
		{host("a.*.example.com"), "allow[1].host"},
		{host("a b.example"), "allow[1].host"},
		{host("http://a.example"), "allow[1].host"},
		{host("a.example:80"), "allow[1].host"},
		{host("ä.example"), "allow[1].host"},
		{host("-a.example"), "allow[1].host"},
		{host("[::1]"), "allow[1].host"},
		{host(strings.Repeat("a", 64) + ".example"), "allow[1].host"},
		{host(strings.Repeat("a.", 127) + "aa"), "allow[1].host"},
		{cidr("10.0.0.0/8"), "allow[1].cidr"},
		{cidr("10.1.0.0/16"), "allow[1].cidr"},
		{cidr("127.0.0.1"), "allow[1].cidr"},
		{cidr("169.254.169.254/32"), "allow[1].cidr"},
		{cidr("fd00::/8"), "allow[1].cidr"},
		{cidr("::ffff:1.2.3.0/120"), "allow[1].cidr"},
		{cidr("::ffff:8.8.8.8"), "allow[1].cidr"},
		{cidr("64:ff9b::/96"), "allow[1].cidr"},
		{cidr("8.8.8.8/24"), "allow[1].cidr"},
		{cidr("8.8.8.8/33"), "allow[1].cidr"},
		{cidr("example.com"), "allow[1].cidr"},
		{cidr("fe80::1%eth0"), "allow[1].cidr"},
		{host("a.example", 0), "allow[1].ports"},
		{host("a.example", 65536), "allow[1].ports"},
		{cidr("8.8.8.8", make([]uint32, egress.MaxPorts+1)...), "allow[1].ports"},
	} {
		p, wrong := egress.Read(&eventsv1.Egress{Allow: []*eventsv1.EgressRule{host("fine.example"), c.rule}})
		require.Len(t, wrong, 1, "%v", c.rule)
		require.Contains(t, wrong, c.field, "%v", c.rule)
		require.True(t, allows(t, p, "fine.example"), "the others hold")
	}
	p, wrong := egress.Read(&eventsv1.Egress{Allow: make([]*eventsv1.EgressRule, egress.MaxRules+1)})
	require.Contains(t, wrong, "allow")
	require.False(t, allows(t, p, "a.example"))
}

// What others take for an address is none here, or the address that they take it for.
func TestOddNotations(t *testing.T) {
	for _, text := range []string{
		"2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "127.1", "127.0.1", "127.0.0.01", "127.0.0.1.", "0", "0.0", "017700000001", "0x", "a.0x", "a.0x1f", "a.1", "1.2.3.4.5",
		"256.1.1.1", "1.2.3.4.", "１２７.0.0.1", "127。0。0。1", "①.example", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:8.8.8.8]",
		"::1", "fe80::1%eth0", "[fe80::1%eth0]", "[fe80::1%25eth0]", "[::1", "::1]", "[1.2.3.4]", "[a.example]", "[]", "", ".", "..", "a..example", ".a.example", "a.example..",
		"a.example:", "a.example:0", "a.example:65536", "a.example:080", "a.example:+80", "a.example:80:80", "a.example:http", "a.example:-1", "a.example: 80", "a.example :80",
		"user@a.example", "a.example/", "a.example#", "a.example?", "a.exa\x00mple", "a.example\n", "a%2eexample", "a\\example.com", "-a.example", "a-.example",
		strings.Repeat("a", 64) + ".example", strings.Repeat("a.", 127) + "aa",
	} {
		target, ok := egress.ParseTarget(text, 80)
		require.False(t, ok, "%q: %v", text, target)
	}
	for text, want := range map[string]string{
		"1.2.3.4": "1.2.3.4:80", "[2001:DB8::1]:443": "2001:db8::1:443", "A.Example.:8080": "a.example:8080", "xn--bcher-kva.example": "xn--bcher-kva.example:80",
		"_dmarc.a.example": "_dmarc.a.example:80", "0x7f.example": "0x7f.example:80", "1.2.3.example": "1.2.3.example:80", "a.0xg": "a.0xg:80",
	} {
		target, ok := egress.ParseTarget(text, 80)
		require.True(t, ok, text)
		require.Equal(t, want, fmt.Sprintf("%s:%d", target.Host(), target.Port))
	}
	_, ok := egress.ParseTarget("a.example", 0)
	require.False(t, ok, "there has to be a port")
}

func TestPublic(t *testing.T) {
	for _, a := range []string{"1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8"} {
		require.True(t, egress.Public(netip.MustParseAddr(a)), a)
	}
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.255", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.168.1.1", "192.0.0.192",
		"192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "2002:7f00:1::",
		"2002:808:808::1", "2001::1", "2001:db8::1", "100::1", "fc00::1", "fd12:3456::1", "fe80::1", "fec0::1", "ff02::1", "3fff::1", "5f00::1",
	} {
		require.False(t, egress.Public(netip.MustParseAddr(a)), a)
	}
	require.False(t, egress.Public(netip.Addr{}))
	require.False(t, egress.Public(netip.MustParseAddr("2606:4700::1%eth0")))
}

// Whatever form an IPv4 address takes inside of an IPv6 one, it opens nothing that it would not open itself.
func TestNoFormOfAnAddressOpensMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.Custom(func(t *rapid.T) [4]byte {
			first := rapid.SampledFrom([]byte{0, 10, 100, 127, 169, 172, 192, 198, 203, 224, 255, 8}).Draw(t, "first")
			return [4]byte{first, rapid.Byte().Draw(t, "b"), rapid.Byte().Draw(t, "c"), rapid.Byte().Draw(t, "d")}
		}).Draw(t, "address")
		plain := netip.AddrFrom4(raw)
		ip := net.IP(raw[:])
		if ip.IsPrivate() || ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() {
			require.False(t, egress.Public(plain))
		}
		require.Equal(t, egress.Public(plain), egress.Public(netip.AddrFrom16(plain.As16())))
		embedded := func(prefix string, at int) netip.Addr {
			b := netip.MustParseAddr(prefix).As16()
			copy(b[at:], raw[:])
			return netip.AddrFrom16(b)
		}
		for _, a := range []netip.Addr{embedded("64:ff9b::", 12), embedded("2002::", 2), embedded("::", 12), embedded("2001::", 12)} {
			require.False(t, egress.Public(a), "%s", a)
		}
	})
}

// A target that is allowed was written so that one reading of it is possible: read again, it is the same one, and its host is the name or the address
// that a rule speaks of.
func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"a.example:443", "1.2.3.4:80", "[2606::1]:443", "0x7f.1:80", "[::ffff:127.0.0.1]:80", "A.example.", "a.example@b.example:80", "127.0.0.1.", "١.example"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, ok := egress.ParseTarget(s, 80)
		if !ok {
			return
		}
		require.NotZero(t, target.Port)
		require.NotEqual(t, target.Name == "", target.Addr == netip.Addr{}, "either a name or an address")
		spelled := target.Host()
		if target.Addr.Is6() {
			require.False(t, target.Addr.Is4In6())
			spelled = "[" + spelled + "]"
		}
		again, ok := egress.ParseTarget(fmt.Sprintf("%s:%d", spelled, target.Port), 0)
		require.True(t, ok)
		require.Equal(t, target, again)
		if target.Name == "" {
			return
		}
		require.Nil(t, net.ParseIP(target.Name))
		require.Equal(t, strings.ToLower(target.Name), target.Name)
		require.Contains(t, target.Name, ".")
		last := target.Name[strings.LastIndexByte(target.Name, '.')+1:]
		require.NotRegexp(t, `^([0-9]+|0x[0-9a-f]*)$`, last, "what the URL standard takes for an address")
		require.Regexp(t, `^[a-z0-9._-]{3,253}$`, target.Name)
	})
}

// Rules that were found right allow only what they say: a name is the rule's or below it, an address in its range, the port one of its own.
func FuzzRead(f *testing.F) {
	f.Add("*.example.com", "", uint32(443), "a.example.com:443")
	f.Add("", "8.8.0.0/16", uint32(53), "8.8.8.8:53")
	f.Add("", "0.0.0.0/0", uint32(80), "127.0.0.1:80")
	f.Add("*", "", uint32(80), "a.b:80")
	f.Fuzz(func(t *testing.T, name, addresses string, port uint32, text string) {
		p, wrong := egress.Read(&eventsv1.Egress{Allow: []*eventsv1.EgressRule{{Host: name, Cidr: addresses, Ports: []uint32{port}}}})
		target, ok := egress.ParseTarget(text, 80)
		if !ok || !p.Allows(target) {
			return
		}
		require.Empty(t, wrong)
		require.Equal(t, port, uint32(target.Port))
		if target.Name == "" {
			require.Empty(t, name)
			return
		}
		rule := strings.ToLower(name)
		if rest, below := strings.CutPrefix(rule, "*"); below {
			require.True(t, rest == "" || strings.HasSuffix(target.Name, rest) && len(target.Name) > len(rest))
			return
		}
		require.Equal(t, rule, target.Name)
	})
}
