package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// Create makes the sandbox, or takes a warm one of its kind. A sandbox that runs already is returned as it is; what an interrupted or
// dead one left is removed first, the workspace apart. When it fails, nothing but the workspace is left.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Created, error) {
	if err := checkID(spec.ID); err != nil {
		return runtime.Created{}, err
	}
	unlock, err := d.lock(ctx, spec.ID)
	if err != nil {
		return runtime.Created{}, err
	}
	defer unlock()
	if created, found, err := d.running(ctx, spec); found || err != nil {
		if found && spec.Resume {
			err = errors.Join(err, d.putBack(spec.ID))
		}
		return created, err
	}
	if _, err := os.Lstat(d.dir(spec.ID)); !errors.Is(err, fs.ErrNotExist) {
		if err := d.remove(ctx, d.at(spec.ID)); err != nil {
			return runtime.Created{}, err
		}
	}
	begin := time.Now()
	img, err := d.image(ctx, spec)
	if err != nil {
		return runtime.Created{}, err
	}
	if err := d.takeNote(spec); err != nil {
		return runtime.Created{}, err
	}
	imageTook := time.Since(begin)
	if created, ok := d.fromPool(ctx, spec, img, imageTook); ok {
		return created, nil
	}
	done, err := d.turns.Take(ctx, spec.Tenant)
	if err != nil {
		return runtime.Created{}, err
	}
	defer done()
	waited := time.Since(begin) - imageTook
	space, err := d.o.Workspaces.Create(ctx, spec.ID, spec.WorkspaceBytes)
	if err != nil {
		return runtime.Created{}, err
	}
	created := runtime.Created{RuntimeID: runtimeID(spec.ID), ImageDigest: img.Digest}
	created.Phases = []runtime.Phase{{Name: "image", Took: imageTook}, {Name: "turn", Took: waited}, {Name: "workspace_file", Took: time.Since(begin) - imageTook - waited}}
	p := d.at(spec.ID)
	start := d.spec(p, spec, img, space)
	if spec.Resume {
		start.Root = filepath.Join(d.kept(spec.ID), rootDir)
	}
	result, err := d.start(ctx, p, record{Tenant: spec.Tenant, ImageDigest: img.Digest, CreatedAt: time.Now().UTC()}, start, func() error { return nil })
	if err != nil {
		d.undo(ctx, p, spec.ID)
		return runtime.Created{}, err
	}
	if spec.Resume {
		if err := d.putBack(spec.ID); err != nil {
			return runtime.Created{}, err
		}
	}
	created.Phases = append(created.Phases, phases(result)...)
	return created, nil
}

// image is that of a sandbox: of one that was stopped the very one that it was made from, since what it changed there is kept as changes.
func (d *Driver) image(ctx context.Context, spec runtime.Spec) (image.Image, error) {
	if !spec.Resume {
		return d.o.Images.EnsureFor(ctx, spec.Tenant, spec.Image, d.o.Progress)
	}
	was, stopped := d.stopped(spec.ID)
	if !stopped {
		return image.Image{}, fault.New(fault.FailedPrecondition, fault.ReasonSandboxLost, "what was kept of the sandbox's root is gone; its workspace is kept")
	}
	if img, ok := d.o.Images.ByDigest(was.ImageDigest); ok {
		return img, nil
	}
	img, err := d.o.Images.EnsureFor(ctx, spec.Tenant, spec.Image, d.o.Progress)
	if err == nil && img.Digest != was.ImageDigest {
		err = fault.Newf(fault.FailedPrecondition, fault.ReasonImageInvalid, "the image %s that the sandbox was made from is no longer to be had", was.ImageDigest)
	}
	return img, err
}

// undo removes what a failed start has made. The caller's time may be over; what was started is removed all the same.
func (d *Driver) undo(ctx context.Context, p place, id string) {
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.o.ShutdownTimeout)
	defer cancel()
	if err := d.remove(after, p); err != nil {
		d.o.Log.Error("a failed start left something behind; the next create or destroy removes it", "sandbox", id, "error", err)
	}
}

// keeperPID is the file that a keeper writes when its sandbox works and removes when it ends.
const keeperPID = "keeper.pid"

