package up

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// progress tells a person what takes time. On a terminal it keeps one line a stage up to date; elsewhere it prints a line when a
// stage says something new, at most one a second each.
type progress struct {
	out      io.Writer
	terminal bool
	start    time.Time

	mu     sync.Mutex
	last   map[string]string
	at     map[string]time.Time
	inline bool
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out, start: time.Now(), last: map[string]string{}, at: map[string]time.Time{}}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			p.terminal = info.Mode()&os.ModeCharDevice != 0
		}
	}
	return p
}

// step tells how far a stage is; total is 0 while it is not known.
func (p *progress) step(stage string, done, total int64, note string) {
	text := note
	if total > 0 {
		text = strings.TrimSpace(fmt.Sprintf("%3d %%  %s", 100*done/total, note))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if text == p.last[stage] {
		return
	}
	finished := total > 0 && done >= total
	if !finished && time.Since(p.at[stage]) < time.Second && p.last[stage] != "" {
		return
	}
	p.last[stage], p.at[stage] = text, time.Now()
	line := fmt.Sprintf("%6.1f s  %-12s %s", time.Since(p.start).Seconds(), stage, text)
	if p.terminal {
		fmt.Fprintf(p.out, "\r\033[K%s", line)
		p.inline = true
		if !finished {
			return
		}
	}
	p.end(line)
}

// done closes a stage.
func (p *progress) done(stage, note string) { p.step(stage, 1, 1, note) }

func (p *progress) end(line string) {
	if p.terminal {
		fmt.Fprintln(p.out)
		p.inline = false
		return
	}
	fmt.Fprintln(p.out, line)
}

// ready says where everything can be reached.
func (p *progress) ready(a Addresses, took time.Duration, development bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inline {
		fmt.Fprintln(p.out)
	}
	fmt.Fprintf(p.out, "\nSandtrail is serving (started in %.1f s)\n", took.Seconds())
	fmt.Fprintf(p.out, "  gRPC        %s\n  HTTP        http://%s/readyz  http://%s/metrics\n  NATS        %s\n", a.GRPC, a.HTTP, a.HTTP, a.NATS)
	if a.ClickHouseHTTP != "" {
		fmt.Fprintf(p.out, "  ClickHouse  %s (native %s)\n", a.ClickHouseHTTP, a.ClickHouseNative)
		fmt.Fprintf(p.out, "              curl %s/ --data-binary 'SELECT * FROM agents.usage_events LIMIT 5 FORMAT Vertical'\n", a.ClickHouseHTTP)
	}
	if development {
		fmt.Fprintln(p.out, "  no API keys: anybody on this host is let in, requests name their tenant (development mode)")
	}
	fmt.Fprintln(p.out, "  Ctrl-C stops serving; sandboxes go on and the next `sandtrail up` finds them (`sandtrail down` ends them)")
}
