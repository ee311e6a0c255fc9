package keeper

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/cgroup"
	"github.com/sandtrail/sandtrail/toolbox/task"
)

// The names of limits, as in common.v1.LimitHit.
const (
	limitMemory = "memory"
	limitPIDs   = "pids"
	limitCPU    = "cpu"
	limitDisk   = "disk"
	limitOutput = "output"
	limitTime   = task.TimeLimit

	sourceHost = "host"
	sourceSeen = "seen"
)

const (
	// countEvery samples the sentry is asked how many processes there are: it costs the sandbox CPU. countTimeout bounds that.
	countEvery   = 2
	countTimeout = 250 * time.Millisecond
	// heldShare of the periods, and at least heldPeriods, is what being held back must reach to be worth telling.
	heldShare   = 5
	heldPeriods = 2
)

// sights are the limits that were met while one exec ran, as far as looking finds them.
type sights struct {
	// kills, held and periods are the host's counters when it began.
	kills, held, periods uint64

	mu              sync.Mutex
	tasks           int
	workspace, root room
}

func (k *Keeper) begunSights() *sights {
	s := &sights{kills: k.meter.oomKills()}
	s.held, s.periods = k.box.group.Held()
	return s
}

// look notes the limits that are met now in every running exec. nth counts the looks.
func (k *Keeper) look(nth int) {
	workspace, root := k.workspaceRoom(), k.rootRoom()
	if workspace.full || workspace.files || root.full {
		k.eachRunning(func(s *sights) {
			s.workspace.note(workspace)
			s.root.note(root)
		})
	}
	if nth%countEvery != 0 || k.spec.PIDs == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	if tasks, err := k.box.control.Tasks(ctx); err == nil {
		k.counted(tasks[k.spec.UID])
	}
}

// counted takes a number of processes and threads that the sentry counted.
func (k *Keeper) counted(tasks int) {
	if k.spec.PIDs > 0 && tasks >= int(k.spec.PIDs) {
		k.eachRunning(func(s *sights) { s.tasks = max(s.tasks, tasks) })
	}
}

func (k *Keeper) eachRunning(note func(*sights)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.execs {
		select {
		case <-p.done:
		default:
			p.sights.mu.Lock()
			note(p.sights)
			p.sights.mu.Unlock()
		}
	}
}

// room is what a file system has left, once that is so little that something may have been refused.
type room struct {
	// full: fewer bytes are left than nearlyFull, left of them; files: there is room for no other file.
	full, files bool
	left        uint64
}

// note keeps the tightest that was seen.
func (r *room) note(now room) {
	if now.full && (!r.full || now.left < r.left) {
		r.full, r.left = true, now.left
	}
	r.files = r.files || now.files
}

// nearlyFull is when a file system of that size counts as full: ext4 refuses a write long before its last block.
func nearlyFull(size uint64) uint64 { return max(1<<20, size/64) }

// workspaceRoom looks at the file system from outside. Without root the workspace has none of its own.
func (k *Keeper) workspaceRoom() room {
	var st unix.Statfs_t
	if k.spec.Rootless || unix.Statfs(k.box.workspace, &st) != nil {
		return room{}
	}
	left := st.Bavail * uint64(st.Bsize)                  //nolint:gosec // not negative
	full := left < nearlyFull(st.Blocks*uint64(st.Bsize)) //nolint:gosec // not negative
	return room{full: full, files: st.Files > 0 && st.Ffree == 0, left: left}
}

// rootRoom looks at the file that holds what is written outside of the workspace.
func (k *Keeper) rootRoom() room {
	if k.box.layer == nil {
		return room{}
	}
	info, err := k.box.layer.Stat()
	if err != nil {
		return room{}
	}
	used := uint64(info.Sys().(*syscall.Stat_t).Blocks) * 512 //nolint:gosec // not negative
	left := k.box.overlayBytes() - min(used, k.box.overlayBytes())
	return room{full: left < nearlyFull(k.box.overlayBytes()), left: left}
}

// workspaceBytes is the size of the workspace: as it was asked for, or else that of the file that holds it.
func (k *Keeper) workspaceBytes() uint64 {
	if k.spec.WorkspaceBytes > 0 {
		return k.spec.WorkspaceBytes
	}
	info, err := os.Stat(k.spec.Workspace)
	if err != nil {
		return 0
	}
	return uint64(info.Size()) //nolint:gosec // not negative
}

// limitsMet are the limits that an exec has met, once its end is known.
func (k *Keeper) limitsMet(p *program, end *toolboxv1.End) []*commonv1.LimitHit {
	var hits []*commonv1.LimitHit
	add := func(limit, source string, value, amount uint64, format string, args ...any) {
		hits = append(hits, &commonv1.LimitHit{Limit: limit, Source: source, Value: value, Amount: amount, Message: fmt.Sprintf(format, args...)})
	}
	k.look(1)
	p.mu.Lock()
	tooLarge := p.tooLarge
	p.mu.Unlock()
	s := p.sights
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := k.meter.oomKills() - s.kills; n > 0 {
		add(limitMemory, sourceHost, k.spec.MemoryBytes, n, "the sandbox had used its memory of %s, and the host ended %s of it", size(k.spec.MemoryBytes), processes(n))
	}
	if s.tasks > 0 {
		add(limitPIDs, sourceSeen, uint64(k.spec.PIDs), uint64(s.tasks), "the sandbox had all of its %d processes and threads: no more could be started", k.spec.PIDs) //nolint:gosec // not negative
	}
	held, periods := k.box.group.Held()
	held, periods = held-min(s.held, held), periods-min(s.periods, periods)
	if held >= heldPeriods && held*heldShare >= periods {
		add(limitCPU, sourceHost, uint64(k.spec.CPUMillis), held*uint64(cgroup.Period.Milliseconds()), //nolint:gosec // not negative
			"the sandbox had used its CPU time of %.2g cores before the end of %d of %d tenths of a second", float64(k.spec.CPUMillis)/1000, held, periods)
	}
	switch of := k.workspaceBytes(); {
	case s.workspace.full:
		add(limitDisk, sourceSeen, of, s.workspace.left, "the workspace was full: of its %s %s were left", size(of), size(s.workspace.left))
	case s.workspace.files:
		add(limitDisk, sourceSeen, of, 0, "the workspace of %s had no room for another file, however small", size(of))
	case tooLarge:
		add(limitDisk, sourceSeen, of, 0, "the workspace had grown over its size of %s", size(of))
	}
	if of := k.box.overlayBytes(); s.root.full {
		add(limitDisk, sourceSeen, of, s.root.left, "the space for files outside of the workspace was full: of its %s %s were left", size(of), size(s.root.left))
	}
	if n := end.GetStdout().GetDroppedBytes() + end.GetStderr().GetDroppedBytes(); n > 0 {
		add(limitOutput, sourceHost, p.outputCap, n, "%s of output were dropped: of each stream the beginning and the end are kept, %s together", size(n), size(p.outputCap))
	}
	if end.GetReason() == reasonTimedOut && p.timeout > 0 {
		add(limitTime, sourceHost, uint64(p.timeout.Milliseconds()), 0, "its time of %s was over", p.timeout) //nolint:gosec // not negative
	}
	return hits
}

func processes(n uint64) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// size is a number of bytes for people.
func size(bytes uint64) string {
	const unit = 1024
	if bytes < unit {
		return fmt.Sprintf("%d bytes", bytes)
	}
	n, names := float64(bytes)/unit, "KMGTPE"
	for n >= unit && len(names) > 1 {
		n, names = n/unit, names[1:]
	}
	return fmt.Sprintf("%.4g %ciB", n, names[0])
}
