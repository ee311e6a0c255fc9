package wayout

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/pause"
)

const (
	// lookAgain is how long this host's addresses are believed, natsAgain those of the log's servers.
	lookAgain, natsAgain = 2 * time.Second, 30 * time.Second
)

// Own knows the addresses of this host and of the servers of the log, and those that an operator names: addresses that are public, at times, and
// nobody's to reach from a sandbox. It may be used concurrently.
type Own struct {
	// NC is the connection to the log; nil: there is none to know of.
	NC *nats.Conn
	// Named are the operator's.
	Named []netip.Prefix
	Log   *slog.Logger

	mu     sync.Mutex
	looked time.Time
	host   []netip.Prefix
	log    []netip.Prefix
}

// Addresses are all of them.
func (o *Own) Addresses() []netip.Prefix {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.looked) > lookAgain {
		if host, err := hostAddresses(); err != nil {
			o.Log.Error("the addresses of this host cannot be read: those known before count", "error", err)
		} else {
			o.host, o.looked = host, now
		}
	}
	all := make([]netip.Prefix, 0, len(o.host)+len(o.log)+len(o.Named))
	return append(append(append(all, o.host...), o.log...), o.Named...)
}

// Run keeps the addresses of the log's servers until ctx ends.
func (o *Own) Run(ctx context.Context) error {
	for o.NC != nil {
		o.look(ctx)
		if err := pause.For(ctx, natsAgain); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// look finds the servers. What cannot be resolved now keeps nobody from what was known before.
func (o *Own) look(ctx context.Context) {
	found := []netip.Prefix{}
	failed := false
	for _, host := range o.servers() {
		if a, err := netip.ParseAddr(host); err == nil {
			found = append(found, single(a))
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, resolveTime)
		all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		cancel()
		failed = failed || err != nil
		for _, a := range all {
			found = append(found, single(a))
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if failed {
		found = append(found, o.log...)
		found = found[:min(len(found), mostServers)]
	}
	o.log = found
}

// mostServers bounds what is remembered while names do not resolve.
const mostServers = 256

// servers are the hosts of the log's servers, as far as the connection knows them.
func (o *Own) servers() (hosts []string) {
	for _, s := range append(append(o.NC.Servers(), o.NC.DiscoveredServers()...), "nats://"+o.NC.ConnectedAddr()) {
		if u, err := url.Parse(s); err == nil && u.Hostname() != "" {
			hosts = append(hosts, strings.ToLower(u.Hostname()))
		}
	}
	return hosts
}

func hostAddresses() (all []netip.Prefix, err error) {
	found, err := net.InterfaceAddrs()
	for _, a := range found {
		if p, perr := netip.ParsePrefix(a.String()); perr == nil {
			all = append(all, single(p.Addr()))
		}
	}
	return all, err
}

func single(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}
