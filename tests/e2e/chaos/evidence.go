package chaos

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/eventlog/linear"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/pause"
	"github.com/sandtrail/sandtrail/libs/subject"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/fault"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

// worker is the only one of the rig.
const worker = "local"

// settle is how long log, hosts, views and rows may disagree.
const settle = 30 * time.Second

// observer gathers what only shows while a run goes on.
type observer struct {
	mu      sync.Mutex
	samples []evidence.Sample
	faults  []evidence.Fault
	appends *linear.Recorder
}

func newObserver() *observer {
	return &observer{samples: []evidence.Sample{}, faults: []evidence.Fault{}, appends: linear.NewRecorder()}
}

func (o *observer) fault(f fault.Fault) {
	made := evidence.Fault{At: time.Now().UTC(), Kind: f.Kind}
	if strings.HasSuffix(f.Kind, "-keeper") || strings.HasSuffix(f.Kind, "-sandbox") {
		made.Sandbox = f.Target
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = append(o.faults, made)
}

// sample looks at the host every second until ctx ends.
func (o *observer) sample(ctx context.Context, r *rig.Rig) {
	for pause.For(ctx, time.Second) == nil {
		if s, err := evidence.SampleHost(worker, r.State); err == nil {
			o.mu.Lock()
			o.samples = append(o.samples, s)
			o.mu.Unlock()
		}
	}
}

const (
	appenders = 3
	// appendPause keeps histories small enough to be judged.
	appendPause = 300 * time.Millisecond
	appendWait  = 5 * time.Second
	// appendTurn is after how many appends all go on to new aggregates: each append loads its aggregate's whole history first.
	appendTurn = 400
)

// append lets clients append to two aggregates at a time against each other until ctx ends, each with a pause behind it.
func (o *observer) append(ctx context.Context, r *rig.Rig, every time.Duration) error {
	nc, js, err := connect(r)
	if err != nil {
		return err
	}
	defer nc.Close()
	var clients sync.WaitGroup
	var count atomic.Int64
	for i := range appenders {
		// Without loads: a replica that lags may answer them.
		log := o.appends.Log(i, jslog.New(js), false)
		clients.Go(func() {
			for pause.For(ctx, every) == nil {
				n := count.Add(1)
				agg := subject.Tenant(fmt.Sprintf("chaos-%d", n/appendTurn*2+n%2))
				attempt, cancel := context.WithTimeout(ctx, appendWait)
				if h, err := log.Load(attempt, agg); err == nil {
					_, _ = log.Append(attempt, agg, h.Tail(), appended()) // the record says what came of it
				}
				cancel()
			}
		})
	}
	clients.Wait()
	return nil
}

func appended() envelope.Event {
	return envelope.Event{Meta: envelope.Meta{ID: ids.New()}, Body: &eventsv1.SandboxStopping{}}
}

// connect to the NATS servers past all proxies.
func connect(r *rig.Rig) (*nats.Conn, jetstream.JetStream, error) {
	// A server may be down at this moment.
	nc, err := nats.Connect(r.NATS, nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.PingInterval(2*time.Second))
	if err != nil {
		return nil, nil, fmt.Errorf("connect to NATS: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// collect waits until everything agrees, and takes all that is left. It is saved beside the journal.
func (r *run) collect(ctx context.Context) (evidence.Evidence, error) {
	if err := r.rig.Find(ctx); err != nil {
		return evidence.Evidence{}, err
	}
	nc, js, err := connect(r.rig)
	if err != nil {
		return evidence.Evidence{}, err
	}
	defer nc.Close()
	limits := evidence.Limits{Sandboxes: map[string]int{worker: maxSandboxes}, PerTenant: perTenant, Settle: settle}
	if r.Form == rig.AllInOne {
		limits = evidence.Limits{Settle: settle}
	}
	e, err := evidence.Collect(ctx, evidence.Sources{
		JS: js, ClickHouse: r.rig.ClickHouseURL, StateDirs: map[string]string{worker: r.rig.State}, Limits: limits,
		Faults: r.observer.faults, Samples: r.observer.samples,
		Appends: []evidence.AppendHistory{{Log: fmt.Sprintf("R%d", r.Replicas), Calls: r.observer.appends.Calls()}},
	}, check.Open)
	if err != nil {
		return e, err
	}
	return e, e.Save(r.Out)
}
