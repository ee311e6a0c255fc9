package report_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/bench/report"
)

func TestTargets(t *testing.T) {
	met := func(r report.Row) bool {
		ok, asked := r.Met()
		require.True(t, asked)
		return ok
	}
	require.True(t, met(report.Row{Ours: 5, Baseline: 10, Target: report.RatioAtMost(0.5)}))
	require.False(t, met(report.Row{Ours: 5.1, Baseline: 10, Target: report.RatioAtMost(0.5)}))
	require.True(t, met(report.Row{Ours: 7, Baseline: 10, Target: report.RatioAtLeast(0.7)}))
	require.False(t, met(report.Row{Ours: 6, Baseline: 10, Target: report.RatioAtLeast(0.7)}))
	require.False(t, met(report.Row{Ours: 301, Baseline: report.None, Target: report.AtMost(300)}))
	for _, target := range []report.Target{report.RatioAtMost(1), report.RatioAtLeast(1), report.AtMost(1)} {
		require.False(t, met(report.Row{Ours: math.NaN(), Baseline: 1, Target: target}), "what was not measured is not met")
	}
	_, asked := report.Row{Ours: 1}.Met()
	require.False(t, asked)
}

func TestTableShowsWhatWasMissed(t *testing.T) {
	r := report.Report{Sections: []report.Section{
		{Name: "exec", Rows: []report.Row{{Name: "exec of true", Unit: "ms", Ours: 12.345, Baseline: 20, Against: "a|b", Samples: 30, Target: report.RatioAtMost(0.5), Note: "so"}}},
		{Name: "log", Err: errors.New("no\nserver")},
	}}
	require.Equal(t, []string{"exec of true", "log"}, r.Missed())
	var b strings.Builder
	require.NoError(t, r.Markdown(&b))
	require.Contains(t, b.String(), `| exec of true | ms | 12.3 | 20 | a\|b | 0.62 | <= 0.5 x | **no** | 30 |`)
	require.Contains(t, b.String(), "**log failed**: no server")
	require.Contains(t, b.String(), "- **exec of true**: so")
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.266: "0.27", 12.34: "12.3", 300: "300", 1234.5: "1,234", 1234567: "1,234,567", -1234: "-1,234"} {
		require.Equal(t, want, report.Number(v))
	}
	require.Empty(t, report.Number(math.NaN()))
}
