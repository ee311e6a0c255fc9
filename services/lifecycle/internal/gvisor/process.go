package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// find gives the processes of this host for which is holds.
func find(is func(pid int) bool) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && is(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// keepers finds the processes that carry the mark of a sandbox's keeper. Zombies have no environment and are not found.
func keepers(id string) []int {
	return find(func(pid int) bool { return isKeeper(pid, id) })
}

// isKeeper reads the environment that a process was started with. A forked child that has not become another program yet looks
// like its parent, and is ended like it.
func isKeeper(pid int, id string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || pid == os.Getpid() {
		return false
	}
	mark := []byte(keeperEnv + id)
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(entry, mark) {
			return true
		}
	}
	return false
}

// hold opens a descriptor of each of the processes that still exists.
func hold(pids []int) []int {
	var fds []int
	for _, pid := range pids {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// endKeepers kills a sandbox's keepers and waits until they are gone.
func endKeepers(ctx context.Context, id string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		pids := keepers(id)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := end(ctx, pid, func() bool { return isKeeper(pid, id) }); err != nil {
				return err
			}
		}
	}
}

// end kills a process and waits until it is gone. It holds the process by a descriptor before it looks at it once more with is:
// a recycled pid is never signalled.
func end(ctx context.Context, pid int, is func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !is() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	if err := waitPidfd(ctx, fd); err != nil {
		return err
	}
	if _, zombie := ownZombie(pid); zombie {
		// An orphan that came to this process, or a keeper of its own that is waited for elsewhere too.
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
	return nil
}

// endProcesses kills a rootless sandbox's processes and waits until they are gone: without a cgroup nothing else holds them
// together.
func endProcesses(ctx context.Context, id string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	mine := func(pid int) bool { return isProcess(pid, runtimeID(id)) || isKeeper(pid, id) }
	for {
		pids := find(mine)
		if len(pids) == 0 {
			// A process that is becoming another program carries no id until it has become it.
			if becoming := find(nameless); len(becoming) == 0 || awaitNames(ctx, becoming) {
				return nil
			}
			continue
		}
		// What the sentry started does not carry the id. It dies with the sentry, and is waited for.
		if err := endAll(ctx, pids, hold(descendants(pids)), mine); err != nil {
			return err
		}
	}
}

// endAll kills processes and waits for them, and for those that are held; these it lets go.
func endAll(ctx context.Context, pids, held []int, is func(pid int) bool) error {
	defer closeAll(held)
	for _, pid := range pids {
		if err := end(ctx, pid, func() bool { return is(pid) }); err != nil {
			return err
		}
	}
	for _, fd := range held {
		if err := waitPidfd(ctx, fd); err != nil {
			return err
		}
	}
	return nil
}

// processes are those of a rootless sandbox that carry its id.
func processes(runtimeID string) []int {
	return find(func(pid int) bool { return isProcess(pid, runtimeID) })
}

// descendants are the processes below the given ones.
func descendants(of []int) []int {
	below := map[int]bool{}
	for _, pid := range of {
		below[pid] = true
	}
	parents := map[int]int{}
	all := find(func(pid int) bool {
		_, _, parent, ok := stat(pid)
		parents[pid] = parent
		return ok
	})
	var found []int
	// A pass finds at least one more generation.
	for more := true; more; {
		more = false
		for _, pid := range all {
			if below[parents[pid]] && !below[pid] {
				below[pid], more = true, true
				found = append(found, pid)
			}
		}
	}
	return found
}

// isProcess tells runsc and its sentry, whose last argument is the id, from what somebody else calls with that argument: they
// live in a user namespace of the keeper.
func isProcess(pid int, runtimeID string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.HasSuffix(line, []byte("\x00"+runtimeID+"\x00")) {
		return false
	}
	return elsewhere(pid)
}

// awaitNames waits a moment for processes to have a name or to end; false: some have, and have to be looked at. Those that stay
// without one are somebody else's.
func awaitNames(ctx context.Context, pids []int) bool {
	ctx, cancel := context.WithTimeout(ctx, nameWithin)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if slices.ContainsFunc(pids, func(pid int) bool { return !nameless(pid) }) {
			return false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return true
		}
	}
}

// nameWithin is far more than a process is without a name.
const nameWithin = 100 * time.Millisecond

// nameless: a process in another user namespace than ours, without arguments, that a sandbox's own do not wait for; the processes
// in which a sentry runs its guest have none for ever.
func nameless(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || len(line) > 0 || !elsewhere(pid) {
		return false
	}
	_, state, parent, ok := stat(pid)
	return ok && state != "Z" && !elsewhere(parent)
}

// elsewhere: the process lives in another user namespace than this one, and we may know.
func elsewhere(pid int) bool {
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return false
	}
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
	return err == nil && its != own
}

// reap takes ended children that nobody waits for. Where this process is the init of a container, or a subreaper, it becomes the
// parent of keepers that an earlier process started and of sentries that lost their keeper: as zombies they would keep their
// cgroup busy. Keepers and members of the sandbox's cgroup are taken, never a child of another part of the program; that a keeper
// is also waited for by whoever started it does no harm.
func (d *Driver) reap(id string) {
	for _, pid := range find(func(pid int) bool {
		name, zombie := ownZombie(pid)
		return zombie && (name == keeperName(d.o.Toolbox) || inGroup(pid, id))
	}) {
		_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
	}
}

// keeperName is what the kernel calls a process of the program.
func keeperName(program string) string {
	name := filepath.Base(program)
	return name[:min(len(name), 15)]
}

func inGroup(pid int, id string) bool {
	group, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && bytes.Contains(group, []byte("/"+runtimeID(id)))
}

// ownZombie gives the name of an ended child of this process.
func ownZombie(pid int) (string, bool) {
	name, state, parent, ok := stat(pid)
	return name, ok && state == "Z" && parent == os.Getpid()
}

// stat is what the kernel says of a process: its name, its state, its parent.
func stat(pid int) (name, state string, parent int, ok bool) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", "", 0, false
	}
	// The name may hold anything; state and parent follow its closing bracket.
	open, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return "", "", 0, false
	}
	fields := bytes.Fields(line[end+1:])
	if len(fields) < 2 {
		return "", "", 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return string(line[open+1 : end]), string(fields[0]), parent, err == nil
}

// pollSlice bounds one wait, so that the end of ctx is seen.
const pollSlice = 50 * time.Millisecond

func waitPidfd(ctx context.Context, fd int) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(pollSlice.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process: %w", err)
		}
		if n > 0 {
			return nil
		}
	}
}

// loopOf finds the loop device whose backing file is path.
func loopOf(path string) (string, bool) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", false
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil && strings.TrimSpace(string(data)) == path {
			return "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(f))), true
		}
	}
	return "", false
}
