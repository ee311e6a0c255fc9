package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// space measures what a workspace that is a plain directory takes of the host's disk. What is in it is hostile: it is reached
// over descriptors, since a path may be too long to be named, and no link is followed.
type space struct {
	dir string
	// sentry is the process that holds the open files of the sandbox.
	sentry int
	// own are the nameless files that the sentry held before any program ran: what is written outside of the workspace, which
	// has a limit of its own.
	own map[uint64]bool
}

const (
	// maxDepth of directories that is measured; a path of that many has no name that a program could call it by. Each costs a
	// descriptor.
	maxDepth = 512
	// entryBytes is what each entry counts at least: empty files take none, but a file system has only so many.
	entryBytes = 4096
	// namesAtOnce bounds how many names of a directory are held.
	namesAtOnce = 1024
)

var errTooDeep = errors.New("directories are nested too deep to be measured")

func newSpace(dir string, sentry int) (*space, error) {
	s := &space{dir: dir, sentry: sentry, own: map[uint64]bool{}}
	files, err := s.nameless()
	for inode := range files {
		s.own[inode] = true
	}
	return s, err
}

// used is the disk space of everything below the directory, and of files that were removed and are still open; a file with two
// names counts twice. The error is errTooDeep, with what was measured; what cannot be read has nothing more to add.
func (s *space) used() (uint64, error) {
	var sum uint64
	fd, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = measure(os.NewFile(uintptr(fd), s.dir), 0, &sum)
	}
	files, _ := s.nameless()
	for inode, bytes := range files {
		if !s.own[inode] {
			sum += bytes
		}
	}
	if errors.Is(err, errTooDeep) {
		return sum, err
	}
	return sum, nil
}

// measure adds what is below the directory, and closes it.
func measure(dir *os.File, depth int, sum *uint64) error {
	defer dir.Close()
	if depth > maxDepth {
		return errTooDeep
	}
	for {
		names, err := dir.Readdirnames(namesAtOnce)
		for _, name := range names {
			if err := add(int(dir.Fd()), name, depth, sum); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func add(at int, name string, depth int, sum *uint64) error {
	var st unix.Stat_t
	if unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return nil
	}
	*sum += max(diskBytes(&st), entryBytes)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil //nolint:nilerr // gone, or no directory any more
	}
	if err := measure(os.NewFile(uintptr(fd), name), depth+1, sum); errors.Is(err, errTooDeep) {
		return err
	}
	return nil
}

// nameless are the open files on the workspace's file system that have no name any more, by inode with their space.
func (s *space) nameless() (map[uint64]uint64, error) {
	var root unix.Stat_t
	if err := unix.Stat(s.dir, &root); err != nil {
		return nil, fmt.Errorf("measure workspace: %w", err)
	}
	dir, err := os.Open("/proc/" + strconv.Itoa(s.sentry) + "/fd")
	if err != nil {
		return nil, fmt.Errorf("measure open files: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("measure open files: %w", err)
	}
	files := map[uint64]uint64{}
	for _, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, 0) == nil && st.Nlink == 0 && st.Dev == root.Dev && st.Mode&unix.S_IFMT == unix.S_IFREG {
			files[st.Ino] = diskBytes(&st)
		}
	}
	return files, nil
}

func diskBytes(st *unix.Stat_t) uint64 { return uint64(st.Blocks) * 512 } //nolint:gosec // not negative
