// Command repeat asks a whole Sandtrail on this host for the same things again and again under their idempotency keys while its services are
// killed, and says whether each key had one effect and always the same answer. It needs root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/repeat"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

func main() {
	if rig.IsNode() {
		os.Exit(rig.NodeMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := repeat.Options{Say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
	}}
	flag.Uint64Var(&o.Seed, "seed", uint64(time.Now().UnixNano()), "choose the same order and kills as a run with this seed") //nolint:gosec // any number will do
	flag.IntVar(&o.Requests, "requests", 10_000, "requests to be answered")
	flag.IntVar(&o.Keys, "keys", 1000, "idempotency keys among them")
	flag.IntVar(&o.Clients, "clients", 64, "clients at once")
	flag.DurationVar(&o.Pause, "pause", 1500*time.Millisecond, "longest time between two kills")
	flag.Parse()
	s, err := repeat.Run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "repeat:", err)
		os.Exit(2)
	}
	fmt.Print("\n", s)
	if !s.OK() {
		os.Exit(1)
	}
}
