package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/cli"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// ago is a time relative to that of the first event.
func at(f *fake, d time.Duration) string {
	return f.log[0].GetTime().AsTime().Add(d).Format(time.RFC3339Nano)
}

func TestReplayShowsWhatHasChangedSince(t *testing.T) {
	f := newFake(t)
	f.log = history()
	for i, e := range f.log {
		e.Time = timestamppb.New(time.Date(2026, 11, 30, 10, 0, i, 0, time.UTC))
	}
	for _, when := range []string{"25", at(f, 1500*time.Millisecond)} {
		r := f.run(t, "replay", "sandbox", box, "--at", when)
		require.Equal(t, 0, r.code, r.stderr)
		require.Regexp(t, `(?m)^State +starting`, r.stdout)
		require.Regexp(t, `(?m)^detail\.state +starting +destroying$`, r.stdout)
		require.Regexp(t, `(?m)^detail\.hostname +- +sandbox-f47ac10b$|^detail\.hostname +sandbox-f47ac10b$`, r.stdout)
	}
	var doc struct {
		Changed []struct{ Field, Then, Now any } `json:"changed_since"`
		Events  int                              `json:"events_since"`
	}
	require.NoError(t, json.Unmarshal([]byte(f.run(t, "replay", "sandbox", box, "--at", "35", "-o", "json").stdout), &doc))
	require.Equal(t, 1, doc.Events)
	require.NotEmpty(t, doc.Changed)
	require.Contains(t, f.run(t, "replay", "sandbox", box, "--at", "999").stdout, "Nothing has changed since.")
	for _, when := range []string{"yesterday", "-5", "-90m", "2026-13-01"} {
		require.Equal(t, cli.ExitUsage, f.run(t, "replay", "sandbox", box, "--at="+when).code, when)
	}
	require.Equal(t, cli.ExitNotFound, f.run(t, "replay", "sandbox", box, "--at", "2000-01-01").code)
	f.log[5].Type = "sandtrail.events.v9.Unheard"
	r := f.run(t, "replay", "sandbox", box, "--at", "35")
	require.Equal(t, 0, r.code, "what was then is known although what came is not")
	require.Contains(t, r.stderr, "unknown_event")
}

func TestReplayOfAnExecAtAMoment(t *testing.T) {
	f := newFake(t)
	f.log = history()
	r := f.run(t, "replay", "exec", xid, "--at", "40", "-o", "json")
	require.Equal(t, 0, r.code, r.stderr)
	var doc struct {
		State    string   `json:"state"`
		Command  []string `json:"command"`
		ExitCode *int     `json:"exit_code"`
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &doc))
	require.Equal(t, "running", doc.State)
	require.Equal(t, "echo", doc.Command[0])
	require.Nil(t, doc.ExitCode)
	r = f.run(t, "replay", "exec", xid, "--at", "40")
	require.Regexp(t, `(?m)^exit_code +- +3$`, r.stdout)
	require.NotContains(t, r.stdout, "\x1b")
	require.Zero(t, f.count("AttachExec"))
	require.Equal(t, cli.ExitNotFound, f.run(t, "replay", "exec", xid, "--at", "35").code)
	require.Equal(t, cli.ExitUsage, f.run(t, "replay", "exec", xid, "--at", "35", "--play").code)
}

