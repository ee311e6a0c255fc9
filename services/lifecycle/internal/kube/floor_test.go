package kube

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandtrail/sandtrail/libs/runtime"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/kube/manifest"
)

// TestAnEndIsNotBilledBelowWhatItsExecsUsed, and nothing inside can make it more than what the pod could have used.
func TestAnEndIsNotBilledBelowWhatItsExecsUsed(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	started := metav1.NewTime(now.Add(-9 * time.Second))
	pod := func(limits corev1.ResourceList) *corev1.Pod {
		return &corev1.Pod{
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: manifest.Container, Resources: corev1.ResourceRequirements{Limits: limits}}}},
			Status: corev1.PodStatus{StartTime: &started},
		}
	}
	limited := pod(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1000")})
	told := func(cpu, peak, avg uint64) *toolboxv1.ShutdownReply {
		return &toolboxv1.ShutdownReply{Usage: &commonv1.UsageMetrics{CpuMs: cpu, MemoryPeakBytes: peak, MemoryAvgBytes: avg, DiskWriteBytes: 5}}
	}
	measured := runtime.Usage{CPUMillis: 300, MemoryPeakBytes: 400, MemoryAvgBytes: 200, NetworkEgressBytes: 7, Uptime: 8 * time.Second, Method: "kubelet"}
	for name, c := range map[string]struct {
		measured runtime.Usage
		told     *toolboxv1.ShutdownReply
		pod      *corev1.Pod
		want     runtime.Usage
	}{
		"the agent does not answer": {measured, nil, limited, measured},
		"the kubelet knows more":    {measured, told(200, 300, 900), limited, measured},
		"the kubelet is late": {
			measured, told(350, 500, 900), limited,
			runtime.Usage{CPUMillis: 350, MemoryPeakBytes: 500, MemoryAvgBytes: 200, NetworkEgressBytes: 7, Uptime: 8 * time.Second, Method: "kubelet"},
		},
		"the kubelet knows nothing": {
			runtime.Usage{},
			told(350, 500, 100), limited,
			runtime.Usage{CPUMillis: 350, MemoryPeakBytes: 500, MemoryAvgBytes: 100, Uptime: 9 * time.Second, Method: "agent"},
		},
		"a program inside forges them": {
			measured, told(math.MaxUint64, math.MaxUint64, 1), limited,
			runtime.Usage{CPUMillis: 5000, MemoryPeakBytes: 1000, MemoryAvgBytes: 200, NetworkEgressBytes: 7, Uptime: 8 * time.Second, Method: "kubelet"},
		},
		"it has no limits":  {measured, told(math.MaxUint64, math.MaxUint64, 1), pod(nil), measured},
		"no such container": {measured, told(math.MaxUint64, math.MaxUint64, 1), &corev1.Pod{}, measured},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, withFloor(c.measured, c.told, c.pod, now)) })
	}
}
