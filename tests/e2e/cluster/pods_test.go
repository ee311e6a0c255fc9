package cluster_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
)

// hardened is a pod as sandboxes have it: gVisor, no root, no capability, bounds, and a claim at /workspace.
func hardened(name, claim string, argv ...string) *corev1.Pod {
	class, user, yes, no, grace := "gvisor", int64(1000), true, false, int64(0)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			RuntimeClassName: &class, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsUser: &user, RunAsGroup: &user, FSGroup: &user, RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "c", Image: cluster.BusyboxImage, ImagePullPolicy: corev1.PullNever, Command: argv,
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("256Mi")},
				},
			}},
		},
	}
	if claim != "" {
		p.Spec.Volumes = []corev1.Volume{{Name: "w", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "w", MountPath: "/workspace"}}
	}
	return p
}

func create(t *testing.T, c *cluster.Cluster, namespace string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	_, err := c.Client.CoreV1().Pods(namespace).Create(limit(t), p, metav1.CreateOptions{})
	require.NoError(t, err)
	ready, err := c.PodReady(limit(t), namespace, p.Name)
	require.NoError(t, err)
	return ready
}

func claim(t *testing.T, c *cluster.Cluster, namespace, name string) {
	t.Helper()
	_, err := c.Client.CoreV1().PersistentVolumeClaims(namespace).Create(limit(t), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

func sh(t *testing.T, c *cluster.Cluster, namespace, pod, script string) cluster.Output {
	t.Helper()
	out, err := c.Exec(limit(t), namespace, pod, nil, "sh", "-c", script)
	require.NoError(t, err)
	return out
}

func scratch(t *testing.T, c *cluster.Cluster, name string) string {
	t.Helper()
	namespace(t, c, name)
	require.Eventually(t, func() bool {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	}, waitLong, waitStep)
	t.Cleanup(func() { _ = c.Client.CoreV1().Namespaces().Delete(limit(t), name, metav1.DeleteOptions{}) })
	return name
}

func TestAGVisorPodHasAWorkspaceThatOutlivesIt(t *testing.T) {
	c := sharedNode(t)
	ns := scratch(t, c, "workspaces")
	claim(t, c, ns, "w")
	create(t, c, ns, hardened("first", "w", "sleep", "100000"))
	out := sh(t, c, ns, "first", "uname -r; id -u; id -g; echo kept > /workspace/f; stat -c %g /workspace; exit 7")
	require.Equal(t, 7, out.Code)
	lines := strings.Fields(out.Stdout)
	require.Len(t, lines, 4, "%+v", out)
	require.Contains(t, lines[0], "gvisor")
	require.Equal(t, []string{"1000", "1000", "1000"}, lines[1:], "user, group, and the group of the workspace")
	require.NoError(t, c.DeletePod(limit(t), ns, "first", true))
	create(t, c, ns, hardened("second", "w", "sleep", "100000"))
	require.Equal(t, "kept\n", sh(t, c, ns, "second", "cat /workspace/f").Stdout)

	t.Run("stdin and much output", func(t *testing.T) {
		const size = 4 << 20
		in := strings.Repeat("0123456789abcdef", size/16)
		back, err := c.Exec(limit(t), ns, "second", strings.NewReader(in), "cat")
		require.NoError(t, err)
		require.Equal(t, in, back.Stdout)
	})
	t.Run("a claim that is deleted takes its directory with it", func(t *testing.T) {
		pvc, err := c.Client.CoreV1().PersistentVolumeClaims(ns).Get(limit(t), "w", metav1.GetOptions{})
		require.NoError(t, err)
		pv, err := c.Client.CoreV1().PersistentVolumes().Get(limit(t), pvc.Spec.VolumeName, metav1.GetOptions{})
		require.NoError(t, err)
		require.DirExists(t, pv.Spec.Local.Path)
		require.NoError(t, c.DeletePod(limit(t), ns, "second", true))
		require.NoError(t, c.Client.CoreV1().PersistentVolumeClaims(ns).Delete(limit(t), "w", metav1.DeleteOptions{}))
		require.Eventually(t, gone(pv.Spec.Local.Path), waitLong, waitStep)
	})
}

func TestPodsHostAndServicesReachOneAnother(t *testing.T) {
	c := sharedNode(t)
	ns := scratch(t, c, "network")
	server := hardened("server", "", "sh", "-c", "mkdir /tmp/w; echo pod > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w")
	server.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)}},
	}
	ready := create(t, c, ns, server)
	create(t, c, ns, hardened("client", "", "sleep", "100000"))
	url := "http://" + net.JoinHostPort(ready.Status.PodIP, "8080") + "/"

	require.Equal(t, "pod\n", get(t, url), "the host reaches a pod")
	require.Equal(t, "pod\n", sh(t, c, ns, "client", "wget -q -O - "+url).Stdout, "a pod reaches a pod")

	l, err := net.Listen("tcp", net.JoinHostPort(c.HostAddress, "0"))
	require.NoError(t, err)
	host := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("host\n"))
	})}}
	host.Start()
	t.Cleanup(host.Close)
	require.Equal(t, "host\n", sh(t, c, ns, "client", "wget -q -O - "+host.URL).Stdout, "a pod reaches the host")

	s, err := c.Client.CoreV1().Services(ns).Create(limit(t), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "server"}, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		out, err := c.Exec(t.Context(), ns, "client", nil, "timeout", "5", "wget", "-q", "-O", "-", "http://"+s.Spec.ClusterIP)
		return err == nil && out.Stdout == "pod\n"
	}, waitLong, waitStep, "a pod reaches a service")
	require.Equal(t, "pod\n", get(t, "http://"+s.Spec.ClusterIP), "the host reaches a service")
	require.Equal(t, "pod\n", sh(t, c, ns, "client", "wget -q -O - http://s."+ns).Stdout, "a pod finds a service by its name")
	require.NotZero(t, sh(t, c, ns, "client", "wget -q -O - http://none."+ns).Code, "and none that is not there")
}

