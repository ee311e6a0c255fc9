package wayout

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/sandtrail/sandtrail/libs/egress"
)

const (
	// resolveTime and dialTime bound the two, the second for each address.
	resolveTime, dialTime = 5 * time.Second, 8 * time.Second
	// tried are the most addresses of a name that are dialled.
	tried = 3
)

// Resolver finds the addresses of a name.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Dialer opens connections to what a policy allows. What a name leads to is looked up once, and what was judged is what is dialled.
type Dialer struct {
	Resolver Resolver
	// Dial connects to an address.
	Dial func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	// Own are addresses that nobody may reach although they are public: of this host and of what Sandtrail itself runs on.
	Own func() []netip.Prefix
}

// Reach opens a connection, or gives the reason why there is none. addr is the one that was dialled.
func (d *Dialer) Reach(ctx context.Context, p egress.Policy, t egress.Target) (conn net.Conn, addr netip.Addr, reason string) {
	if !p.Allows(t) {
		return nil, addr, egress.NotAllowed
	}
	all, reason := d.addresses(ctx, t)
	if reason != "" {
		return nil, addr, reason
	}
	for _, a := range all {
		if !d.allowed(a) {
			// Also where another one of them is fine: a name that leads inside at times is nobody's to be trusted with.
			return nil, addr, egress.NotPublic
		}
	}
	for _, a := range all[:min(len(all), tried)] {
		dialling, cancel := context.WithTimeout(ctx, dialTime)
		conn, err := d.Dial(dialling, netip.AddrPortFrom(a, t.Port))
		cancel()
		if err == nil {
			return conn, a, ""
		}
	}
	return nil, addr, egress.Unreachable
}

// addresses are those that a target leads to, at least one.
func (d *Dialer) addresses(ctx context.Context, t egress.Target) ([]netip.Addr, string) {
	if t.Name == "" {
		return []netip.Addr{t.Addr}, ""
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	// The dot keeps the host's search domains out of it.
	found, err := d.Resolver.LookupNetIP(ctx, "ip", t.Name+".")
	if err != nil || len(found) == 0 {
		return nil, egress.Unresolved
	}
	for i, a := range found {
		found[i] = a.Unmap()
	}
	return found, ""
}

// allowed reports whether an address may be dialled at all.
func (d *Dialer) allowed(a netip.Addr) bool {
	if !egress.Public(a) {
		return false
	}
	for _, p := range d.Own() {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// NewDialer dials from this host and asks a resolver, HOST:PORT, or those of the host where it is empty.
func NewDialer(resolver string, own func() []netip.Prefix) *Dialer {
	r := &net.Resolver{PreferGo: true}
	if resolver != "" {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, resolver)
		}
	}
	dialer := &net.Dialer{KeepAlive: 30 * time.Second}
	return &Dialer{Resolver: r, Own: own, Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp"+family(to.Addr()), to.String())
	}}
}

func family(a netip.Addr) string {
	if a.Is4() {
		return "4"
	}
	return "6"
}
