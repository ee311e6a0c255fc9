package usecase

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/directget"
	"github.com/sandtrail/sandtrail/libs/logclock"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
)

// Silence is how old a heartbeat may be, by the log's clock, before its worker counts as offline: three were missed.
const Silence = 15 * time.Second

// Now is the time by the log's clock, which heartbeats are stamped with. It fails where the log could not be asked even once.
func (u *UseCases) Now(ctx context.Context) (time.Time, error) {
	u.clockMu.Lock()
	defer u.clockMu.Unlock()
	if u.clock == nil {
		c, err := logclock.New(ctx, u.js)
		if err != nil {
			return time.Time{}, unreachable(err)
		}
		u.clock = c
		go c.Run(u.base)
	}
	return u.clock.Now(), nil
}

// Hearing is what was heard of workers when it was asked. It is for one call.
type Hearing struct {
	u   *UseCases
	ctx context.Context
	now time.Time
	at  map[string]time.Time
	// sure are those that the leader was asked about.
	sure map[string]bool
	err  error
}

// Hear reads all heartbeats.
func (u *UseCases) Hear(ctx context.Context) (*Hearing, error) {
	now, err := u.Now(ctx)
	if err != nil {
		return nil, err
	}
	all, err := u.heartbeats(ctx)
	if err != nil {
		return nil, err
	}
	h := &Hearing{u: u, ctx: ctx, now: now, at: map[string]time.Time{}, sure: map[string]bool{}}
	for _, w := range all {
		h.at[w.GetWorker()] = w.GetTime().AsTime()
	}
	return h, nil
}

// Silent reports whether a worker missed three heartbeats, and when it was heard of last; the time is zero where that is over a minute
// ago. Before it says so it asks the leader, since a replica may lag. Where that fails it says no, and Err why.
func (h *Hearing) Silent(worker string) (last time.Time, silent bool) {
	fresh := func() bool { return h.now.Sub(h.at[worker]) <= Silence }
	if fresh() || h.err != nil {
		return time.Time{}, false
	}
	if !h.sure[worker] {
		m, err := directget.LeaderLast(h.ctx, h.u.js, subject.BucketStream(topology.BucketWorker), subject.BucketKey(topology.BucketWorker, worker))
		if err != nil {
			h.err = unreachable(err)
			return time.Time{}, false
		}
		h.sure[worker] = true
		delete(h.at, worker)
		w := &commandsv1.WorkerStatus{}
		if m != nil && len(m.Data) > 0 && proto.Unmarshal(m.Data, w) == nil {
			h.at[worker] = w.GetTime().AsTime()
		}
	}
	return h.at[worker], !fresh()
}

// Err is why a question could not be answered, nil where all could.
func (h *Hearing) Err() error { return h.err }

// heartbeats are those of the last minute.
func (u *UseCases) heartbeats(ctx context.Context) ([]*commandsv1.WorkerStatus, error) {
	var all []*commandsv1.WorkerStatus
	err := directget.Each(ctx, u.js, subject.BucketStream(topology.BucketWorker), subject.BucketKey(topology.BucketWorker, "*"), 1,
		func(m directget.Message) error {
			w := &commandsv1.WorkerStatus{}
			if len(m.Data) > 0 && proto.Unmarshal(m.Data, w) == nil {
				all = append(all, w)
			}
			return nil
		})
	if err != nil {
		return nil, unreachable(err)
	}
	return all, nil
}
