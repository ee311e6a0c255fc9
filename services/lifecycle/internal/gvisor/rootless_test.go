package gvisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/services/lifecycle/internal/debian"
)

// asUser is where the tests of a common user find their programs and image; set in their process only.
const asUser = "SANDTRAIL_TEST_AS_USER"

// nobody is a user without any right.
const nobody = 65534

// TestRootless runs the tests that say what a driver has to do as a user without any right on this host.
func TestRootless(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: real sandboxes")
	}
	if rootless {
		t.Skip("this process is not root: its own tests are the proof")
	}
	if data, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || strings.TrimSpace(string(data)) == "0" {
		t.Skipf("this host allows no user namespaces: max_user_namespaces is %q, %v", data, err)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	paths, err := programs()
	require.NoError(t, err)
	for name, from := range map[string]string{"test": self, "runsc": paths[0], "toolbox": paths[1]} {
		command(t, "cp", from, filepath.Join(dir, name))
	}
	img, err := debian.Build(t.Context(), debian.Options{})
	require.NoError(t, err)
	to, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	require.NoError(t, err)
	require.NoError(t, to.AppendImage(img))
	command(t, "chown", "-R", "65534:65534", dir)
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // the user must get there

	tests := []string{"TestContract", "TestKilledProcesses", "TestHungKeeper", "TestKilledLifecycle", "TestRestart", "TestNoSecretOnDisk", "TestLongState", "TestLimits", "TestLimitsInTheBackground", "TestOnlyItsProcesses"}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run=^("+strings.Join(tests, "|")+")$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{asUser + "=" + dir, "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	for _, name := range tests {
		require.Contains(t, string(out), "--- PASS: "+name+" ")
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
