package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
)

func TestPreviewPrintsTheURL(t *testing.T) {
	got := serving(t, map[string]string{
		"POST /api/v1/sandboxes/demo/preview": `{"url":"http://h/api/v1/preview/token/a?b=c","port":8000,"expires_at":"2026-12-01T00:00:00Z"}`,
	})
	run := func(args ...string) result { return runCLI(nil, nil, append([]string{"preview"}, args...)...) }
	r := run("demo", "8000", "/a?b=c", "--ttl", "90s")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, "http://h/api/v1/preview/token/a?b=c\n", r.stdout)
	require.Equal(t, []asked{{"POST /api/v1/sandboxes/demo/preview", map[string]any{"port": 8000.0, "path": "/a?b=c", "ttl_seconds": 90.0}}}, got())
	require.Equal(t, 0, run("demo", "8000").code)
	require.Equal(t, map[string]any{"port": 8000.0, "path": "", "ttl_seconds": 3600.0}, got()[0].body)
	require.JSONEq(t, `{"url":"http://h/api/v1/preview/token/a?b=c","port":8000,"expires_at":"2026-12-01T00:00:00Z"}`, run("demo", "8000", "-o", "json").stdout)
	require.Equal(t, cli.ExitNotFound, run("none", "8000").code)
	got()
	for _, bad := range [][]string{{"demo"}, {"demo", "70000"}, {"demo", "x"}, {"demo", "80", "--ttl", "soon"}, {"demo", "80", "--ttl", "10ms"}} {
		require.NotZero(t, run(bad...).code, bad)
	}
	require.Empty(t, got(), "nothing is asked that cannot be meant")
}
