package render

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Bytes is a size for people, with binary units and one decimal.
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1024, 0
	const units = "KMGTPE"
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[unit])
}

// Duration is a time span for people: three digits or so.
func Duration(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// Span is Duration of a message; "" where it is absent.
func Span(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return Duration(d.AsDuration())
}

// Time is a moment in UTC to the millisecond; "" where it is absent.
func Time(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format("2006-01-02T15:04:05.000Z")
}

// Enum is the last word of an enum value in lower case: SANDBOX_STATUS_READY is ready.
func Enum(prefix, name string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
