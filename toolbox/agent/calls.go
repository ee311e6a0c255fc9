package agent

import (
	"cmp"
	"context"
	"fmt"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/spool"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

func invalid(message string) error { return wire.NewError("invalid_argument", "validation", message) }

// Hello implements server.Handler.
func (a *Agent) Hello(context.Context, *toolboxv1.Hello) (*toolboxv1.HelloReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &toolboxv1.HelloReply{
		SandboxId: a.configured.GetSandboxId(), Version: a.version, Alive: !a.shutting, StartedAt: timestamppb.New(a.started),
		Running: uint32(a.running), AwaitsConfigure: a.configured == nil, Instance: a.instance, //nolint:gosec // at most MaxExecs
	}
	if a.shutting {
		r.Reason = task.Destroyed
	}
	return r, nil
}

// Start implements server.Handler.
func (a *Agent) Start(_ context.Context, r *toolboxv1.Start) (*toolboxv1.StartReply, error) {
	if !task.ValidID(r.ExecId) {
		return nil, invalid("exec_id must be 1 to 64 letters, digits, - or _")
	}
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return nil, invalid("argv must name a program")
	}
	if err := task.CheckTerminal(r.Terminal); err != nil {
		return nil, err
	}
	if err := task.CheckInstance(r, a.instance); err != nil {
		return nil, err
	}
	p, env, started, err := a.admit(r)
	if err != nil {
		return nil, err
	}
	if p == nil {
		_, end, err := a.find(r.ExecId)
		if err != nil {
			return nil, err
		}
		return &toolboxv1.StartReply{State: task.EndedState(r.ExecId, end)}, nil
	}
	if started {
		a.launch(p, r, env)
	} else {
		<-p.launched
	}
	return &toolboxv1.StartReply{Started: started, State: p.state()}, nil
}

// admit takes a place for a new exec, or finds the one that has the id. Neither: only its end is remembered.
func (a *Agent) admit(r *toolboxv1.Start) (p *program, env map[string]string, started bool, err error) {
	limit := a.o.OutputCap
	if r.OutputCap > 0 {
		limit = min(limit, r.OutputCap)
	}
	a.makeRoom(limit)
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.execs[r.ExecId]; p != nil {
		return p, nil, false, nil
	}
	switch {
	case a.remembered.has(r.ExecId):
		return nil, nil, false, nil
	case a.shutting:
		return nil, nil, false, wire.NewError("failed_precondition", task.Destroyed, "the sandbox has ended")
	case a.configured == nil:
		return nil, nil, false, wire.NewError("unavailable", "toolbox_unavailable", "the sandbox is not configured yet")
	case a.running >= a.o.MaxExecs:
		return nil, nil, false, wire.NewError("resource_exhausted", "too_many_execs",
			fmt.Sprintf("%d commands run in this sandbox already", a.running))
	}
	p = &program{
		id: r.ExecId, began: time.Now(), spool: spool.New(spool.Options{Files: a.store, Cap: limit, Hold: a.o.HoldBytes}),
		outputCap: cmp.Or(limit, spool.DefaultCap), timeout: time.Duration(min(r.TimeoutMs, task.MaxTimeout)) * time.Millisecond, //nolint:gosec // bounded
		ooms: a.meter.oomKills(), launched: make(chan struct{}), done: make(chan struct{}),
	}
	if p.readers, err = task.NewReaders(p.spool, p.done, func() *toolboxv1.End { return p.end }); err != nil {
		return nil, nil, false, err
	}
	a.execs[p.id] = p
	a.running++
	return p, a.configured.GetEnv(), true, nil
}

// makeRoom drops the oldest ended outputs while there is no room for a new one.
func (a *Agent) makeRoom(limit uint64) {
	for a.store.full(2 * limit) {
		a.mu.Lock()
		var old *program
		if len(a.ends) > 0 {
			old = a.ends[0]
		}
		a.mu.Unlock()
		if old == nil {
			return
		}
		a.drop(old)
	}
}

// find is the exec in memory; where only its end is left, the end.
func (a *Agent) find(id string) (*program, *toolboxv1.End, error) {
	a.mu.Lock()
	p := a.execs[id]
	if p == nil {
		defer a.mu.Unlock()
		end, err := a.remembered.get(id)
		return nil, end, err
	}
	a.mu.Unlock()
	<-p.launched
	return p, nil, nil
}

// ended frees the exec's place. The oldest ends in memory give way.
func (a *Agent) ended(p *program) {
	a.mu.Lock()
	a.running--
	if a.shutting && a.running == 0 {
		close(a.idle)
	}
	a.ends = append(a.ends, p)
	var old *program
	if len(a.ends) > maxEnds {
		old = a.ends[0]
	}
	a.mu.Unlock()
	if old != nil {
		a.drop(old)
	}
}

// drop removes an ended exec's output. Its end is remembered in the same moment: an id is never unknown in between.
func (a *Agent) drop(p *program) {
	a.mu.Lock()
	if a.execs[p.id] == p {
		delete(a.execs, p.id)
		if err := a.remembered.put(p.id, p.end); err != nil {
			a.log.Error("end not remembered", "exec", p.id, "error", err)
		}
	}
	for i, e := range a.ends {
		if e == p {
			a.ends = append(a.ends[:i], a.ends[i+1:]...)
			break
		}
	}
	a.mu.Unlock()
	if err := p.spool.Remove(); err != nil {
		a.log.Error("output not removed", "exec", p.id, "error", err)
	}
}

