package system_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/system"
)

// knock tells for each address whether a connection comes about.
const knock = `
import socket, sys
for a in sys.argv[1:]:
    host, port = a.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 2).close()
        print("open")
    except OSError:
        print("closed")
`

// network: nothing goes out of a sandbox, and of the services only the gateway is open to pods of others.
func (w *world) network(t *testing.T) {
	id, neighbour := w.Ready(t, own), w.Ready(t, own)
	defer w.Destroy(t, id)
	defer w.Destroy(t, neighbour)
	core := w.cluster.Client.CoreV1()
	address := func(namespace, selector, port string) string {
		pods, err := core.Pods(namespace).List(limit(t), metav1.ListOptions{LabelSelector: selector})
		require.NoError(t, err)
		require.NotEmpty(t, pods.Items, selector)
		return net.JoinHostPort(pods.Items[0].Status.PodIP, port)
	}
	agent := address(system.Sandboxes, "sandtrail.dev/sandbox="+neighbour, "7070")
	gateway := address(system.Namespace, "app.kubernetes.io/name=sandtrail-gateway", "50051")
	nats := address(system.Namespace, "app.kubernetes.io/name=sandtrail-nats", "4222")
	server := strings.TrimPrefix(w.cluster.Server, "https://")

	closed := func(n int) string { return strings.Repeat("closed\n", n) }
	all := []string{agent, gateway, nats, server, net.JoinHostPort(w.cluster.HostAddress, "9000")}
	require.Equal(t, closed(len(all)), string(w.Exec(t, id, "python3", append([]string{"-c", knock}, all...)...).Stdout))

	// Somebody else's pod, which no policy closes: the same addresses are there.
	stranger := w.stranger(t)
	out, err := w.cluster.Exec(limit(t), "default", stranger, nil, append([]string{"python3", "-c", knock}, all...)...)
	require.NoError(t, err)
	require.Equal(t, "closed\nopen\nclosed\nopen\nopen\n", out.Stdout, "agent, gateway, NATS, API server, host: %s", out.Stderr)
}

func (w *world) stranger(t *testing.T) string {
	t.Helper()
	const name = "stranger"
	pods := w.cluster.Client.CoreV1().Pods("default")
	var none int64
	_, err := pods.Create(limit(t), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &none, Containers: []corev1.Container{{
			Name: "c", Image: cluster.SandboxImage, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "100000"},
		}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.cluster.DeletePod(limit(t), "default", name, true)) })
	_, err = w.cluster.PodReady(limit(t), "default", name)
	require.NoError(t, err)
	return name
}
