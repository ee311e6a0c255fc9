package usecase

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

// shortened is a log whose replicas show events up to one sequence while its leader knows of another.
type shortened struct {
	Log
	shown, known uint64
}

func (s *shortened) Load(_ context.Context, agg subject.Aggregate) (eventlog.History, error) {
	h := eventlog.History{Aggregate: agg}
	for seq := uint64(1); seq <= s.shown; seq++ {
		h.Events = append(h.Events, envelope.Recorded{Seq: seq})
	}
	return h, nil
}

func (s *shortened) LastSeq(context.Context, subject.Aggregate) (uint64, error) { return s.known, nil }

func TestAHistoryIsShownAsFarAsItWasSeenUnlessTheLogHasLostIt(t *testing.T) {
	agg := subject.Sandbox("acme", "box")
	for name, c := range map[string]struct {
		seen, shown, known, want uint64
		code                     fault.Code
	}{
		"not seen yet":              {0, 3, 3, 3, ""},
		"a replica has all":         {2, 3, 3, 3, ""},
		"every replica lags":        {3, 2, 3, 0, fault.Unavailable},
		"the log has lost its end":  {3, 2, 2, 2, ""},
		"the log has lost it whole": {3, 0, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				u := &UseCases{log: &shortened{shown: c.shown, known: c.known}}
				u.seen.upTo = map[subject.Aggregate]uint64{agg: c.seen}
				h, err := u.history(t.Context(), agg)
				require.Equal(t, c.code, fault.CodeOf(err))
				require.Equal(t, c.want, h.Tail().Seq)
			})
		})
	}
}
