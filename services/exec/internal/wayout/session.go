package wayout

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sandtrail/sandtrail/libs/egress"
	"github.com/sandtrail/sandtrail/libs/pause"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

const (
	// perSandbox connections of one sandbox are served at once. Its programs wait for more.
	perSandbox = 48
	// waits are how many connections are waited for at once, acceptTime for how long before the toolbox is asked anew.
	waits      = 2
	acceptTime = 5 * time.Minute
	// soonest and latest are between two attempts at a toolbox that does not answer, never at one that has no way out.
	soonest, latest = 100 * time.Millisecond, 5 * time.Second
)

// session is the way out of one sandbox.
type session struct {
	set     *Set
	id      string
	records *recorder
	// rules is the policy of now.
	rules atomic.Pointer[rules]
	stop  context.CancelFunc

	mu    sync.Mutex
	flows map[*flow]struct{}
}

// rules are a policy and what it was read from.
type rules struct {
	policy egress.Policy
	from   *eventsv1.Egress
}

func (s *session) policy() egress.Policy { return s.rules.Load().policy }

// allow sets the policy. Connections that it does not allow any more end.
func (s *session) allow(e *eventsv1.Egress) {
	if now := s.rules.Load(); now != nil && proto.Equal(now.from, e) {
		return
	}
	// What this version cannot read allows nothing.
	p, _ := egress.Read(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules.Store(&rules{policy: p, from: e})
	for f := range s.flows {
		if !p.Allows(f.target) {
			f.stop()
			f.far.Close()
		}
	}
}

// begin notes a flow whose far end is open. False: the policy has changed since it was judged.
func (s *session) begin(f *flow) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.policy().Allows(f.target) {
		return false
	}
	s.flows[f] = struct{}{}
	return true
}

// end forgets a flow and tells how much it has carried.
func (s *session) end(f *flow, d decision) {
	f.far.Close()
	s.mu.Lock()
	delete(s.flows, f)
	s.mu.Unlock()
	s.decided(d, 0, f.out.Load(), f.in.Load())
}

func (s *session) decided(d decision, n, out, in uint64) {
	s.records.add(d, n, out, in)
	s.set.metrics.count(d, n, out, in)
}

// run serves the sandbox until ctx ends.
func (s *session) run(ctx context.Context) {
	var recording, serving sync.WaitGroup
	// Behind the last connection: what it carried is told too.
	recorded, told := context.WithCancel(context.WithoutCancel(ctx))
	recording.Go(func() { s.records.run(recorded) })
	slots := make(chan struct{}, perSandbox)
	for range waits {
		serving.Go(func() { s.accept(ctx, slots, &serving) })
	}
	serving.Wait()
	told()
	recording.Wait()
}

// accept waits for connections, one after the other.
func (s *session) accept(ctx context.Context, slots chan struct{}, serving *sync.WaitGroup) {
	wait := soonest
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := s.next(ctx)
		if err == nil {
			wait = soonest
			serving.Go(func() {
				defer func() { <-slots }()
				s.serve(ctx, conn)
			})
			continue
		}
		<-slots
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, context.DeadlineExceeded):
			continue
		}
		var refused *client.Error
		if errors.As(err, &refused) && refused.Reason == "validation" {
			s.set.Log.Warn("the sandbox was made by an earlier version, which has no way out; make it anew", "sandbox", s.id)
			<-ctx.Done()
			return
		}
		if pause.For(ctx, wait) != nil {
			return
		}
		wait = min(2*wait, latest)
	}
}

// next is the next connection of a program.
func (s *session) next(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTime)
	defer cancel()
	return s.set.Toolbox(s.id).Connect(ctx, &toolboxv1.Connect{Outgoing: true})
}
