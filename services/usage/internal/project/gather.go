package project

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"

	"github.com/sandtrail/sandtrail/services/usage/internal/clickhouse"
)

// batch is events that are inserted together. They are kept ours by heartbeats until release.
type batch struct {
	rows  []clickhouse.Row
	bytes int
	// until is when it is inserted though it is not full.
	until time.Time
	// behind: when the last event came, more waited in the log.
	behind  bool
	release context.CancelFunc

	mu sync.Mutex
	// messages are what to acknowledge.
	messages []jetstream.Msg
}

// newBatch makes one with room for size events.
func newBatch(size int, every time.Duration) *batch {
	beat, release := context.WithCancel(context.Background())
	b := &batch{rows: make([]clickhouse.Row, 0, size), messages: make([]jetstream.Msg, 0, size), release: release}
	go b.keep(beat, every)
	return b
}

// keep tells the server that the events are worked on.
func (b *batch) keep(ctx context.Context, every time.Duration) {
	t := time.NewTicker(max(every, 50*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			b.mu.Lock()
			all := b.messages
			b.mu.Unlock()
			for _, m := range all {
				_ = m.InProgress()
			}
		}
	}
}

// hold takes a message in; drop takes the last one out again.
func (b *batch) hold(m jetstream.Msg) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, m)
	b.bytes += len(m.Data())
}

func (b *batch) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = b.messages[: len(b.messages)-1 : len(b.messages)-1]
}

func (b *batch) full() bool { return len(b.messages) >= MaxBatch || b.bytes >= maxBatchBytes }

// handBack gives the messages back at once instead of after the acknowledgement's time.
func (b *batch) handBack() {
	b.release()
	for _, m := range b.messages {
		_ = m.Nak()
	}
}

// gather makes batches of items until ctx ends, then hands back what is left. A batch goes on when it is full, or when it has
// lingered; while the step behind is busy it grows.
func (p *Projector) gather(ctx context.Context, items <-chan *item, batches chan<- *batch) {
	var b *batch
	// A batch is likely to be as large as the one before.
	size := 0
	in, out := items, (chan<- *batch)(nil)
	lingered := time.NewTimer(linger)
	lingered.Stop()
	for {
		select {
		case i, open := <-in:
			if !open {
				p.giveUp(b, items)
				return
			}
			if b == nil {
				b = newBatch(size, p.ackWait/3)
				b.until = time.Now().Add(lingerBehind)
				lingered.Reset(linger)
			}
			p.add(ctx, b, i)
			if b.full() {
				in, out = nil, batches
			}
		case <-lingered.C:
			if left := time.Until(b.until); b.behind && left > 0 {
				lingered.Reset(min(left, linger))
				continue
			}
			out = batches
		case out <- b:
			size = len(b.messages)
			b, in, out = nil, items, nil
			lingered.Stop()
		case <-ctx.Done():
			p.giveUp(b, items)
			return
		}
	}
}

func (p *Projector) giveUp(b *batch, items <-chan *item) {
	if b != nil {
		b.handBack()
	}
	for i := range items {
		_ = i.msg.Nak()
	}
}

// add takes an event into a batch: a row, or a dead letter, or nothing. It tries again until that succeeds or ctx ends.
func (p *Projector) add(ctx context.Context, b *batch, i *item) {
	p.last.Store(i.meta.Timestamp.UnixNano())
	b.behind = i.meta.NumPending > 0
	b.hold(i.msg)
	for attempt := 1; ; attempt++ {
		err := p.row(ctx, b, i)
		var bad *unusable
		if errors.As(err, &bad) {
			if err = p.bury(ctx, i, bad); err == nil {
				b.drop()
			}
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		p.metrics.retries.Inc()
		p.log.Warn("cannot project an event, trying again", "seq", i.meta.Sequence.Stream, "attempt", attempt, "error", err)
		pause(ctx, attempt)
	}
}

// row puts the row of an event into a batch where it makes one. *unusable: it never will.
func (p *Projector) row(ctx context.Context, b *batch, i *item) error {
	switch {
	case i.bad != nil:
		return i.bad
	case i.skip != "":
		p.metrics.skipped.WithLabelValues(i.skip).Inc()
		return nil
	}
	if requested, ok := i.event.Body.(*eventsv1.SandboxRequested); ok {
		p.owners.put(i.agg, Owner{Session: requested.GetSessionId(), Org: requested.GetOrgId()})
		p.metrics.skipped.WithLabelValues(skipFree).Inc()
		return nil
	}
	owner, err := p.owners.of(ctx, i.agg)
	if err != nil {
		return err
	}
	row, err := Map(i.event, i.agg, owner)
	if err != nil {
		return err
	}
	b.rows = append(b.rows, row)
	return nil
}
