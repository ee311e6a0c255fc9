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

// Shares is a Memory of which nobody gets more than half of what the others leave: one who holds on to it leaves room, and so do several.
type Shares struct {
	mu   sync.Mutex
	free int
	held map[string]int
}

// NewShares makes one of n bytes.
func NewShares(n int) *Shares { return &Shares{free: n, held: map[string]int{}} }

// Share is what one key may hold of Shares.
type Share struct {
	of  *Shares
	key string
}

// Of is the share of a key.
func (s *Shares) Of(key string) Share { return Share{s, key} }

// Take reserves n bytes until Give; false: they are not there, or the key would hold more than the half.
func (s Share) Take(n int) bool {
	if n == 0 {
		return true
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	held := s.of.held[s.key]
	if held+n > (s.of.free+held)/2 {
		return false
	}
	s.of.free -= n
	s.of.held[s.key] = held + n
	return true
}

// Give returns what Take reserved.
func (s Share) Give(n int) {
	if n == 0 {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.free += n
	if s.of.held[s.key] -= n; s.of.held[s.key] == 0 {
		delete(s.of.held, s.key)
	}
}
