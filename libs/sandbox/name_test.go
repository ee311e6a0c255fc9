package sandbox_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
)

func TestNames(t *testing.T) {
	for name, valid := range map[string]bool{
		"": false, "a": true, "sandbox-1": true, "my_box": true, "box.v2": true, "A1": true, "a/b": false, "../x": false, "-a": false, ".a": false, "_a": false,
		"a b": false, "é": false, "a\x00": false, strings.Repeat("a", 64): true, strings.Repeat("a", 65): false,
	} {
		require.Equal(t, valid, sandbox.ValidName(name), "%q", name)
		require.True(t, ids.Valid(sandbox.NameID(name)), "any name has an id that a subject can hold")
	}
}

// Against a model: at each time at most one sandbox has a name, nobody but its holder gives it up, and only what is gone is replaced.
func TestANameHasOneHolder(t *testing.T) {
	agg := subject.Name("acme", sandbox.NameID("n"))
	rapid.Check(t, func(t *rapid.T) {
		h := eventlog.History{Aggregate: agg}
		holder := ""
		for range rapid.IntRange(1, 30).Draw(t, "length") {
			state, err := sandbox.FoldName(h)
			require.NoError(t, err)
			require.Equal(t, holder, state.Sandbox)
			who := rapid.SampledFrom([]string{"s1", "s2", "s3"}).Draw(t, "who")
			gone := rapid.SampledFrom([]string{"", "s1", "s2"}).Draw(t, "gone")
			var c sandbox.NameCommand = sandbox.ReserveName{Name: "n", Sandbox: who, Gone: gone}
			free := rapid.Bool().Draw(t, "release")
			if free {
				c = sandbox.ReleaseName{Name: "n", Sandbox: who}
			}
			bodies, err := sandbox.DecideName(state, c)
			switch {
			case free && holder == who:
				require.Len(t, bodies, 1)
				holder = ""
			case free, holder == who:
				require.NoError(t, err)
				require.Empty(t, bodies, "done already, or not theirs")
			case holder == "" || holder == gone:
				require.Len(t, bodies, 1)
				holder = who
			default:
				require.True(t, fault.Is(err, fault.ReasonNameTaken))
				require.Empty(t, bodies)
			}
			h.Events = append(h.Events, record(t, agg, h.Tail(), start, ids.New(), bodies...)...)
			if n := len(h.Events); n > 0 {
				last, err := sandbox.FoldName(eventlog.History{Aggregate: agg, Events: h.Events[n-1:]})
				require.NoError(t, err)
				require.Equal(t, holder, last.Sandbox, "the last event alone says all")
			}
		}
	})
	_, err := sandbox.DecideName(sandbox.Name{}, sandbox.ReserveName{Name: "-", Sandbox: "s"})
	require.True(t, fault.Is(err, fault.ReasonValidation))
	_, err = sandbox.DecideName(sandbox.Name{}, nil)
	require.True(t, fault.Is(err, fault.ReasonValidation))
}
