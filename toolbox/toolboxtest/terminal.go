package toolboxtest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	toolboxv1 "github.com/sandtrail/sandtrail/proto/gen/go/toolbox/v1"
	"github.com/sandtrail/sandtrail/toolbox/client"
)

// RunTerminal checks what a toolbox promises of terminals. Beyond what Run wants the sandbox has stty, tty, tr, od and a shell with job
// control.
func RunTerminal(t *testing.T, c *client.Client) {
	s := suite{c}
	t.Run("is a terminal", s.isTerminal)
	t.Run("sizes", s.sizes)
	t.Run("refusals", s.terminalRefusals)
	t.Run("ends", s.terminalEnds)
	t.Run("interrupt", s.interrupt)
	t.Run("interrupt behind unread lines", s.interruptBehindLines)
	t.Run("job control", s.jobControl)
	t.Run("bytes out", s.terminalBytesOut)
	t.Run("bytes in", s.terminalBytesIn)
	t.Run("10 MB", s.terminalFlood)
	t.Run("end of input", s.terminalEOF)
	t.Run("cancel", s.terminalCancel)
}

func size(columns, rows uint32) *commonv1.TerminalSize {
	return &commonv1.TerminalSize{Columns: columns, Rows: rows}
}

// screen is a program on a terminal, seen by one who types.
type screen struct {
	suite
	t      *testing.T
	ctx    context.Context //nolint:containedctx // of one test
	id     string
	stream *client.Stream
	shown  []byte
	// seen is up to where until has looked, typed how much was typed.
	seen  int
	typed uint64
	end   *toolboxv1.End
}

// patience bounds the wait for what must come.
const patience = 30 * time.Second

func (s suite) on(t *testing.T, argv ...string) *screen {
	t.Helper()
	id := NewID()
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
	t.Cleanup(cancel)
	reply, err := s.Start(ctx, &toolboxv1.Start{
		ExecId: id, Argv: argv, Terminal: size(100, 30), KeepStdin: true, Env: map[string]string{"PS1": "> ", "HISTFILE": ""},
	})
	require.NoError(t, err)
	require.True(t, reply.Started)
	stream, err := s.Attach(ctx, &toolboxv1.Attach{ExecId: id})
	require.NoError(t, err)
	t.Cleanup(stream.Close)
	return &screen{suite: s, t: t, ctx: ctx, id: id, stream: stream}
}

// shell is an interactive one that has shown its first prompt.
func (s suite) shell(t *testing.T) *screen {
	t.Helper()
	v := s.on(t, "/bin/sh")
	v.until("> ")
	return v
}

// next reads one event; false: the end.
func (v *screen) next() bool {
	v.t.Helper()
	e, err := v.stream.Recv()
	require.NoError(v.t, err, "shown so far: %q", v.tail())
	require.Nil(v.t, e.GetSkip(), "output is missing")
	if d := e.GetData(); d != nil {
		require.EqualValues(v.t, 1, d.Stream, "%q", d.Data)
		require.Equal(v.t, uint64(len(v.shown)), d.Offset)
		v.shown = append(v.shown, d.Data...)
	}
	v.end = e.GetEnd()
	return v.end == nil
}

func (v *screen) tail() []byte { return v.shown[max(0, len(v.shown)-4096):] }

// until reads until a text is shown behind the one before.
func (v *screen) until(text string) {
	v.t.Helper()
	for {
		if i := bytes.Index(v.shown[v.seen:], []byte(text)); i >= 0 {
			v.seen += i + len(text)
			return
		}
		require.True(v.t, v.next(), "it ended without %q: %q", text, v.tail())
	}
}

func (v *screen) toEnd() *toolboxv1.End {
	v.t.Helper()
	for v.next() {
	}
	return v.end
}

func (v *screen) keys(text string) {
	v.t.Helper()
	for data := []byte(text); len(data) > 0; {
		r, err := v.Stdin(v.ctx, &toolboxv1.Stdin{ExecId: v.id, Offset: v.typed, Data: data})
		require.NoError(v.t, err)
		data = data[r.Offset-v.typed:]
		v.typed = r.Offset
	}
}

// busy has the shell run something that has the terminal by the time that it returns.
func (v *screen) busy() {
	v.t.Helper()
	v.keys(`sh -c 'echo be""gun; exec sleep 600'` + "\r")
	v.until("begun\r\n")
}

