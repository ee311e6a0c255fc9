package keeper_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

// broken is a toolbox whose keeper is the real one and whose init hangs, or ends.
const broken = `package main

import (
	"os"
	"syscall"
)

var toolbox, how string

func main() {
	if os.Args[1] == "keeper" {
		_ = syscall.Exec(toolbox, append([]string{toolbox}, os.Args[1:]...), os.Environ())
	}
	for how == "hangs" {
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
}
`

// Nobody waits for init but the first program: it must not run without, and a sandbox without init ends.
func TestASandboxWithoutInitEnds(t *testing.T) {
	for _, how := range []string{"hangs", "ends"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // the guest's ids pass through
			source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "toolbox")
			require.NoError(t, os.WriteFile(source, []byte(broken), 0o600))
			build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "-ldflags",
				"-X main.how="+how+" -X main.toolbox="+keepertest.Toolbox(t), source)
			build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GO111MODULE=off")
			text, err := build.CombinedOutput()
			require.NoError(t, err, "%s", text)

			state := t.TempDir()
			spec := keepertest.Spec(t, state)
			spec.Toolbox, spec.StartTimeoutMs = program, 3000
			b := keepertest.Launch(t, state, spec)
			if b.Result.OK {
				_, err = b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"true"}})
				require.Equal(t, "sandbox_lost", failure(t, err).Reason)
				require.Eventually(t, func() bool {
					h, err := b.Hello(t.Context(), &toolboxv1.Hello{})
					return err == nil && !h.Alive
				}, 20*time.Second, 10*time.Millisecond)
				_, err = b.Shutdown(t.Context(), &toolboxv1.Shutdown{})
				require.NoError(t, err)
			} else {
				require.Equal(t, "ends", how, "one that hangs is noticed later")
			}
			b.Wait(t)
			if how == "hangs" {
				require.Contains(t, b.Log.String(), "init did not come up")
			}
			clean(t, b)
			noGroup(t, b)
		})
	}
}
