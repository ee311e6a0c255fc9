package agent

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// store gives spools their files, which have no name: programs have the agent's user and could open any other. They lie in its
// directory where that can have such files, or else in memory.
// Each counts with all that it may come to hold, so that the bound cannot be passed.
type store struct {
	dir  string
	mu   sync.Mutex
	left uint64
}

func newStore(dir string, size uint64) *store { return &store{dir: dir, left: size} }

// Create implements spool.Files. It makes a file for at most size bytes. ENOSPC: there is no room, the output is dropped and counted.
func (s *store) Create(name string, size uint64) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > s.left {
		return nil, unix.ENOSPC
	}
	fd, err := s.unnamed(name)
	if err != nil {
		return nil, err
	}
	s.left -= size
	return os.NewFile(uintptr(fd), name), nil //nolint:gosec // a descriptor
}

func (s *store) unnamed(name string) (int, error) {
	if s.dir != "" {
		// Without EXCL a program could give it a name by way of /proc.
		if fd, err := unix.Open(s.dir, unix.O_TMPFILE|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600); err == nil {
			return fd, nil
		}
	}
	return unix.MemfdCreate(name, unix.MFD_CLOEXEC)
}

// Removed implements spool.Files.
func (s *store) Removed(size uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left += size
}

// full reports whether another file of that size would find no room.
func (s *store) full(size uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return size > s.left
}
