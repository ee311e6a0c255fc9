package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// What outlives a sandbox's processes lies in STATE/sandboxes/.kept/<id>: its note from its start on, and once it was stopped the root that
// its keeper left in the sandbox's directory, with a file that says of which run that is. The root comes there by one rename, which the
// disk of the sandboxes' directories has to be one for; the run's file is written before, so that a root beside the file of another run is
// one that has been put back already.
const (
	keptDir  = "sandboxes/.kept"
	noteFile = "note"
	runFile  = "run.json"
	rootDir  = "root"
	// reserveBytes of the disk must stay free for a root to be kept.
	reserveBytes = 256 << 20
)

// run says which run of a sandbox was stopped, and what the driver must know to make it again.
type run struct {
	// Began is record.CreatedAt of the run.
	Began       time.Time     `json:"began"`
	Tenant      string        `json:"tenant"`
	ImageDigest string        `json:"image_digest"`
	Usage       runtime.Usage `json:"usage"`
}

var _ runtime.Stopper = (*Driver)(nil)

func (d *Driver) kept(id string) string { return filepath.Join(d.o.StateDir, keptDir, id) }

// Stop implements runtime.Stopper.
func (d *Driver) Stop(ctx context.Context, id string) (runtime.Usage, error) {
	if err := checkID(id); err != nil {
		return runtime.Usage{}, err
	}
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return runtime.Usage{}, err
	}
	defer unlock()
	was, stopped := d.stopped(id)
	_, err = os.Lstat(d.dir(id))
	switch gone := errors.Is(err, fs.ErrNotExist); {
	case gone && stopped:
		return was.Usage, nil
	case gone:
		return runtime.Usage{}, lostRoot()
	case err != nil:
		return runtime.Usage{}, runtimeFault("the worker's state directory cannot be read", err)
	}
	// Before it is told to end: one that is ending is not found by its mark any more.
	held := hold(keepers(d.at(id).mark))
	defer closeAll(held)
	rec, err := readRecord(d.dir(id))
	if err != nil {
		// Nothing was started: a start that was cut short, of a sandbox that was stopped before.
		return d.halfMade(ctx, id, held, was, stopped)
	}
	left := filepath.Join(d.dir(id), launch.KeptRoot)
	_, err = os.Lstat(left)
	switch {
	case err == nil:
	case stopped && was.Began.Equal(rec.CreatedAt):
		// It was moved already.
		return d.halfMade(ctx, id, held, was, stopped)
	case stopped && !d.lives(ctx, id):
		// A start that did not come to its end: nothing has run in it, or it died.
		return d.halfMade(ctx, id, held, was, stopped)
	default:
		why, err := d.keep(ctx, id, rec)
		if err != nil {
			return runtime.Usage{}, err
		}
		if why != "" {
			if err := d.clear(ctx, id, held); err != nil {
				return runtime.Usage{}, err
			}
			return runtime.Usage{}, lostBecause(why)
		}
	}
	return d.keepLeft(ctx, id, held, rec, left)
}

// lives reports whether a sandbox has come up and not ended.
func (d *Driver) lives(ctx context.Context, id string) bool {
	hello, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	reply, err := d.client(id).Hello(hello, &toolboxv1.Hello{})
	return err == nil && reply.GetAlive()
}

// halfMade removes what lies beside a root that is kept.
func (d *Driver) halfMade(ctx context.Context, id string, held []int, was run, stopped bool) (runtime.Usage, error) {
	if err := d.clear(ctx, id, held); err != nil {
		return runtime.Usage{}, err
	}
	if !stopped {
		return runtime.Usage{}, lostRoot()
	}
	return was.Usage, nil
}

// keep has the keeper end everything and leave the root in the sandbox's directory, or say why there is none to keep.
func (d *Driver) keep(ctx context.Context, id string, rec record) (lost string, err error) {
	if err := d.room(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, d.o.StopTimeout)
	defer cancel()
	reply, err := d.client(id).Shutdown(ctx, &toolboxv1.Shutdown{GraceMs: graceMillis, KeepRoot: true})
	if err == nil {
		u := usageOf(reply.GetUsage())
		u.Method, u.Uptime = d.method(id), time.Duration(reply.GetUptimeMs())*time.Millisecond
		return reply.GetRootLost(), d.writeRun(id, run{Began: rec.CreatedAt, Tenant: rec.Tenant, ImageDigest: rec.ImageDigest, Usage: u})
	}
	if len(keepers(d.at(id).mark)) > 0 {
		return "", fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox cannot be stopped yet").WithRetry(time.Second).Because(err)
	}
	return "", nil
}

