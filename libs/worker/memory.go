package worker

import "sync"

// remembered bounds a memory. Forgetting costs a repeated handler or a panic more, never a message.
const remembered = 4096

// memory keeps something about messages between their deliveries; when it is full the oldest goes.
type memory[T any] struct {
	mu    sync.Mutex
	items map[identity]T
	order []identity
}

func newMemory[T any]() *memory[T] { return &memory[T]{items: map[identity]T{}} }

func (m *memory[T]) get(id identity) (T, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.items[id]
	return v, ok
}

func (m *memory[T]) put(id identity, v T) {
	m.add(id, v, func(_, v T) T { return v })
}

// add combines what is there, or the zero value, with v.
func (m *memory[T]) add(id identity, v T, combine func(T, T) T) T {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, ok := m.items[id]
	if !ok {
		m.order = append(m.order, id)
		for len(m.order) > remembered {
			delete(m.items, m.order[0])
			m.order = m.order[1:]
		}
	}
	m.items[id] = combine(old, v)
	return m.items[id]
}

func (m *memory[T]) drop(id identity) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.items[id]; !ok {
		return
	}
	delete(m.items, id)
	// What is dropped is nearly always young.
	for i := len(m.order) - 1; i >= 0; i-- {
		if m.order[i] == id {
			m.order = append(m.order[:i], m.order[i+1:]...)
			return
		}
	}
}
