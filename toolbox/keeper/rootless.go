package keeper

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

// Without root a keeper runs in a user namespace that knows only its own user, with every capability there. In the guest that
// user is the one that programs run as, so that what they write in the workspace belongs to whoever runs the keeper.

// owner is the host's user and group that the guest's programs write files as.
func (b *sandbox) owner() (uid, gid int) {
	if b.spec.Rootless {
		return os.Getuid(), os.Getgid()
	}
	return int(b.spec.HostIDBase + b.spec.UID), int(b.spec.HostIDBase + b.spec.GID)
}

// bindWorkspace shows a directory as the workspace.
func bindWorkspace(dir, at string) error {
	if err := unix.Mount(dir, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind workspace: %w", err)
	}
	flags, err := lockedFlags(at)
	if err != nil {
		return err
	}
	if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flags, ""); err != nil {
		return fmt.Errorf("bind workspace: %w", err)
	}
	return nil
}

// lockedFlags are those of a mount that a user namespace may not take away.
func lockedFlags(path string) (uintptr, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("read mount flags: %w", err)
	}
	var flags uintptr
	for st1, ms := range map[int64]uintptr{
		unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC, unix.ST_RDONLY: unix.MS_RDONLY,
		unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
	} {
		if st.Flags&st1 != 0 {
			flags |= ms
		}
	}
	return flags, nil
}

// ownGroup makes the sandbox's cgroup where the host lets us; a keeper without root does without where not.
func (b *sandbox) ownGroup(limits cgroup.Limits) (*cgroup.Group, error) {
	g, err := cgroup.Open(b.spec.Cgroup)
	if err == nil {
		b.group = g
		err = g.Create(limits)
	}
	if err == nil {
		g.Keep()
	}
	if err == nil || !b.spec.Rootless {
		return g, err
	}
	if g != nil {
		// Some hierarchies may have let us.
		_ = g.Remove()
	}
	return cgroup.None(), nil
}

// gauge reads what the sandbox has used, from its cgroup; where there is none, CPU from the kernel's clocks of its processes.
type gauge struct {
	box *sandbox
	mu  sync.Mutex
	// last is what was last known. kills are those of the warden.
	last   cgroup.Stats
	clocks clocks
	kills  uint64
}

func (g *gauge) stats() cgroup.Stats {
	if g.box.group.Real() {
		return g.box.group.Stats()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last.CPU = g.clocks.read()
	g.look()
	g.last.OOMKills = g.kills
	return g.last
}

// look takes the memory in use where no cgroup keeps its peak. The caller holds mu.
func (g *gauge) look() uint64 {
	g.last.MemoryBytes = g.box.memory.bytes()
	g.last.MemoryPeak = max(g.last.MemoryPeak, g.last.MemoryBytes)
	return g.last.MemoryBytes
}

// memory is what is in use where there is no cgroup.
func (g *gauge) memory() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.look()
}

// oomKills is stats().OOMKills alone.
func (g *gauge) oomKills() uint64 {
	if g.box.group.Real() {
		return g.box.group.OOMKills()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kills
}

// fileCache is cgroup.Group.FileCache; without a cgroup none is counted.
func (g *gauge) fileCache() uint64 {
	if g.box.group.Real() {
		return g.box.group.FileCache()
	}
	return 0
}

// resetPeak is cgroup.Group.ResetPeak.
func (g *gauge) resetPeak() bool {
	if g.box.group.Real() {
		return g.box.group.ResetPeak()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last.MemoryPeak = 0
	return true
}

func (g *gauge) killed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kills++
}

// killDescendants ends every process below this one and waits until they are gone: orphans become our children, so none is
// missed for longer than one round.
func killDescendants(children interface{ Reap() }, within time.Duration) error {
	for deadline := time.Now().Add(within); ; time.Sleep(2 * time.Millisecond) {
		children.Reap()
		pids, err := descendants()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of the sandbox are left", len(pids))
		}
	}
}

// descendants are the processes below this one.
func descendants() ([]int, error) { return new(clocks).below() }
