package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	"github.com/sandtrail/sandtrail/libs/dlq"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// dead is a log with n dead commands and one dead event behind them, whose consumer is view-v1.
func dead(t *testing.T, n int) *natstest.Fixture {
	t.Helper()
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	t.Setenv("SANDTRAIL_OPERATOR", "ann b")
	for i := range n + 1 {
		info := dlq.Info{
			Service: "lifecycle", Consumer: topology.ConsumerScheduler, Reason: dlq.ReasonPoison, Attempts: 1, Stream: topology.StreamCommands,
			Seq: uint64(i + 1), Subject: subject.SandboxCommand("acme", fmt.Sprint("s", i)), Stored: time.Now().Add(-3 * time.Hour), Died: time.Now().Add(-time.Hour),
		}
		if i == n {
			info.Consumer, info.Stream, info.Subject, info.Reason = "view-v1", topology.StreamEvents, subject.Sandbox("acme", "s").Subject(), dlq.ReasonPanic
			info.Died = time.Now().Add(-time.Minute)
		}
		h := nats.Header{"Sandtrail-Correlation": {"c-1"}, nats.MsgIdHdr: {"m-1"}}
		require.NoError(t, dlq.Store(t.Context(), f.JS, info.Why(dlq.Undecodable("a SandboxCommand", nil)), h, []byte("payload\x1b")))
	}
	return f
}

func count(t *testing.T, f *natstest.Fixture, stream string) int {
	t.Helper()
	s, err := f.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	return int(s.CachedInfo().State.Msgs)
}

