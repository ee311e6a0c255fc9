package system_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster/system"
)

// rights: the cluster itself says what each account of the chart may do, and refuses more.
func (w *world) rights(t *testing.T) {
	as := func(account string) *kubernetes.Clientset {
		config, err := w.cluster.Config("system:serviceaccount:"+system.Namespace+":"+account,
			"system:serviceaccounts", "system:serviceaccounts:"+system.Namespace, "system:authenticated")
		require.NoError(t, err)
		c, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		return c
	}
	worker, services := as("sandtrail-worker"), as("sandtrail-services")
	may := func(c *kubernetes.Clientset, namespace, verb, resource, sub, name string) bool {
		t.Helper()
		group := ""
		switch resource {
		case "networkpolicies":
			group = "networking.k8s.io"
		case "roles", "rolebindings", "clusterrolebindings":
			group = "rbac.authorization.k8s.io"
		case "deployments":
			group = "apps"
		}
		r, err := c.AuthorizationV1().SelfSubjectAccessReviews().Create(limit(t), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name,
			}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		return r.Status.Allowed
	}
	for _, c := range []struct {
		namespace, verb, resource, sub, name string
		may                                  bool
	}{
		{system.Sandboxes, "create", "pods", "", "", true},
		{system.Sandboxes, "delete", "pods", "", "", true},
		{system.Sandboxes, "patch", "persistentvolumeclaims", "", "", true},
		{system.Sandboxes, "watch", "events", "", "", true},
		{system.Sandboxes, "patch", "networkpolicies", "", "sandtrail-sandboxes", true},
		{"", "get", "nodes", "stats", "", true},

		{system.Sandboxes, "patch", "networkpolicies", "", "sandtrail-closed", false},
		{system.Sandboxes, "create", "networkpolicies", "", "", false},
		{system.Sandboxes, "delete", "networkpolicies", "", "sandtrail-sandboxes", false},
		{system.Sandboxes, "create", "pods", "exec", "", false},
		{system.Sandboxes, "create", "pods", "attach", "", false},
		{system.Sandboxes, "create", "pods", "ephemeralcontainers", "", false},
		{system.Sandboxes, "patch", "pods", "", "", false},
		{system.Sandboxes, "get", "secrets", "", "", false},
		{system.Sandboxes, "create", "serviceaccounts", "token", "", false},
		{system.Sandboxes, "create", "rolebindings", "", "", false},
		{system.Namespace, "create", "pods", "", "", false},
		{system.Namespace, "get", "secrets", "", "sandtrail-seal", false},
		{system.Namespace, "list", "secrets", "", "", false},
		{system.Namespace, "patch", "deployments", "", "", false},
		{"kube-system", "create", "pods", "", "", false},
		{"", "get", "nodes", "proxy", "", false},
		{"", "list", "nodes", "", "", false},
		{"", "create", "clusterrolebindings", "", "", false},
		{"", "delete", "namespaces", "", "", false},
	} {
		require.Equal(t, c.may, may(worker, c.namespace, c.verb, c.resource, c.sub, c.name), "the worker, %+v", c)
		require.False(t, may(services, c.namespace, c.verb, c.resource, c.sub, c.name), "a service, %+v", c)
	}
	_, err := worker.CoreV1().Secrets(system.Namespace).Get(limit(t), "sandtrail-seal", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	// Pod Security stands behind RBAC: what the worker may make, it may not make privileged.
	yes := true
	_, err = worker.CoreV1().Pods(system.Sandboxes).Create(limit(t), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "privileged"},
		Spec: corev1.PodSpec{HostPID: true, Containers: []corev1.Container{{
			Name: "c", Image: "none", SecurityContext: &corev1.SecurityContext{Privileged: &yes},
		}}},
	}, metav1.CreateOptions{})
	require.ErrorContains(t, err, "violates PodSecurity")
}
