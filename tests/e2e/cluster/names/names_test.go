package names

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

func known(t *testing.T) zone {
	t.Helper()
	indexer := func(all ...any) cache.Indexer {
		i := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		for _, obj := range all {
			require.NoError(t, i.Add(obj))
		}
		return i
	}
	service := func(name, address string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address}}
	}
	endpoint := func(address, host string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, Hostname: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	return zone{
		services: corelisters.NewServiceLister(indexer(service("web", "10.0.0.1"), service("db", corev1.ClusterIPNone), service("empty", corev1.ClusterIPNone))),
		slices: discoverylisters.NewEndpointSliceLister(indexer(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
			Endpoints:  []discoveryv1.Endpoint{endpoint("10.1.0.3", "db-1", true), endpoint("10.1.0.2", "db-0", true), endpoint("10.1.0.4", "db-2", false)},
		})),
	}
}

func TestNamesOfServicesAndOfThePodsBehindThem(t *testing.T) {
	z := known(t)
	for name, c := range map[string]struct {
		found string
		known bool
	}{
		"web.ns.svc.cluster.local.":        {"10.0.0.1", true},
		"WEB.ns.svc.Cluster.Local.":        {"10.0.0.1", true},
		"db.ns.svc.cluster.local.":         {"10.1.0.2 10.1.0.3", true},
		"db-1.db.ns.svc.cluster.local.":    {"10.1.0.3", true},
		"db-2.db.ns.svc.cluster.local.":    {"", false},
		"empty.ns.svc.cluster.local.":      {"", true},
		"web.other.svc.cluster.local.":     {"", false},
		"pod.web.ns.svc.cluster.local.":    {"10.0.0.1", false},
		"a.b.web.ns.svc.cluster.local.":    {"", false},
		"svc.cluster.local.":               {"", false},
		"db.ns.svc.ns.svc.cluster.local.":  {"", false},
		"registry.example.com.":            {"", false},
		"web.ns.svc.cluster.local.example": {"", false},
	} {
		found, ok := z.find(name)
		require.Equal(t, c.known, ok, name)
		if c.known {
			require.Equal(t, c.found, join(found), name)
		}
	}
}

func join(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, " ")
}

func TestAnswersAreWellFormed(t *testing.T) {
	z := known(t)
	ask := func(name string, kind dnsmessage.Type) dnsmessage.Message {
		t.Helper()
		q := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
		}
		packed, err := q.Pack()
		require.NoError(t, err)
		answer, err := z.answer(packed)
		require.NoError(t, err)
		var m dnsmessage.Message
		require.NoError(t, m.Unpack(answer))
		require.Equal(t, uint16(7), m.ID)
		require.Equal(t, q.Questions, m.Questions)
		return m
	}
	require.Len(t, ask("db.ns.svc.cluster.local.", dnsmessage.TypeA).Answers, 2)
	six := ask("db.ns.svc.cluster.local.", dnsmessage.TypeAAAA)
	require.Empty(t, six.Answers)
	require.Equal(t, dnsmessage.RCodeSuccess, six.RCode, "the name is known, it has no such address")
	require.Equal(t, dnsmessage.RCodeNameError, ask("none.ns.svc.cluster.local.", dnsmessage.TypeA).RCode)
	_, err := z.answer([]byte("no message"))
	require.Error(t, err)
}
