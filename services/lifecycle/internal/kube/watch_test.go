package kube

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

// TestAStartTellsWhatItWaitsFor: each thing that keeps a pod from running is told soon after the cluster shows it.
func TestAStartTellsWhatItWaitsFor(t *testing.T) {
	c := newCluster(t)
	made := make(chan *corev1.Pod, 1)
	c.kubelet = func(p *corev1.Pod) { made <- p }
	d := c.driver()
	var mu sync.Mutex
	var told []runtime.Progress
	ctx := runtime.WithProgress(limit(t), func(p runtime.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if len(told) == 0 || told[len(told)-1] != p {
			told = append(told, p)
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := d.Create(ctx, spec())
		done <- err
	}()
	pod := <-made
	says := func(reason fault.Reason, text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.ContainsFunc(told, func(p runtime.Progress) bool { return p.Reason == string(reason) && strings.HasSuffix(p.Message, text) })
		}, time.Minute, time.Millisecond, "%s: %s", reason, text)
	}
	says("", "it waits for a node")
	c.status(pod, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0/1 nodes are available: 1 Insufficient memory.",
		}}
	})
	says(fault.ReasonUnschedulable, "no node has room for it: ask for less, or have nodes added: 0/1 nodes are available: 1 Insufficient memory")
	c.status(pod, func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Conditions = "node", nil })
	says("", "its node prepares it")
	c.status(pod, func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: manifest.Container, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "dial tcp: i/o timeout"},
		}}}
	})
	says(fault.ReasonImagePullFailed, " cannot be pulled so far: dial tcp: i/o timeout")
	c.run(pod)
	require.NoError(t, <-done)
}

// TestAnEndOfAPodIsToldWithItsReason to whoever asked for changes, whoever ends the pod and however.
func TestAnEndOfAPodIsToldWithItsReason(t *testing.T) {
	for name, end := range map[string]struct {
		do     func(*cluster, *corev1.Pod)
		reason fault.Reason
	}{
		"deleted": {func(c *cluster, p *corev1.Pod) {
			_ = c.client.CoreV1().Pods(namespace).Delete(context.Background(), p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
		}, fault.ReasonSandboxLost},
		"deleted, and its node is slow": {func(c *cluster, p *corev1.Pod) {
			c.status(p, func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) })
		}, fault.ReasonSandboxLost},
		"evicted": {func(c *cluster, p *corev1.Pod) {
			c.status(p, func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory. "
			})
		}, fault.ReasonEvicted},
		"out of memory": {func(c *cluster, p *corev1.Pod) {
			c.status(p, func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodFailed
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
			})
		}, fault.ReasonOutOfMemory},
		"its time is over": {func(c *cluster, p *corev1.Pod) {
			c.status(p, func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "DeadlineExceeded" })
		}, fault.ReasonSandboxExpired},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			d := c.driver()
			changes := make(chan string, 1000)
			d.OnChange(func(id string) { changes <- id })
			s := spec()
			made, err := d.Create(limit(t), s)
			require.NoError(t, err)
			pod := c.pods()[made.RuntimeID]
			end.do(c, &pod)
			var st runtime.Status
			for st.Reason == "" {
				select {
				case id := <-changes:
					require.Equal(t, s.ID, id)
				case <-limit(t).Done():
					require.Fail(t, "nothing was told")
				}
				if st, err = d.Inspect(limit(t), s.ID); err == nil && !st.Exists {
					// It went before anybody looked.
					require.Equal(t, fault.ReasonSandboxLost, end.reason)
					return
				}
			}
			require.False(t, st.Alive)
			require.Equal(t, string(end.reason), st.Reason, st.Message)
			require.NotEmpty(t, st.Message)
		})
	}
}

// TestAPodThatEndsWhileItsAgentIsAskedIsNotWaitedFor: its address goes with it, so nobody refuses the connection.
func TestAPodThatEndsWhileItsAgentIsAskedIsNotWaitedFor(t *testing.T) {
	c := newCluster(t)
	d := c.driver()
	s := spec()
	made, err := d.Create(limit(t), s)
	require.NoError(t, err)
	pod := c.pods()[made.RuntimeID]
	a := c.agents.of(string(pod.UID))
	asked, held := make(chan struct{}, 10), make(chan struct{})
	defer close(held)
	a.mu.Lock()
	a.asked, a.held = asked, held
	a.mu.Unlock()
	told := make(chan runtime.Status, 1)
	go func() {
		st, err := d.Inspect(context.Background(), s.ID)
		if err == nil {
			told <- st
		}
	}()
	<-asked
	c.remove(&pod)
	begin := time.Now()
	select {
	case st := <-told:
		require.False(t, st.Alive)
	case <-limit(t).Done():
		require.Fail(t, "nothing was told")
	}
	require.Less(t, time.Since(begin), helloTimeout)
}
