package runner

import (
	"context"
	"time"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

// Resized records that the terminal of an exec has another size, which it has by now. An exec that has ended meanwhile is left as it is.
func (r *Runner) Resized(ctx context.Context, agg subject.Aggregate, size *commonv1.TerminalSize) error {
	m := sandbox.CommandMeta{ID: ids.New(), Actor: actor, Time: time.Now(), Tenant: agg.Tenant}
	_, err := eventlog.Execute(ctx, r.deps.Log, agg, func(h eventlog.History) ([]envelope.Event, error) {
		x, err := sandbox.FoldExec(h)
		if err != nil || x.Over() {
			return nil, err
		}
		bodies, err := sandbox.DecideExec(x, sandbox.ResizeExec{Size: size})
		if err != nil {
			return nil, err
		}
		m.Correlation = h.Events[0].Correlation
		return traced(ctx, sandbox.Events(m, bodies...)), nil
	})
	return wrap("record a terminal's size", err)
}
