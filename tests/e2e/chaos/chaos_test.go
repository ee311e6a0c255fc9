package chaos_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

func TestMain(m *testing.M) {
	if rig.IsNode() {
		os.Exit(rig.NodeMain())
	}
	os.Exit(m.Run())
}

// seed of the run: another one each time, unless SANDTRAIL_CHAOS_SEED says which.
func seed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("SANDTRAIL_CHAOS_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, "SANDTRAIL_CHAOS_SEED")
	return n
}

func TestNothingIsLostDoneTwiceOrLeakedWhilePartsFail(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs every part of Sandtrail and makes it fail")
	}
	o := chaos.Options{
		Seed: seed(t), Form: rig.Services, Replicas: 1, Creates: 40, Execs: 250, Faults: 60, Duration: 3 * time.Minute, Lanes: 2, Lives: 6,
		Out: filepath.Join(t.TempDir(), "run"), Only: []string{"kill", "restart", "pause", "cut", "bytes", "slow", "slice", "halfopen"},
		// Not by t.Log: the seed has to be seen also of a run that hangs.
		Say: func(format string, args ...any) { fmt.Fprintf(os.Stderr, "chaos: "+format+"\n", args...) },
	}
	s, err := chaos.Run(t.Context(), o)
	require.NoError(t, err)
	t.Log(s)
	require.True(t, s.OK(), "run it again with SANDTRAIL_CHAOS_SEED=%d", o.Seed)
	// What never happened proves nothing.
	require.NotZero(t, s.Starts)
	require.NotZero(t, s.Appends)
	require.NotEmpty(t, s.Recovery)
}