func (v *screen) resize(columns, rows uint32) error {
	_, err := v.Resize(v.ctx, &toolboxv1.Resize{ExecId: v.id, Size: size(columns, rows)})
	return err
}

func (s suite) isTerminal(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", `stty size; tty; for i in 0 1 2; do test -t $i && echo "t$i"; done; echo err >&2; echo "$TERM"; : </dev/tty && echo own; exit 7`)
	end := v.toEnd()
	lines := strings.Split(string(v.shown), "\r\n")
	require.Len(t, lines, 9, "%q", v.shown)
	require.Regexp(t, `^/dev/pts/\d+$`, lines[1])
	lines[1] = ""
	require.Equal(t, []string{"30 100", "", "t0", "t1", "t2", "err", "xterm-256color", "own", ""}, lines)
	require.EqualValues(t, 7, end.ExitCode)
	require.Equal(t, "exited", end.Reason)
	require.EqualValues(t, len(v.shown), end.Stdout.Bytes)
	require.Zero(t, end.Stderr.Bytes)
}

func (s suite) sizes(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
	v.until("ready")
	require.NoError(t, v.resize(132, 50))
	v.until("50 132\r\n")
	require.NoError(t, v.resize(1000, 2))
	v.until("2 1000\r\n")
}

func (s suite) terminalRefusals(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", "echo ready; sleep 600")
	v.until("ready")
	for _, wrong := range []*commonv1.TerminalSize{nil, size(0, 30), size(100, 0), size(1001, 30), size(100, 1<<31)} {
		_, err := s.Resize(v.ctx, &toolboxv1.Resize{ExecId: v.id, Size: wrong})
		require.ErrorIs(t, err, &client.Error{Code: "invalid_argument", Reason: "validation"})
	}
	_, err := s.Start(v.ctx, &toolboxv1.Start{ExecId: NewID(), Argv: []string{"true"}, Terminal: size(0, 0)})
	require.ErrorIs(t, err, &client.Error{Code: "invalid_argument", Reason: "validation"})
	plain := s.sh(t, "sleep 600")
	for id, want := range map[string]*client.Error{
		plain:   {Code: "failed_precondition", Reason: "illegal_state"},
		NewID(): {Code: "not_found", Reason: "exec_not_found"},
	} {
		_, err := s.Resize(v.ctx, &toolboxv1.Resize{ExecId: id, Size: size(10, 10)})
		require.ErrorIs(t, err, want)
	}
	for _, id := range []string{plain, v.id} {
		_, err := s.Signal(v.ctx, &toolboxv1.Signal{ExecId: id, Tree: true})
		require.NoError(t, err)
	}
	v.toEnd()
	require.ErrorIs(t, v.resize(10, 10), &client.Error{Code: "failed_precondition", Reason: "illegal_state"})
}

// terminalEnds: what is recorded of a program on a terminal is its own end, not that of who holds the terminal.
func (s suite) terminalEnds(t *testing.T) {
	for name, c := range map[string]struct {
		argv         []string
		reason       string
		code, signal int32
		shown        string
	}{
		"exit code":        {argv: []string{"/bin/sh", "-c", "exit 3"}, reason: "exited", code: 3},
		"killed":           {argv: []string{"/bin/sh", "-c", "kill -9 $$"}, reason: "signaled", code: 137, signal: 9},
		"terminated":       {argv: []string{"/bin/sh", "-c", "kill -15 $$"}, reason: "signaled", code: 143, signal: 15},
		"segfault":         {argv: []string{"/bin/sh", "-c", "kill -11 $$"}, reason: "signaled", code: 139, signal: 11},
		"not found":        {argv: []string{"nosuch"}, reason: "start_failed", code: 127},
		"no such path":     {argv: []string{"/nosuch/program"}, reason: "start_failed", code: 127},
		"a directory":      {argv: []string{"/etc"}, reason: "start_failed", code: 126},
		"not executable":   {argv: []string{"/etc/passwd"}, reason: "start_failed", code: 126},
		"quiet background": {argv: []string{"/bin/sh", "-c", "sleep 600 & echo hi; exit 5"}, reason: "exited", code: 5, shown: "hi\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			v := s.on(t, c.argv...)
			end := v.toEnd()
			require.Equal(t, []any{c.reason, c.code, c.signal}, []any{end.Reason, end.ExitCode, end.Signal}, end.Message)
			require.Equal(t, c.shown, string(v.shown))
			require.Less(t, time.Since(began), 30*time.Second)
		})
	}
}

