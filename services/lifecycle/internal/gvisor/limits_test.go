package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
)

// TestLimits tries to pass each limit that holds, with root and without; what differs is how it holds.
func TestLimits(t *testing.T) {
	h := newHost(t, t.TempDir(), func(o *Options) { o.OverlayBytes, o.OpenFiles = 64<<20, 256 })
	for name, test := range map[string]struct {
		command string
		check   func(t *testing.T, out string, end *toolboxv1.End)
	}{
		"processes": {
			"i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done 2>/dev/null; ps -C sleep --no-headers | wc -l",
			func(t *testing.T, _ string, end *toolboxv1.End) { require.NotZero(t, end.GetExitCode()) },
		},
		"processes of a python": {
			`exec python3 -c '
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        n += 1
except OSError:
    pass
print("some" if 10 < n < 64 else n)'`,
			func(t *testing.T, out string, _ *toolboxv1.End) { require.Equal(t, "some\n", out) },
		},
		"open files": {
			`python3 -c '
held = []
try:
    while len(held) < 5000:
        held.append(open("/dev/null"))
except OSError as e:
    print(e.strerror, 200 < len(held) <= 256)'`,
			func(t *testing.T, out string, _ *toolboxv1.End) { require.Equal(t, "Too many open files True\n", out) },
		},
		"files outside of the workspace": {
			"dd if=/dev/zero of=/var/tmp/f bs=1M count=200 2>&1; stat -c %s /var/tmp/f",
			func(t *testing.T, out string, _ *toolboxv1.End) {
				require.Contains(t, out, "No space left on device")
			},
		},
		"files in /tmp": {
			"dd if=/dev/zero of=/tmp/f bs=1M count=250 2>&1",
			func(t *testing.T, out string, end *toolboxv1.End) {
				require.NotZero(t, end.GetExitCode())
				require.Contains(t, out, "No space left on device")
			},
		},
		"memory": {
			"python3 -c 'b = b\"x\" * (900 << 20); import time; time.sleep(30)'",
			func(t *testing.T, _ string, end *toolboxv1.End) {
				require.NotZero(t, end.GetExitCode())
				require.Equal(t, "oom_killed", end.GetReason())
			},
		},
		"workspace": {
			"dd if=/dev/zero of=/workspace/f bs=1M count=400 2>&1 && sleep 30",
			overWorkspace,
		},
		"workspace by files that have no name any more": {
			`python3 -c '
import os, time
held = []
for i in range(200):
    held.append(open("/workspace/f", "wb", 0))
    os.unlink("/workspace/f")
    held[-1].write(bytes(2 << 20))
time.sleep(30)'`,
			overWorkspace,
		},
		"workspace below a path that is too long": {
			`python3 -c '
import os, time
os.chdir("/workspace")
for i in range(500):
    os.mkdir("a-long-name")
    os.chdir("a-long-name")
f = open("f", "wb", 0)
for i in range(100):
    f.write(bytes(1 << 20))
time.sleep(30)'`,
			overWorkspace,
		},
		"workspace in a closed directory": {
			"mkdir d; cd d; exec 3>f; chmod 0 f . ..; dd if=/dev/zero bs=1M count=100 >&3 && sleep 30",
			overWorkspace,
		},
		"workspace by empty files": {
			`python3 -c '
import time
n = 0
try:
    while n < 10000:
        open("/workspace/%d" % n, "w").close()
        n += 1
except OSError:
    exit(1)
time.sleep(30)'`,
			overWorkspace,
		},
		"workspace deeper than can be measured": {
			`python3 -c '
import os, time
os.chdir("/workspace")
for i in range(2000):
    os.mkdir("d")
    os.chdir("d")
f = open("f", "wb", 0)
for i in range(100):
    f.write(bytes(1 << 20))
time.sleep(30)'`,
			overWorkspace,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec()
			s.MemoryBytes, s.PIDs, s.WorkspaceBytes = 256<<20, 64, 16<<20
			create(t, h, s)
			out, end, err := h.run(bounded(t), s.ID, test.command)
			require.NoError(t, err)
			t.Logf("%v %s", end, out)
			test.check(t, out, end)
			if end.GetReason() == "oom_killed" {
				return
			}
			// A builtin: there may be no process left to have.
			out, end, err = h.run(bounded(t), s.ID, "echo goes on")
			require.NoError(t, err)
			require.Equal(t, "goes on\n", out, "%v", end)
		})
	}
}

