package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/runtime"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/image"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/pool"
	"github.com/sandtrail/sandtrail/services/lifecycle/internal/workspace"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// A warm sandbox w lies in STATE/sandboxes/.warm/<w>, which is made before and removed after everything else of it, as a sandbox's directory is.
// It becomes sandbox id by one rename to STATE/sandboxes/<id>: before it nobody has it, behind it nobody else can. What is left to do
// then is done again by whoever comes next: its workspace is renamed too, its keeper is told whose it is, and its record says that it
// is bound. On the host it keeps the mark of w, which stands in the record all along.
const warmDir = "sandboxes/.warm"

const (
	// takeTimeout bounds what a create spends on a warm sandbox that does not answer before it goes on without.
	takeTimeout = 2 * time.Second
	// bindTimeout bounds the rest of it for one that does: a host on which it takes longer would take far longer for a cold start.
	bindTimeout = 10 * time.Second
)

var _ pool.Source = (*Driver)(nil)

// Pool is what keeps sandboxes ready. It has to be run.
func (d *Driver) Pool() *pool.Pool { return d.pool }

func (d *Driver) warmAt(w string) place {
	return place{dir: filepath.Join(d.o.StateDir, warmDir, w), mark: w, paths: []string{d.o.Workspaces.WarmPath(w)}}
}

func (p place) client() *client.Client { return client.New(client.DirDialer(p.dir), "") }

// class covers all that a keeper is started with and that does not come with a sandbox, and the programs themselves.
func (d *Driver) class(spec runtime.Spec, img image.Image) (pool.Class, error) {
	spec = runtime.Spec{
		Image: spec.Image, MountPath: or(spec.MountPath, DefaultMountPath), WorkspaceBytes: or(spec.WorkspaceBytes, workspace.DefaultBytes),
		CPUMillis: or(spec.CPUMillis, DefaultCPUMillis), MemoryBytes: or(spec.MemoryBytes, DefaultMemoryBytes), PIDs: or(spec.PIDs, DefaultPIDs),
	}
	start := d.spec(place{}, spec, img, "")
	start.Hostname, start.RuntimeID = "", ""
	key := []any{img.Digest, start}
	for _, program := range []string{d.o.Runsc, d.o.Toolbox} {
		info, err := os.Stat(program)
		if err != nil {
			return pool.Class{}, runtimeFault("a program of the worker is missing", err)
		}
		key = append(key, info.Size(), info.ModTime().UnixNano())
	}
	text, err := json.Marshal(key)
	if err != nil {
		return pool.Class{}, runtimeFault("the sandbox could not be described", err)
	}
	sum := sha256.Sum256(text)
	return pool.Class{Key: hex.EncodeToString(sum[:]), Spec: spec}, nil
}

// Resolve implements pool.Source.
func (d *Driver) Resolve(ctx context.Context, spec runtime.Spec) (pool.Class, error) {
	img, err := d.o.Images.Ensure(ctx, spec.Image, d.o.Progress)
	if err != nil {
		return pool.Class{}, err
	}
	return d.class(spec, img)
}

// Make implements pool.Source.
func (d *Driver) Make(ctx context.Context, class pool.Class) (string, error) {
	img, err := d.o.Images.Ensure(ctx, class.Spec.Image, d.o.Progress)
	if err != nil {
		return "", err
	}
	if now, err := d.class(class.Spec, img); err != nil || now.Key != class.Key {
		return "", errors.Join(err, errors.New("the image or how sandboxes are started has changed"))
	}
	w := ids.New()
	unlock, err := d.lock(ctx, w)
	if err != nil {
		return "", err
	}
	defer unlock()
	p := d.warmAt(w)
	if err := os.MkdirAll(filepath.Dir(p.dir), 0o700); err != nil {
		return "", runtimeFault("the worker's state directory cannot be written", err)
	}
	if err := d.startWarm(ctx, p, class, img); err != nil {
		d.undo(ctx, p, w)
		return "", err
	}
	return w, nil
}

func (d *Driver) startWarm(ctx context.Context, p place, class pool.Class, img image.Image) error {
	spec := d.spec(p, class.Spec, img, p.paths[0])
	spec.Warm = true
	rec := record{ImageDigest: img.Digest, CreatedAt: time.Now().UTC(), Warm: p.mark, Class: &class}
	_, err := d.start(ctx, p, rec, spec, func() error {
		_, err := d.o.Workspaces.Reserve(ctx, p.mark, class.Spec.WorkspaceBytes)
		return err
	})
	return err
}

