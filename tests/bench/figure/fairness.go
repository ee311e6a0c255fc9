package figure

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

const (
	// floodTenant creates and destroys with so many clients at once, each as fast as it is answered.
	floodTenant  = "flood"
	floodClients = 32
	// floodSamples is how many creates the other tenant makes meanwhile, and as many when it is alone.
	floodSamples = 60
)

// fairness takes the times of one tenant's creates while another floods, and when it does not.
func fairness(ctx context.Context, b *Bench) ([]report.Row, error) {
	up, err := b.Up(ctx)
	if err != nil {
		return nil, err
	}
	events := make(chan *nats.Msg, 65536)
	sub, err := up.NATS().ChanSubscribe(subject.Live("evt."+live.Tenant+".sandbox.*"), events)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	n := max(5, b.count(floodSamples))
	var alone, beside times
	b.say("fairness: %d creates alone, before and after", n)
	if err := alone.take(ctx, up, events, n/2); err != nil {
		return nil, err
	}
	b.say("fairness: %d creates beside %d clients of another tenant", n, floodClients)
	stop, made := flood(ctx, up)
	err = beside.take(ctx, up, events, n)
	count := stop()
	if err != nil {
		return nil, err
	}
	if err := alone.take(ctx, up, events, n-n/2); err != nil {
		return nil, err
	}
	note := fmt.Sprintf("%d clients of the other tenant create and destroy without pause: %d creates of theirs meanwhile, %d refused or failed. Medians: ", floodClients, made.Load(), count)
	row := func(name string, ours, base sample.Values) report.Row {
		return report.Row{
			Name: name, Unit: "ms", Ours: ours.Quantile(0.99), Baseline: base.Quantile(0.99), Against: "the same with nobody beside it", Samples: len(ours),
			Target: report.RatioAtMost(2), Note: note + fmt.Sprintf("%.1f and %.1f ms.", ours.Median(), base.Median()),
		}
	}
	return []report.Row{
		row("create accepted beside a tenant that floods, p99", beside.accepted, alone.accepted),
		row("create to ready beside a tenant that floods, p99", beside.ready, alone.ready),
	}, nil
}

// times are those of creates, in ms.
type times struct{ accepted, ready sample.Values }

func (t *times) take(ctx context.Context, up *live.Up, events <-chan *nats.Msg, n int) error {
	for range n {
		begin := time.Now()
		res, err := up.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: live.Tenant, Image: live.Image})
		if err != nil {
			return err
		}
		accepted := time.Since(begin)
		if _, err := awaitReady(ctx, events, res.GetSandboxId()); err != nil {
			return err
		}
		ready := time.Since(begin)
		if err := up.Destroy(ctx, res.GetSandboxId()); err != nil {
			return err
		}
		t.accepted.Add(float64(accepted.Microseconds()) / 1000)
		t.ready.Add(float64(ready.Microseconds()) / 1000)
	}
	return nil
}

// flood creates and destroys until stop is called, which gives how many calls did not succeed.
func flood(ctx context.Context, up *live.Up) (stop func() int64, made *atomic.Int64) {
	ctx, cancel := context.WithCancel(ctx)
	made = &atomic.Int64{}
	var failed atomic.Int64
	var clients sync.WaitGroup
	for range floodClients {
		clients.Go(func() {
			for ctx.Err() == nil {
				res, err := up.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: floodTenant, Image: live.Image})
				if err != nil {
					failed.Add(1)
					continue
				}
				made.Add(1)
				if up.Destroy(context.WithoutCancel(ctx), res.GetSandboxId()) != nil {
					failed.Add(1)
				}
			}
		})
	}
	return func() int64 {
		cancel()
		clients.Wait()
		return failed.Load()
	}, made
}
