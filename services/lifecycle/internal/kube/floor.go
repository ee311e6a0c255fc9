package kube

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

// methodTold is how a figure is marked for which there is no other word than the agent's.
const methodTold = "agent"

// withFloor raises what was measured from outside to what the agent has seen at the end. Kubelets look every 10 to 15 s: of a sandbox that was
// short they know little or nothing, and the whole would be less than its execs. A program inside can make the agent's figures larger, never the
// sum smaller; so they count no further than the pod's limits would have let it use as much in earnest. A figure without a limit does not count.
func withFloor(measured runtime.Usage, told *toolboxv1.ShutdownReply, pod *corev1.Pod, now time.Time) runtime.Usage {
	if told == nil {
		return measured
	}
	cpu, memory := bounds(pod, now)
	u := told.GetUsage()
	if measured.Method == "" {
		measured.Method = methodTold
	}
	measured.CPUMillis = max(measured.CPUMillis, min(u.GetCpuMs(), cpu))
	measured.MemoryPeakBytes = max(measured.MemoryPeakBytes, min(u.GetMemoryPeakBytes(), memory))
	if measured.MemoryAvgBytes == 0 {
		measured.MemoryAvgBytes = min(u.GetMemoryAvgBytes(), memory)
	}
	if measured.Uptime == 0 {
		measured.Uptime = age(pod, now)
	}
	return measured
}

// bounds are the CPU time in ms that a pod can have used since its start, and the bytes of memory that it may have; zero where it has no limit.
func bounds(pod *corev1.Pod, now time.Time) (cpuMillis, memory uint64) {
	for _, c := range pod.Spec.Containers {
		if c.Name != manifest.Container {
			continue
		}
		// A millicore is a millisecond a second.
		cpu := c.Resources.Limits.Cpu().MilliValue() * int64(age(pod, now)/time.Second+1)
		return uint64(max(0, cpu)), uint64(max(0, c.Resources.Limits.Memory().Value())) //nolint:gosec // not negative
	}
	return 0, 0
}

// age of a pod since its node took it; zero before.
func age(pod *corev1.Pod, now time.Time) time.Duration {
	if pod.Status.StartTime == nil {
		return 0
	}
	return max(0, now.Sub(pod.Status.StartTime.Time))
}
