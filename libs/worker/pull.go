package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	defaultAckWait = 30 * time.Second
	// openTimeout bounds the look-up of the consumer.
	openTimeout = 10 * time.Second
	// heartbeat is how often the server says that it still knows of a pull.
	heartbeat = 2 * time.Second

	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// pull fetches what there is space for, until r.ctx ends or the connection is closed.
func (r *runner) pull() error {
	// A pull that was open when the connection broke is forgotten by a server that restarted: ask again at once.
	connected := r.js.Conn().StatusChanged(nats.CONNECTED)
	defer r.js.Conn().RemoveStatusListener(connected)
	failures := 0
	for r.ctx.Err() == nil {
		err := r.session(connected, func() { failures = 0 })
		if r.ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, nats.ErrConnectionClosed) {
			return fmt.Errorf("pull from %s: %w", r.cfg.Consumer, err)
		}
		failures++
		r.metrics.pullErrors.Inc()
		if sampled(failures) {
			r.cfg.Log.WarnContext(r.ctx, "cannot pull; trying again", "failures", failures, "error", err)
		}
		r.pause(failures, connected)
	}
	return nil
}

// sampled is true for 1, 2, 4, 8 and so on.
func sampled(n int) bool { return bits.OnesCount(uint(n)) == 1 }

func (r *runner) pause(failures int, connected <-chan nats.Status) {
	limit := min(maxPause, minPause<<min(failures, 10))
	t := time.NewTimer(limit/2 + rand.N(limit/2)) //nolint:gosec // spreads load, guards nothing
	defer t.Stop()
	select {
	case <-t.C:
	case <-connected:
	case <-r.ctx.Done():
	}
}

// session pulls from the consumer as it is now; it ends with an error, or nil with r.ctx.
func (r *runner) session(connected <-chan nats.Status, works func()) error {
	ctx, cancel := context.WithTimeout(r.ctx, openTimeout)
	c, err := r.js.Consumer(ctx, r.cfg.Stream, r.cfg.Consumer)
	cancel()
	if err != nil {
		return err
	}
	config := c.CachedInfo().Config
	if config.AckPolicy != jetstream.AckExplicitPolicy {
		return fmt.Errorf("consumer %s has no explicit acknowledgement", r.cfg.Consumer)
	}
	r.setAckWait(config.AckWait)
	for {
		n, ok := r.reserve()
		if !ok {
			return nil
		}
		if err := r.fetch(c, n, connected, works); err != nil {
			return err
		}
	}
}

// reserve waits until there is space for a message and takes all there is. false: r.ctx ended.
func (r *runner) reserve() (int, bool) {
	select {
	case r.space <- struct{}{}:
	case <-r.ctx.Done():
		return 0, false
	}
	n := 1
	for n < cap(r.space) {
		select {
		case r.space <- struct{}{}:
			n++
		default:
			return n, true
		}
	}
	return n, true
}

// fetch asks for n messages, whose space is reserved, and dispatches what comes.
func (r *runner) fetch(c jetstream.Consumer, n int, connected <-chan nats.Status, works func()) error {
	defer func() {
		for range n {
			<-r.space
		}
	}()
	// Without a deadline: one that is near would make the pull shorter than its heartbeats allow.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.ctx))
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	batch, err := c.Fetch(n, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	messages := batch.Messages()
	for {
		select {
		case m, open := <-messages:
			if !open {
				err := batch.Error()
				if err == nil || ctx.Err() != nil {
					works()
					return nil
				}
				return err
			}
			works()
			n--
			r.dispatch(m)
		case <-connected:
			// What has arrived still comes out of messages.
			cancel()
		}
	}
}

// heartbeats tells the server at a third of the ack wait that what is held is still being worked on.
func (r *runner) heartbeats() {
	for {
		t := time.NewTimer(r.beat())
		select {
		case <-t.C:
		case <-r.work.Done():
			t.Stop()
			return
		}
		for _, m := range r.held() {
			// One that is lost is made up for by the next.
			_ = m.InProgress()
		}
	}
}

func (r *runner) setAckWait(d time.Duration) {
	if d <= 0 {
		d = defaultAckWait
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ackWait = d
}

func (r *runner) beat() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.ackWait/3, 10*time.Millisecond)
}

func (r *runner) held() []jetstream.Msg {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]jetstream.Msg, 0, len(r.flying))
	for _, d := range r.flying {
		all = append(all, d.msg)
	}
	return all
}

func (r *runner) attrs(d *delivery) []any {
	return []any{
		slog.String("subject", d.Subject), slog.Uint64("seq", d.Seq), slog.Int("attempt", d.Attempt),
	}
}
