package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

const (
	// inside is the node's end of the link.
	inside = "host0"
	// slots bounds how many nodes run on a host at once.
	slots = 64
)

func prefix(second, slot, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second), byte(slot), 0}), bits)
}

// join makes the link between host and node in the first free slot, and fills in the addresses. The host gets two routes into the node; both go
// with the link, and the link goes with the node.
func (n *Node) join() error {
	for slot := range slots {
		link := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("stnode%d", slot)}, PeerName: inside, PeerNamespace: netlink.NsPid(n.PID),
		}
		err := netlink.LinkAdd(link)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("make the link to the node: %w", err)
		}
		between := prefix(203, slot, 30)
		n.Link, n.HostAddress = link.Name, between.Addr().Next()
		n.Address = n.HostAddress.Next()
		n.Services, n.Pods = prefix(201, slot, 24), prefix(202, slot, 24)
		return raise(link.Name, netip.PrefixFrom(n.HostAddress, 30))
	}
	return fmt.Errorf("%d nodes run on this host already", slots)
}

// route leads the host into the node, once the node's end is up.
func (n *Node) route() error {
	link, err := netlink.LinkByName(n.Link)
	if err != nil {
		return err
	}
	for _, to := range []netip.Prefix{n.Pods, n.Services} {
		err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: network(to), Gw: net.IP(n.Address.AsSlice())})
		if err != nil {
			return fmt.Errorf("route to %s: %w", to, err)
		}
	}
	return nil
}

func network(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: net.IP(p.Addr().AsSlice()), Mask: net.CIDRMask(p.Bits(), 32)}
}

func raise(name string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: network(address)}); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// joinInside raises the node's end. What is not known here goes to the host, which answers for itself and forwards nothing.
func (n *Node) joinInside() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	if err := raise(inside, netip.PrefixFrom(n.Address, 30)); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.IP(n.HostAddress.AsSlice())}); err != nil {
		return fmt.Errorf("route to the host: %w", err)
	}
	// Of this namespace alone, as everything below net is.
	for _, on := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/bridge/bridge-nf-call-iptables"} {
		if err := os.WriteFile(on, []byte("1"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
