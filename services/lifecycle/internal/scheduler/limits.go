package scheduler

import (
	"fmt"
	"path"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/fault"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

// Limits are what a sandbox gets where it asks for nothing, and the most it may ask for. A request over the most is refused,
// never cut down.
type Limits struct {
	Default, Max      *eventsv1.Limits
	WorkspaceBytes    uint64
	MaxWorkspaceBytes uint64
	MinWorkspaceBytes uint64
	MountPath         string
}

// apply gives the effective limits and workspace of a request.
func (l Limits) apply(c *commandsv1.CreateSandbox) (*eventsv1.Limits, *eventsv1.Workspace, error) {
	bad := map[string]string{}
	pick := func(field string, asked, usual, most uint64) uint64 {
		if asked == 0 {
			return usual
		}
		if most > 0 && asked > most {
			bad[field] = fmt.Sprintf("must be at most %d", most)
		}
		return asked
	}
	ask := c.GetLimits()
	limits := &eventsv1.Limits{
		CpuMillis:     uint32(pick("limits.cpu_millis", uint64(ask.GetCpuMillis()), uint64(l.Default.GetCpuMillis()), uint64(l.Max.GetCpuMillis()))), //nolint:gosec // all three are uint32
		MemoryBytes:   pick("limits.memory_bytes", ask.GetMemoryBytes(), l.Default.GetMemoryBytes(), l.Max.GetMemoryBytes()),
		MaxRuntimeMs:  pick("limits.max_runtime", ask.GetMaxRuntimeMs(), l.Default.GetMaxRuntimeMs(), l.Max.GetMaxRuntimeMs()),
		IdleTimeoutMs: ask.GetIdleTimeoutMs(),
		Pids:          uint32(pick("limits.pids", uint64(ask.GetPids()), uint64(l.Default.GetPids()), uint64(l.Max.GetPids()))), //nolint:gosec // all three are uint32
	}
	w := &eventsv1.Workspace{}
	if c.GetWorkspace() != nil {
		w = proto.CloneOf(c.GetWorkspace())
	}
	w.SizeBytes = pick("workspace.size", w.GetSizeBytes(), l.WorkspaceBytes, l.MaxWorkspaceBytes)
	if w.GetSizeBytes() < l.MinWorkspaceBytes {
		bad["workspace.size"] = fmt.Sprintf("must be at least %d bytes", l.MinWorkspaceBytes)
	}
	if w.GetMountPath() == "" {
		w.MountPath = l.MountPath
	}
	if p := w.GetMountPath(); !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsAny(p, "\x00\n") {
		bad["workspace.mount_path"] = "must be an absolute path below /"
	}
	if c.GetImage() == "" {
		bad["image"] = "must be set"
	}
	if len(bad) > 0 {
		return nil, nil, fault.New(fault.InvalidArgument, fault.ReasonValidation, "the sandbox cannot be made as described").WithFields(bad)
	}
	return limits, w, nil
}
