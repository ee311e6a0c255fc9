package system_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/system"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// soon is within what the log must say what has happened, from the moment that the cluster shows it.
const soon = 2 * time.Second

// fact is an event as it came.
type fact struct {
	kind, exec, reason, message string
	at                          time.Time
}

func (f fact) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", f.kind, f.reason, f.message))
}

// followed is what the log has said of a sandbox and its execs so far.
type followed struct {
	mu    sync.Mutex
	facts []fact
}

// follow reads a sandbox's events from the first on, as they come, until the test ends.
func (w *world) follow(t testing.TB, sandbox string) *followed {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	stream, err := w.API.WatchEvents(ctx, &computev1.WatchEventsRequest{SandboxId: sandbox})
	require.NoError(t, err)
	f := &followed{}
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			f.add(e)
		}
	}()
	return f
}

func (f *followed) add(e *computev1.WatchEventsResponse) {
	if e.GetHeartbeat() {
		return
	}
	var body struct{ Reason, Message string }
	_ = json.Unmarshal([]byte(e.GetBodyJson()), &body) // one without them has none
	f.mu.Lock()
	defer f.mu.Unlock()
	f.facts = append(f.facts, fact{
		kind: e.GetType()[strings.LastIndexByte(e.GetType(), '.')+1:], exec: e.GetExecId(), reason: body.Reason, message: body.Message, at: time.Now(),
	})
}

func (f *followed) all() []fact {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.facts)
}

// has waits for a fact that is wanted.
func (f *followed) has(t testing.TB, what string, want func(fact) bool) fact {
	t.Helper()
	var found fact
	require.Eventually(t, func() bool {
		all := f.all()
		i := slices.IndexFunc(all, want)
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	}, patience, 5*time.Millisecond, "%s", saying{f, what})
	return found
}

// saying is written when a wait has failed, not before.
type saying struct {
	*followed
	what string
}

func (s saying) String() string {
	return fmt.Sprintf("the log does not say %s, but %v", s.what, s.all())
}

func (f *followed) says(t testing.TB, kind, reason string) fact {
	t.Helper()
	return f.has(t, kind+" "+reason, func(e fact) bool { return e.kind == kind && (reason == "" || e.reason == reason) })
}

func (w *world) faults(t *testing.T) {
	t.Run("a sandbox is lost", w.losses)
	t.Run("a start is refused", w.refusals)
	t.Run("a part of the cluster is away", w.outages)
}

func podOf(sandbox string) string { return "sandbox-" + sandbox[:8] }

// losses: each ends a sandbox with a program that runs in it; both ends stand in the log soon after.
func (w *world) losses(t *testing.T) {
	c := w.cluster
	for name, f := range map[string]struct {
		breaks func(ctx context.Context, pod string) error
		reason string
	}{
		"its pod is killed":   {func(ctx context.Context, pod string) error { return kill(ctx, c, pod, 0) }, "sandbox_lost"},
		"its pod is deleted":  {func(ctx context.Context, pod string) error { return kill(ctx, c, pod, 1) }, "sandbox_lost"},
		"its pod is evicted":  {func(ctx context.Context, pod string) error { return c.Evict(ctx, system.Sandboxes, pod) }, "evicted"},
		"its node is drained": {func(ctx context.Context, _ string) error { return c.Drain(ctx, system.Sandboxes) }, "evicted"},
	} {
		t.Run(name, func(t *testing.T) {
			id := w.Ready(t, own)
			events := w.follow(t, id)
			run := w.Begin(t, 1, &computev1.ExecCommandRequest{SandboxId: id, Command: "sh", Args: []string{"-c", "echo x; sleep 1000"}})
			t.Cleanup(func() { require.NoError(t, c.Uncordon(limit(t))) })
			shown := w.shows(t, id, goes)
			require.NoError(t, f.breaks(limit(t), podOf(id)))
			failed := events.says(t, "SandboxFailed", f.reason)
			took := failed.at.Sub(moment(t, shown))
			end := events.has(t, "the end of the exec", func(e fact) bool { return e.exec == run.ID && (e.kind == "ExecLost" || e.kind == "ExecCompleted") })
			t.Logf("%s: in the log %s after the cluster showed it; its exec %s", failed, took.Round(time.Millisecond), end)
			require.Less(t, took, soon)
			w.Destroy(t, id)
		})
	}
}

