// Command chaos loads a whole Sandtrail on this host while its parts fail, and checks afterwards that nothing was lost, done twice or leaked.
// It needs root, and the machine for itself.
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

	"github.com/sandtrail/sandtrail/tests/e2e/chaos"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/evidence"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

func main() {
	if rig.IsNode() {
		os.Exit(rig.NodeMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, again := options()
	if again != "" {
		os.Exit(judge(again))
	}
	s, err := chaos.Run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	fmt.Print("\n", s)
	if !s.OK() {
		os.Exit(1)
	}
}

// judge judges what a run left in a directory once more, without its recoveries, and returns the exit code.
func judge(dir string) int {
	h, err := journal.Read(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 2
	}
	e, err := evidence.Load(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 2
	}
	s := check.Summarize(h, e, check.All(h, e), nil)
	if err := s.Text(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 2
	}
	if !s.OK() {
		return 1
	}
	return 0
}

func options() (o chaos.Options, again string) {
	began := time.Now()
	o = chaos.Options{Say: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().UTC().Format(time.TimeOnly), fmt.Sprintf(format, args...))
	}}
	var form, only string
	flag.Uint64Var(&o.Seed, "seed", uint64(began.UnixNano()), "choose the same load and faults as a run with this seed") //nolint:gosec // any number will do
	flag.StringVar(&form, "form", string(rig.Services), "services (each a process, and NATS and ClickHouse) or up (sandtrail up)")
	flag.IntVar(&o.Replicas, "replicas", 1, "NATS servers, and replicas of streams: 1 or 3")
	flag.IntVar(&o.Creates, "creates", 100, "sandboxes to create at least")
	flag.IntVar(&o.Execs, "execs", 1000, "commands to run at least")
	flag.IntVar(&o.Faults, "faults", 200, "faults to make")
	flag.IntVar(&o.Lanes, "lanes", 2, "faults at once")
	flag.IntVar(&o.Lives, "lives", 6, "sandboxes at once")
	flag.DurationVar(&o.Duration, "duration", 45*time.Minute, "end after this time, whatever was reached")
	flag.StringVar(&only, "only", "", "make only these faults, separated by commas: whole names, or beginnings such as kill")
	flag.BoolVar(&o.Clocks, "clocks", false, "let the wall clocks of services and NATS servers jump too")
	flag.StringVar(&o.Out, "out", filepath.Join(os.TempDir(), "sandtrail-chaos-"+began.UTC().Format("20060102T150405")), "directory for journal, evidence and summary")
	flag.StringVar(&again, "judge", "", "make no run: judge what a run left in this directory again")
	flag.Parse()
	o.Form = rig.Form(form)
	if only != "" {
		o.Only = strings.Split(only, ",")
	}
	return o, again
}