func TestNetworkPoliciesAreEnforced(t *testing.T) {
	c := sharedNode(t)
	ns := scratch(t, c, "policies")
	server := create(t, c, ns, hardened("server", "", "sh", "-c", "mkdir /tmp/w; echo pod > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"))
	create(t, c, ns, hardened("client", "", "sleep", "100000"))
	create(t, c, ns, hardened("other", "", "sleep", "100000"))
	url := "http://" + net.JoinHostPort(server.Status.PodIP, "8080") + "/"
	reaches := func(from string, want bool, what string) {
		t.Helper()
		until(t, what, func(t *assert.CollectT) {
			out, err := c.Exec(context.Background(), ns, from, nil, "timeout", "3", "wget", "-q", "-O", "-", url)
			require.NoError(t, err)
			require.Equal(t, want, out.Stdout == "pod\n", "%+v", out)
		})
	}
	apply := func(name string, spec networkingv1.NetworkPolicySpec) {
		t.Helper()
		_, err := c.Client.NetworkingV1().NetworkPolicies(ns).Create(limit(t), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	app := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}

	reaches("client", true, "nothing is closed before there is a policy")
	apply("closed", networkingv1.NetworkPolicySpec{PodSelector: app("server")})
	reaches("client", false, "nobody gets in")
	client, port := app("client"), intstr.FromInt32(8080)
	apply("open", networkingv1.NetworkPolicySpec{PodSelector: app("server"), Ingress: []networkingv1.NetworkPolicyIngressRule{{
		From: []networkingv1.NetworkPolicyPeer{{PodSelector: &client}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
	}}})
	reaches("client", true, "the one that is let in")
	reaches("other", false, "no other")
	apply("in", networkingv1.NetworkPolicySpec{PodSelector: client, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}})
	reaches("client", false, "it does not get out")
	// The API server tells whoever speaks plain HTTP to it that it does not.
	host, number, err := net.SplitHostPort(strings.TrimPrefix(c.Server, "https://"))
	require.NoError(t, err)
	for from, want := range map[string]bool{"client": false, "other": true} {
		out := sh(t, c, ns, from, `printf 'GET / HTTP/1.0\r\n\r\n' | timeout 5 nc `+host+" "+number)
		require.Equal(t, want, strings.Contains(out.Stdout, "400"), "%s reaches the node: %+v", from, out)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(limit(t), http.MethodGet, url, nil)
	require.NoError(t, err)
	a, err := http.DefaultClient.Do(q)
	require.NoError(t, err)
	defer a.Body.Close()
	var b strings.Builder
	_, err = io.Copy(&b, a.Body)
	require.NoError(t, err)
	return b.String()
}

const (
	waitLong = 3 * time.Minute
	waitStep = 50 * time.Millisecond
)

func gone(path string) func() bool {
	return func() bool {
		_, err := os.Stat(path)
		return os.IsNotExist(err)
	}
}
