package repeat_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/repeat"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

func TestMain(m *testing.M) {
	if rig.IsNode() {
		os.Exit(rig.NodeMain())
	}
	os.Exit(m.Run())
}

// A key has one effect and always the same answer, however often it comes, from however many clients, and whatever is killed meanwhile.
func TestAKeyHasOneEffectAndOneAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs every part of Sandtrail and kills it")
	}
	o := repeat.Options{
		Seed: uint64(time.Now().UnixNano()), Requests: 500, Keys: 50, Clients: 16, Pause: 300 * time.Millisecond, //nolint:gosec // any number will do
		Say: func(format string, args ...any) { fmt.Fprintf(os.Stderr, "repeat: "+format+"\n", args...) },
	}
	if text := os.Getenv("SANDTRAIL_CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "SANDTRAIL_CHAOS_SEED")
		o.Seed = n
	}
	s, err := repeat.Run(t.Context(), o)
	require.NoError(t, err)
	t.Log(s)
	require.True(t, s.OK(), "run it again with SANDTRAIL_CHAOS_SEED=%d", o.Seed)
	// What never happened proves nothing.
	require.NotEmpty(t, s.Kills)
	require.Greater(t, s.Attempts, s.Answers)
}
