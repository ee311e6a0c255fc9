package keeper_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// A workspace is a sparse file: the disk below it may be full while it has room. Then it must not look as if all were well.
func TestAWorkspaceWhoseDiskWasFullIsSaid(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	const size = 128 << 20
	require.NoError(t, unix.Mount("test", disk, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", size)))
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	b := keepertest.Start(t, func(s *launch.Spec) {
		image := filepath.Join(disk, filepath.Base(s.Workspace))
		out, err := exec.CommandContext(t.Context(), "cp", "--sparse=always", s.Workspace, image).CombinedOutput()
		require.NoError(t, err, "%s", out)
		s.Workspace = image
	})
	h, err := b.Hello(t.Context(), &toolboxv1.Hello{})
	require.NoError(t, err)
	require.Empty(t, h.Reason)

	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(disk, &st))
	used := (st.Blocks - st.Bfree) * uint64(st.Bsize)
	require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d,mode=0755", used)))
	write := func() {
		r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", "echo ready; dd if=/dev/zero of=/workspace/file bs=65536 count=64 conv=fsync 2>/dev/null"}}
		started(t, b, r)
		b.Follow(t, r.ExecId, 0, 0)
	}
	write()
	require.NoError(t, unix.Mount("", disk, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d,mode=0755", size)))
	require.Eventually(t, func() bool {
		// The kernel says so to whoever writes next.
		write()
		h, err = b.Hello(t.Context(), &toolboxv1.Hello{})
		return err == nil && h.Reason == launch.WorkspaceFailed
	}, time.Minute, 100*time.Millisecond, "%v", h)
	require.True(t, h.Alive, "it lives, and its driver decides what is to be done")
}
