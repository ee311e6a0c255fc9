package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// keepers finds the processes that carry the mark of a sandbox's keeper. Zombies have no environment and are not found.
func keepers(id string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && isKeeper(pid, id) {
			pids = append(pids, pid)
		}
	}
	return pids
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

// holdKeepers opens a descriptor of each of a sandbox's keepers.
func holdKeepers(id string) []int {
	var fds []int
	for _, pid := range keepers(id) {
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
			if err := endKeeper(ctx, pid, id); err != nil {
				return err
			}
		}
	}
}

// endKeeper holds the process by a descriptor before it looks at it once more: a recycled pid is never signalled. One that is
// ending by itself, after a shutdown, has a moment to finish.
func endKeeper(ctx context.Context, pid int, id string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !isKeeper(pid, id) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill keeper %d: %w", pid, err)
	}
	return waitPidfd(ctx, fd)
}

// reap takes ended children that nobody waits for. Where this process is the init of a container, or a subreaper, it becomes the
// parent of keepers that an earlier process started and of sentries that lost their keeper: as zombies they would keep their
// cgroup busy. Keepers and members of the sandbox's cgroup are taken, never a child of another part of the program; that a keeper
// is also waited for by whoever started it does no harm.
func (d *Driver) reap(id string) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, zombie := ownZombie(pid)
		if zombie && (name == keeperName(d.o.Toolbox) || inGroup(pid, id)) {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The name may hold anything; state and parent follow its closing bracket.
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", false
	}
	fields := bytes.Fields(stat[end+1:])
	zombie := len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == strconv.Itoa(os.Getpid())
	return string(stat[open+1 : end]), zombie
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
