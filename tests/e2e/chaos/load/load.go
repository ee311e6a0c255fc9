// Package load is what callers do to a Sandtrail: they create sandboxes, run commands of every sort in them, read along, cancel and destroy,
// and repeat what was cut off. A plan follows from its seed; what happened is in the journal.
package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Options of a load.
type Options struct {
	Seed uint64
	// Creates and Execs are how many have to have an outcome before the load is done, and Enough says that it may be; nil says so always.
	Creates, Execs int
	Enough         func() bool
	// Lives is how many sandboxes are used at once; each may run three execs at once.
	Lives int
	// Tenants share the sandboxes.
	Tenants int
	// Addrs are the gateway's addresses, one for each client.
	Addrs   []string
	Journal *journal.Journal
	// Pause is how long on average a client waits before each create and exec.
	Pause time.Duration
}

// Counts of what came out. They may be read while the load runs.
type Counts struct {
	Creates, CreatesRefused, Execs, Completed, Lost, ExecsRefused, Cancels, Stops, Destroys, Reads, Abandoned, Bytes atomic.Int64
}

func (c *Counts) String() string {
	return fmt.Sprintf("%d creates (%d refused), %d execs (%d completed, %d lost, %d refused), %d cancels, %d stops, %d destroys, %d reads, %d MB read, %d abandoned",
		c.Creates.Load(), c.CreatesRefused.Load(), c.Execs.Load(), c.Completed.Load(), c.Lost.Load(), c.ExecsRefused.Load(), c.Cancels.Load(),
		c.Stops.Load(), c.Destroys.Load(), c.Reads.Load(), c.Bytes.Load()>>20, c.Abandoned.Load())
}

// Load runs a plan.
type Load struct {
	Counts
	options Options
	clients []*Client
	next    atomic.Int64
	mu      sync.Mutex
	gaveUp  []string
}

// New makes a load and its clients.
func New(o Options) (*Load, error) {
	l := &Load{options: o}
	for i, addr := range o.Addrs {
		c, err := NewClient(fmt.Sprintf("client%d", i), addr, o.Journal)
		if err != nil {
			return nil, err
		}
		l.clients = append(l.clients, c)
	}
	return l, nil
}

// Run does all of it, or ends with ctx: then it destroys what it has made and returns nil too.
func (l *Load) Run(ctx context.Context) {
	var lives sync.WaitGroup
	for range l.options.Lives {
		lives.Go(func() {
			for ctx.Err() == nil && !l.done() {
				n := uint64(l.next.Add(1))
				l.rest(ctx, random(l.options.Seed, n, 1))
				l.life(ctx, n)
			}
		})
	}
	lives.Wait()
	for _, c := range l.clients {
		_ = c.Close()
	}
}

func (l *Load) done() bool {
	return l.Creates.Load() >= int64(l.options.Creates) && l.Execs.Load() >= int64(l.options.Execs) && (l.options.Enough == nil || l.options.Enough())
}

// GaveUp tells of operations that never came to an end.
func (l *Load) GaveUp() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.gaveUp...)
}

func (l *Load) note(err error, what string) {
	if errors.Is(err, errGaveUp) {
		l.Abandoned.Add(1)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.gaveUp = append(l.gaveUp, fmt.Sprintf("%s: %v", what, err))
	}
}

// life is one sandbox from its create to its destroy.
func (l *Load) life(ctx context.Context, n uint64) {
	r := random(l.options.Seed, n)
	id := fmt.Sprintf("c%x-%d", l.options.Seed, n)
	owner, client := tenant(r.IntN(l.options.Tenants)), l.clients[r.IntN(len(l.clients))]
	sandbox, err := client.Create(ctx, id, createRequest(owner, id))
	if err != nil {
		l.note(err, "create "+id)
		l.CreatesRefused.Add(1)
		// The quota is used up, or the disk is: others go on first.
		_ = pause.For(ctx, time.Duration(200+r.IntN(800))*time.Millisecond)
		return
	}
	l.Creates.Add(1)
	// What is made is destroyed, also when the run ends early.
	defer l.destroy(context.WithoutCancel(ctx), client, owner, id, sandbox)
	var execs sync.WaitGroup
	slots := make(chan struct{}, 1+r.IntN(3))
	dead := new(atomic.Bool)
	for i := range l.execsOf(r) {
		if ctx.Err() != nil || dead.Load() {
			break
		}
		s := newStep(random(l.options.Seed, n, uint64(i)), sandbox, fmt.Sprintf("%s-%d", id, i)) //nolint:gosec // a small number
		l.rest(ctx, random(l.options.Seed, n, uint64(i), 2))                                     //nolint:gosec // a small number
		if still := random(l.options.Seed, n, uint64(i), 3); i > 0 && still.IntN(12) == 0 {      //nolint:gosec // a small number
			// Now and then while commands still run in it.
			if still.IntN(2) == 0 {
				execs.Wait()
			}
			l.still(ctx, client, owner, fmt.Sprintf("%s-%d", id, i), sandbox)
		}
		slots <- struct{}{}
		execs.Go(func() {
			defer func() { <-slots }()
			l.exec(ctx, owner, sandbox, s, random(l.options.Seed, n, uint64(i), 1), dead) //nolint:gosec // a small number
		})
	}
	// Now and then the sandbox is destroyed while commands still run in it.
	if r.IntN(5) > 0 {
		execs.Wait()
	}
	defer execs.Wait()
}

