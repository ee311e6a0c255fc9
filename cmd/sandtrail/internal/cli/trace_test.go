package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// traced is a server whose log has three requests: a create, an exec with its usage row, and a destroy.
func traced(t *testing.T) *fake {
	t.Helper()
	f := newFake(t)
	f.log = history()
	for i, link := range []struct{ cause, correlation string }{
		{"c-create", "r-create"},
		{"c-worker", "r-create"},
		{"c-worker", "r-create"},
		{"c-exec", "r-exec"},
		{sandbox.EndCommand(xid), "r-exec"},
		{"c-rm", "r-rm"},
	} {
		f.log[i].Cause, f.log[i].CorrelationId = link.cause, link.correlation
	}
	f.rows = []*computev1.UsageRow{
		{Id: "row-1", EventType: "exec_command", ExecId: xid, StreamSequence: 50, WallTimeMs: 12, OccurredAt: timestamppb.Now(), Usage: &commonv1.UsageMetrics{CpuMs: 7}},
		{Id: "row-2", EventType: "exec_command", ExecId: box, StreamSequence: 30, OccurredAt: timestamppb.Now()},
	}
	return f
}

func TestTraceShowsWhatARequestLedTo(t *testing.T) {
	f := traced(t)
	r := f.run(t, "trace", xid)
	require.Equal(t, 0, r.code, r.stderr)
	var indents []string
	for _, line := range strings.Split(strings.TrimRight(r.stdout, "\n"), "\n") {
		text := strings.TrimLeft(line, " ")
		indents = append(indents, strings.Repeat(">", (len(line)-len(text))/2)+strings.Join(strings.Fields(text)[:2], " "))
	}
	require.Equal(t, []string{
		"request r-exec", ">command c-exec", ">>40 ExecStarted", ">>>command " + sandbox.EndCommand(xid), ">>>>50 ExecCompleted", ">>>>>usage_row row-1",
	}, indents)
	require.NotContains(t, r.stdout, "\x1b")
	for _, id := range []string{
		"r-exec", "c-exec", "3", "4", "40", strings.ToUpper(xid), sandbox.EndCommand(xid), ids.Usage("4"),
	} {
		require.Equal(t, r.stdout, f.run(t, "trace", id).stdout, "by %s", id)
	}
	r = f.run(t, "trace", box)
	require.Contains(t, r.stdout, "request r-create")
	require.Contains(t, r.stdout, "request r-rm")
	require.NotContains(t, r.stdout, "r-exec", "an exec is a request of its own")
	require.Contains(t, r.stdout, "runtime ")
	require.Equal(t, cli.ExitNotFound, f.run(t, "trace", "nobody").code)
	require.Equal(t, cli.ExitUsage, f.run(t, "trace", "").code)
}

func TestTraceForPrograms(t *testing.T) {
	f := traced(t)
	var doc struct {
		Requests []struct {
			Kind, ID string
			Children []struct {
				Kind     string
				Children []struct {
					Type     string
					Sequence int
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(f.run(t, "trace", "r-exec", "-o", "json").stdout), &doc))
	require.Len(t, doc.Requests, 1)
	require.Equal(t, "request", doc.Requests[0].Kind)
	require.Equal(t, 40, doc.Requests[0].Children[0].Children[0].Sequence)

	f.fail = func(method string, _ int) error {
		if method == "ListUsage" {
			return failure("unavailable", "worker_unavailable", "usage does not answer", nil)
		}
		return nil
	}
	r := f.run(t, "trace", xid)
	require.Equal(t, 0, r.code, "what happened is known without the rows")
	require.Contains(t, r.stderr, "usage does not answer")
	require.Contains(t, r.stdout, "ExecCompleted")
}
