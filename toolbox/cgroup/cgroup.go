// Package cgroup makes, limits, measures and removes the control group that one sandbox lives in, on version 1, version 2
// and both at once. The group is ours and lies above everything runsc does, so that it outlives the sandbox and still says
// what it used and whether it ran out of memory.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// v1Controllers are the version 1 hierarchies we use.
var v1Controllers = []string{"memory", "cpu", "cpuacct", "pids"}

// Group is one group in every hierarchy that we use.
type Group struct {
	// v1 maps a controller to its directory, empty for those that version 2 has.
	v1 map[string]string
	// v2 is the unified directory, empty where it is not mounted.
	v2 string
	// unified: version 2 has the controllers.
	unified bool

	counters counters
}

// Limits of a group. Zero: no limit.
type Limits struct {
	// MemoryBytes is all memory, page cache and the sentry's own included.
	MemoryBytes uint64
	// CPUMillis is thousandths of a CPU.
	CPUMillis uint32
	// PIDs bounds host tasks. Reaching it breaks the sandbox, so it is a backstop far above the guest's own limit.
	PIDs uint64
}

// Stats are totals since the group was made; MemoryPeak since ResetPeak.
type Stats struct {
	CPU         time.Duration
	MemoryBytes uint64
	MemoryPeak  uint64
	OOMKills    uint64
}

// Open finds where the group with that name lies below the calling process's own, on version 2 below its home; it makes nothing.
func Open(name string) (*Group, error) {
	if name == "" || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("cgroup name %q is not local", name)
	}
	g, err := find(name)
	if err == nil && g.unified {
		own := strings.TrimSuffix(g.v2, "/"+filepath.Clean(name))
		g.v2 = filepath.Join(homeOf(own), name)
	}
	return g, err
}

func find(name string) (*Group, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find own cgroup: %w", err)
	}
	return locate(string(mounts), string(own), name)
}

func locate(mountinfo, own, name string) (*Group, error) {
	paths := map[string]string{}
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		for _, c := range strings.Split(parts[1], ",") {
			paths[c] = parts[2]
		}
	}
	g := &Group{v1: map[string]string{}}
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(super) < 3 {
			continue
		}
		below := func(controller string) string {
			rel, err := filepath.Rel(fields[3], paths[controller])
			if err != nil || !filepath.IsLocal(rel) {
				rel = "."
			}
			return filepath.Join(fields[4], rel, name)
		}
		switch super[0] {
		case "cgroup2":
			if g.v2 == "" {
				g.v2 = below("")
			}
		case "cgroup":
			for _, option := range strings.Split(super[2], ",") {
				for _, c := range v1Controllers {
					if option == c && g.v1[c] == "" {
						g.v1[c] = below(c)
					}
				}
			}
		}
	}
	g.unified = g.v2 != "" && g.v1["memory"] == ""
	if g.v2 == "" && g.v1["memory"] == "" {
		return nil, errors.New("no cgroup hierarchy with memory is mounted")
	}
	return g, nil
}

// dirs are the directories of the group, each once.
func (g *Group) dirs() []string {
	var out []string
	seen := map[string]bool{"": true}
	for _, c := range v1Controllers {
		if d := g.v1[c]; !seen[d] {
			seen[d] = true
			out = append(out, d)
		}
	}
	if g.v2 != "" {
		out = append(out, g.v2)
	}
	return out
}

// Create makes the group and sets its limits; where it exists the limits are set again. On an error what was made remains
// for Remove.
func (g *Group) Create(l Limits) error {
	// Whoever ends the last of all groups takes the one above them away, and may do so while this one is made.
	for try := 0; ; try++ {
		err := g.create(l)
		if try == createTries || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
}

// createTries: each costs three calls of the kernel, and only somebody who removes groups without a pause needs more than two.
const createTries = 1000

func (g *Group) create(l Limits) error {
	if g.unified {
		if err := g.delegate(); err != nil {
			return err
		}
	}
	for _, d := range g.dirs() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
	}
	return g.Limit(l)
}

// delegate turns the controllers on in every group between home and this one.
func (g *Group) delegate() error {
	var below []string
	for d := filepath.Dir(g.v2); !enabled(d); d = filepath.Dir(d) {
		below = append(below, d)
		if up := filepath.Dir(d); exists(d) && !isGroup(up) {
			break
		}
	}
	for _, d := range slices.Backward(below) {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make cgroup: %w", err)
		}
		if err := enable(d); err != nil {
			return err
		}
	}
	return nil
}

const period = 100_000 // microseconds

// Period is how long a group's CPU time is counted before it begins anew.
const Period = period * time.Microsecond

// weightOf is what a group weighs against its siblings where CPU is scarce: in proportion to what it may have.
func weightOf(cpuMillis uint32, one, least, most uint64) string {
	weight := one
	if cpuMillis > 0 {
		weight = min(max(uint64(cpuMillis)*one/1000, least), most)
	}
	return strconv.FormatUint(weight, 10)
}

