package calls

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// batch is how many records are under way to the server at once, linger how long the first of them waits for others.
	batch  = 256
	linger = 10 * time.Millisecond
	// stored is how long one attempt at a batch may take; then what was not acknowledged is sent again, under its id.
	stored = 5 * time.Second
)

// Run writes until ctx ends, then what is left and what calls that are open then still bring, for as long as rest allows.
func (r *Recorder) Run(ctx context.Context, rest time.Duration) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(rest, cancel) })()
	tick := time.NewTicker(gather)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case c := <-r.queue:
			r.write(work, r.more(ctx, c))
		case <-tick.C:
			r.write(work, r.gathered())
		case <-ctx.Done():
		}
	}
	poll := time.NewTicker(linger)
	defer poll.Stop()
	for over := false; !over; {
		over = r.open.Load() == 0 || work.Err() != nil
		left := r.gathered()
		for len(r.queue) > 0 {
			left = append(left, <-r.queue)
		}
		r.write(work, left)
		if !over {
			<-poll.C
		}
	}
}

// more takes what else comes within a moment.
func (r *Recorder) more(ctx context.Context, first *eventsv1.CallEnded) []*eventsv1.CallEnded {
	all := []*eventsv1.CallEnded{first}
	end := time.NewTimer(linger)
	defer end.Stop()
	for len(all) < batch {
		select {
		case c := <-r.queue:
			all = append(all, c)
		case <-end.C:
			return all
		case <-ctx.Done():
			return all
		}
	}
	return all
}

// write stores records, and tries again until they are stored or ctx ends: what comes meanwhile waits in the queue, and is counted beyond it.
func (r *Recorder) write(ctx context.Context, all []*eventsv1.CallEnded) {
	for some := range slices.Chunk(all, batch) {
		messages := make([]*nats.Msg, 0, len(some))
		for _, c := range some {
			m, err := r.chains.message(c)
			if err != nil { // text that is no UTF-8, which nothing of a record is
				r.dropped.Inc()
				continue
			}
			messages = append(messages, m)
		}
		if left := r.store(ctx, messages); left > 0 {
			r.dropped.Add(float64(left))
			r.log.ErrorContext(ctx, "records of calls were not stored before the end", "records", left)
		}
	}
}

// store gives how many messages are not stored although ctx has ended.
func (r *Recorder) store(ctx context.Context, messages []*nats.Msg) int {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, stored) {
		var err error
		if messages, err = r.publish(ctx, messages); len(messages) == 0 || ctx.Err() != nil {
			return len(messages)
		}
		r.log.WarnContext(ctx, "records of calls are not stored yet", "records", len(messages), "error", err)
		_ = pause.For(ctx, wait) // the next attempt says how it stands
	}
}

var errAway = errors.New("not connected")

// publish sends all at once and gives those that the server has not acknowledged.
func (r *Recorder) publish(ctx context.Context, all []*nats.Msg) (left []*nats.Msg, err error) {
	if !r.js.Conn().IsConnected() {
		return all, errAway // what is sent now would be sent twice
	}
	ctx, cancel := context.WithTimeout(ctx, stored)
	defer cancel()
	futures := make([]jetstream.PubAckFuture, len(all))
	for i, m := range all {
		if futures[i], err = r.js.PublishMsgAsync(m); err != nil {
			break
		}
	}
	for i, f := range futures {
		if f == nil {
			return append(left, all[i:]...), err
		}
		select {
		case <-f.Ok():
			continue
		case err = <-f.Err():
		case <-ctx.Done():
			err = ctx.Err()
		}
		left = append(left, all[i])
	}
	return left, err
}

// chainsMost bounds the tenants whose chains go on; over it all begin anew.
const chainsMost = 4096

// chains are those of one recorder by tenant: what it writes of one, each record with a digest over the one before, so that one that is
// altered or taken out between others shows. Several gateways write the same subject, each its own chain.
type chains map[string]*link

// link is the last record of a chain. id is the chain's.
type link struct {
	id     string
	number uint64
	digest []byte
}

// message is the next record of its tenant's chain. Its id is the chain's, a dot, and its number in it, from 1.
func (s chains) message(c *eventsv1.CallEnded) (*nats.Msg, error) {
	last := s[c.GetTenantId()]
	if last == nil {
		if len(s) >= chainsMost {
			clear(s)
		}
		last = &link{id: ids.New()}
		s[c.GetTenantId()] = last
	}
	m, digest, err := envelope.Encode(subject.Call(c.GetTenantId()), envelope.Event{
		Meta: envelope.Meta{ID: last.id + "." + strconv.FormatUint(last.number+1, 10), Tenant: c.GetTenantId(), Time: time.Now()}, Body: c,
	}, last.digest)
	if err != nil {
		return nil, err
	}
	last.number, last.digest = last.number+1, digest
	return m, nil
}
