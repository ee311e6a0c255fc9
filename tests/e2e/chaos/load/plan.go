package load

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/journal"
)

// Image is the one that is built on this host.
const Image = "ghcr.io/paper-board/sandbox-python:v0.1.0"

// random is the source of one part of a plan: the same for the same seed and part, however the parts interleave.
func random(seed uint64, part ...uint64) *rand.Rand {
	mixed := seed
	for _, p := range part {
		mixed = mixed*0x9E3779B97F4A7C15 + p + 1
	}
	return rand.New(rand.NewPCG(seed, mixed)) //nolint:gosec // to be made again
}

// step is one exec of a plan.
type step struct {
	program journal.Program
	request *computev1.ExecCommandRequest
	// cancel it after this time, unless 0.
	cancel time.Duration
	// readers attach beside the client that has started it.
	readers int
	// cuts: the client cuts its own streams off now and then.
	cuts bool
}

// sorts of execs, each with its share of a hundred.
var sorts = []struct {
	share int
	make  func(*rand.Rand, *step)
}{
	// Short ones are most of what agents run.
	{38, func(r *rand.Rand, s *step) { s.program.StdoutLines = uint64(1 + r.IntN(4)) }},
	{12, func(*rand.Rand, *step) {}}, // silent
	{10, func(r *rand.Rand, s *step) { s.program.StdoutLines, s.program.ExitCode = 1, int32(1+r.IntN(100)) }},
	{5, func(r *rand.Rand, s *step) {
		s.program.StderrLines, s.program.Signal = 1, []int32{9, 11, 15}[r.IntN(3)]
	}},
	// Some megabytes, in turns on both streams.
	{8, func(r *rand.Rand, s *step) {
		s.program.Width = uint64(1024 + r.IntN(15<<10))
		s.program.StdoutLines, s.program.StderrLines = uint64(32+r.IntN(224)), uint64(r.IntN(64))
		s.readers, s.cuts = r.IntN(3), r.IntN(2) == 0
	}},
	// Slow ones, which faults happen to.
	{11, func(r *rand.Rand, s *step) {
		s.program.StdoutLines, s.program.StderrLines = uint64(10+r.IntN(30)), uint64(r.IntN(20))
		s.program.Step = time.Duration(20+r.IntN(100)) * time.Millisecond
		s.readers, s.cuts = r.IntN(3), r.IntN(2) == 0
	}},
	{4, func(r *rand.Rand, s *step) { // over its time
		s.program.Endless, s.program.StdoutLines = true, 1
		s.request.Timeout = durationpb.New(time.Duration(500+r.IntN(2000)) * time.Millisecond)
	}},
	{5, func(r *rand.Rand, s *step) { // cancelled
		s.program.Endless, s.program.StdoutLines = true, 2
		s.cancel = time.Duration(50+r.IntN(1500)) * time.Millisecond
	}},
	{7, func(r *rand.Rand, s *step) { // detached, with input
		s.program.StdoutLines, s.program.Step = uint64(5+r.IntN(10)), 20*time.Millisecond
		s.request.Detach, s.cuts, s.readers = true, true, r.IntN(2)
		s.request.Stdin = make([]byte, r.IntN(8<<10))
	}},
}

// newStep plans one exec. id tells it apart from all others of the run.
func newStep(r *rand.Rand, sandbox, id string) step {
	s := step{
		program: journal.Program{Token: id, Width: 64},
		request: &computev1.ExecCommandRequest{SandboxId: sandbox, Env: map[string]string{"CHAOS": id}},
	}
	n := r.IntN(100)
	for _, sort := range sorts {
		if n -= sort.share; n < 0 {
			sort.make(r, &s)
			break
		}
	}
	s.request.Command, s.request.Args = s.program.Command()
	return s
}

func tenant(n int) string { return fmt.Sprintf("tenant%d", n) }

func createRequest(tenant, session string) *computev1.CreateSandboxRequest {
	return &computev1.CreateSandboxRequest{
		TenantId: tenant, SessionId: session, Image: Image, EnvVars: map[string]string{"SESSION": session},
		Limits: &computev1.ResourceLimits{CpuMillis: 1000, MemoryBytes: 128 << 20, MaxRuntime: durationpb.New(time.Hour)},
	}
}
