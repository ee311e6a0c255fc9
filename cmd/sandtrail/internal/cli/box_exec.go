package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/named"
	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
	"github.com/sandtrail/sandtrail/libs/pause"
)

// Execute is `sandtrail execute`, and stream, which is the same: output comes as it is written.
type Execute struct {
	Remote
	Language  string   `short:"l" default:"bash" enum:"bash,python,node" help:"What the code is: ${enum}."`
	Timeout   duration `placeholder:"SECONDS" help:"How long it may run, in seconds or as 1m30s. Default: the server's."`
	Detach    bool     `short:"d" help:"Print the exec's id once it is accepted and leave it running; see ps, kill and attach."`
	KeepStdin bool     `help:"With --detach: leave its stdin open for attach --stdin."`
	NoStdin   bool     `name:"no-stdin" help:"Give it nothing on stdin. Otherwise it gets what is piped in here, at most 512 KiB."`
	Name      string   `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Code      []string `arg:"" help:"The command, or code. Several words are joined by spaces; behind -- they may begin with a dash."`
}

// Help is printed below the flags.
func (x *Execute) Help() string {
	return "The command's stdout and stderr come out as they are, and its exit code is this program's. Ctrl-C leaves; the command is then " +
		"ended after half a minute.\n\n" + exitHelp
}

// duration is a time in seconds, or as Go writes it.
type duration time.Duration

// UnmarshalText reads it.
func (d *duration) UnmarshalText(b []byte) error {
	if s, err := strconv.ParseFloat(string(b), 64); err == nil && s >= 0 && s < 1e9 {
		*d = duration(s * float64(time.Second))
		return nil
	}
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is no time: give seconds, or 1m30s", b)
	}
	*d = duration(v)
	return nil
}

// Run runs it.
func (x *Execute) Run(e *Env) error {
	code := strings.Join(x.Code, " ")
	if code == "" {
		return usagef("there is no command: sandtrail execute NAME COMMAND")
	}
	cmd := named.Command{Language: x.Language, Code: code, Timeout: time.Duration(x.Timeout).Seconds()}
	if !x.NoStdin && piped(e.Stdin) {
		var err error
		if cmd.Stdin, err = io.ReadAll(io.LimitReader(e.Stdin, maxStdin+1)); err != nil {
			return fmt.Errorf("read stdin: %w", err)
		}
		if len(cmd.Stdin) > maxStdin {
			return usagef("stdin is over 512 KiB: put it into a file with sandtrail fs write %s PATH", x.Name)
		}
	}
	if x.KeepStdin && !x.Detach {
		return usagef("--keep-stdin goes with --detach")
	}
	ctx, api, done, err := x.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	if x.Detach {
		cmd.Detach, cmd.KeepStdin = true, x.KeepStdin
		id, err := api.Begin(ctx, x.Name, cmd)
		if err == nil {
			_, err = fmt.Fprintln(e.Stdout, render.Clean(id))
		}
		return err
	}
	exit, err := api.Run(ctx, x.Name, cmd, e.Stdout, e.Stderr, func(said string) { e.warn("%s", render.Clean(said)) })
	return endedWith(exit, err)
}

// endedWith ends this program as an exec has ended, where that is known.
func endedWith(exit int, err error) error {
	if err != nil || exit == 0 {
		return err
	}
	return exitError(exit)
}

// piped reports whether something may be read from stdin without a person typing it: a pipe or a file, and no device.
func piped(stdin io.Reader) bool {
	f, ok := stdin.(*os.File)
	if !ok {
		return stdin != nil
	}
	if term.IsTerminal(int(f.Fd())) {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeDevice == 0
}

// Logs is `sandtrail logs`.
type Logs struct {
	Remote
	Name   string        `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Tail   int           `default:"100" help:"At most so many of the last lines."`
	Follow bool          `short:"f" help:"Go on with what happens."`
	Since  time.Duration `placeholder:"DURATION" help:"Only what happened within this time."`
}