func TestDLQList(t *testing.T) {
	dead(t, 5)
	r := runCLI(nil, nil, "dlq", "ls")
	require.Equal(t, 0, r.code, r.stderr)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	require.Len(t, lines, 7)
	require.Regexp(t, `^ID +AGE +CONSUMER +REASON +CAUSE +TRIES +SUBJECT +ERROR$`, lines[0])
	require.Regexp(t, `^1 +1h0m +lifecycle-scheduler-v1 +poison +undecodable +1 +cmd.sandbox.acme.s0 +the message is not a SandboxCommand$`, lines[1])
	for args, want := range map[string]string{
		"":                              "1 2 3 4 5 6",
		"--limit 2":                     "1 2",
		"--limit 2 --after 2":           "3 4",
		"--stream EVT":                  "6",
		"--reason poison --after 4":     "5",
		"--consumer view-v1":            "6",
		"--service exec":                "",
		"--cause undecodable --after 5": "6",
		"--older-than 30m":              "1 2 3 4 5",
		"--newer-than 30m":              "6",
		"--limit 0":                     "1 2 3 4 5 6",
	} {
		r := runCLI(nil, nil, append([]string{"dlq", "ls", "-o", "json"}, strings.Fields(args)...)...)
		require.Equal(t, 0, r.code, r.stderr)
		var all []struct {
			ID     int    `json:"id"`
			Tenant string `json:"tenant_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(r.stdout), &all), r.stdout)
		ids := make([]string, 0, len(all))
		for _, l := range all {
			ids = append(ids, fmt.Sprint(l.ID))
			require.Equal(t, "acme", l.Tenant)
		}
		require.Equal(t, want, strings.Join(ids, " "), args)
	}
}

func TestDLQShowKeepsThePayloadInside(t *testing.T) {
	dead(t, 1)
	for _, args := range [][]string{{"dlq", "show", "1"}, {"dlq", "show", "-o", "json", "1"}} {
		r := runCLI(nil, nil, args...)
		require.Equal(t, 0, r.code, r.stderr)
		require.NotContains(t, r.stdout, "payload\x1b")
		for _, want := range []string{"cmd.sandbox.acme.s0", "undecodable", "m-1", "c-1"} {
			require.Contains(t, r.stdout, want)
		}
	}
	file := filepath.Join(t.TempDir(), "body")
	require.Equal(t, 0, runCLI(nil, nil, "dlq", "show", "1", "--payload", file).code)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "payload\x1b", string(data))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Equal(t, cli.ExitUsage, runCLI(nil, nil, "dlq", "show", "1", "--payload", file).code, "nothing is overwritten")
	require.Equal(t, cli.ExitNotFound, runCLI(nil, nil, "dlq", "show", "99").code)
}

func TestDLQRedrive(t *testing.T) {
	f := dead(t, 3)
	r := runCLI(nil, nil, "dlq", "redrive", "--all", "--dry-run")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, 4, strings.Count(r.stdout, "would be redriven"))
	require.Equal(t, 4, count(t, f, topology.StreamDead))
	require.Zero(t, count(t, f, topology.StreamEvents))

	r = runCLI(nil, nil, "dlq", "redrive", "--all", "--note", "fixed in 1.2")
	require.Equal(t, cli.ExitUnavailable, r.code, "nobody runs the consumer of the event")
	require.Contains(t, r.stderr, "letter 4: no service runs consumer view-v1 now")
	require.Equal(t, 3, strings.Count(r.stdout, "redriven"))
	require.Equal(t, 3, count(t, f, topology.StreamCommands), "the failure of one does not keep the others")
	require.Equal(t, 1, count(t, f, topology.StreamDead))
	s, err := f.JS.Stream(t.Context(), topology.StreamEvents)
	require.NoError(t, err)
	m, err := s.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "operator:ann_b", m.Header.Get("Sandtrail-Actor"))

	stop, err := dlq.Answer(t.Context(), f.NC, "view-v1", slog.New(slog.DiscardHandler), func(_ context.Context, seq uint64) error {
		if seq != 4 {
			return errors.New("another event")
		}
		return nil
	})
	require.NoError(t, err)
	defer stop()
	r = runCLI(nil, nil, "dlq", "redrive", "4", "1", "-o", "json")
	require.Equal(t, cli.ExitNotFound, r.code, "1 is gone")
	var done []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &done))
	require.Len(t, done, 1)
	require.Equal(t, "redriven", done[0]["result"])
	require.Zero(t, count(t, f, topology.StreamDead))
	require.Equal(t, 4, count(t, f, topology.StreamEvents))
}

func TestDLQDrop(t *testing.T) {
	f := dead(t, 3)
	r := runCLI(nil, nil, "dlq", "drop", "1")
	require.Equal(t, cli.ExitUsage, r.code)
	require.Contains(t, r.stderr, "--yes")
	r = runCLI(nil, nil, "dlq", "drop", "--all", "--stream", "EVT", "--dry-run")
	require.Equal(t, 1, strings.Count(r.stdout, "would be dropped"), r.stdout)
	require.Equal(t, 4, count(t, f, topology.StreamDead))
	r = runCLI(nil, nil, "dlq", "drop", "--all", "--stream", "EVT", "--yes", "--note", "not ours")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "4  dropped  evt.acme.sandbox.s")
	require.Equal(t, 3, count(t, f, topology.StreamDead))
	agg, err := jslog.New(f.JS).Find(t.Context(), "evt.acme.letter.*")
	require.NoError(t, err)
	require.Equal(t, subject.KindLetter, agg.Kind)
	h, err := jslog.New(f.JS).Load(t.Context(), agg)
	require.NoError(t, err)
	body, ok := h.Events[0].Body.(*eventsv1.LetterDropped)
	require.True(t, ok)
	require.Equal(t, "not ours", body.GetNote())
	require.Equal(t, string(dlq.CauseUndecodable), body.GetLetter().GetErrorReason())
}

func TestDLQUsageMistakes(t *testing.T) {
	f := natstest.Start(t)
	t.Setenv("SANDTRAIL_NATS", f.URL)
	for _, args := range []string{
		"ls --limit -1", "ls --stream XXX", "ls --reason sad", "ls --older-than -1h", "show", "show x", "redrive", "redrive 1 --all",
		"redrive 1 --stream CMD", "redrive --stream CMD", "drop", "drop --all", "redrive 1 --note " + strings.Repeat("x", 1025),
	} {
		r := runCLI(nil, nil, append([]string{"dlq"}, strings.Fields(args)...)...)
		require.Equal(t, cli.ExitUsage, r.code, "%s: %s", args, r.stderr)
	}
	r := runCLI(nil, nil, "dlq", "ls", "--consumer", "a.b")
	require.Equal(t, cli.ExitRefused, r.code)
	r = runCLI(nil, nil, "dlq", "ls", "--nats", "nats://user:hunter2@127.0.0.1:1")
	require.Equal(t, cli.ExitUnavailable, r.code)
	require.Contains(t, r.stderr, string(fault.ReasonLogUnavailable))
	require.NotContains(t, r.stderr, "hunter2")
}
