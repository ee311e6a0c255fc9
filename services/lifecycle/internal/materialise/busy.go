package materialise

import "sync"

// Busy says on which sandboxes something is being done, so that the reconciler does not end what a command is about to finish.
type Busy struct {
	mu  sync.Mutex
	ids map[string]chan struct{}
}

// NewBusy has none.
func NewBusy() *Busy { return &Busy{ids: map[string]chan struct{}{}} }

// Try takes a sandbox, or reports that somebody else has it. free gives it back.
func (b *Busy) Try(id string) (free func(), ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken := b.ids[id]; taken {
		return nil, false
	}
	done := make(chan struct{})
	b.ids[id] = done
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.ids, id)
		close(done)
	}, true
}

// Take waits until it has the sandbox or cancel is closed.
func (b *Busy) Take(id string, cancel <-chan struct{}) (free func(), ok bool) {
	for {
		if free, ok := b.Try(id); ok {
			return free, true
		}
		b.mu.Lock()
		done := b.ids[id]
		b.mu.Unlock()
		if done == nil {
			continue
		}
		select {
		case <-done:
		case <-cancel:
			return nil, false
		}
	}
}
