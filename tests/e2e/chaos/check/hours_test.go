package check_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
)

// Hours are judged by the events up to their mark: neither more nor less, neither another quantity nor a row twice.
func TestHoursAreJudgedByTheEvents(t *testing.T) {
	agg := subject.Exec("acme", ids.New(), ids.New())
	at := time.Date(2026, 5, 1, 10, 30, 0, 0, time.UTC)
	m, _, err := envelope.Encode(agg.Subject(), envelope.Event{
		Meta: envelope.Meta{ID: ids.New(), Time: at}, Body: &eventsv1.ExecCompleted{Usage: &commonv1.UsageMetrics{CpuMs: 7}},
	}, nil)
	require.NoError(t, err)
	hour := json.Number("1777629600000")
	row := func(meter, quantity string) evidence.Row {
		return evidence.Row{"tenant_id": "acme", "sandbox_id": agg.Sandbox, "session_id": "", "meter": meter, "hour": hour, "quantity": json.Number(quantity)}
	}
	mark := func(seq string) evidence.Row {
		return evidence.Row{"stream_seq": json.Number(seq), "at": json.Number("1777632000000")}
	}
	for name, c := range map[string]struct {
		hours *evidence.Hours
		says  string
	}{
		"none were read":          {nil, ""},
		"as the events say":       {&evidence.Hours{Mark: mark("1"), Rows: []evidence.Row{row("execs", "1"), row("exec_cpu", "7000")}}, ""},
		"another quantity":        {&evidence.Hours{Mark: mark("1"), Rows: []evidence.Row{row("execs", "1"), row("exec_cpu", "7001")}}, "has 7001 of exec_cpu, not 7000"},
		"one is missing":          {&evidence.Hours{Mark: mark("1"), Rows: []evidence.Row{row("exec_cpu", "7000")}}, "has 0 of execs, not 1"},
		"one twice":               {&evidence.Hours{Mark: mark("1"), Rows: []evidence.Row{row("execs", "1"), row("execs", "1"), row("exec_cpu", "7000")}}, "more than one"},
		"of what the log had not": {&evidence.Hours{Mark: mark("0"), Rows: []evidence.Row{row("execs", "1")}}, "has 1 of execs, not 0"},
	} {
		t.Run(name, func(t *testing.T) {
			e := evidence.Evidence{
				Taken: at, Hours: c.hours,
				Events: []evidence.Event{{Seq: 1, Subject: m.Subject, Header: m.Header, Data: m.Data, Stored: at}},
			}
			var found []string
			for _, open := range check.Open(e) {
				if len(open) > 4 && open[:4] == "hour" {
					found = append(found, open)
				}
			}
			if c.says == "" {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Contains(t, found[0], c.says)
		})
	}
}
