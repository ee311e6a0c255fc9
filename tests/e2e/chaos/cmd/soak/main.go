// Command soak runs a whole Sandtrail on this host at a steady load for long and tells what grows and what leaks. It needs root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/soak"
)

func main() {
	if rig.IsNode() {
		os.Exit(rig.NodeMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, again := options()
	run := func() (*soak.Summary, error) { return soak.Run(ctx, o) }
	if again != "" {
		run = func() (*soak.Summary, error) { return soak.Again(again) }
	}
	s, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(2)
	}
	fmt.Print("\n", s)
	if !s.OK() {
		os.Exit(1)
	}
}

// options of a run, or the directory of one that is to be judged again.
func options() (o soak.Options, again string) {
	began := time.Now()
	o = soak.Options{Say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
	}}
	var form, only string
	flag.Uint64Var(&o.Seed, "seed", uint64(began.UnixNano()), "choose the same load and faults as a run with this seed") //nolint:gosec // any number will do
	flag.StringVar(&form, "form", string(rig.Services), "services (each a process, and NATS and ClickHouse) or up (sandtrail up)")
	flag.DurationVar(&o.Duration, "duration", time.Hour, "how long the load lasts")
	flag.DurationVar(&o.Every, "every", 10*time.Second, "from one look to the next")
	flag.IntVar(&o.Lives, "lives", 3, "sandboxes at once")
	flag.DurationVar(&o.Pause, "pause", time.Second, "how long a client waits on average before each step")
	flag.DurationVar(&o.FaultEvery, "fault-every", 0, "make a fault, with this time behind it before the next (none)")
	flag.StringVar(&only, "only", "", "make only these faults, separated by commas: whole names, or beginnings such as kill")
	flag.StringVar(&o.Out, "out", filepath.Join(os.TempDir(), "sandtrail-soak-"+began.UTC().Format("20060102T150405")), "directory for figures, plot, journal and summary")
	flag.StringVar(&again, "judge", "", "run nothing: judge the figures in the directory of an earlier soak again")
	flag.Parse()
	o.Form = rig.Form(form)
	if only != "" {
		o.Only = strings.Split(only, ",")
	}
	return o, again
}
