// Package repeat asks the HTTP API for the same things again and again, under their idempotency keys and from many clients, while the services
// behind it are killed, and judges whether each key had one effect and always the same answer.
package repeat

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// Options of a run.
type Options struct {
	// Seed chooses the order of requests, the faults and their times.
	Seed uint64
	// Requests are answered, with Keys, by Clients at once; Keys is at least 20. Where all of them were answered at the first attempt they are
	// made again, up to maxRounds times in all: a fast machine has them behind it before a process is killed that they need.
	Requests, Keys, Clients int
	// Pause is the longest time between two kills: 1.5 s unless set.
	Pause time.Duration
	// Say gets lines for people.
	Say func(format string, args ...any)
}

// What a run works on.
const (
	// boxes run the commands, victims are stopped.
	boxes, victims = 4, 2
	// mostCreates bounds the sandboxes that keys make. They end by themselves.
	mostCreates   = 20
	createSeconds = 20
	maxRounds     = 20
	tenant        = "acme"
)

// killed are the processes that are.
var killed = []string{"gateway", "lifecycle", "exec"}

// run is a run under way.
type run struct {
	Options
	rig    *rig.Rig
	key    string
	random *rand.Rand

	boxes, victims []string
	operations     []*operation
	summary        *Summary
}

// Run makes one run. An error is one of the harness; what the system did wrong is in the summary.
func Run(ctx context.Context, o Options) (_ *Summary, err error) {
	if o.Keys < 20 || o.Requests < o.Keys || o.Clients < 1 {
		return nil, errors.New("at least 20 keys, as many requests as keys, and one client are needed")
	}
	if o.Pause <= 0 {
		o.Pause = 1500 * time.Millisecond
	}
	o.Say("seed %d", o.Seed)
	bin, err := rig.Build(ctx)
	if err != nil {
		return nil, err
	}
	state, err := os.MkdirTemp("", "st-repeat-")
	if err != nil {
		return nil, err
	}
	r := &run{Options: o, random: rand.New(rand.NewPCG(o.Seed, 0)), summary: newSummary(o)} //nolint:gosec // to be made again
	defer func() {
		if err == nil && r.summary.OK() {
			err = os.RemoveAll(state)
			return
		}
		o.Say("logs of the processes are in %s", state)
	}()
	r.rig, err = rig.Start(ctx, rig.Options{
		Bin: bin, State: filepath.Join(state, "s"), Form: rig.Services, Replicas: 1, MaxSandboxes: 64, MaxPerTenant: 64, Sandboxes: 200, Say: o.Say,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.rig.Stop()) }()
	if err := r.prepare(ctx, bin); err != nil {
		return nil, err
	}
	r.load(ctx)
	return r.summary, r.judge(ctx)
}

// prepare makes the tenant, its key and the sandboxes, while nothing fails.
func (r *run) prepare(ctx context.Context, bin string) error {
	operate := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, filepath.Join(bin, "sandtrail"), append(args, "--output", "json")...)
		cmd.Env = append(os.Environ(), "SANDTRAIL_NATS="+r.rig.NATS)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("sandtrail %s: %w\n%s", strings.Join(args, " "), err, errs.String())
		}
		return out, nil
	}
	if _, err := operate("tenant", "create", tenant); err != nil {
		return err
	}
	out, err := operate("key", "create", "--tenant", tenant, "--scopes", "create,inspect,execute,stop")
	if err != nil {
		return err
	}
	var made struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(out, &made); err != nil {
		return fmt.Errorf("read the key: %w", err)
	}
	r.key = made.Key
	c := r.client()
	for range boxes + victims {
		a := c.until(ctx, &operation{method: "POST", path: "/create", body: `{"memory":"256Mi","timeout_seconds":7200}`, key: fmt.Sprintf("box-%d", len(r.boxes)+len(r.victims))})
		id, ok := a.member("sandbox_id")
		if a.status != 201 || !ok {
			return fmt.Errorf("create a sandbox: %s", a)
		}
		if len(r.boxes) < boxes {
			r.boxes = append(r.boxes, id)
		} else {
			r.victims = append(r.victims, id)
		}
		// A command that has run says that it is ready.
		if a := c.until(ctx, &operation{method: "POST", path: "/" + id + "/execute", body: `{"command":"true"}`, key: "ready-" + id}); a.status != 200 {
			return fmt.Errorf("run the first command: %s", a)
		}
	}
	r.plan()
	return nil
}

// plan makes the operations, one for each key.
func (r *run) plan() {
	creates := min(mostCreates, r.Keys/10)
	for i := range r.Keys {
		op := &operation{method: "POST", key: fmt.Sprintf("key-%06d", i)}
		switch {
		case i < creates:
			op.kind, op.path, op.body = "create", "/create", fmt.Sprintf(`{"memory":"128Mi","timeout_seconds":%d}`, createSeconds)
		case i < creates+victims:
			op.kind, op.path = "stop", "/"+r.victims[i-creates]+"/stop"
		default:
			op.kind, op.box = "execute", r.boxes[i%boxes]
			op.path = "/" + op.box + "/execute"
			// One write that appends is one line, whatever runs beside it.
			op.body = fmt.Sprintf(`{"command":"echo %s >>effects; echo out-%s; echo err >&2; exit %d","timeout":60000}`, op.key, op.key, i%3)
		}
		r.operations = append(r.operations, op)
	}
}

// load makes the requests while processes are killed, and then each once more when nothing fails.
func (r *run) load(ctx context.Context) {
	order := make([]int, r.Requests)
	for i := range order {
		order[i] = i % r.Keys
	}
	r.random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	began := time.Now()
	failing, calm := context.WithCancel(ctx)
	var killer sync.WaitGroup
	killer.Go(func() { r.kill(failing) })
	work := make(chan *operation)
	var clients sync.WaitGroup
	for range r.Clients {
		c := r.client()
		clients.Go(func() {
			for op := range work {
				r.ask(ctx, c, op)
			}
		})
	}
	every := max(1, len(order)/20)
	for round := 0; round < maxRounds && (round == 0 || !r.summary.cut()); round++ {
		for i, k := range order {
			if i%every == 0 {
				r.Say("%d of %d requests, %d kills", i, len(order), r.summary.kills())
			}
			work <- r.operations[k]
		}
	}
	close(work)
	clients.Wait()
	calm()
	killer.Wait()
	r.summary.Took = time.Since(began)
	c := r.client()
	for _, op := range r.operations {
		r.ask(ctx, c, op)
	}
}

// ask makes one request until it is answered, and holds the answer against the first one of its key.
func (r *run) ask(ctx context.Context, c *client, op *operation) {
	began := time.Now()
	a := c.until(ctx, op)
	r.summary.answered(op, a, time.Since(began))
}

// kill ends one process after the other, and lets it start again after a moment.
func (r *run) kill(ctx context.Context) {
	random := rand.New(rand.NewPCG(r.Seed, 1)) //nolint:gosec // to be made again
	for pause.For(ctx, time.Duration(random.Int64N(int64(r.Pause)))+100*time.Millisecond) == nil {
		name := killed[random.IntN(len(killed))]
		p := r.rig.Process(name)
		if err := p.Kill(syscall.SIGKILL); err != nil {
			r.summary.wrong("a process could not be killed: %v", err)
			return
		}
		r.summary.killed(name)
		_ = pause.For(ctx, time.Duration(random.Int64N(int64(time.Second))))
		p.Release()
	}
}
