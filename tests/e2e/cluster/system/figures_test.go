package system_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/cluster/system"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// samples are times of one thing.
type samples []time.Duration

func (s samples) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[int(q*float64(len(sorted)-1))]
}

// report gives medians and 90th percentiles of both, and the ratio of the medians.
func report(b *testing.B, ours, theirs samples, name string) {
	b.Helper()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(ours.quantile(0.5)), "ours-p50-ms")
	b.ReportMetric(ms(ours.quantile(0.9)), "ours-p90-ms")
	b.ReportMetric(ms(theirs.quantile(0.5)), name+"-p50-ms")
	b.ReportMetric(ms(theirs.quantile(0.9)), name+"-p90-ms")
	b.ReportMetric(float64(ours.quantile(0.5))/float64(theirs.quantile(0.5)), "ratio")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkColdCreate compares a sandbox, from the request until the log says that commands run in it, with a pod and a claim like its own, from
// the request until the cluster says that it is ready. They take turns.
func BenchmarkColdCreate(b *testing.B) {
	w := installed(b)
	like := w.like(b)
	var ours, theirs samples
	for b.Loop() {
		theirs = append(theirs, w.barePod(b, like, len(theirs)))
		ours = append(ours, w.cold(b))
	}
	report(b, ours, theirs, "bare-pod")
}

func (w *world) cold(b *testing.B) time.Duration {
	b.Helper()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	begin := time.Now()
	id := w.Create(b, own)
	stream, err := w.API.WatchEvents(ctx, &computev1.WatchEventsRequest{SandboxId: id})
	require.NoError(b, err)
	for {
		e, err := stream.Recv()
		require.NoError(b, err)
		if e.GetType() == "sandtrail.events.v1.SandboxFailed" {
			require.FailNow(b, "it failed", e.GetBodyJson())
		}
		if e.GetType() == "sandtrail.events.v1.SandboxReady" {
			break
		}
	}
	took := time.Since(begin)
	w.Destroy(b, id)
	return took
}

// like is a sandbox's pod and its claim, as the worker made them.
type like struct {
	pod   corev1.PodSpec
	claim corev1.PersistentVolumeClaimSpec
}

func (w *world) like(b *testing.B) like {
	b.Helper()
	id := w.Ready(b, own)
	core := w.cluster.Client.CoreV1()
	pod, err := core.Pods(system.Sandboxes).Get(limit(b), podOf(id), metav1.GetOptions{})
	require.NoError(b, err)
	claim, err := core.PersistentVolumeClaims(system.Sandboxes).Get(limit(b), "workspace-"+id[:8], metav1.GetOptions{})
	require.NoError(b, err)
	w.Destroy(b, id)
	l := like{pod: pod.Spec, claim: claim.Spec}
	l.pod.NodeName, l.claim.VolumeName = "", ""
	return l
}

func (w *world) barePod(b *testing.B, l like, n int) time.Duration {
	b.Helper()
	ctx := limit(b)
	core := w.cluster.Client.CoreV1()
	name := fmt.Sprintf("bare-%d", n)
	pods, claims := core.Pods(system.Sandboxes), core.PersistentVolumeClaims(system.Sandboxes)
	watch, err := pods.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(b, err)
	defer watch.Stop()
	spec := *l.pod.DeepCopy()
	for i := range spec.Volumes {
		if c := spec.Volumes[i].PersistentVolumeClaim; c != nil {
			c.ClaimName = name
		}
	}
	begin := time.Now()
	// Side by side, as the worker writes them.
	var both sync.WaitGroup
	both.Go(func() {
		_, err := claims.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: l.claim}, metav1.CreateOptions{})
		if err != nil {
			b.Errorf("claim: %v", err)
		}
	})
	_, err = pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(b, err)
	both.Wait()
	for e := range watch.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			break
		}
	}
	took := time.Since(begin)
	require.NoError(b, ctx.Err(), "it was not ready")
	require.NoError(b, w.cluster.DeletePod(ctx, system.Sandboxes, name, true))
	require.NoError(b, claims.Delete(ctx, name, metav1.DeleteOptions{}))
	return took
}

// BenchmarkExecTrue compares `true` through gRPC, recorded in the log, with `true` through pods/exec, as kubectl has it.
func BenchmarkExecTrue(b *testing.B) {
	w := installed(b)
	id := w.Ready(b, own)
	defer w.Destroy(b, id)
	var ours, theirs samples
	for b.Loop() {
		begin := time.Now()
		out, err := w.cluster.Exec(limit(b), system.Sandboxes, podOf(id), nil, "true")
		theirs = append(theirs, time.Since(begin))
		require.NoError(b, err)
		require.Zero(b, out.Code)
		begin = time.Now()
		require.Zero(b, w.Exec(b, id, "true").Completed.GetExitCode())
		ours = append(ours, time.Since(begin))
	}
	report(b, ours, theirs, "pods-exec")
}

// BenchmarkKilledPod is how long it takes from the moment at which the cluster shows that a pod was killed until the log says so.
func BenchmarkKilledPod(b *testing.B) {
	w := installed(b)
	var all samples
	for b.Loop() {
		id := w.Ready(b, own)
		events := w.follow(b, id)
		shown := w.shows(b, id, goes)
		require.NoError(b, kill(limit(b), w.cluster, podOf(id), 0))
		all = append(all, events.says(b, "SandboxFailed", "sandbox_lost").at.Sub(moment(b, shown)))
		w.Destroy(b, id)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(all.quantile(0.5)), "in-the-log-p50-ms")
	b.ReportMetric(ms(all.quantile(1)), "in-the-log-max-ms")
	b.ReportMetric(0, "ns/op")
	require.Less(b, all.quantile(1), soon, "%v", all)
}

// BenchmarkTwentyAtOnce is how long it takes from the first of twenty requests until all twenty sandboxes run commands.
func BenchmarkTwentyAtOnce(b *testing.B) {
	w := installed(b)
	var all samples
	for b.Loop() {
		ids := make([]string, 20)
		begin := time.Now()
		var side sync.WaitGroup
		for i := range ids {
			side.Go(func() {
				ctx, stop := context.WithTimeout(context.Background(), patience)
				defer stop()
				var err error
				if ids[i], err = w.insist(ctx, fmt.Sprintf("twenty-%d-%d", begin.UnixNano(), i)); err != nil {
					b.Errorf("create: %v", err)
					return
				}
				stream, err := w.API.ExecCommand(ctx, &computev1.ExecCommandRequest{SandboxId: ids[i], Command: "true"})
				if err == nil {
					err = (&stack.Result{}).Read(stream)
				}
				if err != nil {
					b.Errorf("exec: %v", err)
				}
			})
		}
		side.Wait()
		all = append(all, time.Since(begin))
		for _, id := range ids {
			w.Destroy(b, id)
		}
	}
	b.ReportMetric(float64(all.quantile(0.5).Milliseconds()), "all-ready-p50-ms")
	b.ReportMetric(0, "ns/op")
}
