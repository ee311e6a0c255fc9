package runtime

import (
	"context"
	"time"
)

// Snapshotter is a driver that makes images of what its sandboxes have in their roots.
type Snapshotter interface {
	// Snapshot makes an image of a sandbox that runs, which goes on meanwhile: what changes then may be in it or not. The workspace is not.
	// Repeated it is made anew. Create with its name as Spec.Image, for the same tenant, uses it.
	Snapshot(ctx context.Context, spec SnapshotSpec) (Snapshotted, error)
}

// SnapshotSpec says of which sandbox, and what the image is called.
type SnapshotSpec struct {
	ID, Tenant string
	// Image is the name; with a registry's host in it the image is pushed there too. BaseImage is what the sandbox's own is called.
	Image, BaseImage string
	// MountPath of the workspace.
	MountPath string
	// Sequence in the log that it is of, and the time of that.
	Sequence uint64
	At       time.Time
}

// Snapshotted is an image that was made. Bytes and Files count what the sandbox had changed.
type Snapshotted struct {
	Digest       string
	Bytes, Files uint64
	Pushed       bool
}
