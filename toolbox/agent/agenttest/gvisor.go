package agenttest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

// GuestUser is whom programs in a sandbox run as, and GuestToolbox where they see the agent's binary.
const (
	GuestUser    = 1000
	GuestToolbox = "/.sandtrail/toolbox"
)

type object = map[string]any

// GVisor starts an agent as the first process of a gVisor sandbox: a common user without capabilities, with this machine's network, in no namespace of its own.
// Files are more that the sandbox sees, by their path inside. The test's end kills it.
func GVisor(t testing.TB, files map[string]string, more ...string) *Box {
	t.Helper()
	dir := t.TempDir()
	workspace, bundle := filepath.Join(dir, "workspace"), filepath.Join(dir, "bundle")
	require.NoError(t, os.Mkdir(workspace, 0o755))
	require.NoError(t, os.Chown(workspace, GuestUser, GuestUser))
	require.NoError(t, os.Mkdir(bundle, 0o755))
	b, args := newBox(t, Authority(t), workspace, append([]string{"-workspace", "/workspace"}, more...))
	mounts := []object{
		{"destination": "/proc", "type": "proc", "source": "proc"},
		{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=1777"}},
		{"destination": "/workspace", "type": "bind", "source": workspace, "options": []string{"rw", "nosuid", "nodev"}},
	}
	for inside, outside := range files {
		mounts = append(mounts, object{"destination": inside, "type": "bind", "source": outside, "options": []string{"ro"}})
	}
	mounts = append(mounts, object{"destination": GuestToolbox, "type": "bind", "source": keepertest.AgentBinary(t), "options": []string{"ro"}})
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2", "hostname": b.Agent.Name, "root": object{"path": keepertest.Rootfs(t)}, "mounts": mounts,
		"process": object{
			"user": object{"uid": GuestUser, "gid": GuestUser}, "cwd": "/", "args": append([]string{GuestToolbox}, args...),
			"env": []string{"PATH=/bin"}, "noNewPrivileges": true, "capabilities": object{},
		},
		"linux": object{"namespaces": []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}}},
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600))
	runsc, root := keepertest.Runsc(t), filepath.Join(dir, "runsc")
	flags := []string{"--root", root, "--ignore-cgroups", "--network", "host", "--platform", "systrap", "--overlay2=root:memory"}
	cmd := exec.Command(runsc, append(flags, "run", "-bundle", bundle, "st-agent")...)
	// What it mounts goes with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	remove := func() {
		out, err := exec.Command(runsc, append(flags, "delete", "-force", "st-agent")...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	b.begin(t, cmd, remove)
	return b
}
