package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatRunsIsListedAndSignalled(t *testing.T) {
	answers := map[string]string{
		"GET": `{"executions":[{"execution_id":"x1","state":"TERMINATED","kind":"command","command":["bash","-c","sleep\u001b 5"],` +
			`"started_at":"2026-05-01T00:00:00Z","exit_code":3}]}`,
		"POST/x1/signal":   `{"execution_id":"x1","state":"RUNNING"}`,
		"POST/x1/cancel":   `{"execution_id":"x1","state":"TERMINATED","ended_at":"2026-05-01T00:00:00Z"}`,
		"POST/slow/cancel": `{"execution_id":"slow","state":"RUNNING"}`,
	}
	bodies := below(t, "exec", "/api/v1/sandboxes/box/executions", "", answers)
	r := runCLI(nil, nil, "ps", "box", "-a")
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `x1 +TERMINATED +command +2026-05-01T00:00:00Z +3 +bash -c sleep`, r.stdout)
	require.NotContains(t, r.stdout, "\x1b")
	require.Contains(t, runCLI(nil, nil, "ps", "box", "-o", "json").stdout, `"exit_code": 3`)

	require.Equal(t, result{0, "x1  sent TERM\n", ""}, runCLI(nil, nil, "kill", "box", "x1"))
	require.Equal(t, map[string]any{"signal": "TERM"}, bodies["POST/x1/signal"])
	require.Equal(t, 0, runCLI(nil, nil, "kill", "box", "x1", "--signal", "9").code)
	require.Equal(t, map[string]any{"signal": "9"}, bodies["POST/x1/signal"])
	r = runCLI(nil, nil, "kill", "box", "x1", "none", "slow", "--tree")
	require.Equal(t, 242, r.code)
	require.Equal(t, "x1  ended\nslow  is being ended\n", r.stdout)
	require.Contains(t, r.stderr, "there is no exec")
	require.Equal(t, 240, runCLI(nil, nil, "kill", "box").code)
	require.Equal(t, 240, runCLI(nil, nil, "execute", "box", "x", "--keep-stdin").code)
}
