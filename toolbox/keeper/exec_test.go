package keeper_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
	"github.com/sandtrail/sandtrail/toolbox/keeper/keepertest"
)

func TestOutcomes(t *testing.T) {
	b := keepertest.Start(t)
	t.Logf("phases %+v", b.Result.Phases)
	script := func(s string) []string { return []string{"sh", "-c", s} }
	for name, c := range map[string]struct {
		start          *toolboxv1.Start
		reason         string
		code, signal   int32
		stdout, stderr string
		message        string
	}{
		"success":          {start: &toolboxv1.Start{Argv: script("echo out; echo err >&2")}, reason: "exited", stdout: "out\n", stderr: "err\n"},
		"exit code":        {start: &toolboxv1.Start{Argv: script("exit 3")}, reason: "exited", code: 3},
		"signal":           {start: &toolboxv1.Start{Argv: script("kill -9 $$")}, reason: "signaled", code: 137, signal: 9},
		"not found":        {start: &toolboxv1.Start{Argv: []string{"nosuch"}}, reason: "start_failed", code: 127, message: "command not found"},
		"no such path":     {start: &toolboxv1.Start{Argv: []string{"/nosuch"}}, reason: "start_failed", code: 127, message: "command not found"},
		"not executable":   {start: &toolboxv1.Start{Argv: []string{"/etc/passwd"}}, reason: "start_failed", code: 126, message: "cannot be executed"},
		"a directory":      {start: &toolboxv1.Start{Argv: []string{"/etc"}}, reason: "start_failed", code: 126, message: "cannot be executed"},
		"no directory":     {start: &toolboxv1.Start{Argv: []string{"pwd"}, WorkingDir: "/nosuch"}, reason: "start_failed", code: 126, message: "working directory"},
		"workspace":        {start: &toolboxv1.Start{Argv: []string{"pwd"}}, reason: "exited", stdout: "/workspace\n"},
		"absolute":         {start: &toolboxv1.Start{Argv: []string{"pwd"}, WorkingDir: "/etc/"}, reason: "exited", stdout: "/etc\n"},
		"default stdin":    {start: &toolboxv1.Start{Argv: []string{"cat"}}, reason: "exited"},
		"stdin":            {start: &toolboxv1.Start{Argv: []string{"cat"}, Stdin: []byte("a\x00\xffb")}, reason: "exited", stdout: "a\x00\xffb"},
		"environment":      {start: &toolboxv1.Start{Argv: script("echo $CANARY $X $HOME $PATH"), Env: map[string]string{"X": "1 2", "CANARY": "mine"}}, reason: "exited", stdout: "mine 1 2 /workspace /bin\n"},
		"own path":         {start: &toolboxv1.Start{Argv: []string{"sh"}, Env: map[string]string{"PATH": "/nowhere"}}, reason: "start_failed", code: 127, message: "command not found"},
		"no capabilities":  {start: &toolboxv1.Start{Argv: script("grep -c 'Cap.*0000000000000000' /proc/self/status; id -u; chown 5 /tmp 2>/dev/null || echo refused")}, reason: "exited", stdout: "5\n1000\nrefused\n"},
		"quiet background": {start: &toolboxv1.Start{Argv: script("sleep 600 & echo hi")}, reason: "exited", stdout: "hi\n"},
		"hostname":         {start: &toolboxv1.Start{Argv: []string{"hostname"}}, reason: "exited", stdout: b.Spec.Hostname + "\n"},
		"no network":       {start: &toolboxv1.Start{Argv: script("wget -T 2 -O - http://1.1.1.1 2>/dev/null || echo none")}, reason: "exited", stdout: "none\n"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			o := b.Do(t, c.start)
			require.Equal(t, c.reason, o.Reason, o.Message)
			require.Equal(t, c.code, o.ExitCode, o.Message)
			require.Equal(t, c.signal, o.Signal)
			require.Equal(t, c.stdout, o.Stdout)
			require.Equal(t, c.stderr, o.Stderr)
			require.Contains(t, o.Message, c.message)
			require.Less(t, time.Since(began), 5*time.Second)
			require.EqualValues(t, len(c.stdout), o.End.Stdout.Bytes)
		})
	}
}

