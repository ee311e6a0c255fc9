package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/tests/e2e/chaos/check"
)

// Summary is what came out of a run.
type Summary struct {
	check.Summary
	// Run are the flags with which it is made again.
	Run    string        `json:"run"`
	Loaded time.Duration `json:"loaded"`
	Counts string        `json:"counts"`
	// Broken tells of what did not come to work again, and of what never ended.
	Broken []string `json:"broken"`
	// Ends are processes that ended by themselves; the supervisor has started them again.
	Ends []string `json:"ends"`

	mu         sync.Mutex
	recoveries []check.Recovery
}

func newSummary(o Options) *Summary {
	return &Summary{Run: fmt.Sprintf("--seed %d --form %s --replicas %d --creates %d --execs %d --faults %d --lanes %d --lives %d --clocks=%t --only=%s",
		o.Seed, o.Form, o.Replicas, o.Creates, o.Execs, o.Faults, o.Lanes, o.Lives, o.Clocks, strings.Join(o.Only, ","))}
}

// fault records how long it took from healing a fault until an exec and a create succeeded.
func (s *Summary) fault(kind string, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recoveries = append(s.recoveries, check.Recovery{Fault: kind, Took: took}, check.Recovery{Fault: "all", Took: took})
}

func (s *Summary) broken(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Broken = append(s.Broken, what)
}

// OK reports whether everything was judged and nothing went wrong.
func (s *Summary) OK() bool { return s.Summary.OK() && len(s.Broken) == 0 }

// shown bounds lists that people read; the file has all.
const shown = 30

func (s *Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nloaded for %s: %s\n\n", s.Run, s.Loaded.Round(time.Second), s.Counts)
	_ = s.Text(&b) // a Builder takes everything
	list(&b, "processes ended by themselves", s.Ends)
	list(&b, "things broken", s.Broken)
	fmt.Fprintf(&b, "\nseed %d: ok %t\n", s.Seed, s.OK())
	return b.String()
}

func list(b *strings.Builder, what string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%d %s\n", len(lines), what)
	for _, l := range lines[:min(len(lines), shown)] {
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
