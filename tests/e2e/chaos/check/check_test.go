package check_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/stack"
)

// emptySHA256 is the digest of no bytes.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

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
	t.Run("a start that came to nothing, and was tried anew under its key, is one start", func(t *testing.T) {
		loaded, err := evidence.Load(dir)
		require.NoError(t, err)
		c := &copyOf{t: t, h: deep(h), e: loaded}
		c.startsInVain("create-0")
		for _, v := range check.All(c.h, c.e) {
			require.NotContains(t, v.Detail, "to start")
		}
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
			found := check.All(c.h, c.e)
			i := slices.IndexFunc(found, func(v check.Violation) bool { return v.Invariant == p.breaks && strings.Contains(v.Detail, p.says) })
			require.GreaterOrEqual(t, i, 0, "%v", found)
			planted[p.breaks]++
			v := found[i]
			var also []check.Invariant
			for _, v := range found {
				if letter := v.Invariant[:1]; v.Invariant != p.breaks && !slices.Contains(also, letter) {
					also = append(also, letter)
				}
			}
			if slices.Contains([]check.Invariant{check.SameLife, check.NoLeak, check.SameViews}, p.breaks) {
				require.NotEmpty(t, check.Open(c.e), "a collector waits while it is so")
			}
			fmt.Fprintf(w, "%s\t%s\t%s: %s %v\n", p.breaks, p.name, short(v.Subject), short(v.Detail), also)
		})
	}
	require.NoError(t, w.Flush())
	t.Logf("in brackets: what it breaks besides\n%s", &table)
	for _, i := range check.Invariants() {
		require.GreaterOrEqual(t, planted[i], 2, "%s", i)
	}
	t.Run("a signal that was sent on purpose explains an end", func(t *testing.T) {
		c := &copyOf{t: t, h: deep(h), e: e}
		c.e.Events = slices.Clone(e.Events)
		c.signalled("printing-0", 15)
		change(c, c.execSubject("printing-0"), func(b *eventsv1.ExecCompleted) { b.Reason, b.Signal, b.ExitCode = "signaled", 15, 143 })
		for _, v := range check.All(c.h, c.e) {
			// What the clients were told is another end than the one that was put in.
			require.True(t, v.Invariant != check.TrueEnd || strings.Contains(v.Detail, "was told"), "%+v", v)
		}
	})
	t.Run("a command that was done with and only stands there is none that waits", func(t *testing.T) {
		c := &copyOf{t: t, h: h, e: e}
		require.NotEmpty(t, e.Consumers)
		c.e.Pending = []evidence.Message{{Seq: 1, Subject: "cmd.sandbox.acme.x", Stored: e.Taken.Add(-time.Hour)}}
		require.Empty(t, check.All(c.h, c.e))
		require.Equal(t, 1, check.Summarize(c.h, c.e, nil, nil).LeftOver)
	})
	t.Run("output that was made final just when its end was seen is whole", func(t *testing.T) {
		loaded, err := evidence.Load(dir)
		require.NoError(t, err)
		c := &copyOf{t: t, h: deep(h), e: loaded}
		out := c.transcript("printing-0")
		last := out.Chunks[len(out.Chunks)-1]
		seal := journal.Piece{Number: last.Number + 1, Stream: last.Stream, From: last.To, To: last.To, SHA256: emptySHA256}
		out.Chunks = append(out.Chunks, seal)
		require.Empty(t, check.All(c.h, c.e))
		seal.Number++
		out.Chunks = append(out.Chunks, seal)
		require.NotEmpty(t, check.All(c.h, c.e))
	})
	t.Run("a disk that was full below the workspaces explains that a witness is gone, not that there are two", func(t *testing.T) {
		loaded, err := evidence.Load(dir)
		require.NoError(t, err)
		c := &copyOf{t: t, h: h, e: loaded}
		c.e.Faults = []evidence.Fault{{At: c.of("silent-1").Ended, Kind: evidence.FullWorkspace}}
		starts := c.witness("silent-1").Starts
		delete(starts, "silent-1")
		require.Empty(t, check.All(c.h, c.e))
		// What reads as zeros was written by nobody, in how many files ever.
		starts["\x00\x00"] = 2
		require.Empty(t, check.All(c.h, c.e))
		starts["silent-1"] = 2
		require.NotEmpty(t, check.All(c.h, c.e))
	})
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
