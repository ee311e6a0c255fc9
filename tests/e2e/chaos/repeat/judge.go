package repeat

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sandtrail/sandtrail/libs/subject"
	"github.com/sandtrail/sandtrail/libs/topology"
)

// Summary is what came out of a run.
type Summary struct {
	Run string
	// Took is how long the requests took while processes were killed.
	Took time.Duration
	// Answers and Attempts are how many requests were answered, and how many were made for that.
	Answers, Attempts int
	// Kills by process, Keys with an answer by kind.
	Kills, Keys map[string]int
	// Effects are the lines that commands have left, Sandboxes and Execs those in the log.
	Effects, Sandboxes, Execs int
	// Wrong is all that must not be.
	Wrong []string

	mu    sync.Mutex
	first map[string]string
	waits []time.Duration
}

func newSummary(o Options) *Summary {
	return &Summary{
		Run:   fmt.Sprintf("--seed %d --requests %d --keys %d --clients %d --pause %s", o.Seed, o.Requests, o.Keys, o.Clients, o.Pause),
		Kills: map[string]int{}, Keys: map[string]int{}, first: map[string]string{},
	}
}

// OK reports whether every key had one effect and always the same answer.
func (s *Summary) OK() bool { return len(s.Wrong) == 0 }

func (s *Summary) wrong(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Wrong = append(s.Wrong, fmt.Sprintf(format, args...))
}

func (s *Summary) killed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Kills[name]++
}

func (s *Summary) kills() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.Kills {
		n += k
	}
	return n
}

// cut reports whether any request was made more than once until it was answered.
func (s *Summary) cut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Attempts > s.Answers
}

// answered takes in one answer.
func (s *Summary) answered(op *operation, a answer, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Answers++
	s.Attempts += a.attempts
	s.waits = append(s.waits, took)
	got := fmt.Sprintf("%d %s", a.status, a.body)
	first, known := s.first[op.key]
	switch {
	case a.status == 0:
		s.Wrong = append(s.Wrong, fmt.Sprintf("%s %s: no answer after %d attempts: %.300s", op.kind, op.key, a.attempts, a.body))
	case a.status >= 300:
		s.Wrong = append(s.Wrong, fmt.Sprintf("%s %s: refused: %.300s", op.kind, op.key, got))
	case !known:
		s.first[op.key] = got
		s.Keys[op.kind]++
	case first != got:
		s.Wrong = append(s.Wrong, fmt.Sprintf("%s %s: answers differ:\n  %.500s\n  %.500s", op.kind, op.key, first, got))
	}
}

func (s *Summary) quantile(q float64) time.Duration {
	if len(s.waits) == 0 {
		return 0
	}
	slices.Sort(s.waits)
	return s.waits[min(len(s.waits)-1, int(q*float64(len(s.waits))))].Round(time.Millisecond)
}

// shown bounds what is told of what is wrong.
const shown = 20

func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%d answers of %d attempts in %s while %d processes were killed", s.Run, s.Answers, s.Attempts, s.Took.Round(time.Second), s.kills())
	for _, name := range slices.Sorted(maps.Keys(s.Kills)) {
		fmt.Fprintf(&b, ", %s %d times", name, s.Kills[name])
	}
	fmt.Fprintf(&b, "\nkeys:")
	for _, kind := range slices.Sorted(maps.Keys(s.Keys)) {
		fmt.Fprintf(&b, " %d %s", s.Keys[kind], kind)
	}
	fmt.Fprintf(&b, "; in the log %d sandboxes and %d execs, in files %d effects\n", s.Sandboxes, s.Execs, s.Effects)
	fmt.Fprintf(&b, "from a request to its answer: p50 %s, p99 %s, longest %s\n", s.quantile(0.5), s.quantile(0.99), s.quantile(1))
	fmt.Fprintf(&b, "%d things wrong\n", len(s.Wrong))
	for i, w := range s.Wrong {
		if i == shown {
			fmt.Fprintf(&b, "and %d more\n", len(s.Wrong)-shown)
			break
		}
		fmt.Fprintln(&b, w)
	}
	return b.String()
}

// judge looks at the effects: what the commands have left behind, and what stands in the log.
func (r *run) judge(ctx context.Context) error {
	lines := map[string]int{}
	c := r.client()
	for _, box := range r.boxes {
		a := c.until(ctx, &operation{method: "POST", path: "/" + box + "/execute", body: `{"command":"cat effects"}`, key: "effects-" + box})
		var x struct {
			Stdout    string `json:"stdout"`
			Truncated bool   `json:"truncated"`
		}
		if err := json.Unmarshal([]byte(a.body), &x); err != nil || a.status != 200 || x.Truncated {
			return fmt.Errorf("read the effects: %s (%w)", a, err)
		}
		for _, line := range strings.Fields(x.Stdout) {
			lines[line]++
			r.summary.Effects++
		}
	}
	execs := 0
	for _, op := range r.operations {
		if op.kind != "execute" {
			continue
		}
		execs++
		if n := lines[op.key]; n != 1 {
			r.summary.wrong("execute %s: %d effects", op.key, n)
		}
		delete(lines, op.key)
	}
	for line := range lines {
		r.summary.wrong("an effect that nobody asked for: %q", line)
	}
	if err := r.count(ctx); err != nil {
		return err
	}
	// The first command and the last one of each sandbox are not among the keys.
	if want := execs + 2*boxes + victims; r.summary.Execs != want {
		r.summary.wrong("%d execs in the log, not %d", r.summary.Execs, want)
	}
	if want := boxes + victims + r.summary.Keys["create"]; r.summary.Sandboxes != want {
		r.summary.wrong("%d sandboxes in the log, not %d", r.summary.Sandboxes, want)
	}
	for kind, want := range map[string]int{"execute": execs, "stop": victims, "create": min(mostCreates, r.Keys/10)} {
		if got := r.summary.Keys[kind]; got != want {
			r.summary.wrong("%d keys of %s were answered, not %d", got, kind, want)
		}
	}
	return nil
}

// count looks up how many sandboxes and execs of the tenant the log has.
func (r *run) count(ctx context.Context) error {
	nc, err := nats.Connect(r.rig.NATS, nats.Timeout(5*time.Second))
	if err != nil {
		return fmt.Errorf("count what is in the log: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	s, err := js.Stream(ctx, topology.StreamEvents)
	if err != nil {
		return fmt.Errorf("count what is in the log: %w", err)
	}
	for filter, n := range map[string]*int{
		subject.Sandbox(tenant, "*").Subject(): &r.summary.Sandboxes, subject.Exec(tenant, "*", "*").Subject(): &r.summary.Execs,
	} {
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
		if err != nil {
			return fmt.Errorf("count what is in the log: %w", err)
		}
		*n = len(info.State.Subjects)
	}
	return nil
}
