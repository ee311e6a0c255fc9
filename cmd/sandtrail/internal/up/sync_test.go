package up

import (
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
)

func TestTheLogIsFlushedAlwaysOrAtAnInterval(t *testing.T) {
	parse := func(args ...string) (Sync, error) {
		var s Stack
		p, err := kong.New(&s, kong.Vars{"state": t.TempDir()})
		require.NoError(t, err)
		_, err = p.Parse(args)
		return s.SyncInterval, err
	}
	for value, want := range map[string]time.Duration{"always": 0, "10ms": 10 * time.Millisecond, "5s": 5 * time.Second, "2m": 2 * time.Minute} {
		got, err := parse("--sync-interval", value)
		require.NoError(t, err, value)
		require.Equal(t, Sync{Every: want}, got)
	}
	got, err := parse()
	require.NoError(t, err)
	require.NotZero(t, got.Every)
	for _, bad := range []string{"", "0", "0s", "-1s", "9ms", "never", "5"} {
		_, err := parse("--sync-interval=" + bad)
		require.ErrorContains(t, err, "neither always nor a duration", bad)
	}
}