// running finds a sandbox that an earlier call has made and that lives, or finishes one that it took and did not finish. One whose
// keeper lives without answering may run somebody's program: it is an error, and not for a create to remove.
func (d *Driver) running(ctx context.Context, spec runtime.Spec) (runtime.Created, bool, error) {
	id := spec.ID
	rec, err := readRecord(d.dir(id))
	if err != nil {
		return runtime.Created{}, false, nil //nolint:nilerr // without a record nothing was started
	}
	if rec.Warm != "" && !rec.Bound {
		created, err := d.bind(ctx, spec, rec)
		if err != nil {
			// Nothing has run in it yet.
			d.o.Log.Warn("a warm sandbox that was taken is removed", "sandbox", id, "error", err)
		}
		return created, err == nil, nil
	}
	hello, stop := context.WithTimeout(ctx, helloTimeout)
	defer stop()
	reply, err := d.client(id).Hello(hello, &toolboxv1.Hello{})
	if err == nil && reply.GetAlive() {
		return runtime.Created{RuntimeID: runtimeID(or(rec.Warm, id)), ImageDigest: rec.ImageDigest, Warm: rec.Warm != ""}, true, nil
	}
	_, noPID := os.Lstat(filepath.Join(d.dir(id), keeperPID))
	if err != nil && noPID == nil && len(keepers(or(rec.Warm, id))) > 0 {
		return runtime.Created{}, false, fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox's toolbox does not answer").WithRetry(time.Second).Because(err)
	}
	return runtime.Created{}, false, nil
}

// start makes the directory and starts a keeper. The record and the place of the cgroup are there before the keeper is, so that whoever
// finds the directory finds everything else; before is done between them.
func (d *Driver) start(ctx context.Context, p place, rec record, spec launch.Spec, before func() error) (launch.Result, error) {
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return launch.Result{}, runtimeFault("the worker's state directory cannot be written", err)
	}
	if err := writeRecord(p.dir, rec); err != nil {
		return launch.Result{}, runtimeFault("the worker's state directory cannot be written", err)
	}
	group, err := d.openGroup(p.mark)
	if err != nil {
		return launch.Result{}, runtimeFault("the worker has no usable cgroups", err)
	}
	if err := group.Save(filepath.Join(p.dir, groupFile)); err != nil {
		return launch.Result{}, runtimeFault("the worker's state directory cannot be written", err)
	}
	if err := before(); err != nil {
		return launch.Result{}, err
	}
	result, err := d.launch(ctx, p.mark, spec)
	if err != nil {
		return launch.Result{}, err
	}
	if !result.OK {
		reason := or(fault.Reason(result.Reason), fault.ReasonRuntimeFailed)
		if reason == fault.ReasonStartDeadline {
			return launch.Result{}, startDeadline(errors.New(keeperLog(p.dir)))
		}
		return launch.Result{}, fault.New(fault.Internal, reason, or(result.Message, "the sandbox could not be started on this host")).Because(errors.New(keeperLog(p.dir)))
	}
	return result, nil
}

func (d *Driver) spec(p place, s runtime.Spec, img image.Image, space string) launch.Spec {
	return launch.Spec{
		SandboxID: s.ID, RuntimeID: runtimeID(p.mark), Hostname: or(s.Hostname, "sandbox-"+ids.Short(p.mark)), Dir: p.dir,
		Runsc: d.o.Runsc, Toolbox: d.o.Toolbox, Rootfs: img.Rootfs, OverlayBytes: d.o.OverlayBytes,
		Workspace: space, WorkspaceBytes: or(s.WorkspaceBytes, workspace.DefaultBytes), MountPath: or(s.MountPath, DefaultMountPath), ImageEnv: img.Env, Env: maps.Clone(s.Env),
		UID: d.o.UID, GID: d.o.GID, HostIDBase: d.o.HostIDBase, Rootless: d.rootless,
		CPUMillis: or(s.CPUMillis, DefaultCPUMillis), MemoryBytes: or(s.MemoryBytes, DefaultMemoryBytes), PIDs: or(s.PIDs, DefaultPIDs),
		OpenFiles: d.o.OpenFiles, MaxExecs: d.o.MaxExecs, OutputCap: d.o.OutputCap, SpoolBytes: d.o.SpoolBytes,
		// A keeper that gives up itself knows what hung and leaves nothing; it needs a moment for that.
		StartTimeoutMs: uint64((d.o.StartTimeout * 3 / 4).Milliseconds()), //nolint:gosec // a timeout is positive
		Control:        d.o.Control, Cgroup: d.cgroupName(p.mark),
	}
}

// keeperLog is the end of what the keeper said, for our log: it holds no value of an environment.
func keeperLog(dir string) string {
	const most = 4096
	data, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		return fmt.Sprintf("no keeper log: %v", err)
	}
	return string(data[max(0, len(data)-most):])
}
