// Package gvisor is the runtime driver for this host: each sandbox is a gVisor sentry with a keeper beside it. Nothing of a
// sandbox is in this process's memory: after a restart the driver finds everything by its name on disk, and a keeper does not
// notice that its lifecycle service is gone.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	"github.com/sandtrail/sandtrail/libs/turns"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/pool"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/prepare"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// DefaultCgroup holds the groups of a host's sandboxes.
const DefaultCgroup = "sandtrail"

// Options of a Driver. StateDir, Runsc, Toolbox, Images and Workspaces are required. Without root Images must have been unpacked for
// base 0 and Workspaces must be directories.
type Options struct {
	StateDir string
	// Runsc and Toolbox come from package prepare.
	Runsc, Toolbox string
	Images         *image.Store
	Workspaces     *workspace.Store
	// UID and GID that programs run as inside, and where guest ids start on this host. Without root UID and GID are this process's
	// own user and group outside, and there are no others.
	UID, GID, HostIDBase uint32
	// OverlayBytes a sandbox may write outside of its workspace; default 2 GiB.
	OverlayBytes uint64
	OpenFiles    uint64 // default 4096
	MaxExecs     uint32 // at once in one sandbox; default 32
	OutputCap    uint64 // bytes kept of each output stream of an exec; default 16 MiB
	SpoolBytes   uint64 // default 4 MiB
	// StartTimeout bounds the start of a sandbox once its image is there; default 45 s.
	StartTimeout time.Duration
	// ShutdownTimeout bounds the wait for a keeper to end its sandbox before it is ended by force; default 20 s, which is above
	// what a keeper takes to kill and unmount everything.
	ShutdownTimeout time.Duration
	// StopTimeout bounds the wait for a keeper to end its sandbox and keep its root, which may be as large as OverlayBytes; default 2 min.
	// Over it the keeper goes on, and the next call finds what it left.
	StopTimeout time.Duration
	// Cgroup is the group, below the one of this process, that holds the sandboxes' groups; by default DefaultCgroup.
	Cgroup string
	// Control is launch.Spec.Control: how programs are run.
	Control string
	// Warm is how many sandboxes are kept ready; whoever opens the driver runs Pool.
	Warm     pool.Policy
	Progress prepare.Progress
	Log      *slog.Logger
}

// Defaults for a spec that leaves a limit at zero.
const (
	DefaultCPUMillis   = 1000
	DefaultMemoryBytes = 512 << 20
	DefaultPIDs        = 256
	DefaultMountPath   = "/workspace"
	DefaultUID         = 1000
	// DefaultHostIDBase is where guest ids start on the host under root.
	DefaultHostIDBase = 100000
)

const (
	helloTimeout = 3 * time.Second
	listParallel = 8
)

// Driver implements runtime.Driver.
type Driver struct {
	o Options
	// rootless: this process is not root. Sandboxes live in user namespaces of its own, mostly without a cgroup.
	rootless bool
	pool     *pool.Pool
	// turns share the host's CPUs among tenants while sandboxes start.
	turns *turns.Turns
	mu    sync.Mutex
	locks map[string]*idLock
}

var _ runtime.Driver = (*Driver)(nil)

// New makes the directory of the sandboxes. It starts and removes nothing.
func New(o Options) (*Driver, error) {
	dir, err := filepath.Abs(o.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open the gVisor driver: %w", err)
	}
	o.StateDir = dir
	o.OverlayBytes = or(o.OverlayBytes, 2<<30)
	o.OpenFiles = or(o.OpenFiles, 4096)
	o.MaxExecs = or(o.MaxExecs, 32)
	o.OutputCap = or(o.OutputCap, 16<<20)
	o.SpoolBytes = or(o.SpoolBytes, 4<<20)
	o.StartTimeout = or(o.StartTimeout, 45*time.Second)
	o.ShutdownTimeout = or(o.ShutdownTimeout, 20*time.Second)
	o.StopTimeout = or(o.StopTimeout, 2*time.Minute)
	o.UID, o.GID = or(o.UID, DefaultUID), or(o.GID, DefaultUID)
	o.Cgroup = or(o.Cgroup, DefaultCgroup)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for _, sub := range []string{"sandboxes", "locks", keptDir} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("open the gVisor driver: %w", err)
		}
	}
	d := &Driver{o: o, rootless: os.Geteuid() != 0, locks: map[string]*idLock{}}
	// A start keeps a CPU busy: one more than there are, so that what waits for a disk does not leave one idle.
	starts := goruntime.NumCPU() + 1
	d.turns = turns.New(starts, starts, 0)
	d.pool = pool.New(o.Warm, d, o.Log, time.Now)
	return d, nil
}

func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func (d *Driver) dir(id string) string { return filepath.Join(d.o.StateDir, "sandboxes", id) }

// runtimeID has the same length for every sandbox, because runsc takes a prefix of an id for the id.
func runtimeID(id string) string { return "st" + strings.ReplaceAll(id, "-", "") }

func (d *Driver) cgroupName(id string) string { return d.o.Cgroup + "/" + runtimeID(id) }

// place is where a sandbox lies and what marks what it has on this host: its processes, its cgroup and its name for runsc.
type place struct {
	dir string
	// mark is an id: the sandbox's, or that of the warm one that it was.
	mark string
	// paths are those that its workspace may have.
	paths []string
	// id is that of the sandbox which a warm one has become whole; empty otherwise.
	id string
}

// at is the place of a sandbox. What it was before stands in its record, which is written before anything else of it is made.
func (d *Driver) at(id string) place {
	rec, _ := readRecord(d.dir(id))
	p := place{dir: d.dir(id), mark: or(rec.Warm, id), paths: []string{d.o.Workspaces.Path(id)}}
	if rec.Warm != "" {
		p.paths = append(p.paths, d.o.Workspaces.WarmPath(rec.Warm))
		if rec.Bound {
			p.id = id
		}
	}
	return p
}

