package eventlog_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// lagging shows no event above a sequence for a number of loads.
type lagging struct {
	eventlog.Log
	events []envelope.Recorded
	shows  uint64
	loads  int
}

func (l *lagging) Load(_ context.Context, agg subject.Aggregate) (eventlog.History, error) {
	l.loads--
	h := eventlog.History{Aggregate: agg}
	for _, e := range l.events {
		if l.loads < 0 || e.Seq <= l.shows {
			h.Events = append(h.Events, e)
		}
	}
	return h, nil
}

func TestALoadUpToAnEventWaitsForAReplicaThatLags(t *testing.T) {
	events := []envelope.Recorded{{Seq: 3}, {Seq: 8}}
	for name, c := range map[string]struct {
		shows, upTo uint64
		loads, want int
		code        fault.Code
	}{
		"nothing yet":        {0, 3, 3, 2, ""},
		"only the beginning": {3, 8, 3, 2, ""},
		"enough":             {3, 3, 3, 1, ""},
		"it never comes":     {3, 9, 0, 0, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &lagging{events: events, shows: c.shows, loads: c.loads}
				h, err := eventlog.LoadUpTo(t.Context(), log, subject.Tenant("acme"), c.upTo)
				require.Equal(t, c.code, fault.CodeOf(err))
				require.Len(t, h.Events, c.want)
			})
		})
	}
}