// execsOf is how many execs a sandbox gets: around the run's mean.
func (l *Load) execsOf(r *rand.Rand) int {
	mean := max(1, l.options.Execs/max(1, l.options.Creates))
	return max(1, mean/2+r.IntN(mean+1))
}

func (l *Load) destroy(ctx context.Context, client *Client, owner, id, sandbox string) {
	err := client.Destroy(ctx, owner, id+"-destroy", sandbox)
	l.note(err, "destroy "+sandbox)
	l.Destroys.Add(1)
}

// exec runs one command with all who read along. dead is set when the sandbox takes no more.
func (l *Load) exec(ctx context.Context, owner, sandbox string, s step, r *rand.Rand, dead *atomic.Bool) {
	client := l.clients[r.IntN(len(l.clients))]
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	run := Run{Tenant: owner, Key: s.program.Token, Program: &s.program, Request: s.request}
	if s.cuts {
		cuts := random(r.Uint64())
		run.Cut = func() time.Duration { return time.Duration(20+cuts.IntN(1500)) * time.Millisecond }
	}
	others := random(r.Uint64())
	run.Named = func(exec string) {
		for range s.readers {
			reader, cuts := l.clients[others.IntN(len(l.clients))], random(others.Uint64())
			beside.Go(func() {
				err := reader.Read(ctx, owner, sandbox, exec, 1+cuts.IntN(8), func() time.Duration { return time.Duration(5+cuts.IntN(800)) * time.Millisecond })
				l.note(err, "read "+exec)
				l.Reads.Add(1)
			})
		}
		if s.cancel > 0 {
			beside.Go(func() { l.cancel(ctx, client, owner, sandbox, exec, s) })
		}
	}
	end, err := client.Exec(ctx, run)
	l.note(err, "exec "+s.program.Token)
	l.count(end, err)
	if status.Code(err) == codes.FailedPrecondition || status.Code(err) == codes.NotFound || end.Lost {
		dead.Store(true)
		// Where every sandbox fails, as on a full disk, making them as fast as they fail would only be noise.
		_ = pause.For(ctx, time.Duration(200+r.IntN(800))*time.Millisecond)
	}
}

// still stops a sandbox and starts it again. Where either is refused, the next command tells.
func (l *Load) still(ctx context.Context, client *Client, owner, key, sandbox string) {
	err := client.Stop(ctx, owner, key+"-stop", sandbox)
	l.note(err, "stop "+sandbox)
	if err != nil {
		return
	}
	l.Stops.Add(1)
	err = client.Start(ctx, owner, key+"-start", sandbox)
	l.note(err, "start "+sandbox)
}

func (l *Load) cancel(ctx context.Context, client *Client, owner, sandbox, exec string, s step) {
	if pause.For(ctx, s.cancel) != nil {
		return
	}
	p := newPacer()
	for i := 0; ; i++ {
		err := client.Cancel(ctx, owner, fmt.Sprintf("%s-cancel%d", s.program.Token, i), sandbox, exec)
		if err == nil || ctx.Err() != nil {
			l.Cancels.Add(1)
			return
		}
		// Not found: it is still on its way to its worker.
		if err := p.wait(ctx, err); err != nil {
			l.note(err, "cancel "+exec)
			return
		}
	}
}

func (l *Load) count(end End, err error) {
	l.Execs.Add(1)
	l.Bytes.Add(int64(end.Bytes)) //nolint:gosec // not that many
	switch {
	case end.Completed != nil:
		l.Completed.Add(1)
	case end.Lost:
		l.Lost.Add(1)
	case err != nil:
		l.ExecsRefused.Add(1)
	}
}

// rest waits for the load's pause, half of it to one and a half.
func (l *Load) rest(ctx context.Context, r *rand.Rand) {
	if p := l.options.Pause; p > 0 {
		_ = pause.For(ctx, p/2+time.Duration(r.Int64N(int64(p))))
	}
}
