package prepare

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRunscRuns gets runsc through the cache that all tests share: minutes on a machine's first run, then one probe.
func TestRunscRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: may build runsc")
	}
	t.Setenv("TMPDIR", t.TempDir())
	var stages atomic.Int64
	path, err := Runsc(t.Context(), Options{Progress: func(string, int64, int64, string) { stages.Add(1) }})
	require.NoError(t, err)
	require.NoError(t, checkStatic(path))

	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	require.NotContains(t, string(mounts), "sandtrail-probe-", "a probe leaves no mount")
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "sandtrail-probe-*"))
	require.NoError(t, err)
	require.Empty(t, left)

	again, err := Runsc(t.Context(), Options{Runsc: path})
	require.NoError(t, err)
	require.Equal(t, path, again)
}

func TestProbeRefusesWhatCannotRunASandbox(t *testing.T) {
	require.Error(t, Probe(t.Context(), "/bin/sh"), "a dynamically linked program")

	script := filepath.Join(t.TempDir(), "runsc")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nexit 0\n"), 0o755))
	require.Error(t, Probe(t.Context(), script), "no binary")
}

func TestProbeEndsWithItsContext(t *testing.T) {
	path, err := Runsc(t.Context(), Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Probe(ctx, path), context.Canceled)
}

func TestVersionBounds(t *testing.T) {
	for version, want := range map[string]bool{
		"runsc version release-20260817.0\nspec: 1.1.0": true,
		"runsc version " + RunscVersion:                 true,
		"runsc version release-20221010.0":              false,
		"runsc version release-20270301.0":              false,
		"runsc version VERSION_MISSING":                 false,
		"":                                              false,
	} {
		require.Equal(t, want, fits(version), version)
	}
}

func TestLockHoldsAndGivesUpWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "lock")
	release, err := Lock(t.Context(), path)
	require.NoError(t, err)

	short, cancel := context.WithTimeout(t.Context(), 120*time.Millisecond)
	defer cancel()
	_, err = Lock(short, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	release()
	second, err := Lock(t.Context(), path)
	require.NoError(t, err)
	second()
}

func TestLockAdmitsOneAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside, most atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			release, err := Lock(t.Context(), path)
			if err != nil {
				most.Store(99)
				return
			}
			most.Store(max(most.Load(), inside.Add(1)))
			inside.Add(-1)
			release()
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, most.Load())
}

func TestSourceKeyFollowsContent(t *testing.T) {
	top := t.TempDir()
	for _, dir := range []string{"toolbox/cmd/toolbox", "proto/gen/go"} {
		require.NoError(t, os.MkdirAll(filepath.Join(top, dir), 0o755))
	}
	main := filepath.Join(top, "toolbox/cmd/toolbox/main.go")
	require.NoError(t, os.WriteFile(main, []byte("package main"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(top, "proto/go.mod"), nil, 0o644))

	found, ok := findSource(filepath.Join(top, "toolbox", "cmd"))
	require.True(t, ok)
	require.Equal(t, top, found)

	first, err := sourceKey(top)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(top, "toolbox/x_test.go"), []byte("package toolbox"), 0o644))
	same, err := sourceKey(top)
	require.NoError(t, err)
	require.Equal(t, first, same, "tests are not part of the binary")
	require.NoError(t, os.WriteFile(main, []byte("package main // changed"), 0o644))
	changed, err := sourceKey(top)
	require.NoError(t, err)
	require.NotEqual(t, first, changed)
}
