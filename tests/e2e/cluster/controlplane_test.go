package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
)

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": value}}
}

func namespace(t *testing.T, c *cluster.Cluster, name string) {
	t.Helper()
	_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// limit is longer than any wait takes, also on a machine that others take.
func limit(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(stop)
	return ctx
}

func TestAControlPlaneAloneJudgesRequests(t *testing.T) {
	begin := time.Now()
	c := cluster.ControlPlane(t)
	t.Logf("from nothing to ready: %s", time.Since(begin).Round(time.Millisecond))
	maps := c.Client.CoreV1().ConfigMaps("default")

	t.Run("a watch tells of a write", func(t *testing.T) {
		w, err := maps.Watch(limit(t), metav1.ListOptions{FieldSelector: "metadata.name=seen"})
		require.NoError(t, err)
		defer w.Stop()
		_, err = maps.Create(t.Context(), configMap("seen", "1"), metav1.CreateOptions{})
		require.NoError(t, err)
		e, open := <-w.ResultChan()
		require.True(t, open)
		require.Equal(t, "1", e.Object.(*corev1.ConfigMap).Data["k"])
	})
	t.Run("of two writers of one version the second is refused", func(t *testing.T) {
		made, err := maps.Create(t.Context(), configMap("contested", "1"), metav1.CreateOptions{})
		require.NoError(t, err)
		first := made.DeepCopy()
		first.Data["k"] = "2"
		_, err = maps.Update(t.Context(), first, metav1.UpdateOptions{})
		require.NoError(t, err)
		made.Data["k"] = "3"
		_, err = maps.Update(t.Context(), made, metav1.UpdateOptions{})
		require.True(t, apierrors.IsConflict(err), "%v", err)
	})
	t.Run("who has no role may do nothing, and what it has no more", func(t *testing.T) {
		config, err := c.Config("reader")
		require.NoError(t, err)
		reader, err := kubernetes.NewForConfig(config)
		require.NoError(t, err)
		_, err = reader.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		_, err = c.Client.RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: "read"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = c.Client.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "read"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "read"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "reader"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			_, err := reader.CoreV1().ConfigMaps("default").List(context.Background(), metav1.ListOptions{})
			require.NoError(t, err)
		}, time.Minute, 20*time.Millisecond)
		_, err = reader.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("mine", "1"), metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
	})
	t.Run("a namespace of the restricted standard refuses a privileged pod", func(t *testing.T) {
		_, err := c.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "strict", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		_, err = c.Client.CoreV1().Pods("strict").Create(t.Context(), pod, metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.ErrorContains(t, err, "PodSecurity")
		_, err = c.Client.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	})
	t.Run("what is above a quota is refused", func(t *testing.T) {
		namespace(t, c, "small")
		require.NoError(t, c.Quota(t.Context(), "small", corev1.ResourceList{"count/configmaps": resource.MustParse("0")}))
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			_, err := c.Client.CoreV1().ConfigMaps("small").Create(context.Background(), configMap("x", "1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, "exceeded quota")
		}, time.Minute, 20*time.Millisecond)
	})
}

func TestControlPlaneFaults(t *testing.T) {
	c := cluster.ControlPlane(t)
	maps := c.Client.CoreV1().ConfigMaps("default")
	_, err := maps.Create(t.Context(), configMap("kept", "1"), metav1.CreateOptions{})
	require.NoError(t, err)
	kept := func(t *testing.T) {
		t.Helper()
		require.NoError(t, c.Ready(limit(t)))
		got, err := maps.Get(limit(t), "kept", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "1", got.Data["k"])
	}
	answers := func(t *testing.T, within time.Duration) error {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), within)
		defer stop()
		_, err := maps.Get(ctx, "kept", metav1.GetOptions{})
		return err
	}

	t.Run("the API server is killed and comes back with what it had", func(t *testing.T) {
		require.NoError(t, c.Kill(limit(t), cluster.APIServer))
		running, err := c.Running(t.Context(), cluster.APIServer)
		require.NoError(t, err)
		require.False(t, running)
		require.Error(t, answers(t, 10*time.Second))
		require.NoError(t, c.Start(t.Context(), cluster.APIServer))
		kept(t)
	})
	t.Run("etcd is killed and comes back with what it had", func(t *testing.T) {
		require.NoError(t, c.Kill(limit(t), cluster.Etcd))
		require.Error(t, answers(t, 3*time.Second))
		require.NoError(t, c.Start(t.Context(), cluster.Etcd))
		kept(t)
	})
	t.Run("a frozen etcd answers nobody until it is thawed", func(t *testing.T) {
		require.NoError(t, c.Freeze(t.Context(), cluster.Etcd))
		require.Error(t, answers(t, 2*time.Second))
		require.NoError(t, c.Thaw(t.Context(), cluster.Etcd))
		kept(t)
	})
	t.Run("a slow etcd makes each write slow, and loses none", func(t *testing.T) {
		const pause = 300 * time.Millisecond
		require.NoError(t, c.Slow(t.Context(), cluster.Etcd, pause, 10*time.Millisecond))
		begin := time.Now()
		const writes = 5
		for range writes {
			_, err := maps.Update(limit(t), configMap("kept", "1"), metav1.UpdateOptions{})
			require.NoError(t, err)
		}
		require.Greater(t, time.Since(begin), writes*pause/2)
		require.NoError(t, c.Thaw(t.Context(), cluster.Etcd))
		kept(t)
	})
	t.Run("a restart in one step", func(t *testing.T) {
		require.NoError(t, c.Restart(limit(t), cluster.APIServer))
		kept(t)
	})
	t.Run("a webhook refuses pods and nothing else, until it is taken away", func(t *testing.T) {
		h, err := c.RefusePods(limit(t), "default", "not today")
		require.NoError(t, err)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		_, err = c.Client.CoreV1().Pods("default").Create(limit(t), pod, metav1.CreateOptions{})
		require.ErrorContains(t, err, "not today")
		require.Positive(t, h.Refused())
		kept(t)
		require.NoError(t, h.Remove(limit(t)))
		_, err = c.Client.CoreV1().Pods("default").Create(limit(t), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	})
	t.Run("what is not there cannot fail", func(t *testing.T) {
		require.Error(t, c.Kill(t.Context(), cluster.Kubelet))
		require.Error(t, c.Start(t.Context(), cluster.Etcd), "it runs")
		require.Error(t, c.Slow(t.Context(), cluster.Etcd, 0, time.Second))
	})
}

func TestTwoControlPlanesAtOnceKnowNothingOfOneAnother(t *testing.T) {
	a, b := cluster.ControlPlane(t), cluster.ControlPlane(t)
	_, err := a.Client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("x", "1"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = b.Client.CoreV1().ConfigMaps("default").Get(t.Context(), "x", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
