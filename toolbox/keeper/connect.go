package keeper

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/connect"
	"github.com/sandtrail/sandtrail/toolbox/sentry"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// portsIdle is how long the helper for ports stays without a connection: it takes some memory of the sandbox, and some time to start.
const portsIdle = time.Minute

// ports is the way to the ports of the sandbox, or from its way out: its loopback address is only in its own kernel. Each has a helper of its own, so
// that many connections one way are not in the way of the other. The helper is no exec. Nothing of what it
// carries is kept, and it has the user, the limits and the end of every program.
type ports struct {
	mu   sync.Mutex
	hub  *connect.Hub
	idle *time.Timer
}

// Connect implements server.Handler.
func (k *Keeper) Connect(ctx context.Context, r *toolboxv1.Connect) (io.ReadWriteCloser, error) {
	set, reach := &k.ports, func(ctx context.Context, h *connect.Hub) (*connect.Conn, error) { return h.Open(ctx, r.GetPort()) }
	if r.GetOutgoing() {
		set, reach = &k.ways, func(ctx context.Context, h *connect.Hub) (*connect.Conn, error) { return h.Accept(ctx) }
	} else if err := connect.Check(r.GetPort()); err != nil {
		return nil, err
	}
	select {
	case <-k.box.up:
	case <-ctx.Done():
		return nil, wire.NewError("unavailable", "toolbox_unavailable", "the sandbox is still starting")
	}
	// A helper may end just when it is asked: the second one is new.
	for try := 0; ; try++ {
		hub, err := k.helper(set)
		if err != nil {
			return nil, err
		}
		conn, err := reach(ctx, hub)
		switch {
		case err == nil:
			return conn, nil
		case !errors.Is(err, connect.ErrGone):
			return nil, err
		case try > 0:
			return nil, wire.NewError("unavailable", "toolbox_unavailable", "the sandbox does not keep the helper that reaches its ports")
		}
	}
}

// helper is the one that runs, or a new one.
func (k *Keeper) helper(set *ports) (*connect.Hub, error) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if hub := set.hub; hub != nil {
		select {
		case <-hub.Gone():
		default:
			set.idle.Reset(portsIdle)
			return hub, nil
		}
	}
	k.mu.Lock()
	awaits, lost := k.awaits(), k.lostLocked()
	k.tags++
	tag := firstTag + k.tags
	env := task.Environment(k.spec.MountPath, k.spec.ImageEnv)
	k.mu.Unlock()
	switch {
	case awaits:
		return nil, wire.NewError("failed_precondition", "illegal_state", "the sandbox is nobody's yet")
	case lost != "":
		return nil, wire.NewError("failed_precondition", lost, "the sandbox has ended")
	}
	hub, err := k.startHelper(set, tag, env)
	if err != nil {
		if why, ok := refused(err); ok && why == sentry.NoProcesses {
			return nil, wire.NewError("resource_exhausted", "too_many_execs", "the sandbox is at its limit of processes")
		}
		k.log.Info("the helper for ports was not started", "cause", describe(err))
		return nil, wire.NewError("unavailable", "toolbox_unavailable", "the sandbox did not start the helper that reaches its ports")
	}
	set.hub = hub
	if set.idle != nil {
		set.idle.Stop()
	}
	set.idle = time.AfterFunc(portsIdle, func() { k.rest(set, hub) })
	return hub, nil
}

// rest ends a helper that is not needed.
func (k *Keeper) rest(set *ports, hub *connect.Hub) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.hub == hub && hub.Idle() {
		set.hub = nil
		hub.Close()
	}
}

func (k *Keeper) startHelper(set *ports, tag uint32, env []string) (*connect.Hub, error) {
	stdin, to, err := task.Pipe(1)
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	from, stdout, err := task.Pipe(0)
	if err != nil {
		to.Close()
		return nil, err
	}
	defer stdout.Close()
	// What a helper says of its own death is for nobody.
	said, stderr, err := task.Pipe(0)
	if err != nil {
		to.Close()
		from.Close()
		return nil, err
	}
	defer stderr.Close()
	pid, err := k.box.control.Execute(context.Background(), sentry.Program{
		Argv: []string{guestInit, connect.Argument}, Env: env, WorkingDir: "/", UID: k.spec.UID, GID: k.spec.GID, Groups: []uint32{tag},
		Stdio: [3]*os.File{stdin, stdout, stderr},
	})
	if err != nil {
		to.Close()
		from.Close()
		said.Close()
		return nil, err
	}
	hub := connect.NewHub(to, from, func() {
		set.mu.Lock()
		defer set.mu.Unlock()
		if set.idle != nil {
			set.idle.Reset(portsIdle)
		}
	})
	go func() {
		defer said.Close()
		_, _ = io.Copy(io.Discard, said)
	}()
	go func() {
		_, _ = k.box.control.Wait(context.Background(), pid) // however it ended, or the sandbox
		hub.Close()
	}()
	return hub, nil
}
