package cli_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

type callLine struct {
	Sequence string `json:"sequence"`
	Tenant   string `json:"tenant_id"`
	Action   string `json:"action"`
	Outcome  string `json:"outcome"`
	Key      string `json:"key_id"`
	Count    string `json:"count"`
}

func TestAuditLog(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	began := time.Now().Add(-time.Hour)
	number, digests := map[string]int{}, map[string][]byte{}
	for i, c := range []*eventsv1.CallEnded{
		{TenantId: "acme", Actor: "key:a", KeyId: "a", Api: "grpc", Action: "CreateSandbox", Outcome: "ok"},
		{TenantId: "acme", Actor: "key:b", KeyId: "b", Api: "http", Action: "ExecCommand", Outcome: "refused", Reason: "scope", Code: "permission_denied"},
		{TenantId: "globex", Actor: "key:c", KeyId: "c", Api: "http", Action: "ExecCommand", Outcome: "ok"},
		{TenantId: subject.NoTenant, Api: "grpc", Action: "GetExec", Outcome: "refused", Reason: "key_invalid", Count: 70},
		{TenantId: "acme", Actor: "key:a", KeyId: "a", Api: "grpc", Action: "GetExec", Outcome: "failed", Reason: "log_unavailable"},
	} {
		c.CorrelationId = fmt.Sprintf("request-%d", i)
		c.BeganAt, c.Count = timestamppb.New(began.Add(time.Duration(i)*time.Minute)), max(1, c.GetCount())
		tenant := c.GetTenantId()
		number[tenant]++
		m, digest, err := envelope.Encode(subject.Call(tenant), envelope.Event{
			Meta: envelope.Meta{ID: fmt.Sprintf("chain-%s.%d", tenant, number[tenant]), Tenant: tenant, Time: began}, Body: c,
		}, digests[tenant])
		require.NoError(t, err)
		digests[tenant] = digest
		_, err = f.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	actions := func(args ...string) string {
		t.Helper()
		var all []string
		for _, c := range said[[]callLine](t, append([]string{"audit", "log"}, args...)...) {
			all = append(all, c.Sequence+c.Action)
		}
		return strings.Join(all, " ")
	}
	for args, want := range map[string]string{
		"":                                  "1CreateSandbox 2ExecCommand 3ExecCommand 4GetExec 5GetExec",
		"--tenant acme":                     "1CreateSandbox 2ExecCommand 5GetExec",
		"--tenant _none":                    "4GetExec",
		"--tenant nobody":                   "",
		"--key a":                           "1CreateSandbox 5GetExec",
		"--action execcommand":              "2ExecCommand 3ExecCommand",
		"--outcome refused":                 "2ExecCommand 4GetExec",
		"--outcome scope":                   "2ExecCommand",
		"--request request-2":               "3ExecCommand",
		"--limit 2":                         "1CreateSandbox 2ExecCommand",
		"--limit 2 --after 2":               "3ExecCommand 4GetExec",
		"--tenant acme --limit 2 --after 2": "5GetExec",
		"--since 10m":                       "1CreateSandbox 2ExecCommand 3ExecCommand 4GetExec 5GetExec", // by when they were recorded
		"--since 2099-01-01T00:00:00Z":      "",
		"--until 58m30s":                    "1CreateSandbox 2ExecCommand",
	} {
		require.Equal(t, want, actions(strings.Fields(args)...), args)
	}
	for _, bad := range [][]string{{"--limit", "0"}, {"--since", "noon"}, {"--tenant", "a.b"}, {"--until", "-1h"}, {"--after", "x"}} {
		require.Equal(t, cli.ExitUsage, runCLI(nil, nil, append([]string{"audit", "log"}, bad...)...).code, "%v", bad)
	}
	table := runCLI(nil, nil, "audit", "log", "--limit", "4")
	require.Equal(t, 0, table.code, table.stderr)
	require.Regexp(t, `4 .*_none .*GetExec .*refused: key_invalid .* 70`, table.stdout)
	require.Contains(t, table.stderr, "--after 4")

	lines := runCLI(nil, nil, "audit", "log", "--follow", "--timeout", "1s", "--tenant", "acme", "-o", "json").stdout
	var first callLine
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(lines, "\n", 2)[0]), &first))
	require.Equal(t, "CreateSandbox", first.Action)

	whole := runCLI(nil, nil, "audit", "log", "--verify")
	require.Equal(t, 0, whole.code, whole.stderr)
	require.Contains(t, whole.stdout, "5 in 3 chains")
	stream, err := f.JS.Stream(t.Context(), topology.StreamCalls)
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(t.Context(), 2))
	gone := runCLI(nil, nil, "audit", "log", "--verify")
	require.Equal(t, cli.ExitTampered, gone.code, gone.stderr)
	require.Regexp(t, `removed +5 +call\.acme`, gone.stdout)
	require.Equal(t, 0, runCLI(nil, nil, "audit", "log", "--verify", "--tenant", "globex").code)
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "audit", "log", "--verify", "--follow").code)
}
