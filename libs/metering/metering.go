// Package metering makes quantities that can be billed from events: events become readings, readings become spans of time, spans are
// clipped at the ends of hours, and hours are priced. It is pure, and all its numbers are integers: the same events give the same
// quantities, in whatever order and how often they come. docs/METERING.md says what each meter means.
//
// The usage service computes the same in ClickHouse, by other means; `sandtrail usage verify` compares the two.
package metering

import (
	"math"
	"math/bits"
	"time"
)

// Meter is what is counted, as it stands in ClickHouse.
type Meter string

// Meters. The unit is that of Quantity; see Meter.Unit.
const (
	SandboxUptime          Meter = "sandbox_uptime"
	SandboxCPUAllocated    Meter = "sandbox_cpu_allocated"
	SandboxCPUUsed         Meter = "sandbox_cpu_used"
	SandboxMemoryAllocated Meter = "sandbox_memory_allocated"
	SandboxMemoryUsed      Meter = "sandbox_memory_used"
	SandboxDiskRead        Meter = "sandbox_disk_read"
	SandboxDiskWrite       Meter = "sandbox_disk_write"
	SandboxNetworkEgress   Meter = "sandbox_network_egress"
	SandboxNetworkIngress  Meter = "sandbox_network_ingress"
	WorkspaceStorage       Meter = "workspace_storage"
	Execs                  Meter = "execs"
	ExecWall               Meter = "exec_wall"
	ExecCPU                Meter = "exec_cpu"
	ExecMemory             Meter = "exec_memory"
	ExecDiskRead           Meter = "exec_disk_read"
	ExecDiskWrite          Meter = "exec_disk_write"
	ExecNetworkEgress      Meter = "exec_network_egress"
	ExecNetworkIngress     Meter = "exec_network_ingress"
	OutputKept             Meter = "output_kept"
)

// Units.
const (
	Milliseconds = "ms"
	// CPUMicroseconds are millionths of a second of one core.
	CPUMicroseconds = "cpu_us"
	// MiBMilliseconds are 2^20 bytes for a thousandth of a second.
	MiBMilliseconds = "mib_ms"
	Bytes           = "bytes"
	Count           = "count"
)

var units = map[Meter]string{
	SandboxUptime: Milliseconds, SandboxCPUAllocated: CPUMicroseconds, SandboxCPUUsed: CPUMicroseconds,
	SandboxMemoryAllocated: MiBMilliseconds, SandboxMemoryUsed: MiBMilliseconds,
	SandboxDiskRead: Bytes, SandboxDiskWrite: Bytes, SandboxNetworkEgress: Bytes, SandboxNetworkIngress: Bytes,
	WorkspaceStorage: MiBMilliseconds,
	Execs:            Count, ExecWall: Milliseconds, ExecCPU: CPUMicroseconds, ExecMemory: MiBMilliseconds,
	ExecDiskRead: Bytes, ExecDiskWrite: Bytes, ExecNetworkEgress: Bytes, ExecNetworkIngress: Bytes, OutputKept: Bytes,
}

// Unit is that of the meter's quantities; empty of what is no meter.
func (m Meter) Unit() string { return units[m] }

// mib is the number of bytes of a MiB.
const mib = 1 << 20

// Hour is the start of the hour, in Unix milliseconds, that a time in Unix milliseconds lies in.
func Hour(ms int64) int64 {
	const hour = int64(time.Hour / time.Millisecond)
	h := ms / hour
	if ms%hour < 0 {
		h--
	}
	return h * hour
}

// Part is one meter's quantity over a span: after t milliseconds of it, N x t / M, rounded down. So the parts of a span that is cut
// anywhere add up to the whole. With M zero the span is one instant, and N is the quantity.
type Part struct {
	Meter Meter
	N, M  uint64
}

// Span is a time, in Unix milliseconds, in which something was used. To is not part of it unless it is From.
type Span struct {
	From, To int64
	// Seq is the stream sequence of the event that closed it.
	Seq   uint64
	Parts []Part
}

// after is the quantity of a part after so many milliseconds of its span.
func (p Part) after(ms uint64) uint64 {
	if p.M == 0 {
		return p.N
	}
	return scale(p.N, ms, p.M)
}

// Whole is the quantity of a part over its whole span.
func (s Span) Whole(p Part) uint64 { return p.after(length(s.From, s.To)) }

// hours cuts a span at the ends of hours and gives each hour's quantities, those of zero too.
func (s Span) hours(do func(hour int64, m Meter, quantity uint64)) {
	const hour = int64(time.Hour / time.Millisecond)
	if s.To <= s.From {
		for _, p := range s.Parts {
			do(Hour(s.From), p.Meter, p.after(0))
		}
		return
	}
	for from := s.From; from < s.To; {
		to := min(Hour(from)+hour, s.To)
		for _, p := range s.Parts {
			do(Hour(from), p.Meter, p.after(length(s.From, to))-p.after(length(s.From, from)))
		}
		from = to
	}
}

func length(from, to int64) uint64 {
	if to <= from {
		return 0
	}
	return uint64(to - from) //nolint:gosec // not negative
}

// scale is a x b / c, rounded down; the highest number where that does not fit. c must not be zero.
func scale(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxUint64
	}
	q, _ := bits.Div64(hi, lo, c)
	return q
}

// share spreads a known quantity evenly over a span.
func share(m Meter, quantity uint64, span uint64) Part { return Part{Meter: m, N: quantity, M: span} }
