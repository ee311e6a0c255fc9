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