// Remove implements pool.Source.
func (d *Driver) Remove(ctx context.Context, w string) error {
	if err := checkID(w); err != nil {
		return err
	}
	unlock, err := d.lock(ctx, w)
	if err != nil {
		return err
	}
	defer unlock()
	p := d.warmAt(w)
	if _, err := os.Lstat(p.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return d.remove(ctx, p)
}

// Warm implements pool.Source.
func (d *Driver) Warm(ctx context.Context) ([]pool.Item, error) {
	entries, err := os.ReadDir(filepath.Join(d.o.StateDir, warmDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, runtimeFault("the worker cannot list its warm sandboxes", err)
	}
	var all []pool.Item
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if !ids.Valid(e.Name()) {
			continue
		}
		if item, ok := d.warmItem(ctx, e.Name()); ok {
			all = append(all, item)
		}
	}
	return all, nil
}

// warmItem looks at one under its lock: without it a create may be taking it, or another process is making it. False: that one is not
// known for anything yet.
func (d *Driver) warmItem(ctx context.Context, w string) (pool.Item, bool) {
	limited, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	unlock, locked := d.lock(limited, w)
	if locked == nil {
		defer unlock()
	}
	p := d.warmAt(w)
	item := pool.Item{ID: w}
	rec, err := readRecord(p.dir)
	known := err == nil && rec.Warm == w && rec.Class != nil
	if known {
		item.Class = *rec.Class
	}
	if locked != nil {
		return item, known
	}
	item.Ready = known && waiting(limited, p)
	item.Dead = !item.Ready
	return item, true
}

// waiting: its toolbox answers, and it is nobody's.
func waiting(ctx context.Context, p place) bool {
	hello, err := p.client().Hello(ctx, &toolboxv1.Hello{})
	return err == nil && hello.GetAlive() && hello.GetReason() == "" && hello.GetAwaitsConfigure()
}

// fromPool takes a warm sandbox for one that has nothing on this host yet. Where that fails nothing of it is left but, in the worst
// case, an empty workspace.
func (d *Driver) fromPool(ctx context.Context, spec runtime.Spec, img image.Image, imageTook time.Duration) (runtime.Created, bool) {
	// What is kept ready is for anybody, a tenant's snapshot is not.
	if d.o.Warm.Max == 0 || img.Owner != "" || d.o.Workspaces.Exists(spec.ID) {
		return runtime.Created{}, false
	}
	class, err := d.class(spec, img)
	if err != nil {
		return runtime.Created{}, false
	}
	var created runtime.Created
	begin := time.Now()
	ok := d.pool.Claim(class, func(w string) error {
		var err error
		created, err = d.take(ctx, spec, w, class)
		return err
	})
	created.Phases = []runtime.Phase{{Name: "image", Took: imageTook}, {Name: "warm", Took: time.Since(begin)}}
	return created, ok
}

// take makes the warm sandbox w the sandbox of spec, if its toolbox answers. The caller holds the lock of the sandbox.
func (d *Driver) take(ctx context.Context, spec runtime.Spec, w string, class pool.Class) (runtime.Created, error) {
	limited, cancel := context.WithTimeout(ctx, takeTimeout)
	defer cancel()
	unlock, err := d.lock(limited, w)
	if err != nil {
		return runtime.Created{}, err
	}
	defer unlock()
	p := d.warmAt(w)
	rec, err := readRecord(p.dir)
	if err != nil {
		return runtime.Created{}, err
	}
	if rec.Class == nil || rec.Class.Key != class.Key || !waiting(limited, p) || d.o.Workspaces.Exists(spec.ID) {
		return runtime.Created{}, fault.New(fault.FailedPrecondition, fault.ReasonIllegalState, "it does not answer, or is of another class")
	}
	if err := os.Rename(p.dir, d.dir(spec.ID)); err != nil {
		return runtime.Created{}, fmt.Errorf("take a warm sandbox: %w", err)
	}
	created, err := d.bind(ctx, spec, rec)
	if err != nil {
		d.undo(ctx, d.at(spec.ID), spec.ID)
	}
	return created, err
}

// bind finishes what the rename began. It may be repeated.
func (d *Driver) bind(ctx context.Context, spec runtime.Spec, rec record) (runtime.Created, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	if err := d.o.Workspaces.Adopt(rec.Warm, spec.ID); err != nil {
		return runtime.Created{}, err
	}
	if g, err := d.group(spec.ID); err == nil {
		rec.CPUBefore = g.Stats().CPU
	}
	_, err := d.client(spec.ID).Configure(ctx, &toolboxv1.Configure{
		SandboxId: spec.ID, Env: spec.Env, Hostname: or(spec.Hostname, "sandbox-"+ids.Short(spec.ID)),
	})
	if err != nil {
		return runtime.Created{}, fmt.Errorf("tell a warm sandbox whose it is: %w", err)
	}
	rec.Tenant, rec.CreatedAt, rec.Bound = spec.Tenant, time.Now().UTC(), true
	if err := writeRecord(d.dir(spec.ID), rec); err != nil {
		return runtime.Created{}, runtimeFault("the worker's state directory cannot be written", err)
	}
	return runtime.Created{RuntimeID: runtimeID(rec.Warm), ImageDigest: rec.ImageDigest, Warm: true}, nil
}
