package keeper

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memory measures what a sandbox without a cgroup has, from outside: a sentry that is kept busy answers no question.
type memory struct {
	sentry int
	// guest is the file in memory that the guest's memory and temporary files are; held without the right to read it.
	guest *os.File
}

// guestMemory is what the sentry calls that file.
const guestMemory = "/memfd:runsc-memory"

var errNoGuestMemory = errors.New("this runsc keeps its guest's memory elsewhere than expected: it cannot be measured without a cgroup")

func openMemory(sentry int) (*memory, error) {
	f, err := heldBy(sentry, func(path string) bool { return strings.HasPrefix(path, guestMemory) })
	if errors.Is(err, os.ErrNotExist) {
		err = errNoGuestMemory
	}
	if err != nil {
		return nil, fmt.Errorf("find guest memory: %w", err)
	}
	return &memory{sentry, f}, nil
}

// heldBy is a file that a process has open, by the path that it had, without the right to read it.
func heldBy(pid int, match func(path string) bool) (*os.File, error) {
	dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		to, err := os.Readlink(dir + n.Name())
		if err != nil || !match(to) {
			continue
		}
		fd, err := unix.Open(dir+n.Name(), unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(fd), to), nil
	}
	return nil, os.ErrNotExist
}

// bytes in use now: the guest's, and the sentry's own.
func (m *memory) bytes() uint64 {
	info, err := m.guest.Stat()
	if err != nil {
		return 0
	}
	return uint64(info.Sys().(*syscall.Stat_t).Blocks)*512 + ownMemory(m.sentry) //nolint:gosec // not negative
}

// ownMemory is what a process has that is no file.
func ownMemory(pid int) uint64 {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	var size, resident, shared uint64
	if _, err := fmt.Sscan(string(line), &size, &resident, &shared); err != nil {
		return 0
	}
	return (resident - min(resident, shared)) * uint64(os.Getpagesize()) //nolint:gosec // a small number
}
