package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/ends"
	"github.com/sandtrail/sandtrail/toolbox/launch"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// maxEnds are ended execs held in memory with their output. Of older ones only the end is kept, up to ends.Most of them; an id
// older than that counts as new.
const maxEnds = 128

func invalid(message string) error { return wire.NewError("invalid_argument", "validation", message) }

// Hello implements server.Handler.
func (k *Keeper) Hello(context.Context, *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	damaged := k.box.damaged()
	k.mu.Lock()
	defer k.mu.Unlock()
	lost := k.lostLocked()
	reason := lost
	if lost == "" && damaged {
		reason = launch.WorkspaceFailed
	}
	return &toolboxv1.HelloReply{
		SandboxId: k.spec.SandboxID, Version: k.version, Alive: lost == "", Reason: reason,
		StartedAt: timestamppb.New(k.started), Running: uint32(k.running), AwaitsConfigure: k.awaits(), Instance: k.instance,
	}, nil
}

// Start implements server.Handler.
func (k *Keeper) Start(ctx context.Context, r *toolboxv1.Start) (*toolboxv1.StartReply, error) {
	if !task.ValidID(r.ExecId) {
		return nil, invalid("exec_id must be 1 to 64 letters, digits, - or _")
	}
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return nil, invalid("argv must name a program")
	}
	if err := task.CheckTerminal(r.Terminal); err != nil {
		return nil, err
	}
	if err := task.CheckInstance(r, k.instance); err != nil {
		return nil, err
	}
	// What init takes to come up is not the first program's to pay, and init must be there to end its tree.
	select {
	case <-k.box.up:
	case <-ctx.Done():
		return nil, wire.NewError("unavailable", "toolbox_unavailable", "the sandbox is still starting")
	}
	p, started, err := k.admit(r)
	if err != nil {
		return nil, err
	}
	if p == nil {
		end, err := k.recorded(r.ExecId)
		if err != nil {
			return nil, err
		}
		return &toolboxv1.StartReply{State: task.EndedState(r.ExecId, end)}, nil
	}
	if started {
		k.launch(p, r)
	} else {
		<-p.launched
	}
	return &toolboxv1.StartReply{Started: started, State: p.state()}, nil
}

// admit takes a place for a new exec, or finds the one that has the id. Neither: only its end is remembered.
func (k *Keeper) admit(r *toolboxv1.Start) (p *program, started bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.execs[r.ExecId]; p != nil {
		return p, false, nil
	}
	dir := k.execDir(r.ExecId)
	if k.remembered.Has(r.ExecId) {
		return nil, false, nil
	}
	if k.awaits() {
		return nil, false, wire.NewError("failed_precondition", "illegal_state", "the sandbox is nobody's yet")
	}
	if lost := k.lostLocked(); lost != "" {
		return nil, false, wire.NewError("failed_precondition", lost, "the sandbox has ended")
	}
	if k.running >= int(k.spec.MaxExecs) && k.spec.MaxExecs > 0 {
		return nil, false, wire.NewError("resource_exhausted", "too_many_execs",
			fmt.Sprintf("%d commands run in this sandbox already", k.running))
	}
	limit := k.spec.OutputCap
	if r.OutputCap > 0 && (limit == 0 || r.OutputCap < limit) {
		limit = r.OutputCap
	}
	k.tags++
	p = &program{
		id: r.ExecId, tag: firstTag + k.tags, dir: dir, started: time.Now(),
		spool: spool.New(spool.Options{Dir: dir, Cap: limit, Hold: k.spec.SpoolBytes}), outputCap: cmp.Or(limit, spool.DefaultCap),
		timeout: time.Duration(min(r.TimeoutMs, task.MaxTimeout)) * time.Millisecond,
		account: k.meter.begin(firstTag + k.tags), sights: k.begunSights(), launched: make(chan struct{}), done: make(chan struct{}),
	}
	if p.readers, err = task.NewReaders(p.spool, p.done, func() *toolboxv1.End { return p.end }); err != nil {
		return nil, false, err
	}
	k.execs[p.id] = p
	if k.running++; k.running == 1 {
		select {
		case k.stir <- struct{}{}:
		default:
		}
	}
	return p, true, nil
}

func (p *program) state() *toolboxv1.ExecState {
	select {
	case <-p.done:
		return task.State(p.id, p.started, p.spool, p.end)
	default:
		return task.State(p.id, p.started, p.spool, nil)
	}
}

// find is the exec in memory; where only its end is left, the end.
func (k *Keeper) find(id string) (*program, *toolboxv1.End, error) {
	k.mu.Lock()
	p := k.execs[id]
	k.mu.Unlock()
	if p != nil {
		<-p.launched
		return p, nil, nil
	}
	if !task.ValidID(id) {
		return nil, nil, invalid("exec_id is not valid")
	}
	end, err := k.recorded(id)
	return nil, end, err
}

// Attach implements server.Handler.
func (k *Keeper) Attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	p, end, err := k.find(r.ExecId)
	if err != nil {
		return err
	}
	if p == nil {
		return task.SendEnd(end, r, send)
	}
	return p.readers.Attach(ctx, r, send)
}