// keepLeft moves the root to where it stays, and removes the rest.
func (d *Driver) keepLeft(ctx context.Context, id string, held []int, rec record, left string) (runtime.Usage, error) {
	if _, err := os.Lstat(left); err != nil {
		if err := d.clear(ctx, id, held); err != nil {
			return runtime.Usage{}, err
		}
		return runtime.Usage{}, lostRoot()
	}
	was, known := d.runOf(id)
	if !known || !was.Began.Equal(rec.CreatedAt) {
		// Whoever had the keeper's answer died with it.
		was = run{Began: rec.CreatedAt, Tenant: rec.Tenant, ImageDigest: rec.ImageDigest, Usage: d.lastUsage(id)}
		if err := d.writeRun(id, was); err != nil {
			return runtime.Usage{}, err
		}
	}
	to := filepath.Join(d.kept(id), rootDir)
	if err := os.RemoveAll(to); err != nil {
		return runtime.Usage{}, runtimeFault("the root that was kept before cannot be removed", err)
	}
	if err := os.Rename(left, to); err != nil {
		return runtime.Usage{}, runtimeFault("the sandbox's root cannot be kept", err)
	}
	if err := flush(d.kept(id)); err != nil {
		return runtime.Usage{}, runtimeFault("the sandbox's root cannot be kept", err)
	}
	if err := d.clear(ctx, id, held); err != nil {
		return runtime.Usage{}, err
	}
	if space := d.o.Workspaces.Path(id); !d.rootless {
		// Only now nothing writes there any more.
		if err := flush(space); err != nil {
			return runtime.Usage{}, runtimeFault("the sandbox's workspace cannot be kept", err)
		}
	}
	return was.Usage, nil
}

// clear removes what is left of a sandbox whose root is kept, or is lost, and waits for the keepers that were held before.
func (d *Driver) clear(ctx context.Context, id string, held []int) error {
	return d.end(ctx, d.at(id), held)
}

// Note implements runtime.Stopper.
func (d *Driver) Note(_ context.Context, id string) ([]byte, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	note, err := os.ReadFile(filepath.Join(d.kept(id), noteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, runtimeFault("what was noted of the sandbox cannot be read", err)
	}
	return note, nil
}

// takeNote keeps the note of a sandbox that is about to be made.
func (d *Driver) takeNote(spec runtime.Spec) error {
	if len(spec.Note) == 0 {
		return nil
	}
	if err := os.MkdirAll(d.kept(spec.ID), 0o700); err != nil {
		return runtimeFault("the worker's state directory cannot be written", err)
	}
	if err := writeWhole(filepath.Join(d.kept(spec.ID), noteFile), spec.Note); err != nil {
		return runtimeFault("the worker's state directory cannot be written", err)
	}
	return nil
}

// stopped says of which run a root is kept that no start has put back.
func (d *Driver) stopped(id string) (run, bool) {
	if _, err := os.Lstat(filepath.Join(d.kept(id), rootDir)); err != nil {
		return run{}, false
	}
	return d.runOf(id)
}

func (d *Driver) runOf(id string) (run, bool) {
	var r run
	data, err := os.ReadFile(filepath.Join(d.kept(id), runFile))
	return r, err == nil && json.Unmarshal(data, &r) == nil
}

func (d *Driver) writeRun(id string, r run) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(d.kept(id), 0o700)
	}
	if err == nil {
		err = writeWhole(filepath.Join(d.kept(id), runFile), data)
	}
	if err != nil {
		return runtimeFault("the worker's state directory cannot be written", err)
	}
	return nil
}

// putBack removes a root whose sandbox runs again: the sentry has it open as long as it reads.
func (d *Driver) putBack(id string) error {
	if err := os.RemoveAll(filepath.Join(d.kept(id), rootDir)); err != nil {
		return runtimeFault("the root that was kept cannot be removed", err)
	}
	return nil
}

// forgetKept removes all that outlives a sandbox's processes, its workspace apart.
func (d *Driver) forgetKept(id string) error {
	if err := os.RemoveAll(d.kept(id)); err != nil {
		return runtimeFault("what was kept of the sandbox cannot be removed", err)
	}
	return nil
}

// keptOnly are the sandboxes of which a root is kept and nothing else is here.
func (d *Driver) keptOnly() ([]runtime.Status, error) {
	entries, err := os.ReadDir(filepath.Join(d.o.StateDir, keptDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, runtimeFault("the worker cannot list its sandboxes", err)
	}
	var all []runtime.Status
	for _, e := range entries {
		if _, err := os.Lstat(d.dir(e.Name())); err == nil || !ids.Valid(e.Name()) {
			continue
		}
		all = append(all, d.stoppedStatus(e.Name()))
	}
	return all, nil
}

// stoppedStatus is that of a sandbox that has no directory.
func (d *Driver) stoppedStatus(id string) runtime.Status {
	st := runtime.Status{ID: id}
	if _, err := os.Lstat(d.kept(id)); err != nil {
		return st
	}
	st.Exists = true
	was, stopped := d.stopped(id)
	st.Tenant, st.Stopped = was.Tenant, stopped
	if !stopped {
		st.Reason, st.Message = string(fault.ReasonSandboxLost), "the sandbox is gone"
	}
	return st
}

// room refuses to keep a root where the host's disk is nearly full: while it is written it lies there twice.
func (d *Driver) room() error {
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Join(d.o.StateDir, keptDir), &st); err != nil {
		return runtimeFault("the worker's disk cannot be looked at", err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < reserveBytes { //nolint:gosec // not negative
		return fault.New(fault.ResourceExhausted, fault.ReasonDiskFull, "the worker's disk is nearly full: the sandbox cannot be stopped before there is room").WithRetry(5 * time.Second)
	}
	return nil
}

func lostRoot() error { return lostBecause("it ended before") }

func lostBecause(why string) error {
	return fault.Newf(fault.FailedPrecondition, fault.ReasonSandboxLost, "what the sandbox wrote outside of its workspace could not be kept: %s; its workspace is kept", why)
}

// writeWhole writes a file that is there whole or not at all, also behind a loss of power.
func writeWhole(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	return os.Rename(path+".new", path)
}

// flush has a file, or the names in a directory, survive a loss of power.
func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
