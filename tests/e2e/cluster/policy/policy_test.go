package policy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

func pod(namespace, app, address string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: app, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address},
	}
}

// lines are the filters of a policy in namespace a, beside three pods, without what is always the same.
func lines(t *testing.T, spec string) []string {
	t.Helper()
	n := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	require.NoError(t, yaml.UnmarshalStrict([]byte(spec), &n.Spec))
	ended := pod("a", "client", "10.0.0.9")
	ended.Status.Phase = corev1.PodSucceeded
	text := filters(observed{
		pods:       []*corev1.Pod{pod("a", "server", "10.0.0.1"), pod("a", "client", "10.0.0.2"), pod("b", "client", "10.0.0.3"), pod("a", "client", ""), ended},
		namespaces: map[string]labels.Set{"a": {"name": "a"}, "b": {"name": "b"}},
		policies:   []*networkingv1.NetworkPolicy{n},
	})
	require.True(t, strings.HasSuffix(text, "COMMIT\n"))
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-A") && !strings.Contains(line, "conntrack") {
			found = append(found, strings.TrimSpace(strings.TrimPrefix(line, "-A ")))
		}
	}
	return found
}

func TestFiltersOfAPolicy(t *testing.T) {
	into, out := "ST-POLICY -d 10.0.0.1 -j ST-I-0", "ST-POLICY -s 10.0.0.1 -j ST-E-0"
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"nothing comes in": {`{podSelector: {matchLabels: {app: server}}}`, []string{into, "ST-I-0 -j DROP"}},
		"nothing goes in or out": {
			`{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress, Egress]}`,
			[]string{out, "ST-POLICY -d 10.0.0.1 -j ST-I-1", "ST-E-0 -j DROP", "ST-I-1 -j DROP"},
		},
		"everything comes in": {`{podSelector: {matchLabels: {app: server}}, ingress: [{}]}`, []string{into, "ST-I-0 -j RETURN", "ST-I-0 -j DROP"}},
		"from the same namespace": {
			`{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{podSelector: {matchLabels: {app: client}}}]}]}`,
			[]string{into, "ST-I-0 -s 10.0.0.2 -j RETURN", "ST-I-0 -j DROP"},
		},
		"from pods of another namespace, to one port": {
			`{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{namespaceSelector: {matchLabels: {name: b}}, podSelector: {matchLabels: {app: client}}}], ports: [{port: web}]}]}`,
			[]string{into, "ST-I-0 -s 10.0.0.3 -p tcp --dport 8080 -j RETURN", "ST-I-0 -j DROP"},
		},
		"from nobody that there is": {
			`{podSelector: {matchLabels: {app: server}}, ingress: [{from: [{namespaceSelector: {matchLabels: {name: c}}}]}]}`,
			[]string{into, "ST-I-0 -j DROP"},
		},
		"out to names and a range": {
			`{podSelector: {matchLabels: {app: server}}, policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}]}, {to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 80, endPort: 90}]}]}`,
			[]string{out, "ST-E-0 -p udp --dport 53 -j RETURN", "ST-E-0 -d 192.0.2.0/24 -p tcp --dport 80:90 -j RETURN", "ST-E-0 -j DROP"},
		},
		"about nobody": {`{podSelector: {matchLabels: {app: none}}}`, nil},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, lines(t, c.spec)) })
	}
}

func TestAPortByNameOnTheWayOutLetsNothing(t *testing.T) {
	web := networkingv1.NetworkPolicyPort{Port: new(intstr.FromString("web"))}
	require.Empty(t, portsOf(pod("a", "server", "10.0.0.1"), egress, []networkingv1.NetworkPolicyPort{web}))
	require.Equal(t, []string{"-p tcp --dport 8080"}, portsOf(pod("a", "server", "10.0.0.1"), ingress, []networkingv1.NetworkPolicyPort{web}))
}
