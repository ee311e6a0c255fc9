package stored

import "sync"

// Memory bounds what all readers of a process hold together, in bytes. A reader that does not get what it asks for makes do with
// less; nobody waits. A nil Memory has no bound.
type Memory struct {
	mu   sync.Mutex
	free int
}

// NewMemory makes one of n bytes.
func NewMemory(n int) *Memory { return &Memory{free: n} }

// Take reserves n bytes until Give; false: they are not there.
func (m *Memory) Take(n int) bool {
	if m == nil {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if n > m.free {
		return false
	}
	m.free -= n
	return true
}

// Give returns what Take reserved.
func (m *Memory) Give(n int) {
	if m == nil || n == 0 {
		return
	}
	m.mu.Lock()
	m.free += n
	m.mu.Unlock()
}