// goes: the pod ends, or is gone.
func goes(p *corev1.Pod) bool {
	return p == nil || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning
}

// kill deletes a pod and does not wait for its end.
func kill(ctx context.Context, c *cluster.Cluster, pod string, grace int64) error {
	return c.Client.CoreV1().Pods(system.Sandboxes).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &grace})
}

// shows gives the time at which the cluster shows a sandbox's pod as wanted; a pod that is gone is nil.
func (w *world) shows(t testing.TB, sandbox string, want func(*corev1.Pod) bool) <-chan time.Time {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	at := make(chan time.Time, 1)
	pods := w.cluster.Client.CoreV1().Pods(system.Sandboxes)
	watch, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "sandtrail.dev/sandbox=" + sandbox})
	require.NoError(t, err)
	go func() {
		defer watch.Stop()
		for e := range watch.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == "DELETED" {
				p = nil
			}
			if want(p) {
				at <- time.Now()
				return
			}
		}
		at <- time.Now() // what cannot be watched any more is shown now
	}()
	return at
}

// moment is when the cluster showed it.
func moment(t testing.TB, shown <-chan time.Time) time.Time {
	t.Helper()
	select {
	case at := <-shown:
		return at
	case <-time.After(patience):
		require.FailNow(t, "the cluster does not show it")
		return time.Time{}
	}
}

// refusals: what keeps a sandbox from starting stands in the log soon, in words of ours.
func (w *world) refusals(t *testing.T) {
	c := w.cluster
	for name, f := range map[string]struct {
		breaks       func(t *testing.T)
		image        string
		kind, reason string
	}{
		"its image is nowhere": {
			func(*testing.T) {}, net.JoinHostPort(c.HostAddress, "1") + "/none/none:1", "SandboxStarting", "image_pull_failed",
		},
		"a quota is used up": {func(t *testing.T) { w.quota(t) }, stack.Image, "SandboxFailed", "quota"},
		"a webhook refuses": {func(t *testing.T) {
			hook, err := c.RefusePods(limit(t), system.Sandboxes, "no sandboxes on Mondays")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, hook.Remove(limit(t))) })
		}, stack.Image, "SandboxFailed", "cluster_refused"},
	} {
		t.Run(name, func(t *testing.T) {
			f.breaks(t)
			begin := time.Now()
			id := w.Create(t, own, func(r *computev1.CreateSandboxRequest) { r.Image = f.image })
			events := w.follow(t, id)
			if f.kind == "SandboxStarting" {
				begin = moment(t, w.shows(t, id, func(p *corev1.Pod) bool { return p != nil && slices.ContainsFunc(p.Status.ContainerStatuses, pulls) }))
			}
			said := events.says(t, f.kind, f.reason)
			took := said.at.Sub(begin)
			t.Logf("%s: after %s", said, took.Round(time.Millisecond))
			require.Less(t, took, soon)
			require.NotEmpty(t, said.message)
			w.Destroy(t, id)
		})
	}
}

// pulls: the node cannot get the container's image.
func pulls(s corev1.ContainerStatus) bool {
	return s.State.Waiting != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff"}, s.State.Waiting.Reason)
}

// quota lets no pod into the sandboxes' namespace. One that nobody has counted yet refuses with other words.
func (w *world) quota(t *testing.T) {
	t.Helper()
	quotas := w.cluster.Client.CoreV1().ResourceQuotas(system.Sandboxes)
	require.NoError(t, w.cluster.Quota(limit(t), system.Sandboxes, corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}))
	t.Cleanup(func() { require.NoError(t, quotas.Delete(limit(t), "test", metav1.DeleteOptions{})) })
	require.Eventually(t, func() bool {
		q, err := quotas.Get(context.Background(), "test", metav1.GetOptions{})
		return err == nil && len(q.Status.Hard) > 0
	}, patience, 20*time.Millisecond)
}

// outages: programs go on and can be reached, what is asked meanwhile is done afterwards, and nothing is said that was not seen.
func (w *world) outages(t *testing.T) {
	t.Run("the kubelet is stopped", w.withoutKubelet)
	t.Run("the API server is restarted", w.withoutAPIServer)
	t.Run("etcd is slow", w.withSlowEtcd)
}

