package cli_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const reference = "../../../../docs/reference/commands.md"

func TestTheReferenceOfCommandsIsCurrent(t *testing.T) {
	r := runCLI(nil, nil, "manual", "--format", "markdown")
	require.Equal(t, 0, r.code, r.stderr)
	written, err := os.ReadFile(reference)
	require.NoError(t, err)
	require.Equal(t, r.stdout, string(written), "run `make reference`")
}

// What it says is the same on every machine, for every user.
func TestTheManualNamesNothingOfThisMachine(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/home/qx7/states")
	t.Setenv("SANDTRAIL_ADDR", "box.example.com:1")
	t.Setenv("SANDTRAIL_API_KEY", "a-secret-key")
	for _, format := range []string{"man", "markdown"} {
		r := runCLI(nil, nil, "manual", "--format", format)
		require.Equal(t, 0, r.code, r.stderr)
		for _, here := range []string{"/home/qx7", "box.example.com", "a-secret-key"} {
			require.NotContains(t, r.stdout, here, format)
		}
	}
}

func TestTheManualHasEveryCommandAndIsOneThatManReads(t *testing.T) {
	r := runCLI(nil, nil, "manual")
	require.Equal(t, 0, r.code, r.stderr)
	for _, command := range []string{"create", "exec", "fs upload", "usage verify", "dlq redrive"} {
		require.Contains(t, strings.ReplaceAll(r.stdout, `\-`, "-"), command)
	}
	require.NotContains(t, r.stdout, "__complete", "what is hidden stays so")
	if _, err := exec.LookPath("groff"); err != nil {
		t.Log("groff is not installed: that man can set the page is not looked at")
		return
	}
	set := exec.CommandContext(t.Context(), "groff", "-K", "utf8", "-t", "-man", "-Tutf8", "-ww")
	set.Stdin = strings.NewReader(r.stdout)
	out, err := set.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "<standard input>", "what groff warns of")
}
