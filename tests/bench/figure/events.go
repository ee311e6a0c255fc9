package figure

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
)

// completed is the end of an exec as the exec service records it: the commonest event that costs something.
func completed() envelope.Event {
	id := ids.New()
	return envelope.Event{
		Meta: envelope.Meta{ID: id, Tenant: live.Tenant, Actor: "service:exec", Correlation: ids.New(), Time: time.Now().UTC()},
		Body: &eventsv1.ExecCompleted{
			WallTimeUs: 8123, Reason: "exited", LastChunk: 2, UsageEventId: ids.Usage(id), SessionId: "bench", UsageMethod: "cgroup",
			Usage:  &commonv1.UsageMetrics{CpuMs: 5, MemoryPeakBytes: 31 << 20, MemoryAvgBytes: 30 << 20, DiskReadBytes: 4096},
			Stdout: &eventsv1.Output{Bytes: 1234, Sha256: make([]byte, 32)}, Stderr: &eventsv1.Output{},
		},
	}
}

// encoded is the message of an event that begins its aggregate.
func encoded(agg subject.Aggregate, e envelope.Event) (*nats.Msg, error) {
	m, _, err := envelope.Encode(agg.Subject(), e, nil)
	return m, err
}

func newExec() subject.Aggregate { return subject.Exec(live.Tenant, ids.New(), ids.New()) }