// Stdin implements server.Handler.
func (k *Keeper) Stdin(_ context.Context, r *toolboxv1.Stdin) (*toolboxv1.StdinReply, error) {
	p, _, err := k.find(r.ExecId)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return (*task.Input)(nil).Take(r)
	}
	return p.in.Take(r)
}

// Resize implements server.Handler.
func (k *Keeper) Resize(_ context.Context, r *toolboxv1.Resize) (*toolboxv1.ResizeReply, error) {
	p, _, err := k.find(r.ExecId)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return (*task.Terminal)(nil).Resize(r)
	}
	return p.terminal.Resize(r)
}

// Signal implements server.Handler. With tree set it answers at once; the end of the exec comes when none of it is left.
func (k *Keeper) Signal(ctx context.Context, r *toolboxv1.Signal) (*toolboxv1.SignalReply, error) {
	p, _, err := k.find(r.ExecId)
	if err != nil {
		return nil, err
	}
	if p == nil || p.pid == 0 {
		return &toolboxv1.SignalReply{}, nil
	}
	if r.Tree {
		reason := reasonCancelled
		if r.Reason == reasonTimedOut {
			reason = reasonTimedOut
		}
		go k.endTree(p, reason, task.Grace(r.GraceMs))
		return &toolboxv1.SignalReply{}, nil
	}
	if r.Signal < 1 || r.Signal > 64 {
		return nil, invalid("signal must be 1 to 64")
	}
	select {
	case <-p.done:
		return &toolboxv1.SignalReply{}, nil
	default:
	}
	if err := k.box.control.Signal(ctx, p.pid, syscall.Signal(r.Signal)); err != nil {
		k.log.Info("signal not delivered", "exec", p.id, "cause", describe(err))
	}
	return &toolboxv1.SignalReply{}, nil
}

// List implements server.Handler: the execs in memory, which are all that run and the last that ended.
func (k *Keeper) List(context.Context, *toolboxv1.List) (*toolboxv1.ListReply, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	reply := &toolboxv1.ListReply{Instance: k.instance}
	for _, p := range k.execs {
		reply.Execs = append(reply.Execs, p.state())
	}
	return reply, nil
}

// Forget implements server.Handler.
func (k *Keeper) Forget(_ context.Context, r *toolboxv1.Forget) (*toolboxv1.ForgetReply, error) {
	p, _, err := k.find(r.ExecId)
	if err != nil || p == nil {
		return &toolboxv1.ForgetReply{}, err
	}
	select {
	case <-p.done:
	default:
		return nil, wire.NewError("failed_precondition", "illegal_state", "the command still runs")
	}
	k.drop(p)
	return &toolboxv1.ForgetReply{}, nil
}

// Usage implements server.Handler.
func (k *Keeper) Usage(context.Context, *toolboxv1.Usage) (*toolboxv1.UsageReply, error) {
	usage, stats := k.meter.usage()
	return &toolboxv1.UsageReply{
		Usage: usage, UptimeMs: uint64(time.Since(k.since()).Milliseconds()),
		MemoryBytes: stats.MemoryBytes, OomKills: stats.OOMKills, Method: k.meter.alone(),
	}, nil
}

// ReadFile implements server.Handler.
func (k *Keeper) ReadFile(_ context.Context, r *toolboxv1.ReadFile) (*toolboxv1.ReadFileReply, error) {
	return k.files.Read(r)
}

// WriteFile implements server.Handler.
func (k *Keeper) WriteFile(_ context.Context, r *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error) {
	if k.warden != nil {
		if err := k.warden.admit(len(r.Data)); err != nil {
			return nil, err
		}
	}
	return k.write(r)
}

// ListFiles implements server.Handler.
func (k *Keeper) ListFiles(_ context.Context, r *toolboxv1.ListFiles) (*toolboxv1.ListFilesReply, error) {
	return k.files.List(r)
}

// StatFile implements server.Handler.
func (k *Keeper) StatFile(_ context.Context, r *toolboxv1.StatFile) (*toolboxv1.StatFileReply, error) {
	return k.files.Stat(r)
}

// DeleteFile implements server.Handler.
func (k *Keeper) DeleteFile(_ context.Context, r *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error) {
	return k.remove(r)
}

// MakeEntry implements server.Handler.
func (k *Keeper) MakeEntry(_ context.Context, r *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error) {
	if k.warden != nil {
		if err := k.warden.admit(0); err != nil {
			return nil, err
		}
	}
	return k.make(r)
}

// recorded reads the end of an exec that is no longer in memory.
func (k *Keeper) recorded(id string) (*toolboxv1.End, error) {
	end, err := k.remembered.Get(id)
	if errors.Is(err, ends.ErrUnknown) {
		return nil, wire.NewError("not_found", "exec_not_found", "no such command in this sandbox")
	}
	if err != nil {
		return nil, fmt.Errorf("read end: %w", err)
	}
	return end, nil
}
