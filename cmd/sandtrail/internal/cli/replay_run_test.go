package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
)

func TestReplayRunFromTheLog(t *testing.T) {
	signed(t)
	type result struct {
		Events uint64 `json:"events"`
		Digest string `json:"digest"`
		Result string `json:"result_digest"`
		Bytes  int64  `json:"bytes"`
		Done   bool   `json:"done"`
	}
	run := func(args ...string) (r result) {
		out := runCLI(nil, nil, append([]string{"replay", "run", "-o", "json"}, args...)...)
		require.Equal(t, 0, out.code, out.stderr)
		require.NoError(t, json.Unmarshal([]byte(out.stdout), &r))
		require.True(t, r.Done)
		return r
	}
	all := run()
	require.EqualValues(t, 7, all.Events)
	require.Equal(t, all, run("--to", "7"))
	sandboxes := run("--filter", "evt.acme.sandbox.>")
	require.EqualValues(t, 6, sandboxes.Events)
	require.NotEqual(t, all.Digest, sandboxes.Digest)
	require.EqualValues(t, 1, run("--type", "LogSigned").Events)

	dir := t.TempDir()
	file, checkpoint := filepath.Join(dir, "lines"), filepath.Join(dir, "checkpoint")
	lines := run("--into", "jsonl", "--file", file, "--checkpoint", checkpoint, "--rate", "1000")
	require.Equal(t, all.Digest, lines.Digest)
	require.NotEqual(t, all.Result, lines.Result)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, data, int(lines.Bytes))
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		require.Equal(t, "1.0", e["specversion"])
	}
	require.Equal(t, lines, run("--into", "jsonl", "--file", file, "--checkpoint", checkpoint), "what is done is done")
	require.Equal(t, string(data), runCLI(nil, nil, "replay", "run", "--into", "jsonl", "--file", "-").stdout)
	require.Equal(t, cli.ExitRefused, runCLI(nil, nil, "replay", "run", "--into", "jsonl", "--file", file).code, "a file is not written over")
	require.Equal(t, cli.ExitRefused, runCLI(nil, nil, "replay", "run", "--checkpoint", checkpoint).code, "the checkpoint is that of another replay")
	table := runCLI(nil, nil, "replay", "run")
	require.Contains(t, table.stdout, all.Digest)
	require.Regexp(t, `(?m)^SandboxUsageSampled +6$`, table.stdout)

	for _, args := range [][]string{
		{"--into", "jsonl"},
		{"--file", file},
		{"--into", "clickhouse"},
		{"--from", "0"},
		{"--from", "5", "--to", "4"},
		{"--to", "99"},
		{"--rate", "-1"},
		{"--filter", "cmd.>"},
		{"--filter", "evt. x"},
		{"--type", "Nothing"},
		{"--into", "jsonl", "--file", "-", "--checkpoint", checkpoint},
	} {
		r := runCLI(nil, nil, append([]string{"replay", "run"}, args...)...)
		require.Equal(t, cli.ExitUsage, r.code, "%v: %s", args, r.stderr)
	}
}
