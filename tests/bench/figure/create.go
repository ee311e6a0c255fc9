package figure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/subject"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

// readyPatience bounds one create.
const readyPatience = time.Minute

// create makes a sandbox by our API and one by `runsc run`, in turn.
func create(ctx context.Context, b *Bench) (rows []report.Row, err error) {
	up, err := b.Up(ctx)
	if err != nil {
		return nil, err
	}
	plain, err := up.NewPlain()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	events := make(chan *nats.Msg, 1024)
	sub, err := up.NATS().ChanSubscribe(subject.Live("evt."+live.Tenant+".sandbox.*"), events)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	var ours, theirs, destroyed sample.Values
	phases := map[string]*sample.Values{}
	runs := b.Runs + 1
	b.say("create: %d sandboxes by the API and by runsc run in turn", runs)
	for i := range runs {
		begin := time.Now()
		id, ready, err := createOne(ctx, up, events)
		if err != nil {
			return nil, err
		}
		took := float64(time.Since(begin).Microseconds()) / 1000
		begin = time.Now()
		if err := up.Destroy(ctx, id); err != nil {
			return nil, err
		}
		gone := float64(time.Since(begin).Microseconds()) / 1000
		r, err := plain.Run("/usr/bin/echo", "ready")
		if err != nil {
			return nil, err
		}
		if err := r.End(); err != nil {
			return nil, err
		}
		if i == 0 {
			continue
		}
		ours.Add(took)
		destroyed.Add(gone)
		theirs.Add(float64(r.FirstByte.Microseconds()) / 1000)
		for _, p := range ready.GetPhases() {
			v := phases[p.GetName()]
			if v == nil {
				v = &sample.Values{}
				phases[p.GetName()] = v
			}
			v.Add(float64(p.GetDurationUs()) / 1000)
		}
	}
	return []report.Row{
		{
			Name: "cold create to ready", Unit: "ms", Ours: ours.Median(), Baseline: theirs.Median(), Against: "`runsc run` of the same image to its first output byte", Samples: len(ours),
			Target: report.RatioAtMost(1.3), Note: fmt.Sprintf("From the call of CreateSandbox to the live `ready` event; p90 %.0f ms. Destroying it takes %.0f ms. Parts in ms: %s.",
				ours.Quantile(0.9), destroyed.Median(), parts(phases)),
		},
	}, nil
}

// createOne returns when the sandbox's ready event has come.
func createOne(ctx context.Context, up *live.Up, events <-chan *nats.Msg) (string, *eventsv1.SandboxReady, error) {
	res, err := up.API.CreateSandbox(ctx, &computev1.CreateSandboxRequest{TenantId: live.Tenant, Image: live.Image})
	if err != nil {
		return "", nil, err
	}
	ready, err := awaitReady(ctx, events, res.GetSandboxId())
	return res.GetSandboxId(), ready, err
}

// awaitReady returns when the ready event of a sandbox of live.Tenant has come.
func awaitReady(ctx context.Context, events <-chan *nats.Msg, id string) (*eventsv1.SandboxReady, error) {
	patience := time.After(readyPatience)
	for {
		select {
		case m := <-events:
			if !strings.HasSuffix(m.Subject, "."+id) {
				continue
			}
			e, err := envelope.Decode(subject.Sandbox(live.Tenant, id).Subject(), 0, m.Header, m.Data)
			if err != nil {
				return nil, err
			}
			switch v := e.Body.(type) {
			case *eventsv1.SandboxReady:
				return v, nil
			case *eventsv1.SandboxFailed:
				return nil, fmt.Errorf("sandbox failed: %s", v.GetMessage())
			}
		case <-patience:
			return nil, errors.New("the sandbox does not become ready")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// parts are the medians of the parts of a start, the longest first.
func parts(phases map[string]*sample.Values) string {
	names := slices.SortedFunc(maps.Keys(phases), func(a, b string) int { return cmp.Compare(phases[b].Median(), phases[a].Median()) })
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%s %.1f", name, phases[name].Median()))
	}
	return strings.Join(all, ", ")
}