// overWorkspace: the file system is full, or without root the command is ended.
func overWorkspace(t *testing.T, _ string, end *toolboxv1.End) {
	t.Helper()
	require.NotZero(t, end.GetExitCode())
	if rootless {
		require.Equal(t, "signaled", end.GetReason())
		require.Regexp(t, "over its size|too deep", end.GetMessage())
	}
}

// TestLimitsInTheBackground: a process that outlives its exec is held to the limits too.
func TestLimitsInTheBackground(t *testing.T) {
	h := newHost(t, t.TempDir())
	for name, program := range map[string]string{
		"workspace": `
f = open("/workspace/f", "wb", 0)
for i in range(25):
    f.write(bytes(2 << 20))
    time.sleep(0.2)`,
		"memory": `
held = []
for i in range(25):
    held.append(b"x" * (20 << 20))
    time.sleep(0.2)`,
	} {
		t.Run(name, func(t *testing.T) {
			s := spec()
			s.MemoryBytes, s.PIDs, s.WorkspaceBytes = 256<<20, 64, 16<<20
			create(t, h, s)
			_, end, err := h.run(bounded(t), s.ID, "python3 -c 'import time"+program+"\nopen(\"/tmp/passed\", \"w\")' >/dev/null 2>&1 </dev/null &")
			require.NoError(t, err)
			require.Equal(t, "exited", end.GetReason())
			// Nobody asks meanwhile, as long as it takes: a running exec would be watched for its own sake.
			<-time.After(7 * time.Second)
			require.Eventually(t, func() bool {
				st, err := h.Inspect(t.Context(), s.ID)
				if err == nil && !st.Alive {
					return st.Reason == "oom_killed" || strings.Contains(st.Message, "oom")
				}
				out, _, err := h.exec(bounded(t), s.ID, "ls /tmp; pgrep python3")
				return err == nil && out == ""
			}, 2*time.Minute, time.Second)
		})
	}
}

// TestCPULimit: two loops get together what the sandbox may have. Without root there is no such limit.
func TestCPULimit(t *testing.T) {
	if rootless && os.Getenv(delegated) == "" {
		t.Log("not tested: without root and without cgroups CPU has no limit")
		return
	}
	h := newHost(t, t.TempDir())
	s := spec()
	s.CPUMillis = 500
	create(t, h, s)
	_, end, err := h.run(bounded(t), s.ID, "timeout 2 sh -c 'while :; do :; done' & timeout 2 sh -c 'while :; do :; done'; wait")
	require.NoError(t, err)
	took := float64(end.GetWallTimeUs()) / 1000
	require.Less(t, float64(end.GetUsage().GetCpuMs()), took*0.6+200)
}

// TestOnlyItsProcesses: ending a sandbox without a cgroup ends no process of its user that only names it, and no other sandbox.
func TestOnlyItsProcesses(t *testing.T) {
	h := newHost(t, t.TempDir())
	one, two := spec(), spec()
	create(t, h, one)
	create(t, h, two)
	bystander := exec.CommandContext(t.Context(), "sh", "-c", "read x; exit 7", "sh", runtimeID(one.ID))
	in, err := bystander.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, bystander.Start())
	mine := append(sandboxPids(t, h, one.ID), keepers(one.ID)...)
	mine = append(mine, descendants(mine)...)
	for _, pid := range mine {
		require.NoError(t, unix.Kill(pid, unix.SIGSTOP))
	}
	_, err = h.Destroy(bounded(t), one.ID)
	require.NoError(t, err)
	require.NoError(t, in.Close())
	_ = bystander.Wait()
	require.Equal(t, 7, bystander.ProcessState.ExitCode(), "it ended by itself")
	require.Empty(t, h.leftovers(one.ID))
	for _, pid := range mine {
		require.NoDirExists(t, fmt.Sprintf("/proc/%d", pid))
	}
	out, _, err := h.exec(bounded(t), two.ID, "echo lives")
	require.NoError(t, err)
	require.Equal(t, "lives\n", out)
}
