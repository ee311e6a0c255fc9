package relay

import (
	"sync"
	"time"
)

const (
	// fairWindow is how long a sandbox counts as at work after its last command began or wrote: whoever runs a command now and then
	// must not meet a flood at full speed each time.
	fairWindow = 10 * time.Second
	// fairBurst is what a sandbox may write at any speed; it comes again at the rate of the sandbox.
	fairBurst = 1 << 20
	// fairMost bounds the sandboxes that are remembered. Over it those that are no longer at work are forgotten.
	fairMost = 1024
)

// Fair holds floods of output back while other sandboxes work. A byte of output costs processor time in every process that it passes,
// none of which is the sandbox's own, so that no limit of the sandbox bounds it: one sandbox that floods would make every command of
// the others wait. A sandbox that works alone is not held back.
type Fair struct {
	// rate is bytes a second for all that flood together.
	rate float64

	mu    sync.Mutex
	boxes map[string]*flow
}

// flow is the output of one sandbox.
type flow struct {
	seen time.Time
	// tokens are bytes that may pass at once, as of at; negative while what has passed was too much.
	tokens float64
	at     time.Time
	// flooded is when it last had to wait.
	flooded time.Time
}

// NewFair lets all sandboxes that flood write so many bytes a second together, in equal parts, while another one works.
func NewFair(bytesPerSecond float64) *Fair {
	return &Fair{rate: bytesPerSecond, boxes: map[string]*flow{}}
}

// Begin says that a command begins in a sandbox.
func (f *Fair) Begin(sandbox string) { f.begin(sandbox, time.Now()) }

func (f *Fair) begin(sandbox string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flow(sandbox, now).seen = now
}

// Charge counts n bytes of a sandbox's output and says how long it is before its next ones may come.
func (f *Fair) Charge(sandbox string, n int) time.Duration { return f.charge(sandbox, n, time.Now()) }

func (f *Fair) charge(sandbox string, n int, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.flow(sandbox, now)
	own.seen = now
	others, floods := 0, 1
	for name, b := range f.boxes {
		if name == sandbox || now.Sub(b.seen) > fairWindow {
			continue
		}
		others++
		if !b.flooded.IsZero() && now.Sub(b.flooded) <= fairWindow {
			floods++
		}
	}
	if others == 0 {
		own.tokens, own.at = fairBurst, now
		return 0
	}
	rate := f.rate / float64(floods)
	own.tokens = min(own.tokens+now.Sub(own.at).Seconds()*rate, fairBurst) - float64(n)
	own.at = now
	if own.tokens >= 0 {
		return 0
	}
	own.flooded = now
	return time.Duration(-own.tokens / rate * float64(time.Second))
}

// flow finds or makes that of a sandbox. The caller holds mu.
func (f *Fair) flow(sandbox string, now time.Time) *flow {
	if b := f.boxes[sandbox]; b != nil {
		return b
	}
	if len(f.boxes) >= fairMost {
		for name, b := range f.boxes {
			if now.Sub(b.seen) > fairWindow {
				delete(f.boxes, name)
			}
		}
	}
	b := &flow{tokens: fairBurst, at: now}
	f.boxes[sandbox] = b
	return b
}
