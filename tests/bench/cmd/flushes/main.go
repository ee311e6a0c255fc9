// Flushes measures what each setting of the log's flushes costs: appends on one server and on three, and on `sandtrail up` the time of an
// exec and of a create. The settings take turns, so that what else happens on the machine hits all of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/envelope"
	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/jslog"
	"github.com/sandtrail/sandtrail/libs/ids"
	"github.com/sandtrail/sandtrail/libs/natsserver"
	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/tests/bench/live"
	"github.com/sandtrail/sandtrail/tests/bench/sample"
)

// setting is one of the columns.
type setting struct {
	name string
	sync natsserver.Options
	one, many,
	oneOfThree, manyOfThree,
	exec, create sample.Values
}

func main() {
	rounds := flag.Int("rounds", 3, "how often each setting is measured; the medians are printed")
	lasts := flag.Duration("lasts", 2*time.Second, "how long appends are counted each time")
	bin := flag.String("bin", "bin", "`directory` of the built programs")
	dir := flag.String("dir", os.TempDir(), "`directory` of the logs: on the disk that is to be measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	settings := []*setting{
		{name: "always", sync: natsserver.Options{SyncAlways: true}},
		{name: "100ms", sync: natsserver.Options{SyncInterval: 100 * time.Millisecond}},
		{name: "1s", sync: natsserver.Options{SyncInterval: time.Second}},
		{name: "5s", sync: natsserver.Options{SyncInterval: 5 * time.Second}},
		{name: "2m", sync: natsserver.Options{SyncInterval: 2 * time.Minute}},
	}
	for round := range *rounds {
		for _, s := range settings {
			fmt.Fprintf(os.Stderr, "round %d, %s\n", round+1, s.name)
			if err := s.measure(ctx, *dir, *bin, *lasts); err != nil {
				// One of many samples: the medians are of the others.
				fmt.Fprintln(os.Stderr, "flushes:", err)
			}
		}
	}
	table(settings)
}

func table(settings []*setting) {
	fmt.Println("| flush | R1 x1, events/s | R1 x64 | R3 x1 | R3 x64 | exec, ms p50 | create to ready, ms p50 |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, s := range settings {
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %.0f | %.1f | %.0f |\n", s.name, s.one.Median(), s.many.Median(), s.oneOfThree.Median(),
			s.manyOfThree.Median(), s.exec.Median(), s.create.Median())
	}
}

func (s *setting) measure(ctx context.Context, dir, bin string, lasts time.Duration) error {
	for _, c := range []struct {
		servers   int
		one, many *sample.Values
	}{{1, &s.one, &s.many}, {3, &s.oneOfThree, &s.manyOfThree}} {
		err := withLog(ctx, dir, c.servers, s.sync, func(log *jslog.Log) error {
			for _, w := range []struct {
				writers int
				to      *sample.Values
			}{{1, c.one}, {64, c.many}} {
				rate, err := appends(ctx, log, w.writers, lasts)
				if err != nil {
					return err
				}
				w.to.Add(rate)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%d servers: %w", c.servers, err)
		}
	}
	return s.calls(ctx, bin)
}

// withLog gives a log on so many servers of this process, which end with it.
func withLog(ctx context.Context, below string, servers int, o natsserver.Options, do func(*jslog.Log) error) (err error) {
	dir, err := os.MkdirTemp(below, "sandtrail-flushes-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ports, err := freePorts(servers)
	if err != nil {
		return err
	}
	var routes []string
	for _, p := range ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	running := make([]*natsserver.Server, servers)
	failed := make([]error, servers)
	var wg sync.WaitGroup
	for i := range servers {
		o := o
		o.Dir, o.Name, o.Port = filepath.Join(dir, fmt.Sprint(i)), fmt.Sprintf("n%d", i), -1
		if servers > 1 {
			o.Cluster = &natsserver.Cluster{Name: "flushes", Port: ports[i], Routes: routes}
		}
		wg.Go(func() { running[i], failed[i] = natsserver.Start(o) })
	}
	wg.Wait()
	defer func() {
		for _, s := range running {
			if s != nil {
				s.Shutdown()
			}
		}
	}()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	nc, err := nats.Connect(running[0].URL())
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	for range 60 {
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		err = topology.Ensure(try, js, topology.Options{Replicas: servers})
		cancel()
		if err == nil {
			return do(jslog.New(js))
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// appends is how many events a second are stored by so many writers, each on aggregates of its own with three events.
func appends(ctx context.Context, log *jslog.Log, writers int, lasts time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var stored atomic.Int64
	failed := make([]error, writers)
	begin := time.Now()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for time.Since(begin) < lasts && failed[w] == nil {
				agg := subject.Exec("bench", ids.New(), ids.New())
				var tail eventlog.Tail
				for range 3 {
					recorded, err := log.Append(ctx, agg, tail, envelope.Event{
						Meta: envelope.Meta{ID: ids.New()}, Body: &eventsv1.ExecCompleted{Reason: "exited", UsageEventId: ids.New()},
					})
					if err != nil {
						failed[w] = err
						return
					}
					tail = eventlog.Tail{Seq: recorded[0].Seq, Digest: recorded[0].Digest}
					stored.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return float64(stored.Load()) / time.Since(begin).Seconds(), errors.Join(failed...)
}

// calls takes the times of execs in one sandbox, and of creates to their first exec.
func (s *setting) calls(ctx context.Context, bin string) (err error) {
	up, err := live.Start(ctx, bin, "--sync-interval", s.name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, up.Close()) }()
	var last string
	for i := range 8 {
		begin := time.Now()
		box, err := up.Create(ctx)
		if err != nil {
			return err
		}
		last = box.ID
		if i > 0 {
			s.create.Took(begin)
		}
		defer func() { err = errors.Join(err, up.Destroy(context.WithoutCancel(ctx), box.ID)) }()
	}
	for i := range 45 {
		begin := time.Now()
		if _, err := up.Exec(ctx, last, nil, "true"); err != nil {
			return err
		}
		if i >= 5 {
			s.exec.Took(begin)
		}
	}
	return nil
}