func (s suite) interrupt(t *testing.T) {
	v := s.shell(t)
	v.busy()
	v.keys("\x03")
	v.until("> ")
	v.keys("echo code=$?.\r")
	v.until("code=130.")
	v.keys("exit 4\r")
	require.EqualValues(t, 4, v.toEnd().ExitCode)
}

// interruptBehindLines: Ctrl-C works at once also where lines were typed that the program does not read, which are gone then.
func (s suite) interruptBehindLines(t *testing.T) {
	v := s.shell(t)
	v.busy()
	v.keys("echo no\"\"ne\recho of these\r")
	v.keys("\x03")
	v.until("> ")
	v.keys("echo code=$?.\r")
	v.until("code=130.")
	v.keys("exit\r")
	v.toEnd()
	require.NotContains(t, string(v.shown), "none\r\n")
}

func (s suite) jobControl(t *testing.T) {
	v := s.shell(t)
	v.keys(`sh -c 'trap "echo wo""ken" CONT; echo be""gun; while :; do sleep 0.05; done'` + "\r")
	v.until("begun\r\n")
	v.keys("\x1a")
	v.until("Stopped")
	v.until("> ")
	v.keys("bg\r")
	v.until("woken")
	v.keys("jobs\r")
	v.until("Running")
	v.keys("fg\r")
	// It has the terminal by the time it is told to go on.
	v.until("woken")
	v.keys("\x03")
	v.until("> ")
	v.keys("echo code=$?.\r")
	v.until("code=130.")
	v.keys("exit\r")
	v.toEnd()
}

// terminalBytesOut: colours, zero bytes and what is no UTF-8 pass as they are.
func (s suite) terminalBytesOut(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", `stty raw -echo; printf '\033[1;31mred\033[0m\377\000\200\303\n\r\n\t'; printf 'caf\303\251'`)
	v.toEnd()
	require.Equal(t, "\x1b[1;31mred\x1b[0m\xff\x00\x80\xc3\n\r\n\tcaf\xc3\xa9", string(v.shown))
}

// terminalBytesIn: in raw mode every byte reaches the program.
func (s suite) terminalBytesIn(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", `stty raw -echo; printf ready; dd bs=1 count=512 2>/dev/null | od -An -v -tx1 | tr -d ' \n'`)
	v.until("ready")
	var all []byte
	for i := range 512 {
		all = append(all, byte(i))
	}
	v.keys(string(all))
	v.toEnd()
	require.Equal(t, fmt.Sprintf("%x", all), string(v.shown[v.seen:]))
}

func (s suite) terminalFlood(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", "seq 1 1500000 | cat")
	end := v.toEnd()
	var want bytes.Buffer
	for i := range 1_500_000 {
		fmt.Fprintf(&want, "%d\r\n", i+1)
	}
	require.True(t, bytes.Equal(want.Bytes(), v.shown), "%d bytes of %d", len(v.shown), want.Len())
	require.EqualValues(t, want.Len(), end.Stdout.Bytes)
	require.Zero(t, end.Stdout.DroppedBytes)
}

func (s suite) terminalEOF(t *testing.T) {
	v := s.on(t, "/bin/sh", "-c", "sed 's/.*/<&>/'; echo over; exit 9")
	v.keys("one\r")
	v.until("one\r\n")
	_, err := s.Stdin(v.ctx, &toolboxv1.Stdin{ExecId: v.id, Offset: v.typed, Eof: true})
	require.NoError(t, err)
	v.until("<one>\r\nover\r\n")
	require.EqualValues(t, 9, v.toEnd().ExitCode)
}

// terminalCancel: an interactive shell, which does not listen to TERM, ends before it has to be killed.
func (s suite) terminalCancel(t *testing.T) {
	v := s.shell(t)
	began := time.Now()
	_, err := s.Signal(v.ctx, &toolboxv1.Signal{ExecId: v.id, Tree: true, GraceMs: 60_000, Reason: "cancelled"})
	require.NoError(t, err)
	require.Equal(t, "cancelled", v.toEnd().Reason)
	require.Less(t, time.Since(began), 30*time.Second)
}
