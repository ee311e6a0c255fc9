package keeper_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/toolboxtest"
)

// asUser is where the test of a common user finds its programs; set in its process only.
const asUser = "SANDTRAIL_TEST_AS_USER"

// nobody is a user without any right.
const nobody = 65534

// TestRootless runs TestHelperRootless as a user without any right on this host.
func TestRootless(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	for name, from := range map[string]string{"test": self, "runsc": keepertest.Runsc(t), "toolbox": keepertest.Toolbox(t)} {
		out, err := exec.Command("cp", from, filepath.Join(dir, name)).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	out, err := exec.Command("cp", "-a", keepertest.Rootfs(t), filepath.Join(dir, "rootfs")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command("chown", "-R", "65534:65534", dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) //nolint:gosec // the user must get there
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "test"), "-test.run=^TestHelperRootless$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{asUser + "=" + dir, "HOME=" + dir, "TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err = cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	require.Contains(t, string(out), "--- PASS: TestHelperRootless/contract")
}

// userSpec is a description for a keeper of a common user.
func userSpec(t *testing.T, dir string) (state string, spec launch.Spec) {
	t.Helper()
	state = t.TempDir()
	id := keepertest.NewID()
	workspace := filepath.Join(state, "workspaces", id)
	require.NoError(t, os.MkdirAll(workspace, 0o700))
	runtimeID := "st" + strings.ReplaceAll(id, "-", "")
	return state, launch.Spec{
		SandboxID: id, RuntimeID: runtimeID, Hostname: "sandbox-" + id[:8], Dir: filepath.Join(state, "sandboxes", id),
		Runsc: filepath.Join(dir, "runsc"), Toolbox: filepath.Join(dir, "toolbox"), Rootfs: filepath.Join(dir, "rootfs"),
		OverlayBytes: 64 << 20, Workspace: workspace, WorkspaceBytes: 64 << 20, MountPath: "/workspace", Rootless: true,
		ImageEnv: []string{"PATH=/bin"}, UID: 1000, GID: 1000, CPUMillis: 2000, MemoryBytes: 256 << 20, PIDs: 64, OpenFiles: 1024,
		MaxExecs: 16, OutputCap: 4 << 20, SpoolBytes: 1 << 20, Cgroup: "sandtrail-test/" + runtimeID,
	}
}

// below are the processes below one of this host.
func below(t *testing.T, pid int) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-eo", "pid=,ppid=").Output()
	require.NoError(t, err)
	found := map[string]bool{strconv.Itoa(pid): true}
	var pids []string
	for more := true; more; {
		more = false
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); found[f[1]] && !found[f[0]] {
				found[f[0]], more = true, true
				pids = append(pids, f[0])
			}
		}
	}
	return pids
}

// TestHelperRootless is run by TestRootless.
func TestHelperRootless(t *testing.T) {
	dir := os.Getenv(asUser)
	if dir == "" {
		return
	}
	require.Equal(t, nobody, os.Geteuid())
	start := func(t *testing.T) *keepertest.Box {
		state, spec := userSpec(t, dir)
		b := keepertest.Launch(t, state, spec)
		require.True(t, b.Result.OK, "%+v\n%s", b.Result, b.Log)
		return b
	}
	t.Run("contract", func(t *testing.T) {
		b := start(t)
		o := b.Sh(t, "id -u; id -g; echo x >f; stat -c %u:%g f; touch /etc/x && ls /etc/x; hostname")
		require.Equal(t, "1000\n1000\n1000:1000\n/etc/x\n"+b.Spec.Hostname+"\n", o.Stdout, o.Stderr)
		require.NoFileExists(t, filepath.Join(b.Spec.Rootfs, "etc/x"), "the image is shared")
		require.Equal(t, "process", o.UsageMethod)
		o = b.Sh(t, "kill -9 1; echo 1 >/proc/1/fd/1; readlink /proc/1/fd/1")
		require.Contains(t, o.Stderr, "can't kill pid 1: Operation not permitted")
		require.Contains(t, o.Stderr, "can't create /proc/1/fd/1: Permission denied")
		require.Empty(t, o.Stdout)
		toolboxtest.Run(t, client.KeeperDialer(b.State, b.Spec.SandboxID))
		b.Wait(t)
		clean(t, b)
		left, err := os.ReadDir(b.Spec.Dir)
		require.NoError(t, err)
		require.Empty(t, left)
	})
	t.Run("usage", func(t *testing.T) {
		b := start(t)
		// Less than a tick of the kernel, of which there are a hundred in a second, is measured too.
		o := b.Sh(t, "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done")
		t.Logf("%v", o.Usage)
		require.NotZero(t, o.Usage.CpuMs)
		before := tableTime(t, below(t, b.PID()))
		o = b.Sh(t, "timeout 1 sh -c 'while :; do :; done'")
		used := float64((tableTime(t, below(t, b.PID())) - before).Milliseconds())
		t.Logf("%v of %v", o.Usage, used)
		require.InDelta(t, used, o.Usage.CpuMs, max(used*0.1, 40))
		require.NotZero(t, o.Usage.MemoryPeakBytes)
	})
	t.Run("workspace over its size", func(t *testing.T) {
		b := start(t)
		o := b.Sh(t, "while :; do dd if=/dev/zero of=f bs=1M count=8 oflag=append conv=notrunc 2>/dev/null; sleep 0.05; done")
		require.Equal(t, "signaled", o.Reason)
		require.Contains(t, o.Message, "over its size")
		info, err := os.Stat(filepath.Join(b.Spec.Workspace, "f"))
		require.NoError(t, err)
		t.Logf("%d bytes where %d are allowed", info.Size(), b.Spec.WorkspaceBytes)
		_, err = b.WriteFile(t.Context(), &toolboxv1.WriteFile{Path: "g", Data: []byte("x"), Last: true})
		require.Equal(t, "disk_full", failure(t, err).Reason)
		require.Equal(t, "exited", b.Sh(t, "rm f; sleep 0.5").Reason, "who is over may still remove files")
		_, err = b.WriteFile(t.Context(), &toolboxv1.WriteFile{Path: "g", Data: []byte("x"), Last: true})
		require.NoError(t, err)
	})
	t.Run("memory over its limit", func(t *testing.T) {
		o := start(t).Sh(t, "dd if=/dev/zero bs=700M count=1 | sleep 10")
		require.Equal(t, "oom_killed", o.Reason, "%v", o.End)
	})
	t.Run("killed keeper", func(t *testing.T) {
		b := start(t)
		started(t, b, &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", family}})
		require.NoError(t, syscall.Kill(b.PID(), syscall.SIGKILL))
		b.Wait(t)
		clean(t, b)
	})
	t.Run("failed start", func(t *testing.T) {
		state, spec := userSpec(t, dir)
		spec.Rootfs = "/nosuch"
		b := keepertest.Launch(t, state, spec)
		require.False(t, b.Result.OK)
		b.Wait(t)
		clean(t, b)
		require.Eventually(t, func() bool { left, err := os.ReadDir(spec.Dir); return err == nil && len(left) == 0 }, time.Second, 10*time.Millisecond)
	})
}
