package keeper_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

func TestOutcomes(t *testing.T) {
	b := keepertest.Start(t)
	t.Logf("phases %+v", b.Result.Phases)
	o := b.Sh(t, "echo out; echo err >&2; exit 3")
	require.Equal(t, "out\n", o.Stdout)
	require.Equal(t, "err\n", o.Stderr)
	require.Equal(t, int32(3), o.ExitCode)
	t.Logf("%v", o.End)
	t.Log(b.Sh(t, "id; cat /proc/self/status; mount; ls -la / /workspace; cat /proc/1/status; ps").Stdout)
}
