package cluster_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// until waits for what a question finds.
func until(t *testing.T, what string, ask func(t *assert.CollectT)) {
	t.Helper()
	require.EventuallyWithT(t, ask, waitLong, waitStep, what)
}

func TestPodsGoByDrainEvictionAndDeletion(t *testing.T) {
	c := sharedNode(t)
	ns := scratch(t, c, "leaving")
	missing := func(t *testing.T, name string) {
		t.Helper()
		until(t, "the pod is gone", func(t *assert.CollectT) {
			_, err := c.Client.CoreV1().Pods(ns).Get(context.Background(), name, metav1.GetOptions{})
			require.True(t, apierrors.IsNotFound(err), "%v", err)
		})
	}
	t.Run("evicted, unless a budget forbids it", func(t *testing.T) {
		create(t, c, ns, hardened("evicted", "", "sleep", "100000"))
		all := intstr.FromString("100%")
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "all"},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "evicted"}}},
		}
		_, err := c.Client.PolicyV1().PodDisruptionBudgets(ns).Create(limit(t), budget, metav1.CreateOptions{})
		require.NoError(t, err)
		require.True(t, apierrors.IsTooManyRequests(c.Evict(limit(t), ns, "evicted")))
		require.NoError(t, c.Client.PolicyV1().PodDisruptionBudgets(ns).Delete(limit(t), "all", metav1.DeleteOptions{}))
		until(t, "the eviction is taken", func(t *assert.CollectT) { require.NoError(t, c.Evict(context.Background(), ns, "evicted")) })
		missing(t, "evicted")
	})
	t.Run("deleted", func(t *testing.T) {
		create(t, c, ns, hardened("deleted", "", "sleep", "100000"))
		require.NoError(t, c.DeletePod(limit(t), ns, "deleted", true))
		missing(t, "deleted")
	})
	t.Run("drained, and nobody comes until it is over", func(t *testing.T) {
		create(t, c, ns, hardened("drained", "", "sleep", "100000"))
		require.NoError(t, c.Drain(limit(t), ns))
		missing(t, "drained")
		_, err := c.Client.CoreV1().Pods(ns).Create(limit(t), hardened("next", "", "sleep", "100000"), metav1.CreateOptions{})
		require.NoError(t, err)
		until(t, "it cannot be scheduled", func(t *assert.CollectT) {
			p, err := c.Client.CoreV1().Pods(ns).Get(context.Background(), "next", metav1.GetOptions{})
			require.NoError(t, err)
			require.NotEmpty(t, p.Status.Conditions)
			require.Equal(t, corev1.PodReasonUnschedulable, p.Status.Conditions[0].Reason)
		})
		require.NoError(t, c.Uncordon(limit(t)))
		_, err = c.PodReady(limit(t), ns, "next")
		require.NoError(t, err)
	})
}
