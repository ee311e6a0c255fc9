package soak

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/ops"
	"github.com/sandtrail/sandtrail/tests/e2e/chaos/rig"
)

func TestMain(m *testing.M) {
	switch {
	case rig.IsNode():
		os.Exit(rig.NodeMain())
	case os.Getenv(plantEnv) != "":
		if err := leak(os.Getenv(plantEnv), os.Getenv(plantAddrEnv), os.Getenv(plantDirEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// The environment of a planted process: what it leaks, where its metrics are, where its files go.
const (
	plantEnv     = "SANDTRAIL_SOAK_PLANT"
	plantAddrEnv = "SANDTRAIL_SOAK_PLANT_ADDR"
	plantDirEnv  = "SANDTRAIL_SOAK_PLANT_DIR"
)

// planted says of each kind of leak which line has to show it.
var planted = map[string]string{
	"descriptor": "descriptor.descriptors",
	"goroutine":  "goroutine.goroutines",
	"memory":     "memory.anon_bytes",
	"file":       "files.planted.count",
}

// steady leaks nothing.
const steady = "steady"

// leak is the main of a planted process: it leaks of one kind until its standard input ends.
func leak(kind, addr, dir string) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector())
	go func() { _ = http.ListenAndServe(addr, ops.Handler(registry)) }() //nolint:gosec // of a test, on loopback
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	var files []*os.File
	var memory [][]byte
	tick := time.NewTicker(50 * time.Millisecond)
	for n := 0; ; n++ {
		<-tick.C
		switch kind {
		case "descriptor":
			f, err := os.Open(os.DevNull)
			if err != nil {
				return err
			}
			files = append(files, f)
		case "goroutine":
			go func() { <-make(chan struct{}) }()
		case "memory":
			chunk := make([]byte, 512<<10)
			for i := range chunk {
				chunk[i] = byte(i)
			}
			memory = append(memory, chunk)
		case "file":
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o600); err != nil {
				return err
			}
		}
		_, _ = files, memory
	}
}

// plant starts a process for each kind of leak, and one that leaks nothing. Files go into a directory of the state.
func plant(t *testing.T, state string) (targets []Target, stop func()) {
	t.Helper()
	dir := filepath.Join(state, "planted")
	require.NoError(t, os.Mkdir(dir, 0o700))
	var ends []func()
	for _, kind := range append(slices.Collect(maps.Keys(planted)), steady) {
		target, end := start(t, kind, dir)
		targets, ends = append(targets, target), append(ends, end)
	}
	return targets, func() {
		for _, end := range ends {
			end()
		}
	}
}

func start(t *testing.T, kind, dir string) (Target, func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), plantEnv+"="+kind, plantAddrEnv+"="+addr, plantDirEnv+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	end := sync.OnceFunc(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	url := "http://" + addr + "/metrics"
	require.Eventually(t, func() bool {
		res, err := http.Get(url) //nolint:gosec // of a test, on loopback
		return err == nil && res.Body.Close() == nil
	}, time.Minute, 20*time.Millisecond)
	return Target{Name: kind, Metrics: url, PIDs: func() []int { return []int{cmd.Process.Pid} }}, end
}

// kinds are the verdicts by line.
func kinds(all []Verdict) map[string]Kind {
	by := map[string]Kind{}
	for _, v := range all {
		by[v.Line] = v.Kind
	}
	return by
}

// requirePlanted: each planted leak is found, and none where none is.
func requirePlanted(t *testing.T, all []Verdict) {
	t.Helper()
	by := kinds(all)
	for kind, line := range planted {
		require.Equal(t, Leaking, by[line], "%s leaks: %s\n%s", kind, line, Table(all))
	}
	for _, what := range []string{"descriptors", "goroutines", "anon_bytes", "heap_bytes", "threads"} {
		require.Equal(t, Flat, by[steady+"."+what], "%s\n%s", what, Table(all))
	}
	// Each leaks what it was told to and nothing else.
	require.Equal(t, Flat, by["goroutine.descriptors"], Table(all))
	require.Equal(t, Flat, by["descriptor.goroutines"], Table(all))
	require.Equal(t, Flat, by["file.anon_bytes"], Table(all))
}

func TestALeakOfEachKindIsSeenInAProcessThatHasIt(t *testing.T) {
	state := t.TempDir()
	targets, _ := plant(t, state)
	p := &processes{targets: targets}
	var rows []Row
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for len(rows) < 60 {
		<-tick.C
		row := Row{At: time.Now(), Figures: map[string]float64{}}
		require.NoError(t, p.take(t.Context(), row.Figures))
		require.NoError(t, directories(state, row.Figures))
		rows = append(rows, row)
	}
	requirePlanted(t, Judge(rows))
}

func TestAShortSoakSeesAllPartsAndFindsPlantedLeaks(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: runs every part of Sandtrail until there are enough looks at it")
	}
	o := Options{
		Seed: uint64(time.Now().UnixNano()), Form: rig.Services, Duration: 10 * time.Minute, Every: 2 * time.Second, Looks: 50, Lives: 2, Pause: time.Second, //nolint:gosec // any number will do
		Out:  filepath.Join(t.TempDir(), "run"),
		Also: func(state string) ([]Target, func()) { return plant(t, state) },
		Say:  func(format string, args ...any) { fmt.Fprintf(os.Stderr, "soak: "+format+"\n", args...) },
	}
	s, err := Run(t.Context(), o)
	require.NoError(t, err)
	t.Log(s)
	require.True(t, s.Chaos.OK(), "seed %d", o.Seed)
	require.False(t, s.OK(), "what was planted leaks")
	requirePlanted(t, s.Verdicts)
	by := kinds(s.Verdicts)
	for _, line := range []string{
		"gateway.rss_bytes", "lifecycle.goroutines", "exec.descriptors", "usage.threads", "gc.heap_bytes", "nats0.anon_bytes", "clickhouse.rss_bytes",
		"keepers.count", "sentries.anon_bytes", "store.EVT.disk_bytes", "store.KV_exec.messages", "tables.rows", "lag.CMD.pending",
		"host.mount", "host.loop", "host.cgroup", "host.netns", "load.execs",
	} {
		require.Contains(t, by, line)
		require.NotEqual(t, Short, by[line], line)
	}
	require.Equal(t, Growing, by["store.EVT.messages"], "the log keeps everything, which explains it\n%s", Table(s.Verdicts))
	for _, f := range []string{CSVFile, PlotFile, TextFile} {
		info, err := os.Stat(filepath.Join(o.Out, f))
		require.NoError(t, err)
		require.NotZero(t, info.Size(), f)
	}
}
