package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// asUser is where the tests of a common user find their programs and image; set in their process only.
const asUser = "SANDTRAIL_TEST_AS_USER"

// nobody is a user without any right.
const nobody = 65534

// TestRootless runs the tests that say what a driver has to do as a user without any right on this host.
func TestRootless(t *testing.T) {
	runAsUser(t, nil, "TestContract", "TestKilledProcesses", "TestHungKeeper", "TestKilledLifecycle", "TestRestart", "TestNoSecretOnDisk", "TestLongState",
		"TestLimits", "TestLimitsInTheBackground", "TestOnlyItsProcesses", "TestStopContract")
}

// TestRootlessPool: the same of warm sandboxes.
func TestRootlessPool(t *testing.T) {
	runAsUser(t, nil, "TestAClaimedSandboxIsFreshAndItsOwn", "TestAWarmSandboxThatDiesIsNotTaken", "TestAWorkspaceThatWasWrittenIsNeverDropped")
}

// delegated is set in the process of a common user who was given cgroups.
const delegated = "SANDTRAIL_TEST_DELEGATED"

// TestRootlessWithCgroups runs those that a cgroup matters to as a user who was given one.
func TestRootlessWithCgroups(t *testing.T) {
	if rootless {
		t.Log("not tested: only root gives cgroups to a user")
		return
	}
	g, err := cgroup.Open(group + "-user")
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, procs := range g.Procs() {
			removeGroups(t, filepath.Dir(procs))
		}
	})
	require.NoError(t, g.Create(cgroup.Limits{}))
	for _, procs := range g.Procs() {
		for _, name := range []string{"", "cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads"} {
			err := os.Chown(filepath.Join(filepath.Dir(procs), name), nobody, nobody)
			require.True(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		}
	}
	runAsUser(t, g, "TestKilledProcesses", "TestLimits", "TestCPULimit")
}

// removeGroups removes a group and those below it.
func removeGroups(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.IsDir() {
			removeGroups(t, filepath.Join(dir, e.Name()))
		}
	}
	require.NoError(t, os.Remove(dir))
}

// runAsUser runs tests of this program as a user without any right, in a group or none.
func runAsUser(t *testing.T, in *cgroup.Group, tests ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: real sandboxes")
	}
	if rootless {
		t.Log("not tested here: this process is not root, its own tests are the proof")
		return
	}
	if data, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err != nil || strings.TrimSpace(string(data)) == "0" {
		t.Logf("not tested: this host allows no user namespaces: max_user_namespaces is %q, %v", data, err)
		return
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

	// The shell waits until it is in its group.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `read go; exec "$@"`, "sh", filepath.Join(dir, "test"), "-test.run=^("+strings.Join(tests, "|")+")$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{asUser + "=" + dir, "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	if in != nil {
		cmd.Env = append(cmd.Env, delegated+"=1")
	}
	require.NoError(t, cmd.Start())
	if in != nil {
		for _, procs := range in.Procs() {
			require.NoError(t, os.WriteFile(procs, fmt.Append(nil, cmd.Process.Pid), 0))
		}
	}
	require.NoError(t, stdin.Close())
	err = cmd.Wait()
	t.Logf("%s", &out)
	require.NoError(t, err)
	for _, name := range tests {
		require.Contains(t, out.String(), "--- PASS: "+name+" ")
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
