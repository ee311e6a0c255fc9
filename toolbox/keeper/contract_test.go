package keeper_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

// Both ways to run programs keep the contract.
func TestKeeperKeepsTheContract(t *testing.T) {
	for _, way := range []string{launch.ControlSocket, launch.ControlCommand} {
		t.Run(way, func(t *testing.T) {
			b := keepertest.Start(t, func(s *launch.Spec) { s.Control = way })
			toolboxtest.Run(t, client.KeeperDialer(b.State, b.Spec.SandboxID))
			b.Wait(t)
			clean(t, b)
			require.NotContains(t, b.Log.String(), "do-not-log")
		})
	}
}

// Both ways to run programs give them terminals.
func TestKeeperTerminals(t *testing.T) {
	for _, way := range []string{launch.ControlSocket, launch.ControlCommand} {
		t.Run(way, func(t *testing.T) {
			b := keepertest.Start(t, func(s *launch.Spec) { s.Control = way })
			toolboxtest.RunTerminal(t, b.Client)
		})
	}
}

// Both ways to run programs start watchers.
func TestKeeperWatchers(t *testing.T) {
	for _, way := range []string{launch.ControlSocket, launch.ControlCommand} {
		t.Run(way, func(t *testing.T) {
			b := keepertest.Start(t, func(s *launch.Spec) { s.Control = way })
			toolboxtest.RunWatch(t, b.Client)
		})
	}
}

// otherProtocol is a runsc whose sentry's socket is not where the keeper looks for it: runsc itself finds it by its own record.
// In its place is nothing, or what answers in another language.
const otherProtocol = `#!/bin/sh
"$RUNSC" "$@" || exit
case " $* " in
*" run "*)
	for state in "$ROOT"/*.state; do
		sed -i 's/\(controlSocketPath":"[^"]*\)\.sock"/\1.elsewhere"/' "$state"
	done
	for sock in "$ROOT"/*.sock; do mv "$sock" "${sock%.sock}.elsewhere"; done
	;;
esac
`

func TestFallsBackToTheCommand(t *testing.T) {
	b := keepertest.Start(t, func(s *launch.Spec) {
		wrapper := filepath.Join(t.TempDir(), "runsc")
		script := "#!/bin/sh\nRUNSC=" + s.Runsc + "\nROOT=/mnt/runsc\n" + otherProtocol
		require.NoError(t, os.WriteFile(wrapper, []byte(script), 0o755))
		s.Runsc = wrapper
	})
	o := b.Sh(t, "echo works; echo too >&2; exit 3")
	require.Equal(t, "works\n", o.Stdout)
	require.Equal(t, "too\n", o.Stderr)
	require.EqualValues(t, 3, o.ExitCode)
	_, err := b.Shutdown(t.Context(), nil)
	require.NoError(t, err)
	b.Wait(t)
	require.Contains(t, b.Log.String(), `"way":"command"`)
	clean(t, b)
}

// Both ways to run programs start the helper that reaches ports.
func TestKeeperPorts(t *testing.T) {
	for _, way := range []string{launch.ControlSocket, launch.ControlCommand} {
		t.Run(way, func(t *testing.T) {
			b := keepertest.Start(t, func(s *launch.Spec) { s.Control, s.PIDs = way, 200 })
			toolboxtest.RunConnect(t, b.Client)
			_, err := b.Shutdown(t.Context(), nil)
			require.NoError(t, err)
			b.Wait(t)
			clean(t, b)
		})
	}
}