func TestReplayOfATenant(t *testing.T) {
	f := newFake(t)
	f.log = history()
	r := f.run(t, "replay", "tenant", "acme", "--at", "45")
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?m)^Sandboxes +1 ready$`, r.stdout)
	require.Regexp(t, `(?m)^Execs +1 open, 0 ended$`, r.stdout)
	require.Regexp(t, `(?m)^execs_running +1 +0$`, r.stdout)
	require.Regexp(t, `(?m)^sandboxes\.ready +1 +-$`, r.stdout)
	require.Equal(t, cli.ExitNotFound, f.run(t, "replay", "tenant", "acme", "--at", "1").code)
	require.Equal(t, cli.ExitUsage, f.run(t, "replay", "tenant", "a.b").code)
}

// film is an exec whose output comes with pauses: two characters are cut over chunks, and one never ends.
func film() []*computev1.ExecEvent {
	begin := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	chunk := func(n uint64, after time.Duration, e *computev1.ExecEvent) *computev1.ExecEvent {
		e.Chunk, e.EmittedAt = n, timestamppb.New(begin.Add(after))
		return e
	}
	out := func(s string) *computev1.ExecEvent {
		return &computev1.ExecEvent{Event: &computev1.ExecEvent_Stdout{Stdout: &computev1.StdoutLine{Data: []byte(s)}}}
	}
	errs := func(s string) *computev1.ExecEvent {
		return &computev1.ExecEvent{Event: &computev1.ExecEvent_Stderr{Stderr: &computev1.StderrLine{Data: []byte(s)}}}
	}
	return []*computev1.ExecEvent{
		chunk(1, 0, out("a\nb\r")),
		chunk(2, 100*time.Millisecond, out("\n\xe2\x82")),
		chunk(3, 200*time.Millisecond, errs("!\xc3")),
		{Event: &computev1.ExecEvent_Heartbeat{Heartbeat: &computev1.Heartbeat{}}},
		chunk(4, 300*time.Millisecond, out("\xac<\xff>")),
		chunk(5, time.Hour, &computev1.ExecEvent{Event: &computev1.ExecEvent_Gap{Gap: &computev1.OutputGap{Stream: "stdout", From: 0, To: 2048}}}),
		chunk(0, time.Hour, &computev1.ExecEvent{Event: &computev1.ExecEvent_Completed{Completed: &computev1.ExecCompleted{ExecId: xid, Reason: "exited"}}}),
	}
}

func TestPlayKeepsThePaceAndBoundsPauses(t *testing.T) {
	f := newFake(t)
	f.events = film()
	plain := f.run(t, "replay", "exec", xid)
	for _, c := range []struct {
		args  []string
		least time.Duration
	}{
		{[]string{"--max-pause", "150ms"}, 450 * time.Millisecond},
		{[]string{"--max-pause", "150ms", "--speed", "10"}, 180 * time.Millisecond},
		{[]string{"--max-pause", "0s"}, 0},
	} {
		start := time.Now()
		r := f.run(t, append([]string{"replay", "exec", xid, "--play"}, c.args...)...)
		require.Equal(t, plain, r, "the same bytes")
		require.GreaterOrEqual(t, time.Since(start), c.least)
		require.Less(t, time.Since(start), 10*time.Second, "an hour's pause is not played")
	}
	for _, args := range [][]string{{"--speed", "2"}, {"--play", "--speed", "0"}, {"--play", "--speed", "-1"}, {"--play", "--max-pause", "1h"}, {"--play", "--asciicast", "-"}} {
		require.Equal(t, cli.ExitUsage, f.run(t, append([]string{"replay", "exec", xid}, args...)...).code, "%v", args)
	}
}

func TestPlayEndsWhenInterrupted(t *testing.T) {
	f := newFake(t)
	f.events = film()
	signals := make(chan os.Signal, 1)
	signals <- os.Interrupt
	require.Equal(t, cli.ExitCancelled, f.runWith(t, nil, signals, "replay", "exec", xid, "--play", "--max-pause", "30s").code)
}

// A recording is text that a terminal shows as the program meant it: whole characters over any chunks.
func TestARecordingForAsciinema(t *testing.T) {
	f := newFake(t)
	f.events = film()
	const want = `{"version":2,"width":80,"height":24,"timestamp":1796032800,"title":"exec ` + xid + `"}
[0.000000,"o","a\r\nb\r"]
[0.100000,"o","\n"]
[0.200000,"o","!"]
[0.300000,"o","€<\ufffd>"]
[3600.000000,"m","2.0 KiB of stdout were dropped here"]
[3600.000000,"o","\ufffd"]
[3600.000000,"m","exit code 0 (exited)"]
`
	r := f.run(t, "replay", "exec", xid, "--asciicast", "-")
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, want, r.stdout)
	for i, line := range strings.Split(strings.TrimSpace(r.stdout), "\n") {
		require.True(t, json.Valid([]byte(line)), "line %d", i)
	}
	path := filepath.Join(t.TempDir(), "x.cast")
	require.Equal(t, 0, f.run(t, "replay", "exec", xid, "--asciicast", path).code)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(data))

	f.events = nil
	require.NotEqual(t, 0, f.run(t, "replay", "exec", box, "--asciicast", path+"2").code)
	left, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing half made stays behind")
}
