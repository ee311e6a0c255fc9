package keeper

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/task"
	"github.com/sandtrail/sandtrail/toolbox/wire"
)

// hold goes on by a descriptor of the sandbox's directory, which may be renamed from then on.
func (b *sandbox) hold() error {
	f, err := os.Open(b.dir)
	if err != nil {
		return fmt.Errorf("hold the sandbox's directory: %w", err)
	}
	b.held, b.dir = f, fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	return nil
}

// awaits: the sandbox is nobody's yet. The caller holds mu.
func (k *Keeper) awaits() bool { return k.spec.Warm && k.claimed == nil }

// since is when the sandbox began for whom it belongs to.
func (k *Keeper) since() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.started
}

// Configure implements server.Handler. A keeper that was started for somebody was told everything then.
func (k *Keeper) Configure(ctx context.Context, r *toolboxv1.Configure) (*toolboxv1.ConfigureReply, error) {
	if !k.spec.Warm {
		return nil, wire.NewError("failed_precondition", "illegal_state", "the sandbox is configured by its start")
	}
	if err := checkConfigure(r); err != nil {
		return nil, err
	}
	select {
	case <-k.box.up:
	case <-ctx.Done():
		return nil, wire.NewError("unavailable", "toolbox_unavailable", "the sandbox is still starting")
	}
	k.configuring.Lock()
	defer k.configuring.Unlock()
	k.mu.Lock()
	had, lost := k.claimed, k.lostLocked()
	k.mu.Unlock()
	switch {
	case lost != "":
		return nil, wire.NewError("failed_precondition", lost, "the sandbox has ended")
	case had != nil && (had.SandboxId != r.SandboxId || had.Hostname != r.Hostname || !maps.Equal(had.Env, r.Env)):
		return nil, wire.NewError("failed_precondition", "illegal_state", "the sandbox is somebody else's, or was configured in another way")
	case had != nil:
		return &toolboxv1.ConfigureReply{}, nil
	}
	name := r.Hostname
	if name == "" {
		name = k.spec.Hostname
	}
	if err := k.box.link.name(name); err != nil {
		return nil, fmt.Errorf("name the sandbox: %w", err)
	}
	k.meter.rebase()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claimed = proto.CloneOf(r)
	k.spec.SandboxID, k.spec.Env, k.started = r.SandboxId, k.claimed.Env, time.Now()
	return &toolboxv1.ConfigureReply{}, nil
}

// maxName is what a name inside may have at most, as a label of DNS.
const maxName = 63

func checkConfigure(r *toolboxv1.Configure) error {
	if !task.ValidID(r.GetSandboxId()) {
		return invalid("sandbox_id must be 1 to 64 letters, digits, - or _")
	}
	if len(r.GetHostname()) > maxName || strings.Trim(r.GetHostname(), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return invalid("hostname must be at most 63 of a-z, 0-9 and -")
	}
	return task.CheckEnvironment(r.GetEnv())
}
