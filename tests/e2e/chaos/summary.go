package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
)

// Summary is what came out of a run.
type Summary struct {
	Seed uint64 `json:"seed"`
	// Run says how it was made.
	Run    string        `json:"run"`
	Took   time.Duration `json:"took"`
	Counts string        `json:"counts"`
	// Recoveries are, for each kind of fault, how long it took from healing it until an exec and a create succeeded.
	Recoveries map[string][]time.Duration `json:"recoveries"`
	// Broken tells of what did not come to work again, and of what never ended.
	Broken []string `json:"broken"`
	// Ends are processes that ended by themselves; the supervisor has started them again.
	Ends       []string          `json:"ends"`
	Violations []check.Violation `json:"violations"`

	mu sync.Mutex
}

func newSummary(o Options) *Summary {
	return &Summary{
		Seed: o.Seed, Recoveries: map[string][]time.Duration{},
		Run: fmt.Sprintf("--seed %d --form %s --replicas %d --creates %d --execs %d --faults %d --lanes %d --lives %d", o.Seed, o.Form, o.Replicas, o.Creates, o.Execs, o.Faults, o.Lanes, o.Lives),
	}
}

func (s *Summary) fault(kind string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Recoveries[kind] = append(s.Recoveries[kind], took)
}

func (s *Summary) broken(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Broken = append(s.Broken, what)
}

// OK reports whether nothing went wrong.
func (s *Summary) OK() bool { return len(s.Violations) == 0 && len(s.Broken) == 0 }

// shown bounds lists that people read; the file has all.
const shown = 30

func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nin %s: %s\n\n", s.Run, s.Took.Round(time.Second), s.Counts)
	fmt.Fprintf(&b, "%-20s %6s %10s %10s %10s\n", "fault", "times", "p50", "p99", "most")
	var all []time.Duration
	for _, kind := range slices.Sorted(maps.Keys(s.Recoveries)) {
		times := s.Recoveries[kind]
		all = append(all, times...)
		row(&b, kind, times)
	}
	row(&b, "all", all)
	list(&b, "ended by themselves", s.Ends)
	list(&b, "broken", s.Broken)
	var violations []string
	for _, v := range s.Violations {
		violations = append(violations, fmt.Sprintf("%s: %s: %s", v.Invariant, v.Subject, v.Detail))
	}
	list(&b, "violations", violations)
	fmt.Fprintf(&b, "\nseed %d: %d violations, %d broken\n", s.Seed, len(s.Violations), len(s.Broken))
	return b.String()
}

func row(b *strings.Builder, kind string, times []time.Duration) {
	times = slices.Sorted(slices.Values(times))
	at := func(share float64) time.Duration {
		if len(times) == 0 {
			return 0
		}
		return times[min(len(times)-1, int(share*float64(len(times))))].Round(time.Millisecond)
	}
	fmt.Fprintf(b, "%-20s %6d %10s %10s %10s\n", kind, len(times), at(0.5), at(0.99), at(1))
}

func list(b *strings.Builder, what string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%d %s:\n", len(lines), what)
	for i, l := range lines {
		if i == shown {
			fmt.Fprintf(b, "  and %d more\n", len(lines)-shown)
			break
		}
		fmt.Fprintln(b, " ", l)
	}
}

func (s *Summary) write(dir string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "summary.json"), append(data, '\n'), 0o600)
}
