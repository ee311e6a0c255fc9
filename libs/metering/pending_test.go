package metering_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/metering"
)

// What is expected of a sandbox is what its next sample bills, where that comes in time and says what was expected.
func TestPendingIsWhatTheNextSampleBills(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const minute = uint64(60_000)
		o := metering.Owner{CPUMillis: 500, MemoryBytes: 1 << 30}
		up := rapid.Uint64Range(0, 90*24*60).Draw(t, "minutes") * minute
		ready := metering.Reading{Kind: metering.Ready, At: start.UnixMilli(), Seq: 1}
		last := metering.Reading{Kind: metering.Sampled, At: ready.At + int64(up), Seq: 2, Millis: up, CPUMillis: up / 3, MemoryAvg: 1 << 28}
		if rapid.Bool().Draw(t, "restarted") {
			// An earlier run counted as much again, so its samples say more than the present run's time.
			last.Millis += rapid.Uint64Range(0, 60).Draw(t, "before") * minute
		}
		after := metering.SampleAfter(time.Duration(last.Millis)*time.Millisecond, metering.SampleEvery)
		now := last.At + rapid.Int64Range(0, after.Milliseconds()).Draw(t, "now")
		got, ok := metering.Pending(last, o, now)
		require.True(t, ok)
		require.Equal(t, last.At, got.From)
		require.Equal(t, last.At+after.Milliseconds(), got.To)

		next := last
		next.At, next.Seq, next.Millis = got.To, 3, last.Millis+uint64(after.Milliseconds())
		run := metering.Reading{Kind: metering.Ready, At: last.At - int64(last.Millis), Seq: 1}
		spans := metering.Spans([]metering.Reading{run, last, next}, o)
		want := spans[len(spans)-1]
		require.Equal(t, want.Parts, got.Parts)
		require.Equal(t, [2]int64{want.From, want.To}, [2]int64{got.From, got.To})

		// One that is not heard of any more costs no more than what is ever billed unseen.
		late, ok := metering.Pending(last, o, last.At+int64(time.Hour/time.Millisecond)*24*30)
		require.True(t, ok)
		require.Equal(t, metering.Unseen(last.Millis), uint64(late.To-late.From))
	})
}

func TestNothingIsExpectedOfWhatHasEnded(t *testing.T) {
	for _, kind := range []metering.Kind{metering.Stopped, metering.Failed, metering.Destroyed, metering.Ended, metering.Released} {
		_, ok := metering.Pending(metering.Reading{Kind: kind, At: start.UnixMilli(), Millis: 5}, metering.Owner{CPUMillis: 1}, start.UnixMilli())
		require.False(t, ok, "%s", kind)
	}
}

// However a month's windows are cut in two, the second half on top of the first half's lines is the invoice of the whole.
func TestLinesThatAreExtendedAreThoseOfTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prices := []metering.Price{
			{Meter: metering.Execs, Nanos: 7, Per: 3, Currency: "EUR", Version: 1},
			{Meter: metering.Execs, From: start.Add(48 * time.Hour).Truncate(time.Hour).UnixMilli(), Nanos: 5, Per: 2, Currency: "EUR", Version: 1},
			{Meter: metering.ExecWall, Nanos: 1, Per: 7, Currency: "USD", Version: 1, Tenant: "acme"},
		}
		one, two, all := metering.Windows{}, metering.Windows{}, metering.Windows{}
		for range rapid.IntRange(0, 30).Draw(t, "windows") {
			k := metering.Key{
				Tenant: rapid.SampledFrom([]string{"acme", "other"}).Draw(t, "tenant"), Meter: rapid.SampledFrom([]metering.Meter{metering.Execs, metering.ExecWall}).Draw(t, "meter"),
				Hour: metering.Hour(start.Add(time.Duration(rapid.IntRange(0, 40*24).Draw(t, "hour")) * time.Hour).UnixMilli()),
			}
			n := rapid.Uint64Range(1, 100).Draw(t, "quantity")
			half := one
			if rapid.Bool().Draw(t, "second") {
				half = two
			}
			half[k] += n
			all[k] += n
		}
		var lines []metering.Line
		for _, l := range metering.Invoice(one, prices) {
			lines = append(lines, l)
		}
		got, want := metering.Extend(lines, two, prices), metering.Invoice(all, prices)
		require.Equal(t, want, got)
		for _, currency := range []string{"EUR", "USD"} {
			sum := new(big.Int)
			for k, l := range want {
				if k.Tenant == "acme" && l.Price.Currency == currency {
					sum.Add(sum, l.Nanos)
				}
			}
			got, seen := new(big.Int), map[int64]bool{}
			for k := range want {
				if !seen[k.Month] {
					seen[k.Month] = true
					got.Add(got, metering.Cost(want, "acme", k.Month, currency))
				}
			}
			require.Equal(t, sum.String(), got.String())
		}
	})
}