// Attach implements server.Handler.
func (a *Agent) Attach(ctx context.Context, r *toolboxv1.Attach, send func(*toolboxv1.AttachEvent) error) error {
	p, end, err := a.find(r.ExecId)
	if err != nil {
		return err
	}
	if p == nil {
		return task.SendEnd(end, r, send)
	}
	return p.readers.Attach(ctx, r, send)
}

// Stdin implements server.Handler.
func (a *Agent) Stdin(_ context.Context, r *toolboxv1.Stdin) (*toolboxv1.StdinReply, error) {
	p, _, err := a.find(r.ExecId)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return (*task.Input)(nil).Take(r)
	}
	return p.in.Take(r)
}

// Resize implements server.Handler.
func (a *Agent) Resize(_ context.Context, r *toolboxv1.Resize) (*toolboxv1.ResizeReply, error) {
	p, _, err := a.find(r.ExecId)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return (*task.Terminal)(nil).Resize(r)
	}
	return p.terminal.Resize(r)
}

// Signal implements server.Handler. With tree set it answers at once; the end of the exec comes when none of it is left.
func (a *Agent) Signal(_ context.Context, r *toolboxv1.Signal) (*toolboxv1.SignalReply, error) {
	p, _, err := a.find(r.ExecId)
	if err != nil {
		return nil, err
	}
	if p == nil || p.pid == 0 {
		return &toolboxv1.SignalReply{}, nil
	}
	if r.Tree {
		reason := task.Cancelled
		if r.Reason == task.TimedOut {
			reason = task.TimedOut
		}
		go a.endTree(p, reason, task.Grace(r.GraceMs))
		return &toolboxv1.SignalReply{}, nil
	}
	if r.Signal < 1 || r.Signal > 64 {
		return nil, invalid("signal must be 1 to 64")
	}
	if err := a.children.signal(p.pid, syscall.Signal(r.Signal)); err != nil {
		a.log.Info("signal not delivered", "exec", p.id, "cause", err)
	}
	return &toolboxv1.SignalReply{}, nil
}

// List implements server.Handler: the execs in memory, which are all that run and the last that ended.
func (a *Agent) List(context.Context, *toolboxv1.List) (*toolboxv1.ListReply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	reply := &toolboxv1.ListReply{Instance: a.instance}
	for _, p := range a.execs {
		reply.Execs = append(reply.Execs, p.state())
	}
	return reply, nil
}

// Forget implements server.Handler.
func (a *Agent) Forget(_ context.Context, r *toolboxv1.Forget) (*toolboxv1.ForgetReply, error) {
	p, _, err := a.find(r.ExecId)
	if err != nil || p == nil {
		return &toolboxv1.ForgetReply{}, err
	}
	if p.running() {
		return nil, wire.NewError("failed_precondition", "illegal_state", "the command still runs")
	}
	a.drop(p)
	return &toolboxv1.ForgetReply{}, nil
}

// Usage implements server.Handler.
func (a *Agent) Usage(context.Context, *toolboxv1.Usage) (*toolboxv1.UsageReply, error) {
	usage, memory := a.meter.usage()
	return &toolboxv1.UsageReply{
		Usage: usage, UptimeMs: uint64(time.Since(a.started).Milliseconds()), //nolint:gosec // not negative
		MemoryBytes: memory, OomKills: a.meter.oomKills(), Method: method,
	}, nil
}

// slot waits for a place among the calls that may keep a thread busy.
func (a *Agent) slot(ctx context.Context) (leave func(), err error) {
	select {
	case a.slots <- struct{}{}:
		return func() { <-a.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ReadFile implements server.Handler.
func (a *Agent) ReadFile(ctx context.Context, r *toolboxv1.ReadFile) (*toolboxv1.ReadFileReply, error) {
	leave, err := a.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.files.Read(r)
}

// WriteFile implements server.Handler.
func (a *Agent) WriteFile(ctx context.Context, r *toolboxv1.WriteFile) (*toolboxv1.WriteFileReply, error) {
	leave, err := a.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.files.Write(r)
}

// ListFiles implements server.Handler.
func (a *Agent) ListFiles(ctx context.Context, r *toolboxv1.ListFiles) (*toolboxv1.ListFilesReply, error) {
	leave, err := a.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.files.List(r)
}

// StatFile implements server.Handler.
func (a *Agent) StatFile(ctx context.Context, r *toolboxv1.StatFile) (*toolboxv1.StatFileReply, error) {
	leave, err := a.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.files.Stat(r)
}

// DeleteFile implements server.Handler.
func (a *Agent) DeleteFile(ctx context.Context, r *toolboxv1.DeleteFile) (*toolboxv1.DeleteFileReply, error) {
	leave, err := a.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.files.Delete(r)
}

// MakeEntry implements server.Handler.
func (a *Agent) MakeEntry(ctx context.Context, r *toolboxv1.MakeEntry) (*toolboxv1.MakeEntryReply, error) {
	leave, err := a.slot(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.files.Make(r)
}
