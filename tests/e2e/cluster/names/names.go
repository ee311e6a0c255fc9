// Package names is the DNS of a test's cluster: it knows services, and the pods behind those without an address of their own, by what the API
// server shows. It asks nobody else: a cluster of a test has no Internet.
package names

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// Domain is what every name of the cluster ends in.
const Domain = "cluster.local"

const (
	// ttl in seconds: a pod that is made again has another address.
	ttl = 2
	// maxAddresses keeps an answer below the 512 bytes of a datagram, so that nobody asks again by TCP.
	maxAddresses = 20
	// maxQuery is more than any question takes.
	maxQuery = 4096
)

// argv0 is the name under which a program that has this package runs as the DNS server.
const argv0 = "sandtrail-names"

// Argv is how the node's first process starts the server: kubeconfig of an administrator, and the address to answer at.
func Argv(kubeconfig, address string) []string { return []string{argv0, kubeconfig, address} }

func init() {
	if len(os.Args) != 3 || os.Args[0] != argv0 {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if err := run(ctx, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
	stop()
	os.Exit(0)
}

func run(ctx context.Context, kubeconfig, address string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	z := zone{services: factory.Core().V1().Services().Lister(), slices: factory.Discovery().V1().EndpointSlices().Lister()}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("watch %s: %w", kind, ctx.Err())
		}
	}
	conn, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp4", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	return z.serve(conn)
}

// zone is what names stand for.
type zone struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// serve answers until the connection is closed.
func (z zone) serve(conn net.PacketConn) error {
	buffer := make([]byte, maxQuery)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		answer, err := z.answer(buffer[:n])
		if err != nil {
			log.Printf("a question from %s: %v", from, err)
			continue
		}
		if _, err := conn.WriteTo(answer, from); err != nil {
			log.Printf("answer %s: %v", from, err)
		}
	}
}

// answer gives the addresses of a name, nothing for what a known name does not have, and otherwise that there is no such name.
func (z zone) answer(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	found, known := z.find(q.Name.String())
	header := dnsmessage.Header{ID: h.ID, Response: true, Authoritative: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	if !known {
		header.RCode = dnsmessage.RCodeNameError
	}
	b := dnsmessage.NewBuilder(nil, header)
	b.EnableCompression()
	if err := b.StartQuestions(); err != nil {
		return nil, err
	}
	if err := b.Question(q); err != nil {
		return nil, err
	}
	if err := b.StartAnswers(); err != nil {
		return nil, err
	}
	if q.Type != dnsmessage.TypeA {
		found = nil
	}
	for _, a := range found[:min(len(found), maxAddresses)] {
		r := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: ttl}
		if err := b.AResource(r, dnsmessage.AResource{A: a.As4()}); err != nil {
			return nil, err
		}
	}
	return b.Finish()
}

// find takes SERVICE.NAMESPACE.svc.cluster.local, and POD.SERVICE.NAMESPACE.svc.cluster.local where pods of a service have names.
func (z zone) find(name string) (found []netip.Addr, known bool) {
	name, ours := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), ".svc."+Domain)
	parts := strings.Split(name, ".")
	if !ours || len(parts) < 2 || len(parts) > 3 {
		return nil, false
	}
	host := ""
	if len(parts) == 3 {
		host, parts = parts[0], parts[1:]
	}
	service, err := z.services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		a, err := netip.ParseAddr(service.Spec.ClusterIP)
		return []netip.Addr{a}, host == "" && err == nil && a.Is4()
	}
	found = z.behind(service, host)
	return found, host == "" || len(found) > 0
}

// behind are the addresses of a service's pods that take calls; with a host, of the pod of that name.
func (z zone) behind(service *corev1.Service, host string) (found []netip.Addr) {
	all, err := z.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	if err != nil {
		return nil
	}
	for _, s := range all {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || host != "" && (e.Hostname == nil || *e.Hostname != host) {
				continue
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
					found = append(found, a)
				}
			}
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found)
}
