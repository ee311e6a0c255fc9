// Package runtime is the contract between lifecycle and what runs sandboxes: gVisor on this host, or pods in Kubernetes.
package runtime

import (
	"context"
	"net"
	"time"
)

// Spec is all that a driver needs to make a sandbox. Names it gives to things are derived from ID, so that a retry finds its
// own half-made work.
type Spec struct {
	ID       string
	Tenant   string
	Image    string
	Hostname string
	// Env is given to every exec. It is held in memory and in files that only the toolbox's user can read.
	Env map[string]string
	// MountPath is where the workspace is inside, absolute.
	MountPath      string
	WorkspaceBytes uint64
	CPUMillis      uint32
	MemoryBytes    uint64
	PIDs           uint32
	// MaxRuntime is when the log ends the sandbox, counted from its request; 0 is never. A driver may end it by itself some time
	// later, should nobody have come.
	MaxRuntime time.Duration
	// Note is kept with the sandbox as long as there is anything of it, for Stopper.Note. It must hold nothing in clear that is secret.
	Note []byte
	// Resume: the sandbox was stopped. What Stop kept of it is put back; where that is gone, Create fails with sandbox_lost.
	Resume bool
}

// Phase is a part of a start and how long it took.
type Phase struct {
	Name string
	Took time.Duration
}

// Created is what a driver knows of a sandbox once it runs.
type Created struct {
	RuntimeID   string
	ImageDigest string
	Warm        bool
	Phases      []Phase
	// Endpoint is where its agent answers; nil where a keeper does, on its socket below the worker's state directory.
	Endpoint *Endpoint
}

// Endpoint is an agent's address, and what tells it from another one that has the address later.
type Endpoint struct {
	// Address is host:port.
	Address string
	// Runtime and UID are the name and the uid that the cluster gave it.
	Runtime string
	UID     string
	// KeySHA256 is the digest of the public key that the agent made at its start; empty: callers take any.
	KeySHA256 []byte
}

// Status of a sandbox as the driver observes it.
type Status struct {
	ID     string
	Tenant string
	// Alive: its toolbox answers and its sentry (or pod) lives.
	Alive bool
	// Exists: anything of it is left on this host or cluster, the workspace apart.
	Exists bool
	// Stopped: it was stopped, and what is left of it is what Stop keeps.
	Stopped bool
	// Reason says how it ended, as a fault.Reason; empty while it lives.
	Reason  string
	Message string
}

// Usage is cumulative since the start.
type Usage struct {
	CPUMillis       uint64
	MemoryBytes     uint64
	MemoryPeakBytes uint64
	MemoryAvgBytes  uint64
	DiskReadBytes   uint64
	DiskWriteBytes  uint64
	// Network bytes that came in and went out, where the sandbox has a network.
	NetworkIngressBytes uint64
	NetworkEgressBytes  uint64

	Uptime time.Duration
	Method string
}

// Driver makes, ends and observes sandboxes. Every method may be repeated: it finds what an earlier call left half done.
// Errors are fault errors whose reason says what a person can do.
type Driver interface {
	// Create makes the sandbox and returns when an exec in it would work.
	Create(ctx context.Context, spec Spec) (Created, error)
	// Destroy ends the sandbox and returns when nothing of it runs or is mounted any more. The workspace stays. An unknown id
	// is no error: then Usage is zero.
	Destroy(ctx context.Context, id string) (Usage, error)
	// DeleteWorkspace removes the workspace of a sandbox that no longer exists. An unknown id is no error; a sandbox that
	// still exists is refused with fault.Conflict.
	DeleteWorkspace(ctx context.Context, id string) error
	Inspect(ctx context.Context, id string) (Status, error)
	// List gives every sandbox of which anything is left on this worker.
	List(ctx context.Context) ([]Status, error)
	// Workspaces gives the ids of every workspace on this worker.
	Workspaces(ctx context.Context) ([]string, error)
	// Dial connects to the sandbox's toolbox, see proto toolbox/v1.
	Dial(ctx context.Context, id string) (net.Conn, error)
	Stats(ctx context.Context, id string) (Usage, error)
}