// followEvery is how often logs that are followed are asked for.
const followEvery = 500 * time.Millisecond

// Run shows what happened to a sandbox and in it.
func (l *Logs) Run(e *Env) error {
	ctx, api, done, err := l.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	after := ""
	if l.Since > 0 {
		after = time.Now().Add(-l.Since).UTC().Format(time.RFC3339)
	}
	seen, tail := map[string]bool{}, l.Tail
	for {
		text, err := api.Raw(ctx, named.Request{Method: http.MethodGet, Path: named.Box(l.Name, "logs"), Query: url.Values{"tail": {strconv.Itoa(tail)}}})
		if err != nil {
			return err
		}
		now := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			now[line] = true
			if at, _, _ := strings.Cut(line, " "); seen[line] || at < after {
				continue
			}
			if _, err := fmt.Fprintln(e.Stdout, render.Clean(strings.TrimSuffix(line, "\n"))); err != nil {
				return err
			}
		}
		if !l.Follow {
			return nil
		}
		seen, tail = now, 10_000
		if err := pause.For(ctx, followEvery); err != nil {
			return err
		}
	}
}

// GuestEnv is `sandtrail env`.
type GuestEnv struct {
	Remote
	Format
	Name string `arg:"" complete:"sandbox" help:"The sandbox's name."`
}

// Run shows what a sandbox says of itself.
func (g *GuestEnv) Run(e *Env) error {
	return g.shown(e, &g.Format, named.Box(g.Name, "toolbox/info"), []string{"arch", "os", "os_version", "kernel_version", "shell", "work_dir", "home"})
}

// Stats is `sandtrail stats`.
type Stats struct {
	Remote
	Format
	Name  string `arg:"" complete:"sandbox" help:"The sandbox's name."`
	Watch bool   `short:"w" help:"Show it again every two seconds."`
}

// Run shows what a sandbox uses.
func (s *Stats) Run(e *Env) error {
	ctx, api, done, err := s.connect(e, 0)
	if err != nil {
		return err
	}
	defer done()
	for {
		answer, err := api.Raw(ctx, named.Request{Method: http.MethodGet, Path: named.Box(s.Name, "toolbox/metrics")})
		if err != nil {
			return err
		}
		err = s.show(e.Stdout, answer, func(w io.Writer) error {
			var v struct {
				CPUCount   float64 `json:"cpu_count"`
				CPUUsedPct float64 `json:"cpu_used_pct"`
				MemTotal   uint64  `json:"mem_total"`
				MemUsed    uint64  `json:"mem_used"`
				DiskTotal  uint64  `json:"disk_total"`
				DiskUsed   uint64  `json:"disk_used"`
			}
			if err := json.Unmarshal(answer, &v); err != nil {
				return err
			}
			of := func(used, total uint64) string { return render.Bytes(used) + " of " + render.Bytes(total) }
			return render.Fields(w, []render.Field{
				{Name: "CPU", Value: fmt.Sprintf("%.1f %% of %g cores", v.CPUUsedPct, v.CPUCount)},
				{Name: "Memory", Value: of(v.MemUsed, v.MemTotal)},
				{Name: "Disk", Value: of(v.DiskUsed, v.DiskTotal)},
			})
		})
		if err != nil || !s.Watch {
			return err
		}
		if err := pause.For(ctx, 2*time.Second); err != nil {
			return err
		}
	}
}

// Metrics is `sandtrail metrics`.
type Metrics struct{ Remote }

// Run prints the server's own metrics, in the text format of Prometheus.
func (m *Metrics) Run(e *Env) error {
	ctx, api, done, err := m.connect(e, callTimeout)
	if err != nil {
		return err
	}
	defer done()
	text, err := api.Raw(ctx, named.Request{Method: http.MethodGet, Path: "/metrics"})
	if err != nil {
		return err
	}
	_, err = e.Stdout.Write(text)
	return err
}
