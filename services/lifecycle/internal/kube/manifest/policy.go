package manifest

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// PolicyName is the name of the network policy of a namespace's sandboxes.
const PolicyName = "sandtrail-sandboxes"

// Policy cuts every sandbox of a namespace off: nothing may be reached from one, and one is reached only at its agent's port by
// those who call it. It is one for all, chosen by label, so that no create waits for it and a pod is never there before it.
func Policy(c Config) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: PolicyName, Namespace: c.Namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "sandtrail"}},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{LabelName: Sandboxes}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  c.Clients,
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: new(corev1.ProtocolTCP), Port: new(intstr.FromInt32(c.Port))}},
			}},
		},
	}
}

func defaultClients(servicesNamespace string) []networkingv1.NetworkPolicyPeer {
	there := &metav1.LabelSelector{}
	if servicesNamespace != "" {
		there.MatchLabels = map[string]string{corev1.LabelMetadataName: servicesNamespace}
	}
	return []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: there,
		PodSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"app.kubernetes.io/part-of": "sandtrail"},
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "app.kubernetes.io/component", Operator: metav1.LabelSelectorOpIn, Values: []string{"exec", "lifecycle"}},
			},
		},
	}}
}

func defaultSpread() []corev1.TopologySpreadConstraint {
	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{LabelName: Sandboxes}},
	}}
}
