package meter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sandtrail/sandtrail/libs/runtime"
)

var start = time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)

// answer is what a kubelet says of two pods, as kubelets say it.
const answer = `{"node":{"nodeName":"n1"},"pods":[
 {"podRef":{"name":"sandbox-1","namespace":"boxes","uid":"u1"},"startTime":"2026-05-01T10:00:00Z",
  "containers":[{"name":"sandbox","cpu":{"usageCoreNanoSeconds":1}}],
  "cpu":{"time":%[1]q,"usageNanoCores":17,"usageCoreNanoSeconds":%[2]d},
  "memory":{"time":%[1]q,"usageBytes":999,"workingSetBytes":%[3]d,"rssBytes":5},
  "network":{"time":%[1]q,"name":"eth0","rxBytes":70,"txBytes":30,"interfaces":[{"name":"eth0","rxBytes":70,"txBytes":30}]},
  "ephemeral-storage":{"usedBytes":4096}},
 {"podRef":{"name":"sandbox-2","namespace":"boxes","uid":"u2"},"startTime":"2026-05-01T10:00:00Z","cpu":{"usageCoreNanoSeconds":5000000}},
 {"podRef":{"name":"other","namespace":"kube-system","uid":"u3"}}]}`

// kubelet is a source that counts how often it is asked.
type kubelet struct {
	mu    sync.Mutex
	asked int
	at    time.Time
	cpu   uint64
	mem   uint64
	err   error
}

func (k *kubelet) Summary(context.Context, *corev1.Pod) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	return fmt.Appendf(nil, answer, k.at.Format(time.RFC3339Nano), k.cpu, k.mem), k.err
}

func pod(uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "sandbox-1", Namespace: "boxes", UID: uid},
		Spec:       corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{HostIP: "127.0.0.1"},
	}
}

func TestOneAnswerServesEveryPodOfANode(t *testing.T) {
	now := start.Add(time.Minute)
	k := &kubelet{at: now, cpu: 1_500_000_000, mem: 100 << 20}
	m := New(k, func() time.Time { return now })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	u, err := m.Usage(t.Context(), pod("u2"), runtime.Endpoint{})
	require.NoError(t, err)
	require.Equal(t, uint64(5), u.CPUMillis)
	require.Zero(t, u.MemoryPeakBytes, "what a kubelet does not say is not made up")
	require.Equal(t, 1, k.asked)

	u, err = m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.NoError(t, err)
	require.Equal(t, Method, u.Method)
	require.Equal(t, uint64(1500), u.CPUMillis)
	require.Equal(t, uint64(100<<20), u.MemoryPeakBytes)
	require.Equal(t, uint64(100<<20), u.MemoryAvgBytes)
	require.Equal(t, uint64(70), u.NetworkIngressBytes)
	require.Equal(t, uint64(30), u.NetworkEgressBytes)
	require.Equal(t, time.Minute, u.Uptime)

	now = now.Add(fresh)
	_, err = m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.NoError(t, err)
	require.Equal(t, 2, k.asked)
}

func TestPeakAndMeanAreOfAllAnswers(t *testing.T) {
	now := start.Add(10 * time.Second)
	k := &kubelet{at: now, mem: 100}
	m := New(k, func() time.Time { return now })
	for _, mem := range []uint64{100, 400, 100} {
		k.mem, k.at = mem, now
		_, err := m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
		require.NoError(t, err)
		// The kubelet has not looked again: the same answer counts once.
		now = now.Add(fresh)
		_, err = m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
		require.NoError(t, err)
		now = now.Add(10*time.Second - fresh)
	}
	u, err := m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.NoError(t, err)
	require.Equal(t, uint64(400), u.MemoryPeakBytes)
	require.Equal(t, uint64(200), u.MemoryAvgBytes)
	require.Equal(t, uint64(100), u.MemoryBytes)
}

func TestWhatIsNotKnownIsAnError(t *testing.T) {
	now := start
	k := &kubelet{at: now}
	m := New(k, func() time.Time { return now })
	_, err := m.Usage(t.Context(), pod("of the pod that had the name before"), runtime.Endpoint{})
	require.ErrorContains(t, err, "does not know pod")
	_, err = m.Usage(t.Context(), pod("u3"), runtime.Endpoint{})
	require.ErrorContains(t, err, "does not know pod", "a pod of another namespace")
	_, err = m.Usage(t.Context(), &corev1.Pod{}, runtime.Endpoint{})
	require.ErrorContains(t, err, "has no node")
	k.err = errors.New("refused")
	now = now.Add(fresh)
	_, err = m.Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.ErrorIs(t, err, k.err)
}

func TestWhatNobodyAsksForIsForgotten(t *testing.T) {
	now := start
	m := New(&kubelet{at: now}, func() time.Time { return now })
	for i := range 50 {
		p := pod("u1")
		p.Spec.NodeName = fmt.Sprint("n", i)
		_, err := m.Usage(t.Context(), p, runtime.Endpoint{})
		require.NoError(t, err)
		now = now.Add(10 * time.Minute)
	}
	require.LessOrEqual(t, len(m.nodes), 8)
}

func TestKubeletsAreAskedDirectlyOrThroughTheServer(t *testing.T) {
	var paths []string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		if r.Header.Get("Authorization") != "Bearer t" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprintf(w, answer, start.Format(time.RFC3339Nano), 7_000_000, 1)
	}))
	defer server.Close()
	cfg := &rest.Config{Host: server.URL, BearerToken: "t", TLSClientConfig: rest.TLSClientConfig{ServerName: "api.example.com"}}
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	number, err := strconv.Atoi(port)
	require.NoError(t, err)

	unknown, err := NewDirect(cfg, number, false)
	require.NoError(t, err)
	_, err = New(unknown, nil).Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.ErrorContains(t, err, "certificate", "a kubelet that nobody vouches for got the credential")
	require.Empty(t, paths)

	direct, err := NewDirect(cfg, number, true)
	require.NoError(t, err)
	u, err := New(direct, nil).Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.NoError(t, err)
	require.Equal(t, uint64(7), u.CPUMillis)

	cfg.Insecure, cfg.ServerName = true, ""
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	u, err = New(Proxied{client.CoreV1().RESTClient()}, nil).Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.NoError(t, err)
	require.Equal(t, uint64(7), u.CPUMillis)
	require.Equal(t, []string{"/stats/summary", "/api/v1/nodes/n1/proxy/stats/summary"}, paths)

	cfg.BearerToken = "another"
	client, err = kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	_, err = New(Proxied{client.CoreV1().RESTClient()}, nil).Usage(t.Context(), pod("u1"), runtime.Endpoint{})
	require.Error(t, err)
}
