package host

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
)

func TestChecksHoldWhereSandboxesRun(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: may build runsc")
	}
	path, err := prepare.Runsc(t.Context(), prepare.Options{})
	require.NoError(t, err)
	checks := Checks(t.Context(), Config{StateDir: t.TempDir(), Runsc: path})
	for _, c := range checks {
		require.True(t, c.OK, "%+v", c)
		require.NotEmpty(t, c.Detail)
		require.Empty(t, c.Fix)
	}
	require.True(t, OK(checks))
}

func TestChecksSayWhatToDo(t *testing.T) {
	checks := Checks(t.Context(), Config{StateDir: "/nowhere/at/all", Runsc: "/bin/sh", MinFreeBytes: math.MaxUint64})
	require.False(t, OK(checks))
	failed := map[string]bool{}
	for _, c := range checks {
		if !c.OK {
			require.NotEmpty(t, c.Fix, c.Name)
			require.NotEmpty(t, c.Detail, c.Name)
			failed[c.Name] = true
		}
	}
	require.True(t, failed["disk"])
	require.True(t, failed["runsc"])
}

func TestOptionalChecksDoNotCount(t *testing.T) {
	require.True(t, OK([]Check{{Name: "a", OK: true}, {Name: "b", Optional: true}}))
	require.False(t, OK([]Check{{Name: "a"}}))
}