func (d *Driver) client(id string) *client.Client {
	return client.New(client.KeeperDialer(d.o.StateDir, id), "")
}

func checkID(id string) error {
	if !ids.Valid(id) {
		return fault.New(fault.InvalidArgument, fault.ReasonValidation, "a sandbox id is a UUID in lower case")
	}
	return nil
}

// DeleteWorkspace removes a workspace whose sandbox is gone.
func (d *Driver) DeleteWorkspace(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	unlock, err := d.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	for _, of := range []string{d.dir(id), d.kept(id)} {
		if _, err := os.Lstat(of); err == nil {
			return fault.New(fault.Conflict, fault.ReasonIllegalState, "the sandbox of this workspace still exists: destroy it first")
		}
	}
	return d.o.Workspaces.Delete(id)
}

// Workspaces gives the ids of all workspaces.
func (d *Driver) Workspaces(context.Context) ([]string, error) { return d.o.Workspaces.List() }

// Inspect asks the keeper. A keeper that lives but does not answer is an error, since nothing is known then.
func (d *Driver) Inspect(ctx context.Context, id string) (runtime.Status, error) {
	if err := checkID(id); err != nil {
		return runtime.Status{}, err
	}
	st := runtime.Status{ID: id}
	if _, err := os.Lstat(d.dir(id)); errors.Is(err, fs.ErrNotExist) {
		return d.stoppedStatus(id), nil
	}
	st.Exists = true
	rec, _ := readRecord(d.dir(id))
	st.Tenant = rec.Tenant
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	hello, err := d.client(id).Hello(ctx, &toolboxv1.Hello{})
	if err == nil {
		st.Alive = hello.GetAlive()
		if !st.Alive {
			st.Reason, st.Message = string(fault.ReasonSandboxLost), ended(hello.GetReason())
		}
		if st.Alive && hello.GetReason() == launch.WorkspaceFailed {
			// Its programs would fail at each write, or wait for ever, and read what is not what they wrote.
			st.Alive, st.Reason = false, string(fault.ReasonDiskFull)
			st.Message = "its workspace failed because the worker's disk was full or failing: what was written last is lost"
		}
		return st, nil
	}
	if len(keepers(d.at(id).mark)) > 0 {
		return st, fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox's toolbox does not answer").WithRetry(time.Second).Because(err)
	}
	st.Reason, st.Message = string(fault.ReasonSandboxLost), "the sandbox is gone: its host restarted or its keeper was killed"
	return st, nil
}

// ended says in words how a sentry ended; what a keeper says is its own text, not the guest's.
func ended(reason string) string {
	if reason == "" {
		return "the sandbox ended"
	}
	return "the sandbox ended: " + reason
}

// List inspects every sandbox that has a directory. One that does not answer counts as existing and not alive, without reason.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	entries, err := os.ReadDir(filepath.Join(d.o.StateDir, "sandboxes"))
	if err != nil {
		return nil, runtimeFault("the worker cannot list its sandboxes", err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !ids.Valid(e.Name()) })
	all := make([]runtime.Status, len(entries))
	var g errgroup.Group
	g.SetLimit(listParallel)
	for i, e := range entries {
		g.Go(func() error {
			st, err := d.Inspect(ctx, e.Name())
			if err != nil {
				d.o.Log.Warn("a sandbox does not answer", "sandbox", e.Name(), "error", err)
			}
			all[i] = st
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	stopped, err := d.keptOnly()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Concat(all, stopped), func(st runtime.Status) bool { return !st.Exists }), nil
}

// Dial connects to the keeper's socket.
func (d *Driver) Dial(ctx context.Context, id string) (net.Conn, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	conn, err := client.KeeperDialer(d.o.StateDir, id)(ctx)
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "there is no such sandbox on this worker").Because(err)
	}
	return nil, fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox's toolbox does not answer").WithRetry(time.Second).Because(err)
}

// Stats reads the counters of a running sandbox.
func (d *Driver) Stats(ctx context.Context, id string) (runtime.Usage, error) {
	if err := checkID(id); err != nil {
		return runtime.Usage{}, err
	}
	if _, err := os.Lstat(d.dir(id)); err != nil {
		return runtime.Usage{}, fault.New(fault.NotFound, fault.ReasonSandboxNotFound, "there is no such sandbox on this worker")
	}
	u, err := d.client(id).Usage(ctx, &toolboxv1.Usage{})
	if err != nil {
		return runtime.Usage{}, fault.New(fault.Unavailable, fault.ReasonToolboxUnavailable, "the sandbox's toolbox does not answer").WithRetry(time.Second).Because(err)
	}
	m := u.GetUsage()
	return runtime.Usage{
		CPUMillis: m.GetCpuMs(), MemoryBytes: u.GetMemoryBytes(), MemoryPeakBytes: m.GetMemoryPeakBytes(), MemoryAvgBytes: m.GetMemoryAvgBytes(),
		DiskReadBytes: m.GetDiskReadBytes(), DiskWriteBytes: m.GetDiskWriteBytes(),
		Uptime: time.Duration(u.GetUptimeMs()) * time.Millisecond, Method: u.GetMethod(),
	}, nil
}

func phases(r launch.Result) []runtime.Phase {
	all := make([]runtime.Phase, 0, len(r.Phases))
	for _, p := range r.Phases {
		all = append(all, runtime.Phase{Name: p.Name, Took: time.Duration(p.Took) * time.Microsecond})
	}
	return all
}

func runtimeFault(message string, err error) *fault.Error {
	return fault.New(fault.Internal, fault.ReasonRuntimeFailed, message).Because(err)
}
