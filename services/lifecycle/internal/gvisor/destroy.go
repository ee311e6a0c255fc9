package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandtrail/sandtrail/libs/runtime"
	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
)

const (
	// graceMillis is how long programs have between TERM and KILL.
	graceMillis = 2000
	goneTimeout = 10 * time.Second
	// Each try takes up to a second: an init that is slow to take its orphans keeps the cgroup busy.
	removeTries = 15
)

// Destroy asks the keeper to end everything, and does it itself where there is none that answers. It returns once nothing is
// left; an error means that something may be, and the call has to be repeated.
func (d *Driver) Destroy(ctx context.Context, id string) (runtime.Usage, error) {
	if err := checkID(id); err != nil {
		return runtime.Usage{}, err
	}
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return runtime.Usage{}, err
	}
	defer unlock()
	if _, err := os.Lstat(d.dir(id)); errors.Is(err, fs.ErrNotExist) {
		// The directory is made before anything else and removed after everything else, but for what is kept of a stopped one.
		return runtime.Usage{}, d.forgetKept(id)
	}
	p := d.at(id)
	held := hold(keepers(p.mark))
	defer closeAll(held)
	usage, graceful := d.shutdown(ctx, id)
	if !graceful {
		usage = d.lastUsage(id)
	}
	if err := d.end(ctx, p, held); err != nil {
		return runtime.Usage{}, err
	}
	return usage, d.forgetKept(id)
}

// end removes what runs at a place and its directory, and waits for the keepers that were held there before: one that is ending by itself
// cannot be told by its environment any more, but by its descriptor.
func (d *Driver) end(ctx context.Context, p place, held []int) error {
	if err := d.remove(ctx, p); err != nil {
		return err
	}
	for _, fd := range held {
		if err := waitPidfd(ctx, fd); err != nil {
			return runtimeFault("the sandbox's keeper does not end", err)
		}
	}
	d.reap(p.mark)
	return nil
}

func (d *Driver) shutdown(ctx context.Context, id string) (runtime.Usage, bool) {
	ctx, cancel := context.WithTimeout(ctx, d.o.ShutdownTimeout)
	defer cancel()
	method := d.method(id)
	reply, err := d.client(id).Shutdown(ctx, &toolboxv1.Shutdown{GraceMs: graceMillis})
	if err != nil {
		d.o.Log.Info("the keeper does not answer; ending the sandbox without it", "sandbox", id, "error", err)
		return runtime.Usage{}, false
	}
	u := usageOf(reply.GetUsage())
	u.Method = method
	u.Uptime = time.Duration(reply.GetUptimeMs()) * time.Millisecond
	return u, true
}

func usageOf(m *commonv1.UsageMetrics) runtime.Usage {
	return runtime.Usage{
		CPUMillis: m.GetCpuMs(), MemoryPeakBytes: m.GetMemoryPeakBytes(), MemoryAvgBytes: m.GetMemoryAvgBytes(),
		DiskReadBytes: m.GetDiskReadBytes(), DiskWriteBytes: m.GetDiskWriteBytes(),
	}
}

// The methods of measuring a sandbox, as a keeper names them.
const (
	methodCgroup  = "cgroup"
	methodProcess = "process"
)

// method is how the sandbox's keeper measures it, by what the keeper noted of its cgroup.
func (d *Driver) method(id string) string {
	if g, err := cgroup.Load(filepath.Join(d.dir(id), keeperGroup)); err == nil && !g.Real() {
		return methodProcess
	}
	return methodCgroup
}

// lastUsage is what the cgroup still knows of a sandbox that lost its keeper.
func (d *Driver) lastUsage(id string) runtime.Usage {
	g, err := d.group(id)
	if err != nil {
		return runtime.Usage{}
	}
	s := g.Stats()
	u := runtime.Usage{CPUMillis: uint64(s.CPU.Milliseconds()), MemoryPeakBytes: s.MemoryPeak, Method: d.method(id)}
	if rec, err := readRecord(d.dir(id)); err == nil {
		u.CPUMillis = uint64(max(0, s.CPU-rec.CPUBefore).Milliseconds())
		u.Uptime = time.Since(rec.CreatedAt)
	}
	return u
}

func (d *Driver) group(id string) (*cgroup.Group, error) { return d.groupAt(d.at(id)) }

func (d *Driver) groupAt(p place) (*cgroup.Group, error) {
	if g, err := cgroup.Load(filepath.Join(p.dir, groupFile)); err == nil {
		return g, nil
	}
	return d.openGroup(p.mark)
}

// openGroup says where the sandbox's cgroup lies. Without root there may be no cgroups at all, and where there are some the keeper
// may not be let: it does without then.
func (d *Driver) openGroup(mark string) (*cgroup.Group, error) {
	g, err := cgroup.Open(d.cgroupName(mark))
	if err != nil && d.rootless {
		return cgroup.None(), nil
	}
	return g, err
}

// remove ends the keeper and the sandbox by force, waits until they are gone, and removes the cgroup and the directory. Mounts and
// loop devices belong to the mount namespace of the keeper and the sandbox and go with the last of them.
func (d *Driver) remove(ctx context.Context, p place) error {
	// The keeper first: it might start another process.
	if err := endKeepers(ctx, p.mark, goneTimeout); err != nil {
		return runtimeFault("the sandbox's keeper does not end", err)
	}
	if d.rootless {
		if err := endProcesses(ctx, p.mark, goneTimeout); err != nil {
			return runtimeFault("the sandbox's processes do not end", err)
		}
	}
	g, err := d.groupAt(p)
	if err != nil {
		return runtimeFault("the sandbox's cgroup cannot be found", err)
	}
	for try := 1; ; try++ {
		// A process on its way into the group may have got there after the last look.
		err = g.Kill(goneTimeout)
		d.reap(p.mark)
		err = errors.Join(err, g.Remove())
		if err == nil {
			break
		}
		if try == removeTries || ctx.Err() != nil {
			return runtimeFault("the sandbox's processes do not end", err)
		}
	}
	for _, path := range p.paths {
		if err := d.waitUnmounted(ctx, path); err != nil {
			return runtimeFault("the sandbox's workspace is still in use", err)
		}
	}
	if err := d.leaveWorkspace(p); err != nil {
		return err
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return runtimeFault("the sandbox's directory cannot be removed", err)
	}
	return nil
}

// leaveWorkspace removes what a warm one has that became no sandbox's: nobody has written there. What has become one's is kept, also
// where the host lost power between two file systems and it lies where it was.
func (d *Driver) leaveWorkspace(p place) error {
	if p.id != "" && !d.o.Workspaces.Exists(p.id) {
		if _, err := os.Lstat(d.o.Workspaces.WarmPath(p.mark)); err == nil {
			return d.o.Workspaces.Adopt(p.mark, p.id)
		}
	}
	return d.o.Workspaces.Drop(p.mark)
}

// waitUnmounted waits until no loop device has the workspace any more: the kernel frees it shortly after the last process of the
// mount namespace is gone. A second sandbox on a workspace that is still mounted would destroy it.
func (d *Driver) waitUnmounted(ctx context.Context, workspace string) error {
	ctx, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	path, err := filepath.EvalSymlinks(workspace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		device, ok := loopOf(path)
		if !ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", device, ctx.Err())
		}
	}
}
