package check_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// Each plant is made in a copy of what a real run without faults left behind, so that it alone can be what is found.
func TestCleanRunHasNoViolationAndEachPlantedOneIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs real sandboxes and ClickHouse")
	}
	s := stack.Processes(t, stack.Extra{"lifecycle": {"--max-sandboxes", fmt.Sprint(places)}})
	h, e := realRun(t, s)
	require.Empty(t, check.All(h, e), "the run was clean")
	sum := check.Summarize(h, e, nil, nil)
	require.True(t, sum.OK(), "%+v", sum.Unjudged)
	var text bytes.Buffer
	require.NoError(t, sum.Text(&text))
	t.Logf("\n%s", &text)
	dir := t.TempDir()
	require.NoError(t, e.Save(dir))
	t.Run("saved and loaded it is judged the same", func(t *testing.T) {
		loaded, err := evidence.Load(dir)
		require.NoError(t, err)
		require.Equal(t, e.Events, loaded.Events)
		require.Empty(t, check.All(h, loaded))
	})

	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "invariant\tplant\tfound")
	planted := map[check.Invariant]int{}
	for _, p := range plants {
		t.Run(string(p.breaks)+": "+p.name, func(t *testing.T) {
			damaged, err := evidence.Load(dir)
			require.NoError(t, err)
			c := &copyOf{t: t, h: deep(h), e: damaged}
			p.damage(c)
			found := map[check.Invariant]check.Violation{}
			for _, v := range slices.Backward(check.All(c.h, c.e)) {
				found[v.Invariant] = v
			}
			require.Contains(t, found, p.breaks, "%v", found)
			planted[p.breaks]++
			v := found[p.breaks]
			also := slices.DeleteFunc(slices.Sorted(maps.Keys(found)), func(i check.Invariant) bool { return i == p.breaks })
			for i := range also {
				also[i] = also[i][:1]
			}
			fmt.Fprintf(w, "%s\t%s\t%s: %s %v\n", p.breaks, p.name, short(v.Subject), short(v.Detail), also)
		})
	}
	require.NoError(t, w.Flush())
	t.Logf("in brackets: what it breaks besides\n%s", &table)
	for _, i := range check.Invariants() {
		require.GreaterOrEqual(t, planted[i], 2, "%s", i)
	}
	t.Run("leaks on the host itself are found", func(t *testing.T) { plantOnHost(t, s, h, e) })
}

// short cuts ids and what is long for a table.
func short(s string) string {
	words := strings.Fields(s)
	for i, word := range words {
		if len(word) > 40 {
			words[i] = word[:12] + "…" + word[len(word)-6:]
		}
	}
	return strings.Join(words, " ")
}
