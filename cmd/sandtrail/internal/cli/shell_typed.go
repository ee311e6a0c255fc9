package cli

import "sync"

const (
	// keptBytes of what was sent are kept, in case the connection broke before the server had them; waitingBytes may wait to be sent.
	keptBytes    = 64 << 10
	waitingBytes = 1 << 20
)

// typed is what was typed and may have to be sent, or sent again.
type typed struct {
	mu sync.Mutex
	// start is where data begins, sent up to where it was sent, in all that was typed to the terminal.
	start, sent uint64
	data        []byte
	// more and room are marked when there is something to send, and when there is room again.
	more, room chan struct{}
}

func newTyped() *typed { return &typed{more: make(chan struct{}, 1), room: make(chan struct{}, 1)} }

// add takes what was typed; false: there is no room yet.
func (t *typed) add(data []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end()-t.sent+uint64(len(data)) > waitingBytes {
		return false
	}
	t.data = append(t.data, data...)
	mark(t.more)
	return true
}

func (t *typed) end() uint64 { return t.start + uint64(len(t.data)) }

// next is what to send now, most at once.
func (t *typed) next(most int) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := t.data[t.sent-t.start:]
	return append([]byte(nil), rest[:min(most, len(rest))]...)
}

// gone says that n bytes more were sent.
func (t *typed) gone(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent += uint64(n)
	if drop := int(t.sent-t.start) - keptBytes; drop > 0 {
		t.data = append([]byte(nil), t.data[drop:]...)
		t.start += uint64(drop)
	}
	mark(t.room)
}

// from says that the terminal has so many bytes: what comes behind them is sent again. Where that is not kept, because somebody else typed
// too, what waits is sent from here on.
func (t *typed) from(has uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if has < t.start || has > t.end() {
		t.data = t.data[t.sent-t.start:]
		t.start = has
	}
	t.sent = has
	mark(t.more)
}

// mark marks a channel of capacity one.
func mark(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