// Limit changes the limits of a living group.
func (g *Group) Limit(l Limits) error {
	text := func(n uint64, none string) string {
		if n == 0 {
			return none
		}
		return strconv.FormatUint(n, 10)
	}
	quota := text(uint64(l.CPUMillis)*period/1000, "")
	if g.unified {
		if quota == "" {
			quota = "max"
		}
		return errors.Join(
			write(g.v2, "memory.max", text(l.MemoryBytes, "max")),
			noSwap(g.v2),
			write(g.v2, "cpu.max", quota+" "+strconv.Itoa(period)),
			write(g.v2, "cpu.weight", weightOf(l.CPUMillis, 100, 1, 10_000)),
			write(g.v2, "pids.max", text(l.PIDs, "max")))
	}
	if quota == "" {
		quota = "-1"
	}
	return errors.Join(
		write(g.v1["memory"], "memory.limit_in_bytes", text(l.MemoryBytes, "-1")),
		write(g.v1["cpu"], "cpu.cfs_period_us", strconv.Itoa(period)),
		write(g.v1["cpu"], "cpu.cfs_quota_us", quota),
		write(g.v1["cpu"], "cpu.shares", weightOf(l.CPUMillis, 1024, 2, 262_144)),
		write(g.v1["pids"], "pids.max", text(l.PIDs, "max")))
}

// Weigh makes a group weigh a part of what its limit gives it: so many times less against its siblings where CPU is scarce.
func (g *Group) Weigh(cpuMillis uint32, less uint64) error {
	part := func(one, least, most uint64) string {
		n, _ := strconv.ParseUint(weightOf(cpuMillis, one, least, most), 10, 64)
		return strconv.FormatUint(max(n/max(less, 1), least), 10)
	}
	if g.unified {
		return write(g.v2, "cpu.weight", part(100, 1, 10_000))
	}
	return write(g.v1["cpu"], "cpu.shares", part(1024, 2, 262_144))
}

// Weight is what the group weighs now, in the unit of its hierarchy: 1024 (version 1) or 100 (version 2) for a limit of one CPU.
func (g *Group) Weight() (uint64, error) {
	file := filepath.Join(g.v1["cpu"], "cpu.shares")
	if g.unified {
		file = filepath.Join(g.v2, "cpu.weight")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// noSwap keeps a group in memory: on version 2 its limit does not count what is swapped out. Not every kernel counts swap.
func noSwap(dir string) error {
	if err := write(dir, "memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Procs are the files that a process writes "0" to in order to enter the group.
func (g *Group) Procs() []string {
	var out []string
	for _, d := range g.dirs() {
		out = append(out, filepath.Join(d, "cgroup.procs"))
	}
	return out
}

// ResetPeak starts the peak anew. False: this kernel cannot, the peak goes on from the group's start.
func (g *Group) ResetPeak() bool {
	if g.unified {
		// On version 2 a reset holds only for the descriptor that wrote it.
		return false
	}
	return write(g.v1["memory"], "memory.max_usage_in_bytes", "0") == nil
}

// Kill ends every process of the group and waits until they are gone, at most for the given time.
func (g *Group) Kill(within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		left := 0
		if g.v2 != "" {
			_ = write(g.v2, "cgroup.kill", "1")
		}
		for _, file := range g.Procs() {
			b, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			for _, field := range strings.Fields(string(b)) {
				pid, err := strconv.Atoi(field)
				if err != nil || pid <= 0 || pid == os.Getpid() {
					continue
				}
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of the cgroup are left", left)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Remove removes the group, which must have no processes; a group that is not there is fine. Zombies keep a group busy for
// a moment, so it tries for up to a second.
func (g *Group) Remove() error {
	g.counters.close()
	deadline := time.Now().Add(time.Second)
	var errs []error
	for _, d := range g.dirs() {
		for {
			err := syscall.Rmdir(d)
			if errors.Is(err, syscall.EBUSY) && time.Now().Before(deadline) {
				time.Sleep(2 * time.Millisecond)
				continue
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, &fs.PathError{Op: "rmdir", Path: d, Err: err})
			}
			break
		}
	}
	return errors.Join(errs...)
}

// RemoveEmpty removes the group unless it has processes or groups below it, which is no error: whoever has those removes it later.
func (g *Group) RemoveEmpty() error {
	var errs []error
	for _, d := range g.dirs() {
		err := syscall.Rmdir(d)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.ENOTEMPTY):
		default:
			errs = append(errs, &fs.PathError{Op: "rmdir", Path: d, Err: err})
		}
	}
	return errors.Join(errs...)
}

func write(dir, file, value string) error {
	if dir == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
