package jslog

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// call is one operation of the history that porcupine checks: a load, or an append of one event behind another.
type call struct {
	aggregate subject.Aggregate
	load      bool
	after, id string
}

type result struct {
	events  string // ids of a load, each behind a comma
	done    bool
	unknown bool // the append may have happened, then or later
}

// oneAfterTheOther is an aggregate to which appends happen one after the other, each only behind what it expects.
var oneAfterTheOther = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[subject.Aggregate][]porcupine.Operation{}
		for _, o := range history {
			a := o.Input.(call).aggregate
			by[a] = append(by[a], o)
		}
		var parts [][]porcupine.Operation
		for _, p := range by {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, in, out any) (bool, any) {
		s, c, r := state.(string), in.(call), out.(result)
		if c.load {
			return r.events == s, s
		}
		fits := strings.HasSuffix(s, c.after) && (c.after != "" || s == "")
		switch {
		case r.unknown && fits:
			return true, s + "," + c.id
		case r.unknown:
			return true, s
		case r.done:
			return fits, s + "," + c.id
		default:
			return !fits, s
		}
	},
	Equal: func(a, b any) bool { return a == b },
}

// recorder keeps a history of calls.
type recorder struct {
	mu  sync.Mutex
	all []porcupine.Operation
}

func (r *recorder) record(client int, c call, began time.Time, res result, start time.Time) {
	ended := time.Since(start).Nanoseconds()
	if res.unknown {
		ended = time.Hour.Nanoseconds()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, porcupine.Operation{
		ClientId: client, Input: c, Call: began.Sub(start).Nanoseconds(), Output: res, Return: ended,
	})
}

// client appends and loads as a decider does, and records what it saw.
type client struct {
	id    int
	log   *Log
	rec   *recorder
	start time.Time
	loads bool // loads are part of the history
}

func (c client) run(t *testing.T, aggs []subject.Aggregate, n int) {
	for range n {
		agg := aggs[rand.IntN(len(aggs))]
		began := time.Now()
		h, err := c.log.Load(t.Context(), agg)
		if err != nil {
			continue // it said that it does not know
		}
		if c.loads {
			var s strings.Builder
			for _, e := range h.Events {
				s.WriteString("," + e.ID)
			}
			c.rec.record(c.id, call{aggregate: agg, load: true}, began, result{events: s.String()}, c.start)
		}
		in := call{aggregate: agg}
		if len(h.Events) > 0 {
			in.after = "," + h.Events[len(h.Events)-1].ID
		}
		event := newEvents(1)[0]
		in.id = event.ID
		began = time.Now()
		_, err = c.log.Append(t.Context(), agg, h.Tail(), event)
		res := result{done: err == nil, unknown: err != nil && !errors.Is(err, eventlog.ErrConflict)}
		c.rec.record(c.id, in, began, res, c.start)
	}
}

// count tells how many appends there were, and how many of others that were too late.
func (r *recorder) count() (done, conflicts int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.all {
		res := o.Output.(result)
		if res.done {
			done++
		} else if !o.Input.(call).load && !res.unknown {
			conflicts++
		}
	}
	return done, conflicts
}

func (r *recorder) require(t *testing.T) {
	t.Helper()
	done, conflicts := r.count()
	t.Logf("%d calls, %d appended, %d conflicts", len(r.all), done, conflicts)
	require.NotZero(t, conflicts, "no contention, no test")
	require.NotZero(t, done)
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(oneAfterTheOther, r.all, 2*time.Minute))
}

func sandboxes(n int) []subject.Aggregate {
	out := make([]subject.Aggregate, n)
	for i := range out {
		out[i] = subject.Sandbox("acme", ids.New())
	}
	return out
}

func TestConcurrentAppendsAndLoadsAreLinearizable(t *testing.T) {
	f := natstest.Start(t)
	rec, start, aggs := &recorder{}, time.Now(), sandboxes(4)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			log := *New(f.JS)
			net := &faulty{publisher: log.publisher}
			for range 400 {
				net.script = append(net.script, []outcome{goesWell, goesWell, goesWell, ackLost, sentTwice, neverSent}[rand.IntN(6)])
			}
			log.publisher, log.firstPause = net, time.Millisecond
			client{id: i, log: &log, rec: rec, start: start, loads: true}.run(t, aggs, 60)
		})
	}
	wg.Wait()
	rec.require(t)
}

// Loads may be answered by a replica that lags, so here only appends must be linearizable; and nothing acknowledged is lost.
func TestAppendsAreLinearizableWhileServersRestart(t *testing.T) {
	f := natstest.Cluster(t)
	rec, start, aggs := &recorder{}, time.Now(), sandboxes(3)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			c := client{id: i, log: New(f.JS), rec: rec, start: start}
			for {
				select {
				case <-stop:
					return
				default:
					c.run(t, aggs, 1)
				}
			}
		})
	}
	for i := range 3 {
		f.Bounce(i)
		require.Eventually(t, func() bool {
			_, err := New(f.JS).Append(t.Context(), subject.Sandbox("acme", ids.New()), eventlog.Tail{}, newEvents(1)...)
			return err == nil
		}, 30*time.Second, 10*time.Millisecond)
	}
	// A slow machine gets little done beside the restarts.
	require.Eventually(t, func() bool { _, conflicts := rec.count(); return conflicts > 0 }, time.Minute, time.Millisecond)
	close(stop)
	wg.Wait()
	rec.require(t)

	have := map[string]bool{}
	require.Eventually(t, func() bool {
		clear(have)
		for _, agg := range aggs {
			h, err := New(f.JS).Load(t.Context(), agg)
			if err != nil {
				return false
			}
			for _, e := range h.Events {
				have[e.ID] = true
			}
		}
		for _, o := range rec.all {
			if o.Output.(result).done && !have[o.Input.(call).id] {
				return false
			}
		}
		return true
	}, 10*time.Second, 50*time.Millisecond, "something acknowledged is not in the log")
}
