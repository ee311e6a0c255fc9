package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// settleIn tells a process of this program, by the name of a service's group, that it is a worker in it.
const settleIn = "SANDTRAIL_TEST_SETTLE_IN"

const nobody = 65534

// service makes a group as systemd or a container engine would, and removes it with everything in it; "" where none can be made.
func service(t *testing.T) string {
	t.Helper()
	own, err := ownGroup()
	require.NoError(t, err)
	if own == "" {
		t.Log("not tested: version 1 has the controllers on this host, there is nothing to settle")
		return ""
	}
	if os.Geteuid() != 0 {
		t.Log("not tested: only root makes a service's group")
		return ""
	}
	require.NoError(t, Settle())
	g, err := Open(fmt.Sprintf("sandtrail-test-%d/%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")))
	require.NoError(t, err)
	require.NoError(t, g.Create(Limits{}))
	t.Cleanup(func() {
		require.NoError(t, write(g.v2, "cgroup.kill", "1"))
		for _, sub := range []string{"sandtrail/x", "sandtrail", leaf, "", ".."} {
			left := &Group{v2: filepath.Join(g.v2, sub)}
			require.NoError(t, left.Remove())
		}
	})
	return g.v2
}

// worker runs TestHelperSettle in the group.
func worker(t *testing.T, dir string, attr *syscall.SysProcAttr) string {
	t.Helper()
	return runIn(t, dir, "TestHelperSettle", attr)
}

func runIn(t *testing.T, dir, test string, attr *syscall.SysProcAttr) string {
	t.Helper()
	// A shell that goes into the group becomes the worker, as a service is started: into its group first, then another user.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `read go; exec "$@"`, "sh", os.Args[0], "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), settleIn+"="+dir)
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	require.NoError(t, write(dir, "cgroup.procs", fmt.Sprint(cmd.Process.Pid)))
	_, err = in.Write([]byte("go\n"))
	require.NoError(t, err)
	err = cmd.Wait()
	t.Logf("%s", &out)
	require.NoError(t, err)
	require.Contains(t, out.String(), "--- PASS: TestHelperSettle")
	return out.String()
}

func TestSettleInAService(t *testing.T) {
	dir := service(t)
	if dir == "" {
		return
	}
	require.Contains(t, worker(t, dir, nil), "home "+dir+"\n")
	require.True(t, enabled(dir))
	require.Empty(t, processes(dir))
}

func TestSettleWithoutRoot(t *testing.T) {
	dir := service(t)
	if dir == "" {
		return
	}
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"} {
		require.NoError(t, os.Chown(filepath.Join(dir, file), nobody, nobody))
	}
	require.Contains(t, worker(t, dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}), "home "+dir+"\n")
	require.True(t, enabled(dir))
}

// TestSettleBesideOthers: a group with somebody else's process in it is left as it is, and one above it is the home.
func TestSettleBesideOthers(t *testing.T) {
	dir := service(t)
	if dir == "" {
		return
	}
	other := exec.CommandContext(t.Context(), "sleep", "600")
	require.NoError(t, other.Start())
	require.NoError(t, write(dir, "cgroup.procs", fmt.Sprint(other.Process.Pid)))
	require.Contains(t, worker(t, dir, nil), "home "+filepath.Dir(dir)+"\n")
	require.False(t, enabled(dir))
	require.Equal(t, []int{other.Process.Pid}, processes(dir))
	left := &Group{v2: filepath.Join(filepath.Dir(dir), "sandtrail")}
	require.NoError(t, left.Remove())
	require.NoError(t, other.Process.Kill())
	_ = other.Wait()
}

// TestSettleInAContainer: what else runs in a container moves too, since nothing lies above it there.
func TestSettleInAContainer(t *testing.T) {
	dir := service(t)
	if dir == "" {
		return
	}
	require.Contains(t, runIn(t, dir, "TestHelperContainer", nil), "home /sys/fs/cgroup\n")
	require.True(t, enabled(dir))
	require.Empty(t, processes(dir))
}

const inContainer = "SANDTRAIL_TEST_IN_CONTAINER"

// TestHelperContainer is the first process of a container, and starts a worker in it.
func TestHelperContainer(t *testing.T) {
	if os.Getenv(settleIn) == "" {
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelperSettle$", "-test.v")
	cmd.Env = append(os.Environ(), inContainer+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
}

// TestHelperSettle is a worker: it settles, and a group with limits can be made and limits.
func TestHelperSettle(t *testing.T) {
	dir := os.Getenv(settleIn)
	if dir == "" {
		return
	}
	if os.Getenv(inContainer) != "" {
		require.NoError(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		require.NoError(t, syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH))
		require.NoError(t, syscall.Mount("cgroup", "/sys/fs/cgroup", "cgroup2", 0, ""))
	}
	settled, err := Settled()
	require.NoError(t, err)
	require.NoError(t, Settle())
	require.NoError(t, Settle(), "again")
	if !settled {
		settled, err = Settled()
		require.NoError(t, err)
		require.True(t, settled)
	}
	own, err := ownGroup()
	require.NoError(t, err)
	t.Logf("home %s", homeOf(own))

	g, err := Open("sandtrail/x")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Remove()) })
	require.NoError(t, g.Create(Limits{MemoryBytes: 32 << 20, CPUMillis: 500, PIDs: 10}))
	limits(t, g)
}

// in runs a shell line in the group and gives its output and whether it ended well.
func in(t *testing.T, g *Group, line string) (string, bool) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo 0 > "+g.Procs()[0]+"; "+line).CombinedOutput()
	return string(out), err == nil
}

// limits tries to pass each.
func limits(t *testing.T, g *Group) {
	t.Helper()
	out, ok := in(t, g, "dd if=/dev/zero of=/dev/null bs=64M count=1")
	require.False(t, ok, out)
	require.NotZero(t, g.Stats().OOMKills)
	require.NotZero(t, g.Stats().MemoryPeak)
	out, _ = in(t, g, "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 >/dev/null 2>&1 & done")
	require.Contains(t, out, "fork")
	require.NoError(t, g.Kill(5*time.Second))
	before, began := g.Stats().CPU, time.Now()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", "echo 0 > "+g.Procs()[0]+"; while :; do :; done")
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return g.Stats().CPU-before > 500*time.Millisecond }, 60*time.Second, 10*time.Millisecond)
	share := (g.Stats().CPU - before).Seconds() / time.Since(began).Seconds()
	require.Less(t, share, 0.6)
	t.Logf("memory peak %d, cpu share %.2f of 0.5, %d killed for memory", g.Stats().MemoryPeak, share, g.Stats().OOMKills)
	require.NoError(t, g.Kill(5*time.Second))
	_ = cmd.Wait()
}
