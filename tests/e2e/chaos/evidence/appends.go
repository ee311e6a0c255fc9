package evidence

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	// contended is how many aggregates clients contend for at a time.
	contended = 2
	// turn is after how many loads all of them go on to new ones: the search for an order grows with the calls of one.
	turn = 60
)

// Appenders are clients of the log that contend for aggregates of their own while other things happen.
type Appenders struct {
	name string
	rec  *linear.Recorder
	stop context.CancelFunc
	done sync.WaitGroup
}

// Contend starts clients that load and append, each with a pause behind it, until Stop. name says what log it is, such as R1 or
// R3, and must be fit for a tenant. Their loads are only judged where loads says so: on a cluster a replica that lags may answer.
func Contend(js jetstream.JetStream, name string, clients int, pause time.Duration, loads linear.Loads) *Appenders {
	ctx, stop := context.WithCancel(context.Background())
	a := &Appenders{name: name, rec: linear.NewRecorder(), stop: stop}
	// Not to be mixed up with those of an earlier run on the same log.
	run := ids.Short(ids.New())
	var count atomic.Int64
	for i := range clients {
		log := a.rec.Log(i, jslog.New(js), loads)
		a.done.Go(func() {
			tick := time.NewTicker(max(pause, time.Millisecond))
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
				n := count.Add(1)
				agg := subject.Tenant(fmt.Sprintf("chaos-%s-%s-%d", name, run, n/turn*contended+n%contended))
				h, err := log.Load(ctx, agg)
				if err != nil {
					continue // it said that it does not know
				}
				// What came of it is in the record.
				_, _ = log.Append(ctx, agg, h.Tail(), envelope.Event{Meta: envelope.Meta{ID: ids.New()}, Body: &eventsv1.SandboxStopping{}})
			}
		})
	}
	return a
}

// Count tells how many appends were acknowledged so far, and how many were refused because another was faster.
func (a *Appenders) Count() (done, conflicts int) { return a.rec.Count() }

// Stop ends the clients and gives what they did. An append that was under way counts as one whose outcome is unknown.
func (a *Appenders) Stop() AppendHistory {
	a.stop()
	a.done.Wait()
	return AppendHistory{Log: a.name, Calls: a.rec.Calls()}
}
