package sandbox

import (
	"math/bits"
	"time"

	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

// mergeUsage joins two readings of the same run: counters only grow, so the larger one is the later one. A reading made after
// the run has ended is often zero and takes nothing away. nil is no reading.
func mergeUsage(a, b *commonv1.UsageMetrics) *commonv1.UsageMetrics {
	if a == nil {
		return clone(b)
	}
	if b == nil {
		return clone(a)
	}
	avg := b.GetMemoryAvgBytes()
	if avg == 0 {
		avg = a.GetMemoryAvgBytes()
	}
	return &commonv1.UsageMetrics{
		CpuMs:               max(a.GetCpuMs(), b.GetCpuMs()),
		MemoryPeakBytes:     max(a.GetMemoryPeakBytes(), b.GetMemoryPeakBytes()),
		MemoryAvgBytes:      avg,
		DiskReadBytes:       max(a.GetDiskReadBytes(), b.GetDiskReadBytes()),
		DiskWriteBytes:      max(a.GetDiskWriteBytes(), b.GetDiskWriteBytes()),
		NetworkEgressBytes:  max(a.GetNetworkEgressBytes(), b.GetNetworkEgressBytes()),
		NetworkIngressBytes: max(a.GetNetworkIngressBytes(), b.GetNetworkIngressBytes()),
		GpuMs:               max(a.GetGpuMs(), b.GetGpuMs()),
		GpuMemoryBytes:      max(a.GetGpuMemoryBytes(), b.GetGpuMemoryBytes()),
	}
}

// addUsage joins the usage of two runs: counters add up, peaks do not. Means are weighted by the runs' times.
func addUsage(a, b *commonv1.UsageMetrics, aTime, bTime time.Duration) *commonv1.UsageMetrics {
	if a == nil {
		return clone(b)
	}
	if b == nil {
		return clone(a)
	}
	return &commonv1.UsageMetrics{
		CpuMs:               a.GetCpuMs() + b.GetCpuMs(),
		MemoryPeakBytes:     max(a.GetMemoryPeakBytes(), b.GetMemoryPeakBytes()),
		MemoryAvgBytes:      mean(a.GetMemoryAvgBytes(), b.GetMemoryAvgBytes(), aTime, bTime),
		DiskReadBytes:       a.GetDiskReadBytes() + b.GetDiskReadBytes(),
		DiskWriteBytes:      a.GetDiskWriteBytes() + b.GetDiskWriteBytes(),
		NetworkEgressBytes:  a.GetNetworkEgressBytes() + b.GetNetworkEgressBytes(),
		NetworkIngressBytes: a.GetNetworkIngressBytes() + b.GetNetworkIngressBytes(),
		GpuMs:               a.GetGpuMs() + b.GetGpuMs(),
		GpuMemoryBytes:      max(a.GetGpuMemoryBytes(), b.GetGpuMemoryBytes()),
	}
}

func mean(a, b uint64, aTime, bTime time.Duration) uint64 {
	if aTime+bTime <= 0 {
		return max(a, b)
	}
	// Whole numbers, in 128 bits: what is billed must not depend on how a machine rounds.
	ta, tb := uint64(max(aTime, 0)), uint64(max(bTime, 0))
	aHigh, aLow := bits.Mul64(a, ta)
	bHigh, bLow := bits.Mul64(b, tb)
	low, carry := bits.Add64(aLow, bLow, 0)
	high, _ := bits.Add64(aHigh, bHigh, carry)
	q, _ := bits.Div64(high, low, ta+tb)
	return q
}

func clone(u *commonv1.UsageMetrics) *commonv1.UsageMetrics {
	if u == nil {
		return nil
	}
	return proto.CloneOf(u)
}

// lifeUsage is the usage of the whole life when the present run has used u so far, and never less than what is recorded.
func (s Sandbox) lifeUsage(u *commonv1.UsageMetrics, uptime time.Duration) *commonv1.UsageMetrics {
	if u == nil {
		return clone(s.Usage)
	}
	return mergeUsage(s.Usage, addUsage(s.PastUsage, u, s.PastUptime, uptime-s.PastUptime))
}

// uptimeAt is the uptime at a time, from the log's own times alone; a clock that went back takes nothing away.
func (s Sandbox) uptimeAt(at time.Time) time.Duration {
	if s.RunningSince.IsZero() {
		return s.Uptime
	}
	return max(s.Uptime, s.PastUptime+max(0, at.Sub(s.RunningSince)))
}

// UptimeAt is its uptime as of now: it grows while it runs.
func (s Sandbox) UptimeAt(now time.Time) time.Duration { return s.uptimeAt(now) }
