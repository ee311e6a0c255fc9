package host

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
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
		if rootless() && c.Optional {
			continue
		}
		require.True(t, c.OK, "%+v", c)
		require.NotEmpty(t, c.Detail)
		require.Empty(t, c.Fix)
	}
	require.True(t, OK(checks))
}

// userRunsc is a runsc that a common user can run; set in the process of one only.
const userRunsc = "SANDTRAIL_TEST_USER_RUNSC"

// TestChecksWithoutRoot runs TestHelperChecksWithoutRoot as a user without any right.
func TestChecksWithoutRoot(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: may build runsc")
	}
	if rootless() {
		t.Log("not tested here: this process is not root, its own tests are the proof")
		return
	}
	if setting("user/max_user_namespaces") == "0" {
		t.Log("not tested: this host allows no user namespaces")
		return
	}
	const nobody = 65534
	path, err := prepare.Runsc(t.Context(), prepare.Options{})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // the user must get there
	for name, from := range map[string]string{"test": os.Args[0], "runsc": path} {
		out, err := exec.CommandContext(t.Context(), "cp", from, filepath.Join(dir, name)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.NoError(t, os.Chown(dir, nobody, nobody))
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run=^TestHelperChecksWithoutRoot$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{userRunsc + "=" + filepath.Join(dir, "runsc"), "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Contains(t, string(out), "--- PASS: TestHelperChecksWithoutRoot")
}

// TestHelperChecksWithoutRoot is run by TestChecksWithoutRoot.
func TestHelperChecksWithoutRoot(t *testing.T) {
	path := os.Getenv(userRunsc)
	if path == "" {
		return
	}
	require.True(t, rootless())
	checks := Checks(t.Context(), Config{StateDir: t.TempDir(), Runsc: path})
	require.True(t, OK(checks), "%+v", checks)
	lost := map[string]string{}
	for _, c := range checks {
		t.Logf("%+v", c)
		if !c.OK {
			require.NotEmpty(t, c.Fix, c.Name)
			lost[c.Name] = c.Detail
		}
	}
	require.Contains(t, lost["root"], "65534")
	require.Contains(t, lost["cgroups"], "CPU has no limit")
	require.Contains(t, lost["cgroups"], "memory is watched")
	require.Contains(t, lost["loop devices"], "size is watched")
	require.NotContains(t, lost, "runsc")
	require.NotContains(t, lost, "user namespaces")
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