// A second start of an id runs nothing, while it runs, after it ended, and after its output was dropped.
func TestAtMostOnce(t *testing.T) {
	b := keepertest.Start(t)
	r := &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sh", "-c", "echo x >>/workspace/count; cat"}, KeepStdin: true}
	first, err := b.Client.Start(t.Context(), r)
	require.NoError(t, err)
	require.True(t, first.Started)
	again, err := b.Client.Start(t.Context(), r)
	require.NoError(t, err)
	require.False(t, again.Started)
	require.Equal(t, "running", again.State.State)

	for range 2 {
		reply, err := b.Stdin(t.Context(), &toolboxv1.Stdin{ExecId: r.ExecId, Offset: 0, Data: []byte("hello ")})
		require.NoError(t, err)
		require.EqualValues(t, 6, reply.Offset)
	}
	_, err = b.Stdin(t.Context(), &toolboxv1.Stdin{ExecId: r.ExecId, Offset: 9, Data: []byte("gap")})
	require.Equal(t, "invalid_argument", failure(t, err).Code)
	_, err = b.Stdin(t.Context(), &toolboxv1.Stdin{ExecId: r.ExecId, Offset: 4, Data: []byte("o world"), Eof: true})
	require.NoError(t, err)
	require.Equal(t, "hello world", b.Follow(t, r.ExecId, 0, 0).Stdout)
	_, err = b.Stdin(t.Context(), &toolboxv1.Stdin{ExecId: r.ExecId, Offset: 11, Data: []byte("late")})
	require.Equal(t, "illegal_state", failure(t, err).Reason)

	for range 2 {
		ended, err := b.Client.Start(t.Context(), r)
		require.NoError(t, err)
		require.False(t, ended.Started)
		require.Equal(t, "exited", ended.State.End.Reason)
		_, err = b.Forget(t.Context(), &toolboxv1.Forget{ExecId: r.ExecId})
		require.NoError(t, err)
	}
	gone := b.Follow(t, r.ExecId, 4, 0)
	require.EqualValues(t, 7, gone.Skipped)
	require.Equal(t, "exited", gone.Reason)
	require.Equal(t, "x\n", b.Sh(t, "cat /workspace/count").Stdout)
}

func failure(t *testing.T, err error) *client.Error {
	t.Helper()
	var e *client.Error
	require.ErrorAs(t, err, &e)
	return e
}

// Attaching again and again at any offset gives the same bytes.
func TestAttachFromOffsets(t *testing.T) {
	b := keepertest.Start(t)
	id := keepertest.NewID()
	whole := b.Do(t, &toolboxv1.Start{ExecId: id, Argv: []string{"sh", "-c", "seq 1 100000; seq 1 1000 >&2"}})
	var want strings.Builder
	want.WriteString(b.Sh(t, "seq 1 100000").Stdout)
	require.Equal(t, want.String(), whole.Stdout)
	require.Zero(t, whole.Skipped)
	for _, at := range []uint64{0, 1, 4095, 4096, 65536, 300001, uint64(len(whole.Stdout)), uint64(len(whole.Stdout)) + 5} {
		part := b.Follow(t, id, at, at)
		require.Equal(t, whole.Stdout[min(at, uint64(len(whole.Stdout))):], part.Stdout)
		require.Equal(t, whole.Stderr[min(at, uint64(len(whole.Stderr))):], part.Stderr)
	}
}

// The first write is a piece of its own, also where the second follows at once.
func TestFirstWriteIsAPiece(t *testing.T) {
	b := keepertest.Start(t)
	for range 10 {
		o := b.Sh(t, "echo one; echo two")
		require.Equal(t, []string{"one\n", "two\n"}, o.Pieces)
	}
}

// Output over the cap keeps head and tail, and says what is missing, while nobody reads.
func TestFloodIsBounded(t *testing.T) {
	b := keepertest.Start(t)
	id := keepertest.NewID()
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sh", "-c", "echo head; dd if=/dev/zero bs=60000 count=1000 2>/dev/null; echo; echo tail"}, OutputCap: 1 << 20})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		l, err := b.List(t.Context(), &toolboxv1.List{})
		require.NoError(t, err)
		return l.Execs[0].State == "ended"
	}, 20*time.Second, 20*time.Millisecond)
	o := b.Follow(t, id, 0, 0)
	require.True(t, strings.HasPrefix(o.Stdout, "head\n"))
	require.True(t, strings.HasSuffix(o.Stdout, "\ntail\n"))
	require.LessOrEqual(t, len(o.Stdout), 1<<20)
	require.EqualValues(t, 60000011, uint64(len(o.Stdout))+o.Skipped)
	require.Equal(t, o.Skipped, o.End.Stdout.DroppedBytes)
}

func TestTooManyExecs(t *testing.T) {
	b := keepertest.Start(t)
	for range b.Spec.MaxExecs {
		_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"sleep", "600"}})
		require.NoError(t, err)
	}
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: keepertest.NewID(), Argv: []string{"true"}})
	require.Equal(t, "too_many_execs", failure(t, err).Reason)
}

// Input that the program does not read does not delay its end, also while a child holds the pipe.
func TestUnreadStdin(t *testing.T) {
	b := keepertest.Start(t)
	began := time.Now()
	o := b.Do(t, &toolboxv1.Start{Argv: []string{"sh", "-c", "sleep 600 & exit 4"}, Stdin: make([]byte, 900<<10), KeepStdin: true})
	require.Equal(t, int32(4), o.ExitCode)
	require.Less(t, time.Since(began), 30*time.Second)

	id := keepertest.NewID()
	_, err := b.Client.Start(t.Context(), &toolboxv1.Start{ExecId: id, Argv: []string{"sha256sum"}, Stdin: make([]byte, 900<<10), KeepStdin: true})
	require.NoError(t, err)
	at := uint64(900 << 10)
	for range 4 {
		r, err := b.Stdin(t.Context(), &toolboxv1.Stdin{ExecId: id, Offset: at, Data: make([]byte, 500<<10)})
		require.NoError(t, err)
		at = r.Offset
	}
	_, err = b.Stdin(t.Context(), &toolboxv1.Stdin{ExecId: id, Offset: at, Eof: true})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%x  -\n", sha256.Sum256(make([]byte, 2900<<10))), b.Follow(t, id, 0, 0).Stdout)
}
