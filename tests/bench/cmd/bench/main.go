// Bench measures Sandtrail against baselines in the same run and prints a table. It needs what `make build` makes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	usage "github.com/sandtrail/sandtrail/services/usage/app"
	"github.com/sandtrail/sandtrail/tests/bench/figure"
	"github.com/sandtrail/sandtrail/tests/bench/report"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

func main() {
	if usage.IsEngine() {
		os.Exit(usage.EngineMain())
	}
	if rig.IsNode() {
		os.Exit(rig.NodeMain())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	only := flags.String("only", "", "comma-separated `names` of figures to take: "+strings.Join(names(), ", "))
	runs := flags.Int("runs", 30, "how many samples a median is of, at least")
	quick := flags.Bool("quick", false, "measure a tenth of everything, to see that it works")
	out := flags.String("out", "", "`file` for the table, beside standard output")
	profile := flags.String("cpuprofile", "", "`file` for a CPU profile of this process, which runs the log's server and both sides of log, replay and projection")
	bin := flags.String("bin", "bin", "`directory` of the built programs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := choose(*only)
	if err != nil {
		return err
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	b := &figure.Bench{Runs: *runs, Quick: *quick, Bin: *bin, Progress: os.Stderr}
	if b.Quick {
		b.Runs = max(3, b.Runs/10)
	}
	r := report.Report{Before: report.Look()}
	begin := time.Now()
	for _, f := range wanted {
		if ctx.Err() != nil {
			break
		}
		at := time.Now()
		s := b.Run(ctx, f)
		fmt.Fprintf(os.Stderr, "%s took %.1f s\n", f.Name, time.Since(at).Seconds())
		r.Sections = append(r.Sections, s)
	}
	closed := b.Close()
	r.After = report.Look()
	r.How = fmt.Sprintf("%d samples a median at least, %.0f s for all", b.Runs, time.Since(begin).Seconds())
	if b.Quick {
		r.How += "; a quick run, not for comparison"
	}
	return errors.Join(write(r, *out), closed, failures(r))
}

func names() []string {
	var all []string
	for _, f := range figure.All() {
		all = append(all, f.Name)
	}
	return all
}

// choose is all figures, or those named.
func choose(only string) ([]figure.Figure, error) {
	if only == "" {
		return figure.All(), nil
	}
	var chosen []figure.Figure
	for name := range strings.SplitSeq(only, ",") {
		at := slices.Index(names(), name)
		if at < 0 {
			return nil, fmt.Errorf("there is no figure %q, only %s", name, strings.Join(names(), ", "))
		}
		chosen = append(chosen, figure.All()[at])
	}
	return chosen, nil
}

func write(r report.Report, out string) error {
	to := []io.Writer{os.Stdout}
	if out != "" {
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		to = append(to, f)
	}
	if err := r.Markdown(io.MultiWriter(to...)); err != nil {
		return err
	}
	if missed := r.Missed(); len(missed) > 0 {
		fmt.Fprintf(os.Stderr, "missed: %s\n", strings.Join(missed, "; "))
	}
	return nil
}

// failures are the figures that could not be taken. A target that is missed is in the table and no failure.
func failures(r report.Report) error {
	var errs []error
	for _, s := range r.Sections {
		errs = append(errs, s.Err)
	}
	return errors.Join(errs...)
}
