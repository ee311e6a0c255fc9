// Package policy enforces the network policies of a test's cluster: it turns them into packet filters of the node, made anew whenever a pod,
// a namespace or a policy changes. A pod is filtered a moment after it has its address, not before.
package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// table is one that nobody else on the node writes into, and that packets pass before the filters of kube-proxy. Addresses of services are
// those of pods there already.
const table = "mangle"

// chain is what packets between pods, and from pods to the node, pass. What the node sends to its own pods does not.
const chain = "ST-POLICY"

// observed is what filters are made of.
type observed struct {
	pods       []*corev1.Pod
	namespaces map[string]labels.Set
	policies   []*networkingv1.NetworkPolicy
}

// direction of a rule, as seen from the pod that a policy selects.
type direction struct {
	kind networkingv1.PolicyType
	// own and other are the options that match the pod's address and its peer's.
	own, other, prefix string
}

var (
	ingress = direction{networkingv1.PolicyTypeIngress, "-d", "-s", "ST-I-"}
	egress  = direction{networkingv1.PolicyTypeEgress, "-s", "-d", "ST-E-"}
)

// allowed is a rule of either direction.
type allowed struct {
	peers []networkingv1.NetworkPolicyPeer
	ports []networkingv1.NetworkPolicyPort
}

// filters is the input of iptables-restore. Each pod that policies isolate has a chain for each direction, which returns what is allowed and drops
// the rest: a packet goes through the sender's and the receiver's.
func filters(o observed) string {
	var chains, jumps, rules []string
	for _, p := range o.pods {
		for _, d := range []direction{egress, ingress} {
			all, isolated := o.rulesFor(p, d)
			if !isolated {
				continue
			}
			name := fmt.Sprintf("%s%d", d.prefix, len(chains))
			chains = append(chains, name)
			jumps = append(jumps, fmt.Sprintf("-A %s %s %s -j %s", chain, d.own, p.Status.PodIP, name))
			for _, match := range o.matches(p, d, all) {
				rules = append(rules, strings.Join(strings.Fields("-A "+name+" "+match+" -j RETURN"), " "))
			}
			rules = append(rules, "-A "+name+" -j DROP")
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n:%s - [0:0]\n", table, chain)
	for _, c := range chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c)
	}
	fmt.Fprintf(&b, "-A %s -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN\n", chain)
	for _, r := range slices.Concat(jumps, rules) {
		b.WriteString(r + "\n")
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// rulesFor gives what policies allow a pod; isolated: any of them is about it in this direction.
func (o observed) rulesFor(p *corev1.Pod, d direction) (all []allowed, isolated bool) {
	if !filtered(p) {
		return nil, false
	}
	for _, n := range o.policies {
		if n.Namespace != p.Namespace || !slices.Contains(kinds(n), d.kind) || !selects(&n.Spec.PodSelector, p.Labels) {
			continue
		}
		isolated = true
		if d.kind == networkingv1.PolicyTypeIngress {
			for _, r := range n.Spec.Ingress {
				all = append(all, allowed{r.From, r.Ports})
			}
			continue
		}
		for _, r := range n.Spec.Egress {
			all = append(all, allowed{r.To, r.Ports})
		}
	}
	return all, isolated
}

// filtered: it has an address of its own, and something of it may still run.
func filtered(p *corev1.Pod) bool {
	a, err := netip.ParseAddr(p.Status.PodIP)
	return err == nil && a.Is4() && !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// kinds are the directions that a policy is about: ingress unless it says otherwise, and egress where it has rules for that.
func kinds(n *networkingv1.NetworkPolicy) []networkingv1.PolicyType {
	if len(n.Spec.PolicyTypes) > 0 {
		return n.Spec.PolicyTypes
	}
	if len(n.Spec.Egress) > 0 {
		return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
}

// selects reports whether a selector, which the API server has checked, matches.
func selects(s *metav1.LabelSelector, set labels.Set) bool {
	selector, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && selector.Matches(set)
}

// matches are the packets that rules allow: each peer with each port.
func (o observed) matches(p *corev1.Pod, d direction, all []allowed) (found []string) {
	for _, r := range all {
		for _, peer := range o.peers(p.Namespace, d, r.peers) {
			for _, port := range portsOf(p, d, r.ports) {
				found = append(found, peer+" "+port)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// peers are matches of the other side's address; an empty one is everybody.
func (o observed) peers(namespace string, d direction, peers []networkingv1.NetworkPolicyPeer) (found []string) {
	if len(peers) == 0 {
		return []string{""}
	}
	for _, peer := range peers {
		if peer.IPBlock != nil {
			// One with exceptions takes more than one match; it lets nobody.
			if len(peer.IPBlock.Except) == 0 {
				found = append(found, d.other+" "+peer.IPBlock.CIDR)
			}
			continue
		}
		for _, other := range o.pods {
			if filtered(other) && o.isPeer(namespace, peer, other) {
				found = append(found, d.other+" "+other.Status.PodIP)
			}
		}
	}
	return found
}

func (o observed) isPeer(namespace string, peer networkingv1.NetworkPolicyPeer, other *corev1.Pod) bool {
	if peer.NamespaceSelector == nil && other.Namespace != namespace {
		return false
	}
	if peer.NamespaceSelector != nil && !selects(peer.NamespaceSelector, o.namespaces[other.Namespace]) {
		return false
	}
	return peer.PodSelector == nil || selects(peer.PodSelector, other.Labels)
}

// portsOf are matches of ports; an empty one is every port. A port by name is one of the pod's own: on the way out none is known, and none is let.
func portsOf(p *corev1.Pod, d direction, ports []networkingv1.NetworkPolicyPort) (found []string) {
	if len(ports) == 0 {
		return []string{""}
	}
	for _, port := range ports {
		protocol := "tcp"
		if port.Protocol != nil {
			protocol = strings.ToLower(string(*port.Protocol))
		}
		match := "-p " + protocol
		switch {
		case port.Port == nil:
		case port.Port.Type == intstr.String:
			n, ok := named(p, port.Port.StrVal)
			if !ok || d.kind == networkingv1.PolicyTypeEgress {
				continue
			}
			match += fmt.Sprintf(" --dport %d", n)
		case port.EndPort != nil:
			match += fmt.Sprintf(" --dport %d:%d", port.Port.IntVal, *port.EndPort)
		default:
			match += fmt.Sprintf(" --dport %d", port.Port.IntVal)
		}
		found = append(found, match)
	}
	return found
}

func named(p *corev1.Pod, name string) (int32, bool) {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name == name {
				return port.ContainerPort, true
			}
		}
	}
	return 0, false
}