func (w *world) withoutKubelet(t *testing.T) {
	c := w.cluster
	id, other := w.Ready(t, own), w.Ready(t, own)
	events := w.follow(t, id)
	require.NoError(t, c.Kill(limit(t), cluster.Kubelet))
	back := sync.OnceFunc(func() { require.NoError(t, c.Start(limit(t), cluster.Kubelet)) })
	t.Cleanup(func() { back(); require.NoError(t, c.NodeReady(limit(t))) })
	require.Zero(t, w.Exec(t, other, "true").Completed.GetExitCode(), "programs need no kubelet")
	destroyed := make(chan error, 1)
	go func() {
		_, err := w.API.DestroySandbox(limit(t), &computev1.DestroySandboxRequest{SandboxId: id})
		destroyed <- err
	}()
	events.says(t, "SandboxDestroying", "requested")
	require.Never(t, func() bool {
		return slices.ContainsFunc(events.all(), func(e fact) bool { return e.kind == "SandboxDestroyed" })
	}, 5*time.Second, 100*time.Millisecond, "nobody has seen its end")
	begin := time.Now()
	back()
	events.says(t, "SandboxDestroyed", "requested")
	t.Logf("destroyed %s after the kubelet was started", time.Since(begin).Round(time.Millisecond))
	// The call may have ended before, by its own deadline; asked again it tells the same.
	if err := <-destroyed; err != nil {
		w.Destroy(t, id)
	}
	w.Destroy(t, other)
}

func (w *world) withoutAPIServer(t *testing.T) {
	c := w.cluster
	id := w.Ready(t, own)
	events := w.follow(t, id)
	require.NoError(t, c.Kill(limit(t), cluster.APIServer))
	require.Zero(t, w.Exec(t, id, "true").Completed.GetExitCode(), "programs need no API server")
	next := w.Create(t, own)
	starts := w.follow(t, next)
	starts.says(t, "SandboxStarting", "")
	begin := time.Now()
	require.NoError(t, c.Start(limit(t), cluster.APIServer))
	require.NoError(t, c.Ready(limit(t)))
	up := time.Now()
	ready := starts.says(t, "SandboxReady", "")
	t.Logf("the API server was back after %s, the sandbox asked for meanwhile ready %s later",
		up.Sub(begin).Round(time.Millisecond), ready.at.Sub(up).Round(time.Millisecond))
	shown := w.shows(t, id, goes)
	require.NoError(t, kill(limit(t), c, podOf(id), 0))
	took := events.says(t, "SandboxFailed", "sandbox_lost").at.Sub(moment(t, shown))
	t.Logf("a pod killed then was in the log %s after the cluster showed it", took.Round(time.Millisecond))
	require.Less(t, took, soon)
	w.Destroy(t, id)
	w.Destroy(t, next)
}

func (w *world) withSlowEtcd(t *testing.T) {
	c := w.cluster
	id := w.Ready(t, own)
	events := w.follow(t, id)
	require.NoError(t, c.Slow(limit(t), cluster.Etcd, 200*time.Millisecond, 20*time.Millisecond))
	fast := sync.OnceFunc(func() { require.NoError(t, c.Thaw(limit(t), cluster.Etcd)) })
	t.Cleanup(fast)
	begin := time.Now()
	require.Zero(t, w.Exec(t, id, "true").Completed.GetExitCode())
	exec := time.Since(begin)
	begin = time.Now()
	next := w.Ready(t, own)
	t.Logf("with an etcd that takes 0.2 s for an answer: exec %s, create and exec %s", exec.Round(time.Millisecond), time.Since(begin).Round(time.Millisecond))
	shown := w.shows(t, id, goes)
	require.NoError(t, kill(limit(t), c, podOf(id), 0))
	took := events.says(t, "SandboxFailed", "sandbox_lost").at.Sub(moment(t, shown))
	t.Logf("a pod killed then was in the log %s after the cluster showed it", took.Round(time.Millisecond))
	require.Less(t, took, soon)
	fast()
	w.Destroy(t, id)
	w.Destroy(t, next)
}
