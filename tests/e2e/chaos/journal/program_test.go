package journal_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

func TestProgramDoesWhatItIsSaidToDo(t *testing.T) {
	for name, p := range map[string]journal.Program{
		"silent":            {Token: "p-1"},
		"on both streams":   {Token: "p-2", StdoutLines: 7, StderrLines: 3, Width: 200, ExitCode: 3},
		"narrow lines":      {Token: "p-3", StdoutLines: 2, Width: 1},
		"wide lines":        {Token: "p-4", StderrLines: 20, Width: 16 << 10},
		"with pauses":       {Token: "p-5", StdoutLines: 3, Width: 64, Step: 2 * time.Millisecond},
		"killed by itself":  {Token: "p-6", StdoutLines: 1, Width: 64, Signal: 9},
		"ended by itself":   {Token: "p-7", StdoutLines: 1, Width: 64, Signal: 15},
		"of many lines":     {Token: "p-8", StdoutLines: 3000, Width: 64},
		"with a high code":  {Token: "p-9", ExitCode: 255},
		"with a long token": {Token: strings.Repeat("x", 100), StdoutLines: 2, Width: 64},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			command, args := p.Command()
			require.Equal(t, p.Token, journal.TokenOf(command, args))
			// Outside of a sandbox there is no /workspace.
			args[1] = strings.ReplaceAll(args[1], "/workspace/", dir+"/")
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(t.Context(), command, args...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var ended *exec.ExitError
			switch {
			case p.ExitCode == 0 && p.Signal == 0:
				require.NoError(t, err)
			case p.Signal != 0:
				require.ErrorAs(t, err, &ended)
				require.Contains(t, ended.String(), "signal: ")
			default:
				require.ErrorAs(t, err, &ended)
				require.Equal(t, int(p.ExitCode), ended.ExitCode())
			}
			require.Equal(t, string(p.Output("stdout")), stdout.String())
			require.Equal(t, string(p.Output("stderr")), stderr.String())
			lines := strings.Count(stdout.String(), "\n") + strings.Count(stderr.String(), "\n")
			require.Equal(t, int(p.StdoutLines+p.StderrLines), lines)
			witness, err := os.ReadFile(filepath.Join(dir, journal.Witness))
			require.NoError(t, err)
			require.Equal(t, p.Token+"\n", string(witness))
		})
	}
}

func TestCommandsOfOthersHaveNoToken(t *testing.T) {
	_, args := journal.Program{Token: "x"}.Command()
	require.Empty(t, journal.TokenOf("bash", args))
	require.Empty(t, journal.TokenOf("sh", args[:5]))
	require.Empty(t, journal.TokenOf("sh", append([]string{"-c", "script", "other"}, args[3:]...)))
}
